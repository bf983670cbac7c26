"""A backbone with a head, under published names.

    BertModel · BertForMaskedLM · BertForPreTraining · BertForSequenceClassification · BertForTokenClassification · …
    GPT2LMHeadModel · GPT2ForSequenceClassification · …

`architectures` in config.json names the head; without it, the tensors show which one it is. The head's tensors are
stored next to the backbone's, whose names then have the backbone's prefix.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.interop.config_keys import Json, checked, unsupported
from regard.interop.label_config import CLASSIFIER_KEYS, LABEL_KEYS, classifier_keys, label_keys, labels_of
from regard.interop.label_config import classifier as build_classifier
from regard.interop.label_config import documents as build_documents
from regard.interop.layout import (
    BIDIRECTIONAL_LM,
    CLASSIFICATION,
    FOR_CTC,
    IMAGE,
    MASKED_LM,
    NO_HEAD,
    POOLER,
    PRETRAINING,
    SEQUENCE,
    SPAN,
    TEACHER,
    TOKEN,
    Layout,
)
from regard.interop.native import current_name
from regard.interop.safetensors import TensorSpec, TensorSpecs, on_meta
from regard.layers.inputs import ImageBatch, TokenBatch
from regard.models.deit import DistilledClassifier
from regard.models.elmo import BidirectionalLM
from regard.models.heads.ctc import CTC
from regard.models.heads.hierarchical import Documents
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import FAMILIES

DOCUMENTS = "ForDocumentClassification"
MEAN_POOLED = "ForMeanClassification"
UNPUBLISHED = (DOCUMENTS, MEAN_POOLED)  # heads that only regard has: their tensors have our names
UNPUBLISHED_TYPE = "regard-classifier-"  # before a published model_type: other libraries would add a random head
UNPUBLISHED_NOTE = "transformers cannot open this checkpoint: only regard has its head"
MEAN_NOTE = "for a classifier that transformers opens, train with model.pooling=cls"

NO_ANSWER = "no_answer"  # a key of regard: whether a question-answering model was trained on unanswerable questions
VOCABULARY = "vocab_size"  # of a CTC head

OUR_KEYS = (POOLER, NO_ANSWER, *CLASSIFIER_KEYS)

HEADS: dict[str, Callable[[Any, Json], nn.Module]] = {  # in the order in which tensors are compared with them
    PRETRAINING: lambda body, config: Pretraining(body),
    MASKED_LM: lambda body, config: MaskedLM(body),
    BIDIRECTIONAL_LM: lambda body, config: BidirectionalLM(body),
    SPAN: lambda body, config: SpanClassifier(body, checked(config, NO_ANSWER, False)),
    SEQUENCE: build_classifier,
    TEACHER: partial(build_classifier, kind=DistilledClassifier),
    IMAGE: build_classifier,
    TOKEN: lambda body, config: TokenClassifier(body, labels_of(config, least=1)),
    FOR_CTC: lambda body, config: CTC(body, checked(config, VOCABULARY, 32)),
    DOCUMENTS: build_documents,
    MEAN_POOLED: build_classifier,
    NO_HEAD: lambda body, config: body,
}
HEAD_OF_CLASS: dict[type, str] = {
    Pretraining: PRETRAINING,
    MaskedLM: MASKED_LM,
    BidirectionalLM: BIDIRECTIONAL_LM,
    SpanClassifier: SPAN,
    Classifier: SEQUENCE,
    DistilledClassifier: TEACHER,
    TokenClassifier: TOKEN,
    CTC: FOR_CTC,
    Documents: DOCUMENTS,
}
HEAD_PARAMETERS = {f"{head}.{kind}" for head in ("head", "distillation_head") for kind in ("weight", "bias")}
BACKBONE_SUFFIX = re.compile(r"(LMHeadModel|ForCausalLM|Model)$")
OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}  # of layer norms in early BERT files


def head_of(network: object) -> str:
    """What the name of the network's published class ends with."""
    if type(network) is Classifier and network.mean_pooled:
        return MEAN_POOLED
    if type(network) is Classifier and network.input_type is ImageBatch:
        return IMAGE
    return HEAD_OF_CLASS.get(type(network), NO_HEAD)


