"""What tasks that generate text share: decode options of a checkpoint, and checks of token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from regard.config.recipe import DecodeOptions
from regard.errors import UserError, either, nearest
from regard.interop.generation_config import decode_fields
from regard.tasks.predictor import Inference, Predictor, tasks_with_option

TYPES = {  # that each option of [decode] may have
    field.name: (float, int) if isinstance(field.default, float) else (type(field.default),)
    for field in fields(DecodeOptions)
} | {"logit_bias": (dict,), "stop": (tuple, list, str), "suppress_tokens": (tuple, list)}
ITEM_TYPES = {"stop": str, "suppress_tokens": int}
NOT_FINITE = "the network's output is not finite: its weights are damaged, or its training diverged"


class GenerationPredictor(Predictor):
    """A predictor whose `run` takes the keys of a recipe's [decode]."""

    options = tuple(TYPES)
    sorts_by_length = False
    is_causal_lm = False

    @property
    def vocab_size(self) -> int:
        """The number of token ids that the network takes as input."""
        return self.network.config.vocabulary

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an output: the tokenizer's, and those that the checkpoint names."""
        named = self.model.generation.get("eos_token_id", self.model.config.get("eos_token_id"))
        named = named if isinstance(named, list) else [named]
        if wrong := [token for token in named if type(token) is not int and token is not None]:
            raise UserError(f"eos_token_id: {wrong[0]!r} in config.json or generation_config.json is not a token id")
        ids = dict.fromkeys((self.tokenizer.end, *(token for token in named if token is not None)))
        return tuple(token for token in ids if 0 <= token < self.vocab_size)

    def decode_options(self, **options: Any) -> DecodeOptions:
        """The checkpoint's generation settings, overridden by `options`."""
        merged = DecodeOptions(**(decode_fields(self.model.generation, self.is_causal_lm) | checked_options(options)))
        if merged.stop and not self.is_causal_lm:
            raise UserError(f"stop = {list(merged.stop)}: stop sequences are for language models (task = 'generate')")
        for name, tokens in (("logit_bias", merged.logit_bias), ("suppress_tokens", merged.suppress_tokens)):
            if unknown := [token for token in tokens if not 0 <= int(token) < self.vocab_size]:
                raise UserError(f"{name}: id {unknown[0]} is not in the vocabulary of {self.vocab_size} tokens")
        return merged

    def check_ids(self, row: Any) -> list[int]:
        """A row of token ids."""
        row = list(row) if isinstance(row, Sequence | np.ndarray) and not isinstance(row, str) else [row]
        for token in row:
            if isinstance(token, bool) or not isinstance(token, int | np.integer):
                raise UserError(f"ids should be whole numbers, or lists of them, not {token!r}")
            if not 0 <= token < self.vocab_size:
                raise UserError(f"id {token} is not in the vocabulary of {self.vocab_size} tokens")
        return [int(token) for token in row]


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the types of DecodeOptions, which checks ranges; unknown names and other types are errors."""
    for name, value in options.items():
        if name in Inference._fields:
            raise UserError(f"'{name}' is not an option here; `run` has it")
        if name not in TYPES and (owners := tasks_with_option(name)):
            raise UserError(f"'{name}' is not an option here; `run` has it, for models whose task is {either(owners)}")
        if name not in TYPES:
            raise UserError(f"unknown option '{name}'{nearest(name, TYPES)}")
        if type(value) not in TYPES[name]:
            raise UserError(f"{name} = {value!r} does not fit; expected {TYPES[name][0].__name__}")
        if name in ITEM_TYPES and (wrong := [item for item in value if type(item) is not ITEM_TYPES[name]]):
            raise UserError(f"{name} contains {wrong[0]!r}, which does not fit; expected {ITEM_TYPES[name].__name__}")
    checked = dict(options)
    if "stop" in checked:
        checked["stop"] = (checked["stop"],) if isinstance(checked["stop"], str) else tuple(checked["stop"])
    if "logit_bias" in checked:
        checked["logit_bias"] = {str(token): bias for token, bias in checked["logit_bias"].items()}
    return checked
