"""Families that no other library knows: their checkpoints carry our own names, in a closed schema."""

from dataclasses import asdict, fields
from typing import Any

from torch import nn

from regard.errors import UserError, nearest
from regard.interop.weights import Names
from regard.models import FAMILIES, build, family_of

PREFIX = "regard-"
SHARED = ("model_type", "architectures", "dtype", "is_encoder_decoder", "pad_token_id", "eos_token_id", "bos_token_id",
          "decoder_start_token_id")  # fmt: skip


def describe(network: nn.Module) -> dict[str, Any]:
    """The network as keys of config.json."""
    family = family_of(network)
    return {
        "model_type": PREFIX + family,
        "architectures": [type(network).__name__],
        "is_encoder_decoder": True,
        **asdict(network.config),  # type: ignore[arg-type]
    }


def read(config: dict[str, Any]) -> nn.Module:
    """A network from keys of config.json, its weights still random."""
    family = config["model_type"].removeprefix(PREFIX)
    known = [field.name for field in fields(FAMILIES[family].config)]
    for key in config:
        if key not in known and key not in SHARED:
            raise UserError(f"{key} is unknown{nearest(key, known)}")
    for key in ("source_vocabulary", "target_vocabulary"):
        if key not in config:
            raise UserError(f"{key} is missing")
    return build({"family": family} | {key: value for key, value in config.items() if key in known})


def names(network: nn.Module) -> Names:
    return {name: (name,) for name, _ in network.named_parameters()}
