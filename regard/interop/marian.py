"""Marian, the architecture of most published translation models: its config keys and tensor names.

A post-norm Transformer (Vaswani et al. 2017) whose sinusoids have all sines before all cosines, with a bias on the
logits. Source and target end with </s>; the decoder starts with `decoder_start_token_id`, the padding token.
"""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.attention.positions import Sinusoid, sinusoid
from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Json, Key, checked
from regard.interop.layout import Published
from regard.interop.safetensors import TensorSpec
from regard.models.transformer import Transformer, TransformerConfig

SHARED = "model.shared.weight"
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
BIAS = "final_logits_bias"
EMBEDDINGS: dict[str, dict[str, tuple[str, ...]]] = {  # by our `tied`
    "all": {"source.table.weight": (SHARED, SOURCE, TARGET, OUTPUT)},
    "output": {"source.table.weight": (SOURCE,), "target.table.weight": (TARGET, OUTPUT)},
    "none": {"source.table.weight": (SOURCE,), "target.table.weight": (TARGET,), "output.weight": (OUTPUT,)},
}
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


class Marian(Published):
    model_type = "marian"
    architecture = "MarianMTModel"
    family = "transformer"
    keys = {
        "d_model": Key("width", 1024),
        "encoder_attention_heads": Key("heads", 16),
        "encoder_layers": Key("depth", 12),
        "encoder_ffn_dim": Key("feedforward", 4096),
        "decoder_attention_heads": Key("decoder_heads", 16),
        "decoder_layers": Key("decoder_depth", 12),
        "decoder_ffn_dim": Key("decoder_feedforward", 4096),
        "scale_embedding": Key("scale_embedding", False),
        "dropout": Key("dropout", 0.1),
        "max_position_embeddings": Key("max_positions", 1024),
        "vocab_size": Key("source_vocabulary", 58101),
        "activation_function": Key("activation", "gelu", ACTIVATIONS),
    }
    fixed = {"norm": "post", "score": "scaled_dot"}
    positive = ("feedforward",)
    required = {
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
    extra_keys = {"attention_dropout": 0.0, "activation_dropout": 0.0, "forced_eos_token_id": None, "use_cache": True}
    block = "model.{side}.layers.{index}."
    block_names = {
        "self_attention.query": "self_attn.q_proj",
        "self_attention.key": "self_attn.k_proj",
        "self_attention.value": "self_attn.v_proj",
        "self_attention.output": "self_attn.out_proj",
        "self_attention_residual.norm": "self_attn_layer_norm",
        "cross.query": "encoder_attn.q_proj",
        "cross.key": "encoder_attn.k_proj",
        "cross.value": "encoder_attn.v_proj",
        "cross.output": "encoder_attn.out_proj",
        "cross_residual.norm": "encoder_attn_layer_norm",
        "feedforward.up": "fc1",
        "feedforward.down": "fc2",
        "feedforward_residual.norm": "final_layer_norm",
    }

    def outer_names(self, config: TransformerConfig) -> dict[str, tuple[str, ...]]:
        return EMBEDDINGS[config.tied] | {"output.bias": (BIAS,)}

    def tensor_spec(self, module: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        return TensorSpec(names, leading_axis=names == (BIAS,))

    def matches(self, network: Transformer) -> bool:
        return super().matches(network) and network.config.positions in ("sinusoid", "sinusoid_halves")

    def canonical(self, network: Transformer) -> nn.Module:
        """With the sines before the cosines: the model's width is permuted, in every tensor."""
        if network.config.positions == "sinusoid_halves":
            return network
        width = network.config.width
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
        permuted = deepcopy(network)
        permuted.config = replace(network.config, positions="sinusoid_halves")
        for side in (permuted.source, permuted.target):
            side.positions = Sinusoid(width, halves=True)
        for name, parameter in permuted.named_parameters():
            axis = _width_axis(name)
            if axis is not None:
                parameter.data = parameter.data.index_select(axis, order.to(parameter.device))
        return permuted

    def read_fields(self, config: Json) -> Json:
        fields = super().read_fields(config) | {"positions": "sinusoid_halves"}
        source = fields["source_vocabulary"]
        target = checked(config, "decoder_vocab_size", None) or source
        shared, tied = _sharing(config)
        if shared and target != source:
            raise UserError(
                f"share_encoder_decoder_embeddings = True needs one vocabulary, but vocab_size = {source} and "
                f"decoder_vocab_size = {target}"
            )
        return fields | {"target_vocabulary": target, "tied": ("all" if shared else "output") if tied else "none"}

    def describe(self, network: Transformer, foreign: Json) -> Json:
        return super().describe(network, foreign) | {
            "decoder_vocab_size": network.config.target_vocabulary,
            "share_encoder_decoder_embeddings": network.config.tied == "all",
            "tie_word_embeddings": network.config.tied != "none",
        }

    def config_fields(self, config: TransformerConfig) -> Json:
        sides = {f"decoder_{name}": name for name in ("heads", "depth", "feedforward")}
        return vars(config) | {ours: getattr(config, ours) or getattr(config, name) for ours, name in sides.items()}

    def adapt_tensors(self, tensors: dict[str, Tensor], config: Json) -> dict[str, Tensor]:
        """Position tables are checked and dropped; a missing bias is zero."""
        tensors = dict(tensors)
        for name in [name for name in POSITIONS if name in tensors]:
            table = tensors.pop(name)  # perhaps stored as bfloat16
            if table.dim() != 2 or not torch.allclose(table, sinusoid(*table.shape, halves=True), atol=1e-2):
                raise UserError(f"{name} is not the table of sinusoids that Marian computes; others are not supported")
        shared, tied = _sharing(config)
        if shared and not tied and SHARED in tensors:  # some files have both sides' embeddings too
            table = tensors.pop(SHARED)
            tensors = {SOURCE: table, TARGET: table} | tensors
        vocabulary = config.get("decoder_vocab_size") or config.get("vocab_size", self.keys["vocab_size"].default)
        bias = tensors.get(BIAS, torch.zeros(1).expand(vocabulary))
        return tensors | {BIAS: bias[None] if bias.dim() == 1 else bias}


def _width_axis(name: str) -> int | None:
    """Which axis of a parameter is the model's width: the one that reads the residual stream, or writes to it."""
    module, kind = name.rsplit(".", 1)
    last = module.rsplit(".", 1)[-1]
    if last == "norm" or (last in ("output", "down") and module != "output"):
        return 0
    return 1 if kind == "weight" else None


def _sharing(config: Json) -> tuple[bool, bool]:
    """Whether both sides share an embedding, and whether the output is tied to the target's."""
    shared = checked(config, "share_encoder_decoder_embeddings", True)
    return shared, checked(config, "tie_word_embeddings", True)
