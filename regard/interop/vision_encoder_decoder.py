"""vision-encoder-decoder: a published vision encoder, and a published text decoder with cross-attention.

    config.json   {"encoder": {"model_type": "vit", …}, "decoder": {"model_type": "gpt2", …}}
    tensors       encoder.…   enc_to_dec_proj (where the widths differ)   decoder.…

The decoders are GPT2LMHeadModel, BertLMHeadModel and RobertaForCausalLM, whose blocks also attend to the encoder.
"""

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.bert import REQUIRED, Bert, Roberta
from regard.interop.config_keys import Json, naming, require_values, unsupported
from regard.interop.gpt import GPT2
from regard.interop.layout import MASKED_LM, POOLER, Layout, Published
from regard.interop.safetensors import TensorSpec, TensorSpecs
from regard.interop.vision import DeiT, Swin, ViT
from regard.models.captioner import Captioner
from regard.models.registry import build, family_of, family_of_config

BRIDGE = "enc_to_dec_proj"
DECODES = {"is_decoder": True, "add_cross_attention": True, "is_encoder_decoder": False}
CROSS = {
    "cross.query": "crossattention.self.query",
    "cross.key": "crossattention.self.key",
    "cross.value": "crossattention.self.value",
    "cross.output": "crossattention.output.dense",
    "cross_residual.norm": "crossattention.output.LayerNorm",
}