def is_unpublished(network: object) -> bool:
    """Whether other libraries do not know the network's head."""
    return head_of(network) in UNPUBLISHED


class HeadedLayout(Layout):
    """The layout `body` of a backbone, extended to networks with any of its heads."""

    def __init__(self, body: Layout):
        self.body = body
        self.model_type = body.model_type
        self.family = body.family
        self.architecture = body.architecture
        self.ignored = body.ignored
        self.prefix = body.prefix
        self.head_names = body.head_names
        self.is_encoder = FAMILIES[body.family].is_encoder
        is_text = FAMILIES[body.family].input_type is TokenBatch
        self.heads = (NO_HEAD, *self.head_names, *(UNPUBLISHED if self.is_encoder and is_text else ()))
        self.class_prefix = BACKBONE_SUFFIX.sub("", body.architecture)

    def matches(self, network: nn.Module) -> bool:
        head = head_of(network)
        if head not in self.heads or not self.body.matches(getattr(network, "body", network)):
            return False
        modules = {name.rpartition(".")[0] for name, _ in network.named_parameters() if not name.startswith("body.")}
        names = self.head_names.get(head)
        return not names or modules <= names.keys()

    def read(self, config: Json) -> nn.Module:
        head = self._named_head(config) or NO_HEAD
        of_head = (*OUR_KEYS, *LABEL_KEYS, *([VOCABULARY] if head == FOR_CTC else []))
        keys = {key: value for key, value in config.items() if key not in of_head}
        if POOLER in self.body.keys:
            keys[POOLER] = checked(config, POOLER, head in self.body.pooled)
        return HEADS[head](self.body.read(keys), config)

    def describe(self, network: Any, foreign: Json) -> Json:
        head = head_of(network)
        keys: Json = {} if head == NO_HEAD else {"architectures": [self.class_prefix + head]}
        if isinstance(network, Classifier):
            keys |= classifier_keys(network, foreign)
        elif head == TOKEN:
            keys |= label_keys(network.labels)
        elif head == SPAN and network.allows_no_answer:
            keys[NO_ANSWER] = True
        elif head == FOR_CTC:
            keys[VOCABULARY] = network.vocabulary
        config = self.body.describe(getattr(network, "body", network), foreign)
        if POOLER in self.body.keys and head not in CLASSIFICATION and config[POOLER] != (head in self.body.pooled):
            keys[POOLER] = config[POOLER]
        head_keys = OUR_KEYS + (LABEL_KEYS if head in (*CLASSIFICATION, TOKEN, *UNPUBLISHED) else ())
        return {key: value for key, value in (config | keys).items() if key in keys or key not in head_keys}

    def tensor_specs(self, network: Any) -> TensorSpecs:
        head = head_of(network)
        if head == NO_HEAD:
            specs = self.body.tensor_specs(network)
            return {name: self._unprefixed(spec) for name, spec in specs.items()} if self.is_encoder else specs
        tied = bool(getattr(network.config, "tied", False))
        specs = {f"body.{name}": spec for name, spec in self.body.tensor_specs(network.body).items()}
        for name, _ in network.named_parameters():
            if not name.startswith("body."):
                specs[name] = self._head_spec(head, name, tied)
        if head in CLASSIFICATION:
            for name in HEAD_PARAMETERS & specs.keys():
                specs[name] = specs[name]._replace(scale=network.scale)
        if head == SEQUENCE and self.is_encoder:  # one name for the pooler, whether the backbone came with it or not
            for kind in ("weight", "bias"):
                pooler = self._head_spec(head, f"pool.dense.{kind}", tied)
                specs |= {f"pool.dense.{kind}": pooler, f"body.pooler.dense.{kind}": pooler}
        if head in (MASKED_LM, PRETRAINING) and tied:
            table = specs["body.embed.table.weight"]
            copy = self._head_spec(head, "lm_head.output.weight", tied)
            specs["body.embed.table.weight"] = table._replace(names=table.names + copy.names)
        return specs

    def _unprefixed(self, spec: TensorSpec) -> TensorSpec:
        """With the name without the prefix first, as bare encoders are written."""
        return spec._replace(names=tuple(sorted(spec.names, key=lambda name: name.startswith(self.prefix))))

    def infer_config(self, config: Json, tensors: Mapping[str, Tensor]) -> Json:
        """With the head, which config.json need not name, and whether there is a pooler."""
        tensors = self.body.adapt_tensors(dict(tensors), config)
        head = self._named_head(config)
        if head is None:
            head = next((head for head in HEADS if self._has_tensors_of(head, tensors)), NO_HEAD)
        elif head == MASKED_LM and self._has_tensors_of(PRETRAINING, tensors):
            head = PRETRAINING
        config = config | {"architectures": [self.class_prefix + head]}
        if head not in CLASSIFICATION:
            config[POOLER] = head == PRETRAINING or any("pooler." in name for name in tensors)
        return config

    def adapt_tensors(self, tensors: dict[str, Tensor], config: Json) -> dict[str, Tensor]:
        """Layer norms under their current names, and without pretraining heads that the network does not have."""
        tensors = self.body.adapt_tensors(tensors, config)
        for old, new in OLD_SUFFIXES.items():
            tensors = {re.sub(rf"{re.escape(old)}$", new, name): tensor for name, tensor in tensors.items()}
        head = self._named_head(config)
        if head in UNPUBLISHED:
            tensors = {current_name(name, self.family): tensor for name, tensor in tensors.items()}
        if head in (NO_HEAD, MASKED_LM, PRETRAINING):
            return tensors
        dropped = set(self.body.lm_modules)
        for head in (MASKED_LM, PRETRAINING):
            dropped |= set(self.head_names.get(head, {}).values())
        dropped |= {module.removesuffix(".decoder") for module in dropped}
        with on_meta():
            used = {name for spec in self.tensor_specs(self.read(config)).values() for name in spec.names}
        return {
            name: tensor for name, tensor in tensors.items() if name in used or name.rpartition(".")[0] not in dropped
        }

    def _named_head(self, config: Json) -> str | None:
        """The head that config.json names, if it names any."""
        architectures = config.get("architectures")
        if not architectures:
            return None
        name = str(architectures[0] if isinstance(architectures, list) else architectures)
        head = next((head for head in HEADS if name.endswith(head)), None)
        if head in self.heads:
            return head
        if head is None and not self.is_encoder:
            return NO_HEAD
        raise unsupported("architectures", name, [self.class_prefix + head for head in self.heads])

    def _head_spec(self, head: str, name: str, tied: bool) -> TensorSpec:
        """Where the file stores a parameter of the head.

        The output's bias has two names: copies where the output is tied to the embedding, else the second counts.
        """
        module, kind = name.rsplit(".", 1)
        theirs = self.head_names.get(head, {}).get(module, module)
        if (module, kind) != ("lm_head.output", "bias") or not theirs.endswith("decoder"):
            return TensorSpec((f"{theirs}.{kind}",))
        names = (f"{theirs.removesuffix('decoder')}bias", f"{theirs}.bias")
        return TensorSpec(names) if tied else TensorSpec(names[::-1], write_copies=True)

    def _has_tensors_of(self, head: str, tensors: Mapping[str, Tensor]) -> bool:
        modules = [theirs for ours, theirs in self.head_names.get(head, {}).items() if ours != "lm_head.output"]
        return bool(modules) and all(
            f"{theirs}.weight" in tensors or f"{theirs}.gamma" in tensors for theirs in modules
        )
