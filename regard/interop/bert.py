"""BERT, RoBERTa, CamemBERT, DistilBERT and ALBERT: their config keys and tensor names."""

import re
from collections.abc import Sequence

from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Json, Key
from regard.interop.layout import MASKED_LM, NO_HEAD, POOLER, PRETRAINING, SEQUENCE, SPAN, TOKEN, Published
from regard.layers.encoder import TextEncoder
from regard.models.bert import BertConfig, group_of

REQUIRED = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": None,
}
PLAIN = {"embedding_width": 0, "hidden_groups": 0, "inner_group_size": 1}  # no shared blocks, no factorised embedding
LABEL_HEADS = {TOKEN: {"head": "classifier"}, SPAN: {"head": "qa_outputs"}}  # with the same names in all families
IGNORED = re.compile(r"(.*\.)?embeddings\.(position_ids|token_type_ids)")


def mlm_names(dense: str, norm: str, output: str) -> dict[str, str]:
    """The modules of the masked-LM head: our name → theirs."""
    return {"lm_head.dense": dense, "lm_head.norm": norm, "lm_head.output": output}


class Bert(Published):
    model_type = "bert"
    architecture = "BertModel"
    family = "bert"
    keys = {
        "vocab_size": Key("vocabulary", 30522),
        "hidden_size": Key("width", 768),
        "num_attention_heads": Key("heads", 12),
        "num_hidden_layers": Key("depth", 12),
        "intermediate_size": Key("feedforward", 3072),
        "type_vocab_size": Key("token_types", 2),
        "hidden_act": Key("activation", "gelu", ACTIVATIONS),
        "max_position_embeddings": Key("max_positions", 512),
        "layer_norm_eps": Key("epsilon", 1e-12),
        "hidden_dropout_prob": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
        POOLER: Key("pooler", True),
    }
    fixed = {**PLAIN, "position_offset": 0, "pooler_activation": "tanh", "output_activation": ""}
    positive: Sequence[str] = ("token_types",)
    required = REQUIRED
    ignored = IGNORED
    extra_keys = {"attention_probs_dropout_prob": 0.0}
    prefix = "bert."
    outer_modules = {
        "embed.table": "embeddings.word_embeddings",
        "embed.positions.table": "embeddings.position_embeddings",
        "embed.token_types": "embeddings.token_type_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "pooler.dense": "pooler.dense",
    }
    block = "bert.encoder.layer.{index}."
    block_names = {
        "self_attention.query": "attention.self.query",
        "self_attention.key": "attention.self.key",
        "self_attention.value": "attention.self.value",
        "self_attention.output": "attention.output.dense",
        "self_attention_residual.norm": "attention.output.LayerNorm",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "feedforward_residual.norm": "output.LayerNorm",
    }
    pooled = frozenset({NO_HEAD, PRETRAINING, SEQUENCE})
    mlm_head = mlm_names(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"
    )
    head_names = {
        MASKED_LM: mlm_head,
        PRETRAINING: {**mlm_head, "nsp_head": "cls.seq_relationship"},
        SEQUENCE: {"pool.dense": "bert.pooler.dense", "head": "classifier"},
        **LABEL_HEADS,
    }

    def config_fields(self, config: BertConfig) -> Json:
        fields = vars(config) | {"feedforward": config.feedforward or 4 * config.width}
        if config.output_activation == config.activation:
            fields["output_activation"] = ""
        return fields


