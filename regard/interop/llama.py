"""Llama under its published names, with its rotary speeds in the older form of config.json and in the newer."""

import re
from collections.abc import Mapping
from typing import Any

from regard.errors import UserError, nearest
from regard.interop.config_keys import ACTIVATIONS, Key, Keys, fields_of, keys_of, refuse_others
from regard.interop.layout import Published, tables

STRETCHES = {"default": "none", "linear": "linear", "llama3": "llama3"}  # their rope_type: ours
TRAINED = "original_max_position_embeddings"
FACTOR: Keys = {"factor": Key("factor", 1.0)}
TURNS: Keys = {  # each is needed, so the defaults only say of which type it is
    **FACTOR,
    "low_freq_factor": Key("slow", 1.0),
    "high_freq_factor": Key("fast", 4.0),
    TRAINED: Key("trained", 8192),
}
ROTARY: dict[str, Keys] = {"none": {}, "linear": FACTOR, "llama3": TURNS}  # what is said beside `rope_theta`


class Llama(Published):
    model_type, architecture, family = "llama", "LlamaForCausalLM", "llama"
    keys = {
        "vocab_size": Key("vocabulary", 32000),
        "hidden_size": Key("width", 4096),
        "num_attention_heads": Key("heads", 32),
        "num_key_value_heads": Key("key_heads", None),
        "head_dim": Key("head_width", None),
        "num_hidden_layers": Key("depth", 32),
        "intermediate_size": Key("feedforward", 11008),
        "hidden_act": Key("activation", "silu", ACTIVATIONS),
        "attention_bias": Key("bias", False),
        "mlp_bias": Key("feedforward_bias", False),
        "rms_norm_eps": Key("epsilon", 1e-6),
        "max_position_embeddings": Key("limit", 2048),
        "tie_word_embeddings": Key("tied", False),
        "dropout": Key("dropout", 0.0),  # our own: others train Llama without
    }
    only = {
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "quantization_config": None,
        "pretraining_tp": 1,
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
    }
    prefix, block = "model.", "model.layers.{number}."
    inside = {
        "own.query": "self_attn.q_proj",
        "own.key": "self_attn.k_proj",
        "own.value": "self_attn.v_proj",
        "own.output": "self_attn.o_proj",
        "self_attention_residual.norm": "input_layernorm",
        "feedforward.gate": "mlp.gate_proj",
        "feedforward.widen": "mlp.up_proj",
        "feedforward.narrow": "mlp.down_proj",
        "feedforward_residual.norm": "post_attention_layernorm",
    }
    ignored = re.compile(r".*rotary_emb\.inv_freq")

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        return tables("model.embed_tokens.weight", config.tied) | {"decoder.final.weight": ("model.norm.weight",)}

    def speaks(self, network: Any) -> bool:
        return super().speaks(network) and network.config.width % network.config.heads == 0

    def fields(self, config: dict[str, Any]) -> dict[str, Any]:
        return super().fields(config) | _rotary(config)

    def describe(self, network: Any, foreign: dict[str, Any]) -> dict[str, Any]:
        """Speeds in both forms, where no loaded config has its own."""
        found, config = super().describe(network, foreign), network.config
        if not foreign.keys().isdisjoint(("rope_theta", "rope_scaling", "rope_parameters")):
            return found
        kind = next(theirs for theirs, ours in STRETCHES.items() if ours == config.stretch)
        rope = {"rope_type": kind, **keys_of(vars(config), ROTARY[config.stretch], {})}
        return found | {
            "rope_theta": config.base,
            "rope_scaling": None if config.stretch == "none" else rope,
            "rope_parameters": {"rope_theta": config.base, **rope},
        }

    def said(self, config: Any) -> dict[str, Any]:
        return vars(config) | {
            "key_heads": config.key_heads or config.heads,
            "head_width": config.head_width or config.width // config.heads,
            "feedforward": config.hidden,
        }

    def unsaid(self, config: Any) -> dict[str, Any]:
        return {"pretraining_tp": 1, "attention_dropout": 0.0}


def _rotary(config: dict[str, Any]) -> dict[str, Any]:
    """The speeds as `rope_parameters` says them, or as `rope_theta` beside `rope_scaling` did before."""
    said = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(said, dict):
        raise UserError(f"rope_scaling = {said!r} should be an object {{…}} with rope_type")
    kind = said.get("rope_type", said.get("type", "default"))
    if not isinstance(kind, str) or kind not in STRETCHES:
        raise UserError(f"rope_type = '{kind}' is unknown{nearest(str(kind), STRETCHES)}")
    refuse_others(said, {"partial_rotary_factor": Llama.only["partial_rotary_factor"]})
    stretch = STRETCHES[kind]
    if stretch == "llama3":
        places = [place.get(TRAINED) for place in (config, said)]
        trained = next((place for place in places if place is not None), config.get("max_position_embeddings", 2048))
        said = said | {TRAINED: trained}
    for key in ROTARY[stretch]:
        if key not in said:
            raise UserError(f"rope_type = '{kind}' needs {key}")
    base = fields_of(config | said, {"rope_theta": Key("base", 10000.0)})
    return {"stretch": stretch, **fields_of(said, ROTARY[stretch]), **base}
