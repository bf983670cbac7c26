"""Networks without a published model_type: `regard-*` checkpoints with our own names, in a closed schema."""

import re
from dataclasses import asdict, fields
from typing import Any

from torch import Tensor, nn

from regard.config.aliases import current_model_keys
from regard.errors import UserError, nearest
from regard.interop.config_keys import Json
from regard.interop.layout import (
    BIDIRECTIONAL_LM,
    FOR_CTC,
    IMAGE,
    MASKED_LM,
    NO_HEAD,
    PRETRAINING,
    SEQUENCE,
    SPAN,
    TEACHER,
    TOKEN,
    Layout,
)
from regard.interop.safetensors import TensorSpec, TensorSpecs
from regard.layers.inputs import AudioBatch, Batch, ImageBatch, TokenBatch
from regard.models.registry import FAMILIES, build, family_of, family_of_config

PREFIX = "regard-"

ENCODER_HEADS: dict[type[Batch], tuple[str, ...]] = {  # of encoders, by their input
    TokenBatch: (MASKED_LM, PRETRAINING, SEQUENCE, TOKEN, SPAN),
    ImageBatch: (IMAGE,),
    AudioBatch: (FOR_CTC, SEQUENCE),
}

OTHER_HEADS = {"deit": (TEACHER,), "elmo": (BIDIRECTIONAL_LM,)}

SHARED = ("model_type", "architectures", "dtype", "is_encoder_decoder", "pad_token_id", "eos_token_id", "bos_token_id",
          "decoder_start_token_id")  # fmt: skip

OLD_TENSORS = (
    (r"^(body\.)?widen\.", r"\1embedding_projection."),
    (r"^(body\.)?embed\.segments\.", r"\1embed.token_types."),
    (r"\.own\.", ".self_attention."),
    (r"\.own_residual\.", ".self_attention_residual."),
    (r"\.think\.", ".feedforward."),
    (r"\.think_residual\.", ".feedforward_residual."),
    (r"\.widen\.", ".up."),
    (r"(^|\.)narrow\.", r"\1down."),
    (r"^words\.", "lm_head."),
    (r"^relation\.", "nsp_head."),
    (r"^compare\.", "pair_pooler."),
    (r"^summary\.question\b", "pool.query"),
    (r"^summary\.", "pool."),
    (r"\.relation\.", ".position_bias."),
    (r"\.see\.", ".input_gates."),
    (r"\.recall\.", ".hidden_gates."),
    (r"\.ask\.", ".query."),
    (r"\.windows\.product\.", ".convolution.linear."),
)  # names in checkpoints written before these parts were renamed: pattern → replacement


def current_name(name: str, family: str) -> str:
    """The name of a parameter, which an earlier version may have written under another."""
    for pattern, replacement in OLD_TENSORS:
        name = re.sub(pattern, replacement, name)
    return re.sub(r"^reader\.", "encoder." if family == "seq2seq" else "rnn.", name)


class NativeLayout(Layout):
    def __init__(self, family: str):
        self.family = family
        self.model_type = PREFIX + family
        self.architecture = FAMILIES[family].network.__name__
        if FAMILIES[family].is_encoder:
            self.architecture += NO_HEAD
            heads = ENCODER_HEADS[FAMILIES[family].input_type] + OTHER_HEADS.get(family, ())
            self.head_names = {head: {} for head in heads}
        elif FAMILIES[family].is_causal_lm:
            has_pooling = any(field.name == "pooling" for field in fields(FAMILIES[family].config))
            self.head_names = {SEQUENCE: {} if has_pooling else {"head": "score"}}
            self.lm_modules = frozenset({"output"})

    def matches(self, network: nn.Module) -> bool:
        return family_of(network) == self.family

    def describe(self, network: nn.Module, foreign: Json) -> Json:
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": FAMILIES[self.family].is_encoder_decoder,
            **_fields(network.config),
        }

    def read(self, config: Json) -> nn.Module:
        family = FAMILIES[self.family]
        config = current_model_keys(config, self.family, aliases={})
        known = [field.name for field in fields(family.config)]
        for key in config:
            if key not in known and key not in SHARED:
                raise UserError(f"{key} is unknown{nearest(key, known)}")
        for key in family.vocabularies:
            if key not in config:
                raise UserError(f"{key} is missing")
        return build({"family": self.family} | {key: value for key, value in config.items() if key in known})

    def adapt_tensors(self, tensors: dict[str, Tensor], config: Json) -> dict[str, Tensor]:
        return {current_name(name, self.family): tensor for name, tensor in tensors.items()}

    def tensor_specs(self, network: nn.Module) -> TensorSpecs:
        return {name: TensorSpec((name,)) for name, _ in network.named_parameters()}


def _fields(config: Any) -> Json:
    """The fields of a config; a component of another family is an object with this family."""
    nested = {name: getattr(config, name) for name in getattr(config, "COMPONENTS", ())}
    described = {name: {"family": family_of_config(each), **_fields(each)} for name, each in nested.items()}
    return asdict(config) | described
