"""Encoders with their heads under published names: `architectures` says which, else the tensors do.

    BertModel · BertForMaskedLM · BertForPreTraining · BertForSequenceClassification · …TokenClassification · …

A head's tensors stand beside the body's, which then have the body's prefix.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any

from torch import Tensor, nn

from regard.errors import UserError, nearest
from regard.interop.classifier_heads import OURS, classifier, documents, labels_of, told_kind, told_labels
from regard.interop.config_keys import checked
from regard.interop.layout import Layout, Published
from regard.interop.safetensors import Names, TensorSpec
from regard.models.heads.hierarchical import Documents
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.span import SpanClassifier
from regard.models.heads.token import TokenClassifier

BARE, WORDS, BOTH = "Model", "ForMaskedLM", "ForPreTraining"

LABELS, TAGS, SPANS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"

DOCUMENTS, MEANS = "ForDocumentClassification", "ForMeanClassification"

OWN = (DOCUMENTS, MEANS)  # which others do not read: their tensors beside the body's have our names

OURS_ALONE = "this head is ours: others open the body alone, and would draw a new one"

POOLER = "has_pooler"  # a key of our own, for files with a pooler where others have none, or without where they have

SILENT = "no_answer"  # likewise: whether a model that answers questions was trained on some that have none

OLD = {".gamma": ".weight", ".beta": ".bias"}  # how norms were named once


HEADS: dict[str, Callable[[Any, dict[str, Any]], nn.Module]] = {
    BARE: lambda body, config: body,
    WORDS: lambda body, config: MaskedLM(body),
    BOTH: lambda body, config: Pretraining(body),
    LABELS: classifier,
    DOCUMENTS: documents,
    MEANS: classifier,
    TAGS: lambda body, config: TokenClassifier(body, labels_of(config, least=1)),
    SPANS: lambda body, config: SpanClassifier(body, checked(config, SILENT, False)),
}

TYPES = {MaskedLM: WORDS, Pretraining: BOTH, Classifier: LABELS, Documents: DOCUMENTS, TokenClassifier: TAGS,
         SpanClassifier: SPANS}  # fmt: skip


class Encoding(Published):
    """An encoder's tables: of its body, and for each published head our parts and their names."""

    tops: Mapping[str, Mapping[str, str]]
    pooled: Set[str] = frozenset({BARE, BOTH, LABELS})  # heads whose body has a pooler in published files

    def top(self, head: str, part: str, kind: str, tied: bool) -> TensorSpec:
        """Where a head's part stands. The output's bias has two names; where nothing is tied, the second counts."""
        theirs = self.tops[head][part]
        if (part, kind) != ("words.output", "bias") or not theirs.endswith("decoder"):
            return TensorSpec((f"{theirs}.{kind}",))
        both = (f"{theirs.removesuffix('decoder')}bias", f"{theirs}.bias")
        return TensorSpec(both) if tied else TensorSpec(both[::-1], twice=True)


