"""BERT, RoBERTa, CamemBERT, DistilBERT and ALBERT under their published names."""

import re
from collections.abc import Mapping
from typing import Any

from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Key
from regard.interop.heads import BARE, BOTH, LABELS, POOLER, SPANS, TAGS, WORDS, Encoding
from regard.models.bert import group_of

ONLY = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": None,
}
PLAIN = {"embedding": 0, "groups": 0, "inner": 1}  # no weights shared, no narrow table
IGNORED = re.compile(r"(.*\.)?embeddings\.(position_ids|token_type_ids)")


class Bert(Encoding):
    model_type, architecture, family = "bert", "BertModel", "bert"
    keys = {
        "vocab_size": Key("vocabulary", 30522),
        "hidden_size": Key("width", 768),
        "num_attention_heads": Key("heads", 12),
        "num_hidden_layers": Key("depth", 12),
        "intermediate_size": Key("feedforward", 3072),
        "type_vocab_size": Key("segments", 2),
        "hidden_act": Key("activation", "gelu", ACTIVATIONS),
        "max_position_embeddings": Key("limit", 512),
        "layer_norm_eps": Key("epsilon", 1e-12),
        "hidden_dropout_prob": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
        POOLER: Key("pooler", True),
    }
    fixed = {**PLAIN, "first": 0, "pooler_activation": "tanh", "output_activation": ""}
    only, ignored = ONLY, IGNORED
    prefix, block = "bert.", "bert.encoder.layer.{number}."
    inside = {
        "own.query": "attention.self.query",
        "own.key": "attention.self.key",
        "own.value": "attention.self.value",
        "own.output": "attention.output.dense",
        "self_attention_residual.norm": "attention.output.LayerNorm",
        "feedforward.widen": "intermediate.dense",
        "feedforward.narrow": "output.dense",
        "feedforward_residual.norm": "output.LayerNorm",
    }
    words = {
        "words.dense": "cls.predictions.transform.dense",
        "words.norm": "cls.predictions.transform.LayerNorm",
        "words.output": "cls.predictions.decoder",
    }
    tops = {
        WORDS: words,
        BOTH: {**words, "relation": "cls.seq_relationship"},
        LABELS: {"summary.dense": "bert.pooler.dense", "head": "classifier"},
        TAGS: {"head": "classifier"},
        SPANS: {"head": "qa_outputs"},
    }

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        return _outside(self.prefix, "pooler.dense")

    def speaks(self, network: Any) -> bool:
        return super().speaks(network) and network.config.segments > 0

    def said(self, config: Any) -> dict[str, Any]:
        """With the inner width in full, and nothing said of the output where it bends as the blocks do."""
        same = config.output_activation == config.activation
        hidden = config.feedforward or 4 * config.width
        return vars(config) | {"feedforward": hidden, **({"output_activation": ""} if same else {})}

    def unsaid(self, config: Any) -> dict[str, Any]:
        return {"attention_probs_dropout_prob": 0.0}


class Roberta(Bert):
    """Places begin behind the padding's row: its table has that many more than texts are long."""

    model_type, architecture = "roberta", "RobertaModel"
    keys = {**Bert.keys, "vocab_size": Key("vocabulary", 50265)}
    fixed = {**PLAIN, "pooler_activation": "tanh", "output_activation": "gelu"}
    prefix, block = "roberta.", "roberta.encoder.layer.{number}."
    pooled = frozenset({BARE})
    tops = {
        WORDS: {"words.dense": "lm_head.dense", "words.norm": "lm_head.layer_norm", "words.output": "lm_head.decoder"},
        LABELS: {"summary.dense": "classifier.dense", "head": "classifier.out_proj"},
        TAGS: {"head": "classifier"},
        SPANS: {"head": "qa_outputs"},
    }

    def speaks(self, network: Any) -> bool:
        return super().speaks(network) and network.config.first > 0

    def fields(self, config: dict[str, Any]) -> dict[str, Any]:
        padding, found = config.get("pad_token_id", 1), super().fields(config)
        if type(padding) is not int or not 0 <= padding < found["limit"] - 1:
            raise UserError(f"pad_token_id = {padding}: places begin behind it, in a table of {found['limit']} rows")
        return found | {"first": padding + 1, "limit": found["limit"] - padding - 1}

    def describe(self, network: Any, foreign: dict[str, Any]) -> dict[str, Any]:
        return super().describe(network, foreign) | {"pad_token_id": network.config.first - 1}

    def said(self, config: Any) -> dict[str, Any]:
        """With all rows of the positions, and what the output bends with."""
        bends = config.output_activation or config.activation
        return super().said(config) | {"limit": config.limit + config.first, "output_activation": bends}


