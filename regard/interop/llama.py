"""Llama: its config keys and tensor names; RoPE parameters in the older form of config.json and in the newer."""

import re

from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Json, Key, Keys, keys_from, read_fields, require_values, unsupported
from regard.interop.layout import PublishedCausalLM
from regard.layers.autoregressive import TransformerLM
from regard.models.llama import LlamaConfig

ROPE_TYPES = {"default": "none", "linear": "linear", "llama3": "llama3"}  # theirs → ours
ORIGINAL = "original_max_position_embeddings"
LINEAR_KEYS: Keys = {"factor": Key("rope_factor", 1.0)}
LLAMA3_KEYS: Keys = {  # all required: the defaults only determine the types
    **LINEAR_KEYS,
    "low_freq_factor": Key("low_freq_factor", 1.0),
    "high_freq_factor": Key("high_freq_factor", 4.0),
    ORIGINAL: Key("original_max_positions", 8192),
}
ROPE_KEYS: dict[str, Keys] = {"none": {}, "linear": LINEAR_KEYS, "llama3": LLAMA3_KEYS}  # in addition to `rope_theta`


class Llama(PublishedCausalLM):
    model_type = "llama"
    architecture = "LlamaForCausalLM"
    family = "llama"
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
        "max_position_embeddings": Key("max_positions", 2048),
        "tie_word_embeddings": Key("tied", False),
        "dropout": Key("dropout", 0.0),  # a key of regard: other libraries train Llama without dropout
    }
    required = {
        **PublishedCausalLM.required,
        "pretraining_tp": 1,
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
    }
    extra_keys = {"pretraining_tp": 1, "attention_dropout": 0.0}
    prefix = "model."
    embedding = "embed_tokens"
    outer_modules = {"decoder.final": "norm"}
    block = "model.layers.{index}."
    block_names = {
        "self_attention.query": "self_attn.q_proj",
        "self_attention.key": "self_attn.k_proj",
        "self_attention.value": "self_attn.v_proj",
        "self_attention.output": "self_attn.o_proj",
        "self_attention_residual.norm": "input_layernorm",
        "feedforward.gate": "mlp.gate_proj",
        "feedforward.up": "mlp.up_proj",
        "feedforward.down": "mlp.down_proj",
        "feedforward_residual.norm": "post_attention_layernorm",
    }
    ignored = re.compile(r".*rotary_emb\.inv_freq")

    def matches(self, network: TransformerLM) -> bool:
        return super().matches(network) and network.config.width % network.config.heads == 0

    def read_fields(self, config: Json) -> Json:
        """With RoPE from `rope_parameters`, or in older files from `rope_theta` and `rope_scaling`."""
        fields = super().read_fields(config)
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        if not isinstance(rope, dict):
            raise UserError(f"rope_scaling = {rope!r} should be an object {{…}} with rope_type")
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if not isinstance(rope_type, str) or rope_type not in ROPE_TYPES:
            raise unsupported("rope_type", rope_type, ROPE_TYPES)
        require_values(rope, {"partial_rotary_factor": self.required["partial_rotary_factor"]})
        stretch = ROPE_TYPES[rope_type]
        if stretch == "llama3":
            lengths = (config.get(ORIGINAL), rope.get(ORIGINAL), config.get("max_position_embeddings", 2048))
            rope = rope | {ORIGINAL: next((length for length in lengths if length is not None), None)}
        for key in ROPE_KEYS[stretch]:
            if key not in rope:
                raise UserError(f"rope_type = '{rope_type}' needs {key}")
        fields |= {"rope_scaling": stretch} | read_fields(rope, ROPE_KEYS[stretch])
        return fields | read_fields(config | rope, {"rope_theta": Key("rope_theta", 10000.0)})

    def describe(self, network: TransformerLM, foreign: Json) -> Json:
        """With RoPE parameters in both forms, unless the loaded config has them."""
        config = super().describe(network, foreign)
        if not foreign.keys().isdisjoint(("rope_theta", "rope_scaling", "rope_parameters")):
            return config
        ours = network.config
        rope_type = next(theirs for theirs, name in ROPE_TYPES.items() if name == ours.rope_scaling)
        rope = {"rope_type": rope_type, **keys_from(vars(ours), ROPE_KEYS[ours.rope_scaling], {})}
        return config | {
            "rope_theta": ours.rope_theta,
            "rope_scaling": None if ours.rope_scaling == "none" else rope,
            "rope_parameters": {"rope_theta": ours.rope_theta, **rope},
        }

    def config_fields(self, config: LlamaConfig) -> Json:
        return vars(config) | {
            "key_heads": config.key_heads or config.heads,
            "head_width": config.head_width or config.width // config.heads,
            "feedforward": config.hidden,
        }