class Headed(Layout):
    """The layout of an encoder with any head or none; `body` is that of the encoder, published or our own."""

    def __init__(self, body: Layout):
        self.body, self.model_type, self.ignored, self.prefix = body, body.model_type, body.ignored, body.prefix
        self.tops = body.tops if isinstance(body, Encoding) else {}
        self.pooled = body.pooled if isinstance(body, Encoding) else Encoding.pooled

    def speaks(self, network: nn.Module) -> bool:
        head = head_of(network)
        known = not isinstance(self.body, Encoding) or head in (BARE, *OWN, *self.tops)
        return known and self.body.speaks(getattr(network, "body", network))

    def read(self, config: dict[str, Any]) -> nn.Module:
        head = self._head(config) or BARE
        inside = {key: value for key, value in config.items() if key not in (*OURS, POOLER, SILENT)}
        pooler = checked(config, POOLER, head in self.pooled)
        body = self.body.read(inside | ({POOLER: pooler} if isinstance(self.body, Encoding) else {}))
        return HEADS[head](body, config)

    def completed(self, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """What only the tensors tell: which head, where config.json is silent, and whether there is a pooler."""
        if not isinstance(self.body, Encoding):
            return config
        tensors = self.body.receive(dict(tensors), config)
        head = self._head(config) or self._fitting(tensors)
        if head == WORDS and BOTH in self.tops and self._has(BOTH, tensors):
            head = BOTH
        found = config | {"architectures": [self._kind + head]}
        if head != LABELS:
            found[POOLER] = head == BOTH or any("pooler." in name for name in tensors)
        return found

    def describe(self, network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
        head, body = head_of(network), getattr(network, "body", network)
        known = isinstance(self.body, Encoding)
        found = self.body.describe(body, foreign if known else {})
        kind = found["architectures"][0].removesuffix(BARE)
        found |= {"architectures": [kind + head]}
        found.pop(POOLER, None)
        if known and head != LABELS and (body.pooler is not None) != (head in self.pooled):
            found[POOLER] = body.pooler is not None
        if isinstance(network, Classifier):
            found |= told_kind(network, foreign)
        elif type(network) is TokenClassifier:
            found |= told_labels(network.labels)
        return found | ({SILENT: True} if isinstance(network, SpanClassifier) and network.silent else {})

    def names(self, network: nn.Module) -> Names:
        head = head_of(network)
        if head == BARE:
            own = self.body.names(network)
            return {name: slot._replace(names=tuple(sorted(slot.names, key=self._long))) for name, slot in own.items()}
        tied = bool(network.config.tied)  # type: ignore[union-attr]
        found = {f"body.{name}": slot for name, slot in self.body.names(network.body).items()}  # type: ignore[arg-type]
        for name, _ in network.named_parameters():
            if not name.startswith("body."):
                found[name] = self._top(head, name, tied)
        if head == LABELS:  # the pooler has one name, whether the body came with it or it is new
            for kind in ("weight", "bias"):
                found[f"head.{kind}"] = found[f"head.{kind}"]._replace(unit=network.scale)  # type: ignore[arg-type]
                slot = self._top(head, f"summary.dense.{kind}", tied)
                found |= {f"summary.dense.{kind}": slot, f"body.pooler.dense.{kind}": slot}
        if head in (WORDS, BOTH) and tied:
            table, copy = found["body.embed.table.weight"], self._top(head, "words.output.weight", tied)
            found["body.embed.table.weight"] = table._replace(names=table.names + copy.names)
        return found

    def receive(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
        """Norms under their new names; without what pre-training left that this head does not use."""
        tensors = self.body.receive(tensors, config)
        for old, new in OLD.items():
            tensors = {
                name.removesuffix(old) + new if name.endswith(old) else name: each for name, each in tensors.items()
            }
        if self._head(config) in (LABELS, *OWN, TAGS, SPANS):
            left = {theirs for head in (WORDS, BOTH) for theirs in self.tops.get(head, {}).values()}
            left |= {theirs.removesuffix(".decoder") for theirs in left}
            return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] not in left}
        if config.get("tie_word_embeddings", True) or self._head(config) not in (WORDS, BOTH):
            return tensors
        used, *others = self._top(self._head(config) or WORDS, "words.output.bias", False).names
        return {name: tensor for name, tensor in tensors.items() if used not in tensors or name not in others}

    def _top(self, head: str, name: str, tied: bool) -> TensorSpec:
        part, kind = name.rsplit(".", 1)
        if not isinstance(self.body, Encoding) or head in OWN:
            return TensorSpec((name,))
        return self.body.top(head, part, kind, tied)

    def _long(self, name: str) -> bool:
        return bool(self.prefix) and name.startswith(self.prefix)

    @property
    def _kind(self) -> str:
        """What published classes of this model_type begin with."""
        return self.body.architecture.removesuffix(BARE) if isinstance(self.body, Encoding) else ""

    def _head(self, config: dict[str, Any]) -> str | None:
        """The head that config.json names, if it names any."""
        named = config.get("architectures")
        if not named:
            return None
        first = str(named[0] if isinstance(named, list) else named)
        found = next((head for head in HEADS if first.endswith(head)), None)
        if found is None or (self.tops and found not in (BARE, *OWN, *self.tops)):
            possible = [self._kind + head for head in (BARE, *self.tops, *OWN)] if self.tops else list(HEADS)
            raise UserError(f"architectures = {named} is unknown{nearest(first, possible)}")
        return found

    def _fitting(self, tensors: Mapping[str, Tensor]) -> str:
        """The head whose tensors are there."""
        return next((head for head in (BOTH, WORDS, SPANS, LABELS, TAGS) if self._has(head, tensors)), BARE)

    def _has(self, head: str, tensors: Mapping[str, Tensor]) -> bool:
        parts = {part: theirs for part, theirs in self.tops.get(head, {}).items() if part != "words.output"}
        return bool(parts) and all(
            f"{theirs}.weight" in tensors or f"{theirs}.gamma" in tensors for theirs in parts.values()
        )


def is_ours(network: nn.Module) -> bool:
    """Whether a network's head is one that nobody else knows."""
    return head_of(network) in OWN


def head_of(network: nn.Module) -> str:
    """The published word for what stands on an encoder."""
    head = TYPES.get(type(network), BARE)  # type: ignore[arg-type]
    return MEANS if head == LABELS and network.averaged else head  # type: ignore[union-attr]
