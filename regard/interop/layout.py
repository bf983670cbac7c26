"""A layout maps a network to a checkpoint folder: the keys of config.json and the names of the tensors."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch import Tensor, nn

from regard.interop.config_keys import Json, Keys, keys_from, read_fields, require_values
from regard.interop.safetensors import NEVER, TensorSpec, TensorSpecs
from regard.models.registry import FAMILIES, build, family_of
from regard.text.tokenizer import Tokenizer

# Heads, by what the names of their published classes end with.
NO_HEAD = "Model"
MASKED_LM = "ForMaskedLM"
BIDIRECTIONAL_LM = "ForBidirectionalLM"
PRETRAINING = "ForPreTraining"
SEQUENCE = "ForSequenceClassification"
TOKEN = "ForTokenClassification"
SPAN = "ForQuestionAnswering"
IMAGE = "ForImageClassification"
TEACHER = "ForImageClassificationWithTeacher"
FOR_CTC = "ForCTC"
CLASSIFICATION = (SEQUENCE, IMAGE, TEACHER)

POOLER = "has_pooler"  # a key of regard, for files whose pooler is not what transformers expects for their head

KINDS = ("weight", "bias")
BLOCK_PARAMETER = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)\.(weight|bias)")


class Layout(ABC):
    """One model_type. In arguments, `config` is a parsed config.json, and tensors have the names of the file."""

    model_type: str
    family: str
    architecture: str  # the published class of the network without a task head
    keys: Keys = {}
    ignored: re.Pattern[str] = NEVER  # tensors without information, such as masks saved as buffers
    prefix: str = ""  # of names in a file; files of a bare backbone may leave it out
    head_names: Mapping[str, Mapping[str, str]] = {}  # for each supported head: our module → its name, if that differs
    pooled: Set[str] = frozenset()  # the heads whose backbone has a pooler in published files
    generation_keys: Set[str] = frozenset()  # of generation_config.json, which are supported by this model_type alone
    lm_modules: Set[str] = frozenset()  # of a language model's output, which a classifier's file may still contain

    @abstractmethod
    def matches(self, network: nn.Module) -> bool:
        """Whether the network computes what this model_type computes, if necessary after `canonical`."""

    def canonical(self, network: nn.Module) -> nn.Module:
        """The same function with its parameters as this layout stores them."""
        return network

    @abstractmethod
    def read(self, config: Json) -> nn.Module:
        """A network from config.json, its weights still random."""

    @abstractmethod
    def describe(self, network: nn.Module, foreign: Json) -> Json:
        """config.json of a network; `foreign` is the one it was loaded with, whose other keys are kept."""

    @abstractmethod
    def tensor_specs(self, network: nn.Module) -> TensorSpecs:
        """Where the file stores each parameter."""

    def infer_config(self, config: Json, tensors: Mapping[str, Tensor]) -> Json:
        """config.json, completed with what only the tensors show."""
        return config

    def adapt_tensors(self, tensors: dict[str, Tensor], config: Json) -> dict[str, Tensor]:
        """A file's tensors under current names, with omitted ones filled in and unused ones dropped."""
        return tensors

    def check_generation(self, generation: Json, network: Any, tokenizer: Tokenizer) -> None:  # noqa: B027, optional
        """Reject invalid values of keys of generation_config.json that only this model_type has."""


