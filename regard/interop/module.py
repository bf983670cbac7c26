"""Hugging Face's tensor names around a network of ours: `module(input_ids=…, decoder_input_ids=…)`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.inputs.batch import Sequences
from regard.layers.state import State
from regard.models.transformer import Transformer


@dataclass(frozen=True)
class Output:
    """logits (batch, target length, vocabulary); encoder states where `input_ids` has real tokens, elsewhere zeros."""

    logits: Tensor
    encoder_last_hidden_state: Tensor | None


class Module:
    """The thin adapter. A row means the same wherever its padding lies: positions count real tokens alone."""

    def __init__(self, network: nn.Module):
        self.network: Any = network

    def __call__(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None) -> Output:
        config = self.network.config
        _check("input_ids", input_ids, config.source_vocabulary)
        _check("decoder_input_ids", decoder_input_ids, config.target_vocabulary)
        if len(input_ids) != len(decoder_input_ids):
            raise UserError(f"input_ids has {len(input_ids)} rows, decoder_input_ids {len(decoder_input_ids)}")
        real = (
            torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else _real(attention_mask, input_ids)
        )
        order = torch.argsort(~real, dim=1, stable=True)  # real tokens first, in the order they had
        source = Sequences(input_ids.gather(1, order), real.sum(1))
        if not isinstance(self.network, Transformer):
            return Output(self.network(source, decoder_input_ids), None)
        states = self.network.encode(source)
        logits, _ = self.network.step(decoder_input_ids, State(self.network.decoder.read(states, source.real), ()))
        back = torch.argsort(order, dim=1)[:, :, None].expand_as(states)
        return Output(logits, states.gather(1, back) * real[:, :, None])


def _check(name: str, ids: Tensor, vocabulary: int) -> None:
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise UserError(f"{name} should be whole numbers (batch, length), not {ids.dtype} {tuple(ids.shape)}")
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
