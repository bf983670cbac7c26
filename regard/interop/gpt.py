"""GPT-1, GPT-2 and GPT-Neo under their published names.

OpenAI's two keep queries, keys and values in one tensor, and all products turned: (inputs, outputs).
"""

import re
from collections.abc import Mapping
from typing import Any

from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Key
from regard.interop.layout import Published, tables
from regard.interop.safetensors import TensorSpec
from regard.models.registry import DEEPEST

FUSED = ("own.query", "own.key", "own.value")
PATTERN_LETTERS = {"global": "g", "local": "l"}
WORDS = {letter: word for word, letter in PATTERN_LETTERS.items()}
ALTERNATING = [[["global", "local"], 12]]  # GPT-Neo's where nothing is said


class OpenAI(Published):
    """What GPT-1 and GPT-2 have in common."""

    family = "gpt"
    keys = {
        "vocab_size": Key("vocabulary", 50257),
        "n_embd": Key("width", 768),
        "n_head": Key("heads", 12),
        "n_layer": Key("depth", 12),
        "n_positions": Key("limit", 1024),
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
    only = {"is_encoder_decoder": False, "add_cross_attention": False, "quantization_config": None}
    prefix, block = "transformer.", "transformer.h.{number}."
    inside = {
        **dict.fromkeys(FUSED, "attn.c_attn"),
        "own.output": "attn.c_proj",
        "self_attention_residual.norm": "ln_1",
        "feedforward.widen": "mlp.c_fc",
        "feedforward.narrow": "mlp.c_proj",
        "feedforward_residual.norm": "ln_2",
    }
    ignored = re.compile(r"(transformer\.)?(h\.\d+\.attn\.(bias|masked_bias)|position_ids)")

    def slot(self, part: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        turned = kind == "weight" and part.startswith(("own.", "feedforward."))
        if part in FUSED:
            return TensorSpec(names, FUSED.index(part), len(FUSED), turned)
        return TensorSpec(names, turned=turned)

    def speaks(self, network: Any) -> bool:
        return super().speaks(network) and "l" not in _letters(network.config)

    def unsaid(self, config: Any) -> dict[str, Any]:
        return {"embd_pdrop": config.dropout, "attn_pdrop": 0.0}


class GPT1(OpenAI):
    model_type, architecture = "openai-gpt", "OpenAIGPTLMHeadModel"
    keys = {
        **OpenAI.keys,
        "vocab_size": Key("vocabulary", 40478),
        "n_positions": Key("limit", 512),
        "afn": Key("activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "swish", "swish": "swish"}),
    }
    fixed = {**OpenAI.fixed, "norm": "post", "score": "scaled_dot", "score_by_depth": False}

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        positions = {"embed.positions.table.weight": ("transformer.positions_embed.weight",)}
        return tables("transformer.tokens_embed.weight", config.tied) | positions

    def speaks(self, network: Any) -> bool:
        return super().speaks(network) and network.config.feedforward in (0, 4 * network.config.width)


class GPT2(OpenAI):
    model_type, architecture = "gpt2", "GPT2LMHeadModel"
    keys = {
        **OpenAI.keys,
        "n_inner": Key("feedforward", None),
        "activation_function": Key("activation", "gelu_new", ACTIVATIONS),
        "scale_attn_weights": Key("score", True, {True: "scaled_dot", False: "dot"}),
        "scale_attn_by_inverse_layer_idx": Key("score_by_depth", False),
    }

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        return _outside(config)


class GPTNeo(Published):
    """Every other block looks at a window; scores are not scaled; queries, keys and values have no bias."""

    model_type, architecture, family = "gpt_neo", "GPTNeoForCausalLM", "gpt"
    keys = {
        "vocab_size": Key("vocabulary", 50257),
        "hidden_size": Key("width", 2048),
        "num_heads": Key("heads", 16),
        "num_layers": Key("depth", 24),
        "intermediate_size": Key("feedforward", None),
        "window_size": Key("window", 256),
        "max_position_embeddings": Key("limit", 2048),
        "activation_function": Key("activation", "gelu_new", ACTIVATIONS),
        "layer_norm_epsilon": Key("epsilon", 1e-5),
        "resid_dropout": Key("dropout", 0.0),
        "tie_word_embeddings": Key("tied", True),
    }
    aliases = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
    fixed = {"norm": "pre", "score": "dot", "score_by_depth": False, "bias": True, "projection_bias": False}
    only = OpenAI.only
    prefix, block = OpenAI.prefix, OpenAI.block
    inside = {
        "own.query": "attn.attention.q_proj",
        "own.key": "attn.attention.k_proj",
        "own.value": "attn.attention.v_proj",
        "own.output": "attn.attention.out_proj",
        "self_attention_residual.norm": "ln_1",
        "feedforward.widen": "mlp.c_fc",
        "feedforward.narrow": "mlp.c_proj",
        "feedforward_residual.norm": "ln_2",
    }
    ignored = re.compile(r"(transformer\.)?h\.\d+\.attn\.attention\.(bias|masked_bias)")

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        return _outside(config)

    def fields(self, config: dict[str, Any]) -> dict[str, Any]:
        found = super().fields(config)
        return found | {"pattern": _pattern(config, found["depth"])}

    def describe(self, network: Any, foreign: dict[str, Any]) -> dict[str, Any]:
        layers = [WORDS[letter] for letter in _letters(network.config)]
        types = foreign.get("attention_types") or [[layers, 1]]
        return super().describe(network, foreign) | {"attention_types": types, "attention_layers": layers}

    def unsaid(self, config: Any) -> dict[str, Any]:
        return {"embed_dropout": config.dropout, "attention_dropout": 0.0}


def _outside(config: Any) -> dict[str, tuple[str, ...]]:
    norm = {f"decoder.final.{kind}": (f"transformer.ln_f.{kind}",) for kind in ("weight", "bias")}
    positions = {"embed.positions.table.weight": ("transformer.wpe.weight",)}
    return tables("transformer.wte.weight", config.tied) | positions | norm


def _letters(config: Any) -> str:
    """The pattern, a letter for every block."""
    return (config.pattern * config.depth)[: config.depth]


def _pattern(config: dict[str, Any], depth: int) -> str:
    """Which blocks are global and which local: `attention_layers`, or `attention_types` written out."""
    types, layers = config.get("attention_types"), config.get("attention_layers")
    said = {} if layers is None else {"attention_layers": layers}
    if types is not None or layers is None:
        said["attention_types"] = _written_out(ALTERNATING if types is None else types)
    for key, kinds in said.items():
        if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in WORDS.values() for kind in kinds):
            raise UserError(f"{key} = {config.get(key)} should say 'global' or 'local' for each of {depth} blocks")
    patterns = {"".join(PATTERN_LETTERS[kind] for kind in kinds) for kinds in said.values()}
    if len(patterns) > 1:
        raise UserError(f"attention_types = {types} and attention_layers = {layers} do not say the same")
    return patterns.pop()


def _written_out(types: Any) -> list[Any] | None:
    """[[["global", "local"], 2]] → global, local, global, local; or nothing, where it is no such list."""
    try:
        return [kind for kinds, times in types for kind in list(kinds) * min(times, DEEPEST + 1)]
    except (TypeError, ValueError):
        return None
