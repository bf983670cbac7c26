"""ViT, DeiT and Swin: their config keys and tensor names."""

import re
from typing import Any

from torch import nn

from regard.errors import UserError
from regard.interop.config_keys import ACTIVATIONS, Json, Key, checked
from regard.interop.layout import IMAGE, KINDS, NO_HEAD, POOLER, TEACHER, Published
from regard.interop.safetensors import TensorSpec

LEADING_AXIS = ("cls", "distillation", "table")  # parameters that their files store with a first axis of 1


class PublishedVision(Published):
    """An encoder of images. Sizes of images and patches are one number, or two: height and width."""

    default_patch: int
    required = {"quantization_config": None, "is_encoder_decoder": False, "is_decoder": False, "pruned_heads": {}}
    extra_keys = {"attention_probs_dropout_prob": 0.0}
    outer_parameters: dict[str, str] = {}  # parameters outside the blocks that are not weights or biases of modules

    def outer_names(self, config: Any) -> dict[str, tuple[str, ...]]:
        parameters = {ours: (self.prefix + theirs,) for ours, theirs in self.outer_parameters.items()}
        return super().outer_names(config) | parameters

    def tensor_spec(self, module: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        return TensorSpec(names, leading_axis=kind in LEADING_AXIS and module.startswith("embed."))

    def read_fields(self, config: Json) -> Json:
        height, width = _two_sizes(config, "image_size", 224)
        patch, patch_width = _two_sizes(config, "patch_size", self.default_patch)
        if patch != patch_width:
            raise UserError(f"patch_size = {config['patch_size']} is not supported: only square patches are")
        sizes = {"image_size": height, "image_width": 0 if width == height else width, "patch": patch}
        return super().read_fields(config) | sizes

    def describe(self, network: nn.Module, foreign: Json) -> Json:
        config: Any = network.config
        height, width = config.image_shape
        sizes = {"image_size": height if height == width else [height, width], "patch_size": config.patch}
        return super().describe(network, foreign) | sizes


def _two_sizes(config: Json, key: str, default: int) -> tuple[int, int]:
    value = config.get(key, default)
    if isinstance(value, list) and len(value) == 2:
        height, width = (checked({key: size}, key, default) for size in value)
        return height, width
    return (checked(config, key, default),) * 2


class ViT(PublishedVision):
    model_type = "vit"
    architecture = "ViTModel"
    family = "vit"
    default_patch = 16
    keys = {
        "hidden_size": Key("width", 768),
        "num_attention_heads": Key("heads", 12),
        "num_hidden_layers": Key("depth", 12),
        "intermediate_size": Key("feedforward", 3072),
        "hidden_act": Key("activation", "gelu", ACTIVATIONS),
        "pooler_act": Key("pooler_activation", "tanh", ACTIVATIONS),
        "layer_norm_eps": Key("epsilon", 1e-12),
        "hidden_dropout_prob": Key("dropout", 0.0),
        "drop_path_rate": Key("drop_path", 0.0),  # transformers has no stochastic depth here; it trains, nothing else
        "num_channels": Key("channels", 3),
        "qkv_bias": Key("qkv_bias", True),
        POOLER: Key("pooler", True),
    }
    prefix = "vit."
    outer_modules = {
        "embed.projection": "embeddings.patch_embeddings.projection",
        "encoder.final": "layernorm",
        "pooler.dense": "pooler.dense",
    }
    outer_parameters = {
        "embed.tokens.cls": "embeddings.cls_token",
        "embed.positions.table": "embeddings.position_embeddings",
    }
    block = "vit.encoder.layer.{index}."
    block_names = {
        "self_attention.query": "attention.attention.query",
        "self_attention.key": "attention.attention.key",
        "self_attention.value": "attention.attention.value",
        "self_attention.output": "attention.output.dense",
        "self_attention_residual.norm": "layernorm_before",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "feedforward_residual.norm": "layernorm_after",
    }
    pooled = frozenset({NO_HEAD})
    head_names = {IMAGE: {"head": "classifier"}}

    def read_fields(self, config: Json) -> Json:
        fields = super().read_fields(config)
        width = fields["width"]
        expected = {"pooler_output_size": width, "head_dim": width // fields["heads"]}
        for key, value in expected.items():
            if config.get(key) not in (None, value):
                raise UserError(f"{key} = {config[key]} changes the computation; only {key} = {value} is supported")
        return fields

    def config_fields(self, config: Any) -> Json:
        return vars(config) | {"feedforward": config.feedforward or 4 * config.width}

    def describe(self, network: nn.Module, foreign: Json) -> Json:
        described = super().describe(network, foreign)
        return described | {"pooler_output_size": described["hidden_size"]}


class DeiT(ViT):
    """With a distillation token. DeiT without one is published as `vit`."""

    model_type = "deit"
    architecture = "DeiTModel"
    family = "deit"
    prefix = "deit."
    block = "deit.encoder.layer.{index}."
    outer_parameters = {**ViT.outer_parameters, "embed.tokens.distillation": "embeddings.distillation_token"}
    head_names = {
        TEACHER: {"head": "cls_classifier", "distillation_head": "distillation_classifier"},
        IMAGE: {"head": "classifier"},
    }


class Swin(PublishedVision):
    model_type = "swin"
    architecture = "SwinModel"
    family = "swin"
    default_patch = 4
    keys = {
        "embed_dim": Key("embedding_width", 96),
        "depths": Key("depths", [2, 2, 6, 2]),
        "num_heads": Key("heads", [3, 6, 12, 24]),
        "window_size": Key("window", 7),
        "mlp_ratio": Key("feedforward_ratio", 4.0),
        "qkv_bias": Key("qkv_bias", True),
        "hidden_act": Key("activation", "gelu", ACTIVATIONS),
        "use_absolute_embeddings": Key("absolute_positions", False),
        "layer_norm_eps": Key("epsilon", 1e-5),
        "hidden_dropout_prob": Key("dropout", 0.0),
        "drop_path_rate": Key("drop_path", 0.1),
        "num_channels": Key("channels", 3),
    }
    aliases = {"num_attention_heads": "num_heads"}
    ignored = re.compile(r".*\.relative_position_index")
    prefix = "swin."
    outer_modules = {
        "embed.projection": "embeddings.patch_embeddings.projection",
        "embed.norm": "embeddings.norm",
        "norm": "layernorm",
    }
    outer_parameters = {"embed.positions.table": "embeddings.position_embeddings"}
    block = ""  # blocks are inside stages: all names are in `outer_names`
    block_names = {
        "self_attention.query": "attention.self.query",
        "self_attention.key": "attention.self.key",
        "self_attention.value": "attention.self.value",
        "self_attention.output": "attention.output.dense",
        "self_attention_residual.norm": "layernorm_before",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "feedforward_residual.norm": "layernorm_after",
    }
    head_names = {IMAGE: {"head": "classifier"}}

    def outer_names(self, config: Any) -> dict[str, tuple[str, ...]]:
        names = super().outer_names(config)
        for stage, depth in enumerate(config.depths):
            ours, theirs = f"stages.{stage}.", f"{self.prefix}encoder.layers.{stage}."
            modules = {f"merging.{module}": f"downsample.{module}" for module in ("norm", "reduction")}
            for block in range(depth):
                modules |= {
                    f"blocks.{block}.{one}": f"blocks.{block}.{other}" for one, other in self.block_names.items()
                }
                table = f"{theirs}blocks.{block}.attention.self.relative_position_bias_table"
                names[f"{ours}blocks.{block}.self_attention.position_bias.table"] = (table,)
            names |= {
                f"{ours}{one}.{kind}": (f"{theirs}{other}.{kind}",) for one, other in modules.items() for kind in KINDS
            }
        return names