class Published(Layout):
    """A model_type of transformers, as tables."""

    fixed: Mapping[str, Any] = {}  # fields of our config that this model_type determines
    positive: Sequence[str] = ()  # fields that are above 0 in this model_type
    required: Mapping[str, Any]  # keys that change the computation: the one value that is supported
    aliases: Mapping[str, str] = {}  # another name for a key: it takes precedence, as in transformers
    extra_keys: Mapping[str, Any] = {}  # whose published defaults differ from what the network does
    dropout_keys: Sequence[str] = ()  # further keys of the dropout rate
    outer_modules: Mapping[str, str] = {}  # the modules outside the blocks: our name → theirs, without the prefix
    block: str  # the prefix of names inside a block, with {side} and {index}
    block_names: Mapping[str, str]  # the modules of a block: our name → theirs

    def outer_names(self, config: Any) -> dict[str, tuple[str, ...]]:
        """Our parameters outside the blocks: their name, and those of its copies."""
        modules = {ours: self.prefix + theirs for ours, theirs in self.outer_modules.items()}
        return {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in modules.items() for kind in KINDS}

    def matches(self, network: nn.Module) -> bool:
        return family_of(network) == self.family and self.matches_config(network.config)

    def matches_config(self, config: Any) -> bool:
        """Whether a network of our family with this config computes what this model_type computes."""
        fields = self.config_fields(config)
        known = [fields[key.ours] in key.values.values() for key in self.keys.values() if key.values is not None]
        fits = all(known) and all(fields[name] > 0 for name in self.positive)
        return fits and all(fields[name] == value for name, value in self.fixed.items())

    def read(self, config: Json) -> nn.Module:
        return build(self.model_table(config))

    def model_table(self, config: Json) -> Json:
        """The network as a recipe's [model] table would describe it."""
        require_values(config, self.required)
        config = config | {key: config[alias] for alias, key in self.aliases.items() if alias in config}
        return {"family": self.family, **self.fixed, **self.read_fields(config)}

    def read_fields(self, config: Json) -> Json:
        """The fields of our config that config.json determines."""
        return read_fields(config, self.keys)

    def describe(self, network: nn.Module, foreign: Json) -> Json:
        config: Any = network.config
        return {
            **self.extra_keys,
            **dict.fromkeys(self.dropout_keys, config.dropout),
            **{key: value for key, value in foreign.items() if key != "torch_dtype"},
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": FAMILIES[self.family].is_encoder_decoder,
            **keys_from(self.config_fields(config), self.keys, foreign),
        }

    def config_fields(self, config: Any) -> Json:
        """The fields of our config, with sizes that follow from others written out."""
        return vars(config)

    def tensor_specs(self, network: nn.Module) -> TensorSpecs:
        specs = {}
        outer_names = self.outer_names(network.config)
        for name, _ in network.named_parameters():
            module, kind = name.rsplit(".", 1)
            theirs = outer_names.get(name, ())
            if not theirs and (match := BLOCK_PARAMETER.fullmatch(name)):
                side, index, module, kind = match.groups()
                theirs = (f"{self.block_prefix(network.config, side, int(index))}{self.block_names[module]}.{kind}",)
            unprefixed = (their_name.removeprefix(self.prefix) for their_name in theirs)
            specs[name] = self.tensor_spec(module, kind, tuple(dict.fromkeys([*theirs, *unprefixed])))
        return specs

    def block_prefix(self, config: Any, side: str, index: int) -> str:
        """The prefix of names inside a block."""
        return self.block.format(side=side, index=index)

    def tensor_spec(self, module: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        """How tensors of these names hold the weight or bias (`kind`) of our `module`."""
        return TensorSpec(names)


class PublishedCausalLM(Published):
    """A decoder-only language model. With a classification head, its file has no output layer."""

    required = {"is_encoder_decoder": False, "add_cross_attention": False, "quantization_config": None}
    embedding: str  # its name, without the prefix; the output layer may be tied to it
    head_names = {SEQUENCE: {"head": "score"}}
    lm_modules = frozenset({"lm_head"})

    def outer_names(self, config: Any) -> dict[str, tuple[str, ...]]:
        embedding = f"{self.prefix}{self.embedding}.weight"
        copies = ("lm_head.weight",) if config.tied else ()
        embeddings = {"embed.table.weight": (embedding, *copies), "output.weight": ("lm_head.weight",)}
        return super().outer_names(config) | embeddings
