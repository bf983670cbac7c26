"""Families by name: one file each, a frozen config, and presets as rows."""

import sys
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from torch import nn

from regard.config.aliases import current_model_keys, suggestion
from regard.errors import UserError, nearest
from regard.layers.encoder import Encoder
from regard.layers.inputs import Batch
from regard.models import (
    awd_lstm,
    bert,
    bytenet,
    captioner,
    cnn,
    convs2s,
    deberta,
    deit,
    elmo,
    gpt,
    hybrid,
    las,
    llama,
    seq2seq,
    show_attend_tell,
    speech_recurrent,
    speech_transformer,
    swin,
    transformer,
    vit,
    whisper,
)
from regard.models import rnn_encoder as recurrent

LARGEST = 1 << 24  # no product of sizes overflows
DEEPEST = 1000  # building more blocks takes minutes
MOST_STAGES = 8  # each doubles the width

FEWER = ("depth", "depths", "sets", "inner_group_size", "kernel")  # fields that are limited by DEEPEST


class Family(NamedTuple):
    config: type
    network: type[nn.Module]
    presets: dict[str, dict]

    @property
    def is_causal_lm(self) -> bool:
        """Whether it is a causal language model (`layers.protocols.CausalLM`)."""
        return hasattr(self.network, "state_length")

    @property
    def is_bidirectional_lm(self) -> bool:
        """Whether it is an encoder whose layers are those of a bidirectional language model."""
        return issubclass(self.network, elmo.Elmo)

    @property
    def is_encoder(self) -> bool:
        """Whether it is an encoder without a decoder."""
        return issubclass(self.network, Encoder)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it is an encoder–decoder."""
        return not self.is_causal_lm and not self.is_encoder

    @property
    def input_type(self) -> type[Batch]:
        """The batches that it takes."""
        return self.network.input_type  # type: ignore[attr-defined]

    @property
    def vocabularies(self) -> list[str]:
        """The fields of its config that are sizes of vocabularies."""
        return [field.name for field in fields(self.config) if field.name.endswith("vocabulary")]


FAMILIES = {
    "awd_lstm": Family(awd_lstm.AWDLSTMConfig, awd_lstm.AWDLSTM, awd_lstm.PRESETS),
    "bert": Family(bert.BertConfig, bert.Bert, bert.PRESETS),
    "bytenet": Family(bytenet.ByteNetConfig, bytenet.ByteNet, bytenet.BYTENET_PRESETS),
    "captioner": Family(captioner.CaptionerConfig, captioner.Captioner, captioner.PRESETS),
    "cnn": Family(cnn.CNNConfig, cnn.CNN, cnn.PRESETS),
    "convs2s": Family(convs2s.ConvS2SConfig, convs2s.ConvS2S, convs2s.CONVS2S_PRESETS),
    "deberta": Family(deberta.DebertaConfig, deberta.Deberta, deberta.PRESETS),
    "deit": Family(deit.DeiTConfig, deit.DeiT, deit.PRESETS),
    "elmo": Family(elmo.ElmoConfig, elmo.Elmo, elmo.PRESETS),
    "gpt": Family(gpt.GPTConfig, gpt.GPT, gpt.PRESETS),
    "hybrid": Family(hybrid.HybridConfig, hybrid.Hybrid, hybrid.PRESETS),
    "las": Family(las.LASConfig, las.LAS, las.PRESETS),
    "llama": Family(llama.LlamaConfig, llama.Llama, llama.PRESETS),
    "recurrent": Family(recurrent.RecurrentConfig, recurrent.Recurrent, recurrent.PRESETS),
    "seq2seq": Family(seq2seq.Seq2SeqConfig, seq2seq.Seq2Seq, seq2seq.PRESETS),
    "show_attend_tell": Family(
        show_attend_tell.ShowAttendTellConfig, show_attend_tell.ShowAttendTell, show_attend_tell.PRESETS
    ),
    "speech_recurrent": Family(
        speech_recurrent.SpeechRecurrentConfig, speech_recurrent.SpeechRecurrent, speech_recurrent.PRESETS
    ),
    "speech_transformer": Family(
        speech_transformer.SpeechTransformerConfig, speech_transformer.SpeechTransformer, speech_transformer.PRESETS
    ),
    "swin": Family(swin.SwinConfig, swin.Swin, swin.PRESETS),
    "transformer": Family(transformer.TransformerConfig, transformer.Transformer, transformer.PRESETS),
    "vit": Family(vit.ViTConfig, vit.ViT, vit.PRESETS),
    "whisper": Family(whisper.WhisperConfig, whisper.Whisper, whisper.PRESETS),
}


def family_of(network: object) -> str:
    """A network's family; that of one with a head is its backbone's."""
    network = getattr(network, "body", network)
    names = {family.network: name for name, family in FAMILIES.items()}
    return next(names[kind] for kind in type(network).__mro__ if kind in names)  # the nearest: DeiT is also a ViT


def configure(model: dict[str, Any], **vocabulary: int) -> Any:
    """The config of a recipe's [model] table, with every field checked."""
    return _configure(model, "model", vocabulary)


