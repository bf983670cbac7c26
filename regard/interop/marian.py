"""Marian: the 2017 Transformer of thousands of published translation models, under its published names.

Post-norm, sinusoids with all sines before all cosines, a bias on the logits; source and target end with </s>, and the
decoder begins with `decoder_start_token_id`, which is padding.
"""

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.positions import Sinusoid, sinusoid
from regard.errors import UserError, nearest
from regard.interop.weights import Names
from regard.models import build
from regard.models.transformer import Transformer, TransformerConfig

KEYS: dict[str, tuple[str, int | float]] = {  # their key: ours, and what holds where it is not said
    "d_model": ("width", 1024),
    "encoder_attention_heads": ("heads", 16),
    "encoder_layers": ("depth", 12),
    "encoder_ffn_dim": ("feedforward", 4096),
    "decoder_attention_heads": ("decoder_heads", 16),
    "decoder_layers": ("decoder_depth", 12),
    "decoder_ffn_dim": ("decoder_feedforward", 4096),
    "scale_embedding": ("scale_embedding", False),
    "dropout": ("dropout", 0.1),
    "max_position_embeddings": ("limit", 1024),
    "vocab_size": ("source_vocabulary", 58101),
}
ACTIVATIONS = {  # their name: ours; the first of several is the one we write
    "relu": "relu",
    "gelu": "gelu",
    "swish": "swish",
    "tanh": "tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "silu": "swish",
}
ONLY = {  # keys that older or foreign configs use for other mathematics: the one value that is Marian's
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "do_blenderbot_90_layernorm": False,
    "static_position_embeddings": True,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "quantization_config": None,
}
PARTS = {  # inside a block, ours: theirs
    "own.query": "self_attn.q_proj",
    "own.key": "self_attn.k_proj",
    "own.value": "self_attn.v_proj",
    "own.output": "self_attn.out_proj",
    "own_residual.norm": "self_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.output": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feedforward.widen": "fc1",
    "feedforward.narrow": "fc2",
    "feedforward_residual.norm": "final_layer_norm",
}
SHARED, BIAS = "model.shared.weight", "final_logits_bias"
SOURCE, TARGET, OUTPUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
TABLES: dict[str, Names] = {  # outside the blocks, by what is tied
    "all": {"source.table.weight": (SHARED, SOURCE, TARGET, OUTPUT)},
    "output": {"source.table.weight": (SOURCE,), "target.table.weight": (TARGET, OUTPUT)},
    "none": {"source.table.weight": (SOURCE,), "target.table.weight": (TARGET,), "output.weight": (OUTPUT,)},
}
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
INSIDE = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)\.(weight|bias)")


def speaks(network: nn.Module) -> bool:
    """Whether the network is Marian's mathematics, if need be after `in_halves`."""
    return (
        isinstance(network, Transformer)
        and network.config.norm == "post"
        and network.config.score == "scaled_dot"
        and network.config.feedforward > 0
        and network.config.positions in ("sinusoid", "sinusoid_halves")
        and network.config.activation in ACTIVATIONS.values()
    )


def in_halves(network: Any) -> Any:
    """The same function with its sinusoids in two halves: the places of the width are renumbered, in every tensor."""
    if network.config.positions == "sinusoid_halves":
        return network
    width = network.config.width
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    twin = deepcopy(network)
    twin.config = replace(network.config, positions="sinusoid_halves")
    for side in (twin.source, twin.target):
        side.positions = Sinusoid(width, halves=True)
    for name, parameter in twin.named_parameters():
        axis = _width_axis(name)
        if axis is not None:
            parameter.data = parameter.data.index_select(axis, order.to(parameter.device))
    return twin


def _width_axis(name: str) -> int | None:
    """Which axis of a parameter runs along the model's width: what reads the residual stream, or what writes it."""
    part, kind = name.rsplit(".", 1)
    last = part.rsplit(".", 1)[-1]
    if last == "norm" or (last in ("output", "narrow") and part != "output"):
        return 0
    return 1 if kind == "weight" else None


