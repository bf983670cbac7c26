"""A layout maps a network to a checkpoint folder: the keys of config.json and the names of the tensors."""

import re
from collections.abc import Mapping, Set
from typing import Any

from torch import Tensor, nn

from regard.interop.config_keys import Keys, keys_from, read_fields, require_values
from regard.interop.safetensors import NEVER, TensorSpec, TensorSpecs
from regard.models.registry import FAMILIES, build, family_of

# Heads, by what the names of their published classes end with.
NO_HEAD = "Model"
MASKED_LM = "ForMaskedLM"
PRETRAINING = "ForPreTraining"
SEQUENCE = "ForSequenceClassification"
TOKEN = "ForTokenClassification"
SPAN = "ForQuestionAnswering"

POOLER = "has_pooler"  # a key of regard, for files whose pooler is not what transformers expects for their head

BLOCK_PARAMETER = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)\.(weight|bias)")


class Layout:
    """One model_type. In arguments, `config` is a parsed config.json, and tensors have the names of the file."""

    model_type: str
    family: str
    architecture: str  # the published class of the network without a task head
    keys: Keys = {}
    ignored: re.Pattern[str] = NEVER  # tensors without information, such as masks saved as buffers
    prefix: str = ""  # of names in a file; files of a bare backbone may leave it out
    head_names: Mapping[str, Mapping[str, str]] = {}  # for each supported head: our module → its name, if that differs
    pooled: Set[str] = frozenset()  # the heads whose backbone has a pooler in published files
    lm_modules: Set[str] = frozenset()  # of a language model's output, which a classifier's file may still contain

    def matches(self, network: nn.Module) -> bool:
        """Whether the network computes what this model_type computes, if necessary after `canonical`."""
        raise NotImplementedError

    def canonical(self, network: nn.Module) -> nn.Module:
        """The same function with its parameters as this layout stores them."""
        return network

    def read(self, config: dict[str, Any]) -> nn.Module:
        """A network from config.json, its weights still random."""
        raise NotImplementedError

    def describe(self, network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
        """config.json of a network; `foreign` is the one it was loaded with, whose other keys are kept."""
        raise NotImplementedError

    def tensor_specs(self, network: nn.Module) -> TensorSpecs:
        """Where the file stores each parameter."""
        raise NotImplementedError

    def infer_config(self, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """config.json, completed with what only the tensors show."""
        return config

    def adapt_tensors(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
        """A file's tensors under current names, with omitted ones filled in and unused ones dropped."""
        return tensors


class Published(Layout):
    """A model_type of transformers, as tables."""

    fixed: Mapping[str, Any] = {}  # fields of our config that this model_type determines
    required: Mapping[str, Any]  # keys that change the computation: the one value that is supported
    aliases: Mapping[str, str] = {}  # another name for a key: it takes precedence, as in transformers
    block: str  # the prefix of names inside a block, with {side} and {index}
    block_names: Mapping[str, str]  # the modules of a block: our name → theirs

    def outer_names(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        """Our parameters outside the blocks: their name, and those of its copies."""
        raise NotImplementedError

    def matches(self, network: nn.Module) -> bool:
        if family_of(network) != self.family:
            return False
        fields = self.config_fields(network.config)
        known = [fields[key.ours] in key.values.values() for key in self.keys.values() if key.values is not None]
        return all(known) and all(fields[name] == value for name, value in self.fixed.items())

    def read(self, config: dict[str, Any]) -> nn.Module:
        require_values(config, self.required)
        config = config | {key: config[alias] for alias, key in self.aliases.items() if alias in config}
        return build({"family": self.family, **self.fixed, **self.read_fields(config)})

    def read_fields(self, config: dict[str, Any]) -> dict[str, Any]:
        """The fields of our config that config.json determines."""
        return read_fields(config, self.keys)

    def describe(self, network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
        return {
            **self.extra_keys(network.config),
            **{key: value for key, value in foreign.items() if key != "torch_dtype"},
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": FAMILIES[self.family].is_encoder_decoder,
            **keys_from(self.config_fields(network.config), self.keys, foreign),
        }

    def config_fields(self, config: Any) -> dict[str, Any]:
        """The fields of our config, with sizes that follow from others written out."""
        return vars(config)

    def extra_keys(self, config: Any) -> dict[str, Any]:
        """Keys whose published defaults differ from what the network does, unless a loaded config has them."""
        return {}

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

    head_names = {SEQUENCE: {"head": "score"}}
    lm_modules = frozenset({"lm_head"})


def embedding_names(embedding: str, tied: bool) -> dict[str, tuple[str, ...]]:
    """The embedding and the output layer of a language model, which may be tied."""
    if tied:
        return {"embed.table.weight": (embedding, "lm_head.weight")}
    return {"embed.table.weight": (embedding,), "output.weight": ("lm_head.weight",)}