class Roberta(Bert):
    """Positions begin after the padding token's row, so the position table is longer than the longest text."""

    model_type = "roberta"
    architecture = "RobertaModel"
    keys = {**Bert.keys, "vocab_size": Key("vocabulary", 50265)}
    fixed = {**PLAIN, "pooler_activation": "tanh", "output_activation": "gelu"}
    positive = ("token_types", "position_offset")
    prefix = "roberta."
    block = "roberta.encoder.layer.{index}."
    pooled = frozenset({NO_HEAD})
    head_names = {
        MASKED_LM: mlm_names("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
        SEQUENCE: {"pool.dense": "classifier.dense", "head": "classifier.out_proj"},
        **LABEL_HEADS,
    }

    def read_fields(self, config: Json) -> Json:
        fields = super().read_fields(config)
        padding = config.get("pad_token_id", 1)
        if type(padding) is not int or not 0 <= padding < fields["max_positions"] - 1:
            raise UserError(
                f"pad_token_id = {padding}: positions begin after it, in a table of {fields['max_positions']} rows"
            )
        return fields | {"position_offset": padding + 1, "max_positions": fields["max_positions"] - padding - 1}

    def describe(self, network: TextEncoder, foreign: Json) -> Json:
        return super().describe(network, foreign) | {"pad_token_id": network.config.position_offset - 1}

    def config_fields(self, config: BertConfig) -> Json:
        return super().config_fields(config) | {
            "max_positions": config.max_positions + config.position_offset,
            "output_activation": config.output_activation or config.activation,
        }


class Camembert(Roberta):
    model_type = "camembert"
    architecture = "CamembertModel"
    keys = {**Roberta.keys, "vocab_size": Key("vocabulary", 30522)}


class DistilBert(Bert):
    model_type = "distilbert"
    architecture = "DistilBertModel"
    keys = {
        "vocab_size": Key("vocabulary", 30522),
        "dim": Key("width", 768),
        "n_heads": Key("heads", 12),
        "n_layers": Key("depth", 6),
        "hidden_dim": Key("feedforward", 3072),
        "activation": Key("activation", "gelu", ACTIVATIONS),
        "max_position_embeddings": Key("max_positions", 512),
        "dropout": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
    }
    aliases = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    fixed = {**PLAIN, "position_offset": 0, "token_types": 0, "pooler": False, "pooler_activation": "relu",
             "output_activation": "",
             "epsilon": 1e-12}  # fmt: skip
    positive = ()
    extra_keys = {"attention_dropout": 0.0}
    dropout_keys = ("seq_classif_dropout", "qa_dropout")
    prefix = "distilbert."
    block = "distilbert.transformer.layer.{index}."
    block_names = {
        "self_attention.query": "attention.q_lin",
        "self_attention.key": "attention.k_lin",
        "self_attention.value": "attention.v_lin",
        "self_attention.output": "attention.out_lin",
        "self_attention_residual.norm": "sa_layer_norm",
        "feedforward.up": "ffn.lin1",
        "feedforward.down": "ffn.lin2",
        "feedforward_residual.norm": "output_layer_norm",
    }
    pooled = frozenset()
    head_names = {
        MASKED_LM: mlm_names("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        SEQUENCE: {"pool.dense": "pre_classifier", "head": "classifier"},
        **LABEL_HEADS,
    }


class Albert(Bert):
    """Groups of blocks that share their weights, and an embedding that is projected to the model's width."""

    model_type = "albert"
    architecture = "AlbertModel"
    keys = {
        **Bert.keys,
        "vocab_size": Key("vocabulary", 30000),
        "embedding_size": Key("embedding_width", 128),
        "hidden_size": Key("width", 4096),
        "num_attention_heads": Key("heads", 64),
        "intermediate_size": Key("feedforward", 16384),
        "num_hidden_groups": Key("hidden_groups", 1),
        "inner_group_num": Key("inner_group_size", 1),
        "hidden_act": Key("activation", "gelu_new", ACTIVATIONS),
        "hidden_dropout_prob": Key("dropout", 0.0),
    }
    fixed = {"position_offset": 0, "pooler_activation": "tanh", "output_activation": ""}
    positive = ("token_types", "embedding_width", "hidden_groups")
    prefix = "albert."
    outer_modules = {
        **Bert.outer_modules,
        "pooler.dense": "pooler",
        "embedding_projection": "encoder.embedding_hidden_mapping_in",
    }
    block = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."
    block_names = {
        "self_attention.query": "attention.query",
        "self_attention.key": "attention.key",
        "self_attention.value": "attention.value",
        "self_attention.output": "attention.dense",
        "self_attention_residual.norm": "attention.LayerNorm",
        "feedforward.up": "ffn",
        "feedforward.down": "ffn_output",
        "feedforward_residual.norm": "full_layer_layer_norm",
    }
    mlm_head = mlm_names("predictions.dense", "predictions.LayerNorm", "predictions.decoder")
    head_names = {
        MASKED_LM: mlm_head,
        PRETRAINING: {**mlm_head, "nsp_head": "sop_classifier.classifier"},
        SEQUENCE: {"pool.dense": "albert.pooler", "head": "classifier"},
        **LABEL_HEADS,
    }

    def block_prefix(self, config: BertConfig, side: str, index: int) -> str:
        repeat, inner = divmod(index, config.inner_group_size)
        return self.block.format(group=group_of(config, repeat), inner=inner)
