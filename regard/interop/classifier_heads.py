"""Classifiers under their published names: a language model's file without its output, and `score.weight`.

The labels are in config.json as `id2label`; others find a text's last token by `pad_token_id`. A head that tells
values is written in their own units.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.errors import UserError, nearest
from regard.interop.config_keys import checked
from regard.interop.layout import Layout
from regard.interop.safetensors import Names, TensorSpec, on_meta
from regard.models.heads.hierarchical import Documents
from regard.models.heads.sequence import Classifier

ARCHITECTURE = "ForSequenceClassification"

OUTPUTS = ("lm_head.weight", "output.weight")  # a language model's, in their layouts and in ours

PAIR, KEPT, SCALE = "text_pair", "keeps_lm_head", "label_scale"  # keys of our own, which others pass over

SEGMENT, STRIDE = "segment", "segment_stride"  # of documents, which others do not read at all

POOLING = "label_pooling"  # likewise: "mean" where labels are told from the mean of the states

OURS = ("id2label", "label2id", "num_labels", "problem_type", PAIR, KEPT, SCALE, SEGMENT, STRIDE, POOLING)

MOST = 1 << 16  # labels without names

PROBLEMS = {"single_label_classification": "one", "multi_label_classification": "several", "regression": "number"}


def is_labelled(config: dict[str, Any]) -> bool:
    """Whether a config.json is a classifier's."""
    kinds = config.get("architectures")
    return isinstance(kinds, list) and any(str(kind).endswith(ARCHITECTURE) for kind in kinds)


class Labelled(Layout):
    """The layout of a body with a head for labels."""

    def __init__(self, body: Layout):
        self.body, self.model_type, self.ignored, self.prefix = body, body.model_type, body.ignored, body.prefix

    def speaks(self, network: nn.Module) -> bool:
        return isinstance(network, Classifier) and self.body.speaks(network.body)

    def read(self, config: dict[str, Any]) -> nn.Module:
        network = classifier(self.body.read(_of_body(config)), config)
        return network if config.get(KEPT) is True else network.silenced()

    def describe(self, network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(network, Classifier)
        found = self.body.describe(network.body, _of_body(foreign))
        kind = re.sub(rf"(LMHeadModel|ForCausalLM|{ARCHITECTURE})$", "", found["architectures"][0])
        found |= {"architectures": [kind + ARCHITECTURE], **told_kind(network, foreign)}
        untied = network.tells and network.body.output.weight is not network.body.embed.table.weight
        return found | ({KEPT: True} if untied else {})

    def names(self, network: nn.Module) -> Names:
        assert isinstance(network, Classifier)
        body = {f"body.{name}": slot for name, slot in self.body.names(network.body).items()}
        return body | {"head.weight": TensorSpec(("score.weight",), unit=network.scale)}

    def receive(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
        """Without a language model's own output, unless it is kept or is the embedding's table."""
        tensors = self.body.receive(tensors, config)
        with on_meta():
            used = {name for slot in self.names(self.read(config)).values() for name in slot.names}
        return {name: tensor for name, tensor in tensors.items() if name in used or name not in OUTPUTS}


def _of_body(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in OURS}


def classifier(body: Any, config: dict[str, Any]) -> Classifier:
    """A body with the head that config.json tells of: for one label a text, several, or a value."""
    paired = checked(config, PAIR, False) if PAIR in config else None
    return Classifier(body, paired=paired, **_labelling(config))


def documents(body: Any, config: dict[str, Any]) -> Documents:
    """Likewise, for texts that are read in segments."""
    segment, stride = config.get(SEGMENT), config.get(STRIDE)
    if type(segment) is not int or not 2 < segment <= body.limit:
        raise UserError(f"{SEGMENT} = {segment} should be more than 2 tokens, and at most {body.limit}")
    if type(stride) is not int or not 0 < stride <= segment - 2:
        raise UserError(f"{STRIDE} = {stride} should lie within 1 … {segment - 2}")
    return Documents(body, segment=segment, stride=stride, **_labelling(config))


def _labelling(config: dict[str, Any]) -> dict[str, Any]:
    """The labels, what a text has of them, the unit in which values are told, and what they are told from."""
    problem = config.get("problem_type")
    if problem is not None and problem not in PROBLEMS:
        raise UserError(f"problem_type = '{problem}' is unknown{nearest(str(problem), PROBLEMS)}")
    labels = labels_of(config, least=2 if PROBLEMS.get(str(problem)) == "one" else 1)
    kind = PROBLEMS[problem] if problem else "number" if len(labels) == 1 else "one"
    scale = config.get(SCALE, 1.0)
    if type(scale) not in (int, float) or not 0 < scale < math.inf or math.frexp(scale)[0] != 0.5:
        raise UserError(f"{SCALE} = {scale!r} should be a power of two")
    pooling = config.get(POOLING)
    if pooling not in (None, "mean"):
        raise UserError(f"{POOLING} = {pooling!r:.40} is unknown; possible: 'mean', or no such key")
    return {"labels": labels, "kind": kind, "scale": float(scale), "averaged": pooling == "mean"}


def told_kind(network: Classifier, foreign: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of a classifier's labels; over what a loaded one said."""
    problem = next(word for word, kind in PROBLEMS.items() if kind == network.kind)
    silent = foreign.get("problem_type") is None and network.kind == "one"
    found = told_labels(network.labels) | {"problem_type": None if silent else problem}
    found |= {SCALE: network.scale} if network.scale != 1 else {}
    if isinstance(network, Documents):
        found |= {SEGMENT: network.segment, STRIDE: network.stride}
    found |= {POOLING: "mean"} if network.averaged else {}
    return found | ({} if network.paired is None else {PAIR: network.paired})


def told_labels(labels: Sequence[str]) -> dict[str, Any]:
    """The labels as config.json has them."""
    return {
        "num_labels": len(labels),
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def labels_of(config: dict[str, Any], least: int = 2) -> tuple[str, ...]:
    """The labels in the order of their numbers; LABEL_0, LABEL_1, … where they have no names."""
    named = config.get("id2label")
    if named is None:
        count = config.get("num_labels", 2)
        if type(count) is int and count > MOST:
            raise UserError(f"num_labels = {count}, but id2label names none: at most {MOST} have no names")
        named = {str(number): f"LABEL_{number}" for number in range(count)} if type(count) is int else {}
    if not isinstance(named, dict) or {str(key) for key in named} != {str(number) for number in range(len(named))}:
        raise UserError(f"id2label = {named!r:.80} should name the labels 0, 1, 2, …")
    labels = tuple(str(named[str(number)]) for number in range(len(named)))
    if len(labels) < least or len(set(labels)) < len(labels):
        wanted = "two different labels or more" if least == 2 else "different labels"
        raise UserError(f"id2label = {named!r:.80} should name {wanted}")
    return labels