class Camembert(Roberta):
    model_type, architecture = "camembert", "CamembertModel"
    keys = {**Roberta.keys, "vocab_size": Key("vocabulary", 30522)}


class DistilBert(Bert):
    model_type, architecture = "distilbert", "DistilBertModel"
    keys = {
        "vocab_size": Key("vocabulary", 30522),
        "dim": Key("width", 768),
        "n_heads": Key("heads", 12),
        "n_layers": Key("depth", 6),
        "hidden_dim": Key("feedforward", 3072),
        "activation": Key("activation", "gelu", ACTIVATIONS),
        "max_position_embeddings": Key("limit", 512),
        "dropout": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
    }
    aliases = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    fixed = {**PLAIN, "first": 0, "segments": 0, "pooler": False, "pooler_activation": "relu", "output_activation": "",
             "epsilon": 1e-12}  # fmt: skip
    prefix, block = "distilbert.", "distilbert.transformer.layer.{number}."
    inside = {
        "own.query": "attention.q_lin",
        "own.key": "attention.k_lin",
        "own.value": "attention.v_lin",
        "own.output": "attention.out_lin",
        "self_attention_residual.norm": "sa_layer_norm",
        "feedforward.widen": "ffn.lin1",
        "feedforward.narrow": "ffn.lin2",
        "feedforward_residual.norm": "output_layer_norm",
    }
    pooled = frozenset()
    tops = {
        WORDS: {
            "words.dense": "vocab_transform",
            "words.norm": "vocab_layer_norm",
            "words.output": "vocab_projector",
        },
        LABELS: {"summary.dense": "pre_classifier", "head": "classifier"},
        TAGS: {"head": "classifier"},
        SPANS: {"head": "qa_outputs"},
    }

    def speaks(self, network: Any) -> bool:
        return Encoding.speaks(self, network)

    def unsaid(self, config: Any) -> dict[str, Any]:
        return {"attention_dropout": 0.0, "seq_classif_dropout": config.dropout, "qa_dropout": config.dropout}


class Albert(Bert):
    """Turns through sets of blocks that share their weights; a narrow table, widened before the first."""

    model_type, architecture = "albert", "AlbertModel"
    keys = {
        **Bert.keys,
        "vocab_size": Key("vocabulary", 30000),
        "embedding_size": Key("embedding", 128),
        "hidden_size": Key("width", 4096),
        "num_attention_heads": Key("heads", 64),
        "intermediate_size": Key("feedforward", 16384),
        "num_hidden_groups": Key("groups", 1),
        "inner_group_num": Key("inner", 1),
        "hidden_act": Key("activation", "gelu_new", ACTIVATIONS),
        "hidden_dropout_prob": Key("dropout", 0.0),
    }
    fixed = {"first": 0, "pooler_activation": "tanh", "output_activation": ""}
    prefix, block = "albert.", "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."
    inside = {
        "own.query": "attention.query",
        "own.key": "attention.key",
        "own.value": "attention.value",
        "own.output": "attention.dense",
        "self_attention_residual.norm": "attention.LayerNorm",
        "feedforward.widen": "ffn",
        "feedforward.narrow": "ffn_output",
        "feedforward_residual.norm": "full_layer_layer_norm",
    }
    words = {
        "words.dense": "predictions.dense",
        "words.norm": "predictions.LayerNorm",
        "words.output": "predictions.decoder",
    }
    tops = {
        WORDS: words,
        BOTH: {**words, "relation": "sop_classifier.classifier"},
        LABELS: {"summary.dense": "albert.pooler", "head": "classifier"},
        TAGS: {"head": "classifier"},
        SPANS: {"head": "qa_outputs"},
    }

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        widen = {f"widen.{kind}": (f"albert.encoder.embedding_hidden_mapping_in.{kind}",) for kind in KINDS}
        return {**_outside(self.prefix, "pooler"), **widen}

    def block_of(self, config: Any, side: str, number: int) -> str:
        return self.block.format(group=group_of(config, number // config.inner), inner=number % config.inner)

    def speaks(self, network: Any) -> bool:
        return super().speaks(network) and network.config.embedding > 0 and network.config.groups > 0


KINDS = ("weight", "bias")


def _outside(prefix: str, pooler: str) -> dict[str, tuple[str, ...]]:
    """The parameters round the blocks; a family has those that its config says."""
    tables = {"table": "word_embeddings", "positions.table": "position_embeddings", "segments": "token_type_embeddings"}
    parts = {f"embed.{ours}": f"{prefix}embeddings.{theirs}" for ours, theirs in tables.items()}
    parts |= {"embed.norm": f"{prefix}embeddings.LayerNorm", "pooler.dense": prefix + pooler}
    return {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in parts.items() for kind in KINDS}
