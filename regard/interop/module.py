"""Hugging Face's tensor names around a network of ours: `module(input_ids=…, attention_mask=…)`.

What turns one text into another is also given `decoder_input_ids`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.inputs.batch import Sequences
from regard.layers.generator import LanguageModel
from regard.layers.state import State
from regard.models.classifier import Classifier
from regard.models.transformer import Transformer


@dataclass(frozen=True)
class Output:
    """logits (batch, length, vocabulary), and the states they come from or those of the encoder, zeros at padding.

    Of a classifier, logits (batch, labels).
    """

    logits: Tensor
    encoder_last_hidden_state: Tensor | None = None
    last_hidden_state: Tensor | None = None


class Module:
    """The thin adapter. A row means the same wherever its padding lies: positions count real tokens alone."""

    def __init__(self, network: nn.Module):
        self.network: Any = network

    def __call__(
        self, input_ids: Tensor, decoder_input_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Output:
        _check_shape("input_ids", input_ids)
        real = torch.ones_like(input_ids, dtype=torch.bool)
        real = real if attention_mask is None else _real(attention_mask, input_ids)
        lengths = real.sum(1)
        source = Sequences(input_ids.new_zeros(len(input_ids), int(lengths.max())), lengths)
        source.tokens[source.real] = input_ids[real]  # real tokens first, in the order they had
        if isinstance(self.network, LanguageModel | Classifier):
            return self._continue(source, decoder_input_ids, real)
        return self._answer(source, decoder_input_ids, real)

    def _continue(self, text: Sequences, other: Tensor | None, real: Tensor) -> Output:
        if other is not None:
            raise UserError("decoder_input_ids: this model has one text, which is input_ids")
        _check("input_ids", text.tokens, self.network.config.vocabulary)
        if text.tokens.size(1) > self.network.limit:
            raise UserError(
                f"input_ids has {text.tokens.size(1)} real tokens, the model sees at most {self.network.limit} at once"
            )
        states = self.network.encode(text)
        found = states[text.real]
        if isinstance(self.network, Classifier):
            return Output(self.network.told(states, text), last_hidden_state=_spread(found, real))
        return Output(_spread(self.network.output(found), real), last_hidden_state=_spread(found, real))

    def _answer(self, source: Sequences, target: Tensor | None, real: Tensor) -> Output:
        if target is None:
            raise UserError("decoder_input_ids is missing: this network turns one text into another")
        _check("input_ids", source.tokens, self.network.config.source_vocabulary)
        _check_shape("decoder_input_ids", target)
        _check("decoder_input_ids", target, self.network.config.target_vocabulary)
        if len(real) != len(target):
            raise UserError(f"input_ids has {len(real)} rows, decoder_input_ids {len(target)}")
        if not isinstance(self.network, Transformer):
            return Output(self.network(source, target))
        states = self.network.encode(source)
        logits, _ = self.network.step(target, State(self.network.decoder.read(states, source.real), ()))
        return Output(logits, _spread(states[source.real], real))


def _spread(found: Tensor, real: Tensor) -> Tensor:
    """What was found for the real tokens (tokens, width), each at its place (batch, length, width)."""
    places = found.new_zeros(*real.shape, found.size(-1))
    places[real] = found
    return places


def _check_shape(name: str, ids: Tensor) -> None:
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise UserError(f"{name} should be whole numbers (batch, length), not {ids.dtype} {tuple(ids.shape)}")


def _check(name: str, ids: Tensor, vocabulary: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise UserError(f"{name} holds {low if low < 0 else high}, but the vocabulary's ids are 0 … {vocabulary - 1}")


def _real(mask: Tensor, ids: Tensor) -> Tensor:
    """The mask as booleans, 1 = a real token."""
    if mask.shape != ids.shape:
        raise UserError(f"attention_mask is {tuple(mask.shape)}, input_ids {tuple(ids.shape)}; they should be alike")
    if not ((mask == 0) | (mask == 1)).all():
        raise UserError("attention_mask should hold 1 where a token is real and 0 where it is padding, nothing else")
    empty = (mask == 0).all(1).nonzero().flatten().tolist()
    if empty:
        raise UserError(f"attention_mask: row {empty[0]} has no real token")
    return mask.bool()