class GPT2Decoder(GPT2):
    """GPT2LMHeadModel with cross-attention, whose keys and values are one tensor."""

    required = {**GPT2.required, **DECODES}
    fused_cross = ("cross.key", "cross.value")
    block_names = {
        **GPT2.block_names,
        "cross.query": "crossattention.q_attn",
        **dict.fromkeys(fused_cross, "crossattention.c_attn"),
        "cross.output": "crossattention.c_proj",
        "cross_residual.norm": "ln_cross_attn",
    }
    ignored = re.compile(r"(transformer\.)?(h\.\d+\.(attn|crossattention)\.(bias|masked_bias)|position_ids)")

    def tensor_spec(self, module: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        if not module.startswith("cross."):
            return super().tensor_spec(module, kind, names)
        if module in self.fused_cross:
            return TensorSpec(names, self.fused_cross.index(module), len(self.fused_cross), transposed=kind == "weight")
        return TensorSpec(names, transposed=kind == "weight")


class BertDecoder(Bert):
    """BertLMHeadModel: the head is that of masked language modelling."""

    architecture = "BertLMHeadModel"
    required = {**REQUIRED, **DECODES}
    keys = {name: key for name, key in Bert.keys.items() if name != POOLER}
    fixed = {**Bert.fixed, "pooler": False}
    block_names = {**Bert.block_names, **CROSS}

    def outer_names(self, config: Any) -> dict[str, tuple[str, ...]]:
        """With the head; the bias of its output layer has two names, of which an untied layer uses the second."""
        return super().outer_names(config) | head_names(self, config.tied)


class RobertaDecoder(Roberta):
    architecture = "RobertaForCausalLM"
    required = {**REQUIRED, **DECODES}
    keys = {name: key for name, key in Roberta.keys.items() if name != POOLER}
    fixed = {**Roberta.fixed, "pooler": False}
    block_names = {**Roberta.block_names, **CROSS}

    def outer_names(self, config: Any) -> dict[str, tuple[str, ...]]:
        return super().outer_names(config) | head_names(self, config.tied)


def head_names(layout: Bert, tied: bool) -> dict[str, tuple[str, ...]]:
    """Our parameters of the output layer and their names; tied weights are also those of the embedding."""
    names: dict[str, tuple[str, ...]] = {}
    for ours, theirs in layout.head_names[MASKED_LM].items():
        for kind in ("weight", "bias"):
            names[f"{ours.replace('lm_head', 'output')}.{kind}"] = (f"{theirs}.{kind}",)
    output = layout.head_names[MASKED_LM]["lm_head.output"]
    biases = f"{output.removesuffix('decoder')}bias", f"{output}.bias"
    names["output.output.bias"] = biases if tied else biases[::-1]
    table = f"{layout.prefix}{layout.outer_modules['embed.table']}.weight"
    return names | ({"embed.table.weight": (table, f"{output}.weight")} if tied else {})


ENCODERS: dict[str, Published] = {layout.model_type: layout for layout in (ViT(), DeiT(), Swin())}
DECODERS: dict[str, Published] = {
    layout.model_type: layout for layout in (GPT2Decoder(), BertDecoder(), RobertaDecoder())
}


class VisionEncoderDecoder(Layout):
    model_type = "vision-encoder-decoder"
    architecture = "VisionEncoderDecoderModel"
    family = "captioner"
    ignored = re.compile(
        "|".join(f"{side}\\.({layout.ignored.pattern})"
                 for side, layouts in (("encoder", ENCODERS), ("decoder", DECODERS))
                 for layout in layouts.values())
    )  # fmt: skip

    def matches(self, network: nn.Module) -> bool:
        if family_of(network) != self.family:
            return False
        encoder, decoder = self._layouts_of(network.config)
        return encoder is not None and decoder is not None

    def read(self, config: Json) -> nn.Module:
        require_values(config, {"is_encoder_decoder": True, "quantization_config": None})
        tables = {}
        for side, layouts in (("encoder", ENCODERS), ("decoder", DECODERS)):
            with naming(side):
                tables[side] = _layout(config, side, layouts).model_table(_config_of(config, side))
        decoder = _config_of(config, "decoder")
        if not decoder.get("add_cross_attention"):
            raise UserError("decoder: add_cross_attention is not true: it does not attend to the image")
        if decoder.get("cross_attention_hidden_size") not in (None, decoder.get("hidden_size")):
            raise UserError("decoder: cross_attention_hidden_size is not supported; remove it")
        start = config.get("decoder_start_token_id", decoder.get("decoder_start_token_id"))
        if decoder["model_type"] == "roberta" and start is not None and start == decoder.get("pad_token_id", 1):
            raise UserError(
                f"decoder_start_token_id = {start} is the padding token, which has no position in RoBERTa: set another"
            )
        return build({"family": self.family, **tables}, vocabulary=tables["decoder"]["vocabulary"])

    def describe(self, network: Captioner, foreign: Json) -> Json:
        config = network.config
        described = {}
        for side, layout in zip(("encoder", "decoder"), self._layouts_of(config), strict=True):
            assert layout is not None
            known = foreign.get(side, {})
            component: Any = SimpleNamespace(config=getattr(config, side))
            keys = layout.describe(component, known)
            described[side] = {key: value for key, value in keys.items() if key != POOLER or key in known}
        described["decoder"] |= DECODES
        return {
            **{key: value for key, value in foreign.items() if key != "torch_dtype"},
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,  # of encoder and decoder with each other
            **described,
        }

    def tensor_specs(self, network: Captioner) -> TensorSpecs:
        encoder, decoder = self._layouts_of(network.config)
        assert encoder is not None and decoder is not None
        specs = {
            f"encoder.{name}": _prefixed("encoder.", spec, encoder.prefix)
            for name, spec in encoder.tensor_specs(network.encoder).items()
        }
        text_decoder: Any = _TextDecoder(network)
        for name, spec in decoder.tensor_specs(text_decoder).items():
            specs[name] = _prefixed("decoder.", spec)
            if name == "output.output.bias" and not network.config.decoder.tied:
                specs[name] = specs[name]._replace(write_copies=True)
        return specs | {f"bridge.{kind}": TensorSpec((f"{BRIDGE}.{kind}",)) for kind in ("weight", "bias")}

    def infer_config(self, config: Json, tensors: Mapping[str, Tensor]) -> Json:
        """With the encoder's pooler, which the decoder does not use, where the file has it."""
        pooled = any(name.startswith("encoder.pooler.") for name in tensors)
        has_key = POOLER in _layout(config, "encoder", ENCODERS).keys
        return config | {"encoder": _config_of(config, "encoder") | ({POOLER: pooled} if has_key else {})}

    @staticmethod
    def _layouts_of(config: Any) -> tuple[Published | None, Published | None]:
        """The layouts of a network's encoder and decoder; None where there is no published one."""

        def layout(component: Any, layouts: Mapping[str, Published]) -> Published | None:
            family = family_of_config(component)
            fitting = (each for each in layouts.values() if each.family == family and each.matches_config(component))
            return next(fitting, None)

        return layout(config.encoder, ENCODERS), layout(config.decoder, DECODERS)


class _TextDecoder:
    """The decoder of a captioner, with the names of its parameters as if it were a model of its own."""

    def __init__(self, network: Captioner):
        self.config = network.config.decoder
        self.network = network

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.network.named_parameters():
            if name.startswith(("embed.", "decoder.", "output.")):
                yield name, parameter


def _prefixed(side: str, spec: TensorSpec, inner: str = "") -> TensorSpec:
    """A tensor of the encoder or decoder in the file of the model; bare encoders have no prefix of their own."""
    names = (name.removeprefix(inner) for name in spec.names)
    return spec._replace(names=tuple(dict.fromkeys(side + name for name in names)))


def _config_of(config: Json, side: str) -> Json:
    nested = config.get(side)
    if not isinstance(nested, dict):
        raise UserError(f"{side} = {nested!r:.60}: expected the config of a model {{…}}")
    return nested


def _layout(config: Json, side: str, layouts: Mapping[str, Published]) -> Published:
    model_type = _config_of(config, side).get("model_type")
    if not isinstance(model_type, str) or model_type not in layouts:
        raise unsupported(f"{side}.model_type", model_type, layouts)
    return layouts[model_type]
