"""The labels of a classifier in config.json: `id2label`, `problem_type`, and keys that only regard has."""

import math
from collections import Counter
from collections.abc import Sequence

from regard.errors import UserError
from regard.interop.config_keys import Json, checked, unsupported
from regard.layers.protocols import EncoderModel
from regard.models.heads.hierarchical import Documents
from regard.models.heads.sequence import Classifier

PROBLEM_TYPES = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
LABEL_KEYS = ("id2label", "label2id", "num_labels", "problem_type")

# Keys of regard, which other libraries ignore:
PAIR = "text_pair"  # whether inputs are pairs of texts
SCALE = "label_scale"  # the unit in which a regression head predicts; its weights are stored in units of the labels
KEEPS_LM_HEAD = "keeps_lm_head"
SEGMENT = "segment"  # tokens of a document's segments
STRIDE = "segment_stride"
POOLING = "label_pooling"  # "mean": the head is on the mean of the states
CLASSIFIER_KEYS = (PAIR, SCALE, KEEPS_LM_HEAD, SEGMENT, STRIDE, POOLING)

MAX_UNNAMED = 1 << 16  # labels without names


def classifier(body: EncoderModel, config: Json, kind: type[Classifier] = Classifier) -> Classifier:
    """The backbone with the classification or regression head of a config.json."""
    paired = checked(config, PAIR, False) if PAIR in config else None
    network = kind(body, paired=paired, **_head_options(config))
    return network if config.get(KEEPS_LM_HEAD) is True else network.drop_lm_head()


def documents(body: EncoderModel, config: Json) -> Documents:
    """The same for documents that are encoded in segments."""
    segment = config.get(SEGMENT)
    stride = config.get(STRIDE)
    if type(segment) is not int or not 2 < segment <= body.max_positions:
        raise UserError(f"{SEGMENT} = {segment} should be more than 2 tokens, and at most {body.max_positions}")
    if type(stride) is not int or not 0 < stride <= segment - 2:
        raise UserError(f"{STRIDE} = {stride} should be in the range 1 … {segment - 2}")
    return Documents(body, segment=segment, stride=stride, **_head_options(config))


def _head_options(config: Json) -> Json:
    problem = config.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise unsupported("problem_type", problem, PROBLEM_TYPES)
    labels = labels_of(config, least=2 if PROBLEM_TYPES.get(str(problem)) == "single_label" else 1)
    kind = PROBLEM_TYPES[problem] if problem else "regression" if len(labels) == 1 else "single_label"
    scale = config.get(SCALE, 1.0)
    if type(scale) not in (int, float) or not 0 < scale < math.inf or math.frexp(scale)[0] != 0.5:
        raise UserError(f"{SCALE} = {scale!r} should be a power of two")
    pooling = config.get(POOLING)
    if pooling not in (None, "mean"):
        raise UserError(f"{POOLING} = {pooling!r:.40} is unknown; expected 'mean', or no such key")
    return {"labels": labels, "problem_type": kind, "scale": float(scale), "mean_pooled": pooling == "mean"}


def labels_of(config: Json, least: int = 2) -> tuple[str, ...]:
    """The labels in the order of their ids; LABEL_0, LABEL_1, … where they have no names."""
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)
        if type(count) is int and count > MAX_UNNAMED:
            raise UserError(f"num_labels = {count}, but id2label is missing (required above {MAX_UNNAMED} labels)")
        names = {str(index): f"LABEL_{index}" for index in range(count)} if type(count) is int else {}
    ids = [str(index) for index in range(len(names))] if isinstance(names, dict) else []
    if not isinstance(names, dict) or {str(key) for key in names} != set(ids):
        raise UserError(f"id2label = {names!r:.80} should name the labels 0, 1, 2, …")
    labels = tuple(str(names[index]) for index in ids)
    if len(labels) < least:
        expected = "two different labels or more" if least == 2 else "a label"
        raise UserError(f"id2label = {names!r:.80} should name {expected}")
    counts = Counter(labels)  # ImageNet has two classes "crane": a label is made unique by its id
    unique = tuple(label if counts[label] == 1 else f"{label} ({index})" for index, label in enumerate(labels))
    if len(set(unique)) < len(unique):
        raise UserError(f"id2label = {names!r:.80} should name different labels")
    return unique


def label_keys(labels: Sequence[str]) -> Json:
    """The keys of config.json for these labels."""
    return {
        "num_labels": len(labels),
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def classifier_keys(network: Classifier, foreign: Json) -> Json:
    """The keys of config.json for a classifier; `foreign` is the config it was loaded with."""
    problem = next(name for name, kind in PROBLEM_TYPES.items() if kind == network.problem_type)
    is_default = foreign.get("problem_type") is None and network.problem_type == "single_label"
    names = label_keys(network.labels)
    if foreign.get("id2label") is not None and labels_of(foreign, least=1) == network.labels:
        names |= {key: foreign[key] for key in ("id2label", "label2id") if key in foreign}
    keys = names | {"problem_type": None if is_default else problem}
    if network.scale != 1:
        keys[SCALE] = network.scale
    if isinstance(network, Documents):
        keys |= {SEGMENT: network.segment, STRIDE: network.stride}
    if network.mean_pooled:
        keys[POOLING] = "mean"
    if network.paired is not None:
        keys[PAIR] = network.paired
    if network.has_lm_head and network.body.output.weight is not network.body.embed.table.weight:
        keys[KEEPS_LM_HEAD] = True
    return keys
