"""DeBERTa under its published names: the first version is `deberta`, the second and third are `deberta-v2`."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.errors import UserError, nearest
from regard.interop.bert import KINDS, ONLY, Bert
from regard.interop.config_keys import ACTIVATIONS, Key, checked
from regard.interop.heads import BOTH, LABELS, SPANS, TAGS, WORDS, Encoding
from regard.interop.safetensors import Names

TERMS = {"c2p": "to_position", "p2c": "to_content"}
NONE = {"max_relative_positions": -1, "position_buckets": -1, "type_vocab_size": 0, "conv_kernel_size": 0}
NORMS = {"none": False, "layer_norm": True}
NEWER = {"lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
         "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
         "lm_predictions.lm_head.bias": "cls.predictions.bias"}  # fmt: skip


class DebertaV2(Encoding):
    """Hidden words are told by one head under two names: `legacy` ones, which are written, and `lm_predictions`."""

    model_type, architecture, family = "deberta-v2", "DebertaV2Model", "deberta"
    keys = {
        "vocab_size": Key("vocabulary", 128100),
        "hidden_size": Key("width", 1536),
        "embedding_size": Key("embedding", None),
        "num_attention_heads": Key("heads", 24),
        "num_hidden_layers": Key("depth", 24),
        "intermediate_size": Key("feedforward", 6144),
        "type_vocab_size": Key("segments", None),
        "hidden_act": Key("activation", "gelu", ACTIVATIONS),
        "pooler_hidden_act": Key("pooler_activation", "gelu", ACTIVATIONS),
        "max_position_embeddings": Key("limit", 512),
        "max_relative_positions": Key("reach", None),
        "position_biased_input": Key("absolute", True),
        "layer_norm_eps": Key("epsilon", 1e-7),
        "hidden_dropout_prob": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
        "position_buckets": Key("buckets", None),
        "share_att_key": Key("shared", False),
        "norm_rel_ebd": Key("normed", "none", NORMS),
        "conv_kernel_size": Key("kernel", None),
        "conv_groups": Key("kernel_groups", 1),
        "conv_act": Key("kernel_activation", "tanh", ACTIVATIONS),
    }
    fixed: Mapping[str, Any] = {"key_bias": True}
    only: Mapping[str, Any] = ONLY
    ignored = re.compile(r"(.*\.)?embeddings\.position_ids|mask_predictions\..*")  # the latter told replaced words
    prefix, block = "deberta.", "deberta.encoder.layer.{number}."
    pooled = frozenset()
    inside: Mapping[str, str] = {
        "own.query": "attention.self.query_proj",
        "own.key": "attention.self.key_proj",
        "own.value": "attention.self.value_proj",
        "own.relation.key": "attention.self.pos_key_proj",
        "own.relation.query": "attention.self.pos_query_proj",
        "own.output": "attention.output.dense",
        "self_attention_residual.norm": "attention.output.LayerNorm",
        "feedforward.widen": "intermediate.dense",
        "feedforward.narrow": "output.dense",
        "feedforward_residual.norm": "output.LayerNorm",
    }
    tops = {
        WORDS: Bert.tops[WORDS],
        BOTH: {**Bert.tops[BOTH], "compare.dense": "cls.comparison"},  # our own, as far as it can under BERT's names
        LABELS: {"summary.dense": "pooler.dense", "head": "classifier"},
        TAGS: {"head": "classifier"},
        SPANS: {"head": "qa_outputs"},
    }

    def fields(self, config: dict[str, Any]) -> dict[str, Any]:
        none = {key: None for key in NONE if type(config.get(key)) is int and config[key] < 1}
        found = super().fields(config | none) | _terms(config)
        for key, size in {
            "attention_head_size": found["width"] // found["heads"],
            "pooler_hidden_size": found["width"],
        }.items():
            if config.get(key) not in (None, size):
                raise UserError(f"{key} = {config[key]} changes the computation, and only {key} = {size} is known")
        found |= {"embedding": 0} if found["embedding"] == found["width"] else {}
        found |= {"tied": True} if config.get("legacy") is False else {}
        if not (found["to_position"] or found["to_content"]):  # nothing asks about distances
            found |= {"reach": 0} | {key: value for key, value in FAR.items() if key in found}
        return found

    def describe(self, network: Any, foreign: dict[str, Any]) -> dict[str, Any]:
        found, config = super().describe(network, foreign), network.config
        none = {key: foreign.get(key, value) for key, value in NONE.items() if key in self.keys and found[key] is None}
        found |= none | {"embedding_size": config.embedding or config.width, "legacy": True}
        terms = [theirs for theirs, ours in TERMS.items() if getattr(config, ours)]
        same = set(_named(foreign.get("pos_att_type"))) == set(terms)
        return found | {
            "relative_attention": config.relative,
            "pos_att_type": foreign["pos_att_type"] if same and "pos_att_type" in foreign else terms,
        }

    def said(self, config: Any) -> dict[str, Any]:
        """With the inner width in full."""
        return vars(config) | {"feedforward": config.feedforward or 4 * config.width}

    def unsaid(self, config: Any) -> dict[str, Any]:
        return {"attention_probs_dropout_prob": 0.0}

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        norm = "embed.norm.1" if config.embedding else "embed.norm"
        parts = {
            "embed.table": "embeddings.word_embeddings",
            "embed.positions.table": "embeddings.position_embeddings",
            "embed.segments": "embeddings.token_type_embeddings",
            "embed.norm.0": "embeddings.embed_proj",
            norm: "embeddings.LayerNorm",
            "distances.table": "encoder.rel_embeddings",
            "distances.norm": "encoder.LayerNorm",
            "encoder.blocks.0.convolution": "encoder.conv.conv",
            "encoder.blocks.0.norm": "encoder.conv.LayerNorm",
        }
        return {f"{ours}.{kind}": (f"{self.prefix}{each}.{kind}",) for ours, each in parts.items() for kind in KINDS}

    def block_of(self, config: Any, side: str, number: int) -> str:
        return self.block.format(number=number)

    def receive(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
        """The head for hidden words under its legacy names; without places that pre-training alone used."""
        there = {name.partition(".")[0] for name in tensors}
        newer = "lm_predictions" in there and ("cls" not in there or config.get("legacy") is False)
        other = "cls." if newer else "lm_predictions."
        found = {name: tensor for name, tensor in tensors.items() if not name.startswith(other)}
        for theirs, legacy in NEWER.items():
            found = {name.replace(theirs, legacy): tensor for name, tensor in found.items()}
        if config.get("position_biased_input", True):
            return found
        return {name: each for name, each in found.items() if "embeddings.position_embeddings." not in name}


FAR = {"buckets": 0, "shared": False, "normed": False}


class Deberta(DebertaV2):
    """Queries, keys and values in one tensor, head by head; biases of queries and values beside it."""

    model_type, architecture = "deberta", "DebertaModel"
    keys = {
        **{theirs: key for theirs, key in DebertaV2.keys.items() if key.ours not in FAR and "kernel" not in key.ours},
        "vocab_size": Key("vocabulary", 50265),
        "hidden_size": Key("width", 768),
        "num_attention_heads": Key("heads", 12),
        "num_hidden_layers": Key("depth", 12),
        "intermediate_size": Key("feedforward", 3072),
    }
    fixed = {"key_bias": False, "kernel": 0, **FAR}
    only = {**ONLY, "talking_head": False}
    inside = {
        **DebertaV2.inside,
        **dict.fromkeys(("own.query", "own.key", "own.value"), "attention.self.in_proj"),
        "own.relation.key": "attention.self.pos_proj",
        "own.relation.query": "attention.self.pos_q_proj",
    }

    def names(self, network: Any) -> Names:
        found, heads = dict(super().names(network)), network.config.heads
        for name, slot in found.items():
            place, _, kind = name.rpartition(".")
            part = place.rpartition(".own.")[2]
            if part in PACKED and kind == "weight":
                found[name] = slot._replace(part=PACKED.index(part), parts=len(PACKED), groups=heads)
            elif part in PACKED:
                beside = tuple(each.replace("in_proj.bias", f"{part[0]}_bias") for each in slot.names)
                found[name] = slot._replace(names=beside)
        return found


PACKED = ("query", "key", "value")


def _terms(config: dict[str, Any]) -> dict[str, bool]:
    """What contents are compared with besides each other."""
    named, relative = _named(config.get("pos_att_type")), checked(config, "relative_attention", False)
    if relative != bool(named):
        raise UserError(
            f"relative_attention = {relative} with pos_att_type = {config.get('pos_att_type')}: either there are "
            "distances and terms that ask about them, or neither"
        )
    return {ours: theirs in named for theirs, ours in TERMS.items()}


def _named(said: Any) -> list[str]:
    """The words of a pos_att_type: a list, or one text with | between them."""
    words = [word.strip() for word in said.lower().split("|")] if isinstance(said, str) else said or []
    for word in words:
        if word not in TERMS:
            raise UserError(f"pos_att_type = {said}: '{word}' is unknown{nearest(str(word), TERMS)}")
    if len(set(words)) < len(words):
        raise UserError(f"pos_att_type = {said}: a term counts once")
    return words
