"""Families by name: one file each, a frozen config, and presets as rows."""

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from torch import nn

from regard.errors import UserError, nearest
from regard.models import seq2seq, transformer


class Family(NamedTuple):
    config: type
    network: type[nn.Module]
    presets: dict[str, dict]


FAMILIES = {
    "seq2seq": Family(seq2seq.Seq2SeqConfig, seq2seq.Seq2Seq, seq2seq.PRESETS),
    "transformer": Family(transformer.TransformerConfig, transformer.Transformer, transformer.PRESETS),
}


def family_of(network: nn.Module) -> str:
    return next(name for name, family in FAMILIES.items() if isinstance(network, family.network))


def configure(model: dict[str, Any], **vocabulary: int) -> Any:
    """A recipe's [model] table → that family's config, every field checked."""
    given = dict(model)
    name = given.pop("family", None)
    if name not in FAMILIES:
        raise UserError(f"model.family = '{name}' is unknown{nearest(str(name), FAMILIES)}")
    family = FAMILIES[name]
    preset = given.pop("preset", None)
    if preset is not None and preset not in family.presets:
        raise UserError(f"model.preset = '{preset}' is unknown for family '{name}'{nearest(preset, family.presets)}")
    given = {**family.presets.get(preset, {}), **given, **vocabulary}
    known = {field.name: field for field in fields(family.config)}
    for key, value in given.items():
        if key not in known:
            raise UserError(f"model.{key} is unknown for family '{name}'{nearest(key, known)}")
        default = known[key].default
        wanted = int if default is MISSING else type(default)
        fits = isinstance(value, (int, float) if wanted is float else wanted) and (
            wanted is bool or not isinstance(value, bool)
        )
        if not fits:
            raise UserError(f"model.{key} = {value!r} should be of type {wanted.__name__}, e.g. {default!r}")
        choices = family.config.CHOICES.get(key)
        if choices and value not in choices:
            raise UserError(f"model.{key} = '{value}' is not possible{nearest(value, choices)}")
        least = 1 if wanted is int and default != 0 else 0  # a size that is 0 by default is another's size then
        if wanted in (int, float) and value < least:
            raise UserError(f"model.{key} = {value} should be at least {least}")
    if given.get("dropout", 0.0) >= 1:
        raise UserError(f"model.dropout = {given['dropout']} should be below 1")
    config = family.config(**given)
    if problem := config.problem():
        raise UserError(f"[model] {problem}")
    return config


def build(model: dict[str, Any], **vocabulary: int) -> nn.Module:
    """A new network from a recipe's [model] table and the two vocabulary sizes."""
    return FAMILIES[model["family"]].network(configure(model, **vocabulary))
