"""DeBERTa: the model_type of the first version is `deberta`, that of the second and third is `deberta-v2`."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.interop.bert import LABEL_HEADS, REQUIRED, Bert
from regard.interop.config_keys import ACTIVATIONS, Json, Key, checked, require_values, unsupported
from regard.interop.layout import MASKED_LM, PRETRAINING, SEQUENCE, Published
from regard.interop.safetensors import TensorSpecs
from regard.layers.encoder import TextEncoder
from regard.models.deberta import DebertaConfig

TERMS = ("c2p", "p2c")
PACKED = ("query", "key", "value")  # in one tensor, in the first version
UNSET = {"max_relative_positions": -1, "position_buckets": -1, "type_vocab_size": 0, "conv_kernel_size": 0}
NORMS = {"none": False, "layer_norm": True}
LEGACY_NAMES = {"lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
         "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
         "lm_predictions.lm_head.bias": "cls.predictions.bias"}  # fmt: skip


class DebertaV2(Published):
    """The masked-LM head has two sets of names: the `legacy` ones, which are written, and `lm_predictions`."""

    model_type = "deberta-v2"
    architecture = "DebertaV2Model"
    family = "deberta"
    keys = {
        "vocab_size": Key("vocabulary", 128100),
        "hidden_size": Key("width", 1536),
        "embedding_size": Key("embedding_width", None),
        "num_attention_heads": Key("heads", 24),
        "num_hidden_layers": Key("depth", 24),
        "intermediate_size": Key("feedforward", 6144),
        "type_vocab_size": Key("token_types", None),
        "hidden_act": Key("activation", "gelu", ACTIVATIONS),
        "pooler_hidden_act": Key("pooler_activation", "gelu", ACTIVATIONS),
        "max_position_embeddings": Key("max_positions", 512),
        "max_relative_positions": Key("max_relative_positions", None),
        "position_biased_input": Key("absolute", True),
        "layer_norm_eps": Key("epsilon", 1e-7),
        "hidden_dropout_prob": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
        "position_buckets": Key("position_buckets", None),
        "share_att_key": Key("share_att_key", False),
        "norm_rel_ebd": Key("norm_rel_embeddings", "none", NORMS),
        "conv_kernel_size": Key("kernel", None),
        "conv_groups": Key("kernel_groups", 1),
        "conv_act": Key("kernel_activation", "tanh", ACTIVATIONS),
    }
    fixed: Mapping[str, Any] = {"key_bias": True}
    required: Mapping[str, Any] = REQUIRED
    ignored = re.compile(r"(.*\.)?embeddings\.position_ids|mask_predictions\..*")  # the latter detects replaced tokens
    extra_keys = {"attention_probs_dropout_prob": 0.0}
    prefix = "deberta."
    outer_modules = {
        **Bert.outer_modules,
        "embed.norm.0": "embeddings.embed_proj",  # where embeddings are projected before their norm
        "embed.norm.1": "embeddings.LayerNorm",
        "distances.table": "encoder.rel_embeddings",
        "distances.norm": "encoder.LayerNorm",
        "encoder.blocks.0.convolution": "encoder.conv.conv",
        "encoder.blocks.0.norm": "encoder.conv.LayerNorm",
    }
    block = "deberta.encoder.layer.{index}."
    block_names: Mapping[str, str] = {
        **Bert.block_names,
        "self_attention.query": "attention.self.query_proj",
        "self_attention.key": "attention.self.key_proj",
        "self_attention.value": "attention.self.value_proj",
        "self_attention.position_bias.key": "attention.self.pos_key_proj",
        "self_attention.position_bias.query": "attention.self.pos_query_proj",
    }
    head_names = {
        MASKED_LM: Bert.head_names[MASKED_LM],
        PRETRAINING: {**Bert.head_names[PRETRAINING], "pair_pooler.dense": "cls.comparison"},  # exists only in regard
        SEQUENCE: {"pool.dense": "pooler.dense", "head": "classifier"},
        **LABEL_HEADS,
    }

    def read_fields(self, config: Json) -> Json:
        unset = {key: None for key in UNSET if type(config.get(key)) is int and config[key] < 1}
        fields = super().read_fields(config | unset)
        terms = _parse_terms(config.get("pos_att_type"))
        fields |= {term: term in terms for term in TERMS}
        relative = checked(config, "relative_attention", False)
        if relative != bool(terms):
            raise UserError(
                f"relative_attention = {relative} with pos_att_type = {config.get('pos_att_type')}: relative attention "
                "needs terms in pos_att_type, and terms need relative attention"
            )
        sizes = {"attention_head_size": fields["width"] // fields["heads"], "pooler_hidden_size": fields["width"]}
        require_values(config, sizes)
        if fields["embedding_width"] == fields["width"]:
            fields["embedding_width"] = 0
        if config.get("legacy") is False:
            fields["tied"] = True
        if not relative:
            fields |= {"max_relative_positions": 0} | {key: value for key, value in V2_FIELDS.items() if key in fields}
        return fields

    def describe(self, network: TextEncoder, foreign: Json) -> Json:
        ours = network.config
        config = super().describe(network, foreign)
        unset = [key for key in UNSET if key in self.keys and config[key] is None]
        config |= {key: foreign.get(key, UNSET[key]) for key in unset}
        config |= {
            "embedding_size": ours.embedding_width or ours.width,
            "legacy": True,
            "relative_attention": ours.relative,
        }
        terms = [term for term in TERMS if getattr(ours, term)]
        same = set(_parse_terms(foreign.get("pos_att_type"))) == set(terms)
        config["pos_att_type"] = foreign["pos_att_type"] if same and "pos_att_type" in foreign else terms
        return config

    def config_fields(self, config: DebertaConfig) -> Json:
        return vars(config) | {"feedforward": config.feedforward or 4 * config.width}

    def adapt_tensors(self, tensors: dict[str, Tensor], config: Json) -> dict[str, Tensor]:
        """The masked-LM head under its legacy names, and no absolute positions where only pretraining used them."""
        modules = {name.partition(".")[0] for name in tensors}
        is_new = "lm_predictions" in modules and ("cls" not in modules or config.get("legacy") is False)
        unused = ["cls." if is_new else "lm_predictions."]
        if not config.get("position_biased_input", True):
            unused += ["deberta.embeddings.position_embeddings.", "embeddings.position_embeddings."]
        adapted = {}
        for name, tensor in tensors.items():
            if not name.startswith(tuple(unused)):
                for new, legacy in LEGACY_NAMES.items():
                    name = name.replace(new, legacy)
                adapted[name] = tensor
        return adapted


V2_FIELDS = {"position_buckets": 0, "share_att_key": False, "norm_rel_embeddings": False}


class Deberta(DebertaV2):
    """Queries, keys and values in one tensor, interleaved by head; query and value biases are separate tensors."""

    model_type = "deberta"
    architecture = "DebertaModel"
    keys = {
        **{theirs: key for theirs, key in DebertaV2.keys.items() if key.ours not in V2_FIELDS and "conv" not in theirs},
        "vocab_size": Key("vocabulary", 50265),
        "hidden_size": Key("width", 768),
        "num_attention_heads": Key("heads", 12),
        "num_hidden_layers": Key("depth", 12),
        "intermediate_size": Key("feedforward", 3072),
    }
    fixed = {"key_bias": False, "kernel": 0, **V2_FIELDS}
    required = {**REQUIRED, "talking_head": False}
    block_names = {
        **DebertaV2.block_names,
        **{f"self_attention.{projection}": "attention.self.in_proj" for projection in PACKED},
        "self_attention.position_bias.key": "attention.self.pos_proj",
        "self_attention.position_bias.query": "attention.self.pos_q_proj",
    }

    def tensor_specs(self, network: TextEncoder) -> TensorSpecs:
        specs = dict(super().tensor_specs(network))
        for name, spec in specs.items():
            module, _, kind = name.rpartition(".")
            projection = module.rpartition(".self_attention.")[2]
            if projection in PACKED and kind == "weight":
                part = PACKED.index(projection)
                specs[name] = spec._replace(part=part, parts=len(PACKED), groups=network.config.heads)
            elif projection in PACKED:
                names = tuple(theirs.replace("in_proj.bias", f"{projection[0]}_bias") for theirs in spec.names)
                specs[name] = spec._replace(names=names)
        return specs


def _parse_terms(value: Any) -> list[str]:
    """The relative-position terms of the scores: c2p is content to position. A list, or a string with | in between."""
    terms = [term.strip() for term in value.lower().split("|")] if isinstance(value, str) else value or []
    for term in terms:
        if term not in TERMS:
            raise unsupported("pos_att_type", term, TERMS)
    if len(set(terms)) < len(terms):
        raise UserError(f"pos_att_type = {value}: a term is repeated")
    return terms