def read(config: dict[str, Any]) -> Transformer:
    """A network from keys of config.json, its weights still random."""
    for key, value in ONLY.items():
        if config.get(key, value) != value:
            raise UserError(f"{key} = {config[key]} changes the computation, and only {key} = {value} is known")
    model: dict[str, Any] = {"family": "transformer", "norm": "post", "positions": "sinusoid_halves"}
    for theirs, (ours, default) in KEYS.items():
        model[ours] = _checked(config, theirs, default)
    activation = config.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UserError(f"activation_function = '{activation}' is unknown{nearest(str(activation), ACTIVATIONS)}")
    model["activation"] = ACTIVATIONS[activation]
    target = model["source_vocabulary"]
    if config.get("decoder_vocab_size") is not None:
        target = _checked(config, "decoder_vocab_size", 1)
    shared, tied = _sharing(config)
    if shared and target != model["source_vocabulary"]:
        raise UserError(
            f"share_encoder_decoder_embeddings = True needs one vocabulary, but vocab_size = "
            f"{model['source_vocabulary']} and decoder_vocab_size = {target}"
        )
    model["target_vocabulary"] = target
    model["tied"] = ("all" if shared else "output") if tied else "none"
    network = build(model)
    assert isinstance(network, Transformer)
    return network


def _checked(config: dict[str, Any], key: str, default: int | float) -> Any:
    """A value of the type it must have; sizes are positive."""
    value = config.get(key, default)
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
        raise UserError(f"{key} = {value!r} should be of type {type(default).__name__}, e.g. {default}")
    if type(default) is int and value < 1:
        raise UserError(f"{key} = {value} should be at least 1")
    return value


def _sharing(config: dict[str, Any]) -> tuple[bool, bool]:
    """Whether both sides share an embedding, and whether the output shares the target's."""
    return (
        _checked(config, "share_encoder_decoder_embeddings", True),
        _checked(config, "tie_word_embeddings", True),
    )


def describe(network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
    """The network as keys of config.json, over what a loaded config said beyond them."""
    config: TransformerConfig = network.config  # type: ignore[assignment]
    sides = {
        "decoder_heads": config.decoder_heads or config.heads,
        "decoder_depth": config.decoder_depth or config.depth,
        "decoder_feedforward": config.decoder_feedforward or config.feedforward,
    }
    activation = foreign.get("activation_function")
    if ACTIVATIONS.get(str(activation)) != config.activation:
        activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    unsaid = {"attention_dropout": 0.0, "activation_dropout": 0.0, "forced_eos_token_id": None, "use_cache": True}
    kept = {key: value for key, value in foreign.items() if key != "torch_dtype"}
    return {
        **unsaid,
        **kept,
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        **{theirs: sides.get(ours, getattr(config, ours)) for theirs, (ours, _) in KEYS.items()},
        "decoder_vocab_size": config.target_vocabulary,
        "activation_function": activation,
        "share_encoder_decoder_embeddings": config.tied == "all",
        "tie_word_embeddings": config.tied != "none",
    }


def names(network: Any) -> Names:
    """Our parameters' names → theirs, of which the first is written."""
    found: dict[str, tuple[str, ...]] = {**TABLES[network.config.tied], "output.bias": (BIAS,)}
    for name, _ in network.named_parameters():
        if match := INSIDE.fullmatch(name):
            side, number, part, kind = match.groups()
            found[name] = (f"model.{side}.layers.{number}.{PARTS[part]}.{kind}",)
    return found


def shapes(network: Any) -> dict[str, tuple[int, ...]]:
    """Where their tensor has other axes than ours."""
    return {BIAS: (1, network.config.target_vocabulary)}


def receive(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Their tensors, made ready for ours: positions are checked and dropped, what may be left out is filled in."""
    tensors = dict(tensors)
    for name in POSITIONS:
        table = tensors.pop(name, None)
        if table is not None and not _is_sinusoid(table):
            raise UserError(f"{name} is not the table of sinusoids that Marian computes: such positions are unknown")
    shared, tied = _sharing(config)
    if shared and not tied and SHARED in tensors:  # some writers keep both sides' tables beside the shared one
        table = tensors.pop(SHARED)
        tensors = {SOURCE: table, TARGET: table} | tensors
    vocabulary = config.get("decoder_vocab_size") or config.get("vocab_size", KEYS["vocab_size"][1])
    bias = tensors.get(BIAS, torch.zeros(1).expand(vocabulary))
    return tensors | {BIAS: bias.squeeze(0) if bias.dim() == 2 else bias}


def _is_sinusoid(table: Tensor) -> bool:
    """Within the precision of bfloat16, in which the table may have been kept."""
    return table.dim() == 2 and torch.allclose(table, sinusoid(*table.shape, halves=True), atol=1e-2)