def _configure(model: dict[str, Any], table: str, vocabulary: dict[str, int]) -> Any:
    """The config of a table; `table` is its name in errors."""
    options = current_model_keys(model)
    name = options.pop("family", None)
    if name not in FAMILIES:
        raise UserError(f"{table}.family = '{name}' is unknown{nearest(str(name), FAMILIES)}")
    family = FAMILIES[name]
    preset = options.pop("preset", None)
    if preset is not None and preset not in family.presets:
        raise UserError(f"{table}.preset = '{preset}' is unknown for family '{name}'{nearest(preset, family.presets)}")
    inherited = family.presets[preset] if preset else {}
    options = {**inherited, **options, **vocabulary}
    known = {field.name: field for field in fields(family.config)}
    components = getattr(family.config, "COMPONENTS", {})
    for key, value in options.items():
        if key not in known:
            raise UserError(f"{table}.{key} is unknown for family '{name}'{suggestion(key, 'model', known)}")
        if key not in components:
            options[key] = _checked(key, value, known[key].default, family.config, table)
    for component, families in components.items():
        nested = (inherited.get(component), options.get(component))
        options[component] = _configure_component(f"{table}.{component}", *nested, families, options)
    config = family.config(**options)
    if getattr(config, "states", 1) < 1:
        raise UserError(f"[{table}] width {config.width} leaves no state for each direction: set encoder_width")
    if (blocks := getattr(config, "depth", 1) * getattr(config, "inner_group_size", 1)) > DEEPEST:
        raise UserError(
            f"[{table}] depth {config.depth} times inner_group_size {config.inner_group_size} are {blocks} blocks, "
            f"over {DEEPEST}"
        )
    if problem := config.problem():
        raise UserError(f"[{table}] {problem}")
    return config


def _configure_component(
    table: str, inherited: dict[str, Any] | None, options: Any, families: tuple[str, ...], model: dict[str, Any]
) -> Any:
    """The config of a component of a model, such as [model.encoder]: a network of another family.

    It is over that of a preset, and has the vocabulary of the model.
    """
    if inherited and isinstance(options, dict) and not {"family", "preset"} & options.keys():
        options = {**inherited, **options}
    family = options.get("family") if isinstance(options, dict) else None
    if family not in families:
        raise UserError(
            f"{table} = {options!r:.80} should be a table with the family of the network, one of: "
            f'{", ".join(families)}; e.g. {table}.family = "{families[0]}"'
        )
    return _configure(options, table, {name: model[name] for name in FAMILIES[family].vocabularies})


def family_of_config(config: Any) -> str:
    """The family that a config is of."""
    return next(name for name, family in FAMILIES.items() if type(config) is family.config)


def accepts(family: str, name: str, value: Any) -> bool:
    """Whether a family's config has this field, or preset, with this value."""
    config, _, presets = FAMILIES[family]
    if name == "preset":
        return value in presets
    defaults = {field.name: field.default for field in fields(config)}
    if name not in defaults:
        return False
    try:
        _checked(name, value, defaults[name], config)
    except UserError:
        return False
    return True


def sizes(family: str, source: int, target: int) -> dict[str, int]:
    """The vocabulary sizes, by the fields of a family's config."""
    both = {"vocabulary": target, "source_vocabulary": source, "target_vocabulary": target}
    return {name: both[name] for name in FAMILIES[family].vocabularies}


def outline(model: dict[str, Any], joint: bool = True) -> Any:
    """The config of a [model] table before the vocabulary is known, to report incompatible fields early."""
    family = model.get("family")
    return configure(model, **(sizes(family, 1, 1 if joint else 2) if family in FAMILIES else {}))


def _checked(key: str, value: Any, default: Any, config: Any, table: str = "model") -> Any:
    """A valid value of a field; a list, which has a size for each stage, as a tuple."""
    if not isinstance(default, tuple):
        _check(key, value, default, config, table)
        return value
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MOST_STAGES:
        raise UserError(f"{table}.{key} = {value!r} should be a list of 1 to {MOST_STAGES}, e.g. {list(default)}")
    for item in value:
        _check(key, item, default[0], config, table)
    return tuple(value)


def _check(key: str, value: Any, default: Any, config: Any, table: str) -> None:
    """Raise an error that names the field of a config if its type, choice or range is invalid."""
    expected = int if default is MISSING else type(default)
    fits = isinstance(value, (int, float) if expected is float else expected)
    if not fits or (expected is not bool and isinstance(value, bool)):
        raise UserError(f"{table}.{key} = {value!r} should be of type {expected.__name__}, e.g. {default!r}")
    choices = config.CHOICES.get(key)
    if choices and value not in choices:
        raise UserError(f"{table}.{key} = '{value}' is not possible{nearest(value, choices)}")
    if expected not in (int, float):
        return
    zero = default == 0 or key in getattr(config, "MAY_BE_ZERO", ())  # a default of 0 means the size of another field
    least = 1 if expected is int and not zero else 0
    most = DEEPEST if key.endswith(FEWER) else LARGEST if expected is int else sys.float_info.max
    if not value >= least:  # nor is NaN
        raise UserError(f"{table}.{key} = {value} should be at least {least}")
    if value > most:
        raise UserError(f"{table}.{key} = {value} should be at most {most}")
    if key == "epsilon" and not 0 < value < 1:
        raise UserError(f"{table}.epsilon = {value} should be between 0 and 1")
    if key.endswith(("dropout", "drop_path")) and value >= 1:
        raise UserError(f"{table}.{key} = {value} should be below 1")


def build(model: dict[str, Any], **vocabulary: int) -> nn.Module:
    """A new network from a recipe's [model] table and the sizes of its vocabularies."""
    return FAMILIES[model["family"]].network(configure(model, **vocabulary))
