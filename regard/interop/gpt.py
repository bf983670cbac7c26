"""GPT-1, GPT-2 and GPT-Neo: their config keys and tensor names.

OpenAI's two store queries, keys and values in one tensor, and all matrices transposed: (inputs, outputs).
"""

import re
from typing import Any

from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Json, Key
from regard.interop.layout import PublishedCausalLM
from regard.interop.safetensors import TensorSpec
from regard.layers.autoregressive import TransformerLM
from regard.models.gpt import GPTConfig
from regard.models.registry import DEEPEST

FUSED = ("self_attention.query", "self_attention.key", "self_attention.value")
PATTERN_LETTERS = {"global": "g", "local": "l"}
ATTENTION_TYPES = {letter: name for name, letter in PATTERN_LETTERS.items()}
ALTERNATING = [[["global", "local"], 12]]  # the default of GPT-Neo


class GPTLayout(PublishedCausalLM):
    """What all three have in common."""

    family = "gpt"
    prefix = "transformer."
    embedding = "wte"
    outer_modules = {"embed.positions.table": "wpe", "decoder.final": "ln_f"}
    block = "transformer.h.{index}."
    block_names = {
        "self_attention_residual.norm": "ln_1",
        "feedforward.up": "mlp.c_fc",
        "feedforward.down": "mlp.c_proj",
        "feedforward_residual.norm": "ln_2",
    }


class OpenAI(GPTLayout):
    """GPT-1 and GPT-2."""

    keys = {
        "vocab_size": Key("vocabulary", 50257),
        "n_embd": Key("width", 768),
        "n_head": Key("heads", 12),
        "n_layer": Key("depth", 12),
        "n_positions": Key("max_positions", 1024),
        "layer_norm_epsilon": Key("epsilon", 1e-5),
        "resid_pdrop": Key("dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
    }
    aliases = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
    }
    fixed = {"norm": "pre", "bias": True, "projection_bias": True}
    extra_keys = {"attn_pdrop": 0.0}
    dropout_keys = ("embd_pdrop",)
    fused = dict.fromkeys(FUSED, "attn.c_attn")
    block_names = {**GPTLayout.block_names, **fused, "self_attention.output": "attn.c_proj"}
    ignored = re.compile(r"(transformer\.)?(h\.\d+\.attn\.(bias|masked_bias)|position_ids)")

    def tensor_spec(self, module: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        transposed = kind == "weight" and module.startswith(("self_attention.", "feedforward."))
        if module in FUSED:
            return TensorSpec(names, FUSED.index(module), len(FUSED), transposed)
        return TensorSpec(names, transposed=transposed)

    def matches_config(self, config: GPTConfig) -> bool:
        return super().matches_config(config) and "l" not in _letters(config)


class GPT1(OpenAI):
    model_type = "openai-gpt"
    architecture = "OpenAIGPTLMHeadModel"
    keys = {
        **OpenAI.keys,
        "vocab_size": Key("vocabulary", 40478),
        "n_positions": Key("max_positions", 512),
        "afn": Key("activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "swish", "swish": "swish"}),
    }
    fixed = {**OpenAI.fixed, "norm": "post", "score": "scaled_dot", "scale_by_layer": False}

    embedding = "tokens_embed"
    outer_modules = {"embed.positions.table": "positions_embed"}

    def matches_config(self, config: GPTConfig) -> bool:
        return super().matches_config(config) and config.feedforward in (0, 4 * config.width)


class GPT2(OpenAI):
    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    keys = {
        **OpenAI.keys,
        "n_inner": Key("feedforward", None),
        "activation_function": Key("activation", "gelu_new", ACTIVATIONS),
        "scale_attn_weights": Key("score", True, {True: "scaled_dot", False: "dot"}),
        "scale_attn_by_inverse_layer_idx": Key("scale_by_layer", False),
    }


class GPTNeo(GPTLayout):
    """Every other block has local attention; scores are not scaled; queries, keys and values have no bias."""

    model_type = "gpt_neo"
    architecture = "GPTNeoForCausalLM"
    keys = {
        "vocab_size": Key("vocabulary", 50257),
        "hidden_size": Key("width", 2048),
        "num_heads": Key("heads", 16),
        "num_layers": Key("depth", 24),
        "intermediate_size": Key("feedforward", None),
        "window_size": Key("window", 256),
        "max_position_embeddings": Key("max_positions", 2048),
        "activation_function": Key("activation", "gelu_new", ACTIVATIONS),
        "layer_norm_epsilon": Key("epsilon", 1e-5),
        "resid_dropout": Key("dropout", 0.0),
        "tie_word_embeddings": Key("tied", True),
    }
    aliases = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
    fixed = {"norm": "pre", "score": "dot", "scale_by_layer": False, "bias": True, "projection_bias": False}
    extra_keys = {"attention_dropout": 0.0}
    dropout_keys = ("embed_dropout",)
    block_names = {
        **GPTLayout.block_names,
        "self_attention.query": "attn.attention.q_proj",
        "self_attention.key": "attn.attention.k_proj",
        "self_attention.value": "attn.attention.v_proj",
        "self_attention.output": "attn.attention.out_proj",
    }
    ignored = re.compile(r"(transformer\.)?h\.\d+\.attn\.attention\.(bias|masked_bias)")

    def read_fields(self, config: Json) -> Json:
        """With global and local blocks, by `attention_layers`, by `attention_types` or by both."""
        fields = super().read_fields(config)
        depth = fields["depth"]
        types = config.get("attention_types")
        layers = config.get("attention_layers")
        lists = {} if layers is None else {"attention_layers": layers}
        if types is not None or layers is None:
            lists["attention_types"] = _expand(ALTERNATING if types is None else types)
        for key, names in lists.items():
            if not isinstance(names, list) or len(names) != depth or not all(name in PATTERN_LETTERS for name in names):
                raise UserError(f"{key} = {config.get(key)} should be 'global' or 'local' for each of {depth} blocks")
        patterns = {"".join(PATTERN_LETTERS[name] for name in names) for names in lists.values()}
        if len(patterns) > 1:
            raise UserError(f"attention_types = {types} and attention_layers = {layers} contradict each other")
        return fields | {"attention_pattern": patterns.pop()}

    def describe(self, network: TransformerLM, foreign: Json) -> Json:
        layers = [ATTENTION_TYPES[letter] for letter in _letters(network.config)]
        types = foreign.get("attention_types") or [[layers, 1]]
        return super().describe(network, foreign) | {"attention_types": types, "attention_layers": layers}


def _letters(config: GPTConfig) -> str:
    """The pattern, repeated to a letter per block."""
    return (config.attention_pattern * config.depth)[: config.depth]


def _expand(types: Any) -> list[Any] | None:
    """[[["global", "local"], 2]] → global, local, global, local; None for anything else."""
    try:
        return [name for names, times in types for name in list(names) * min(times, DEEPEST + 1)]
    except (TypeError, ValueError):
        return None
