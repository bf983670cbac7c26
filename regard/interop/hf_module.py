"""Hugging Face's tensor names around a network of ours: `module(input_ids=…, attention_mask=…)`.

What turns one text into another is also given `decoder_input_ids`, an encoder may be given `token_type_ids`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers.autoregressive import CausalLM
from regard.layers.inputs import TokenBatch
from regard.layers.state import State
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.span import SpanClassifier
from regard.models.heads.token import TokenClassifier
from regard.models.registry import FAMILIES, family_of
from regard.models.transformer import Transformer


@dataclass(frozen=True)
class Output:
    """logits (batch, length, vocabulary), and the states they come from or those of the encoder, zeros at padding.

    Of a classifier, logits (batch, labels); of an encoder what its head gives, under the reference library's names.
    """

    logits: Any = None  # a Tensor, of all but bare encoders and those of several outputs
    encoder_last_hidden_state: Tensor | None = None
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None  # ALBERT's sop_logits
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None


class HFModule(nn.Module):
    """A network with the call signature of transformers; its parameters are those of `network`, under that prefix.

    Padding may be anywhere in a row: positions count real tokens only.
    """

    network: Any

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Output:
        _check_shape("input_ids", input_ids)
        real = torch.ones_like(input_ids, dtype=torch.bool)
        real = real if attention_mask is None else _real(attention_mask, input_ids)
        lengths = real.sum(1)
        source = TokenBatch(input_ids.new_zeros(len(input_ids), int(lengths.max())), lengths)
        source.tokens[source.real] = input_ids[real]  # real tokens first, in the order they had
        if FAMILIES[family_of(self.network)].is_encoder:
            return self._encode(self._with_segments(source, token_type_ids, real), decoder_input_ids, real)
        if token_type_ids is not None:
            raise UserError("token_type_ids: this model does not tell texts of one row apart")
        if isinstance(self.network, CausalLM | Classifier):
            return self._continue(source, decoder_input_ids, real)
        return self._answer(source, decoder_input_ids, real)

    def _with_segments(self, text: TokenBatch, types: Tensor | None, real: Tensor) -> TokenBatch:
        if types is None:
            return text
        count = max(self.network.config.segments, 1)
        if types.shape != real.shape:
            raise UserError(f"token_type_ids is {tuple(types.shape)}, input_ids {tuple(real.shape)}")
        _check("token_type_ids", types, count, "segments")
        segments = torch.zeros_like(text.tokens)
        segments[text.real] = types[real].to(segments.dtype)
        return text._replace(segments=segments if count > 1 else None)

    def _encode(self, text: TokenBatch, other: Tensor | None, real: Tensor) -> Output:
        """What the head of an encoder says, each place's at its own."""
        self._check_text(text, other)
        network = self.network
        if isinstance(network, Classifier):
            states, logits = network.label(text)
            return Output(logits, last_hidden_state=_spread(states[text.real], real))
        states = network.encode(text)
        hidden = _spread(states[text.real], real)
        if isinstance(network, MaskedLM):
            words = _spread(network.words(states[text.real]), real)
            if not isinstance(network, Pretraining):
                return Output(words, last_hidden_state=hidden)
            related = network.related(states, text)
            return Output(prediction_logits=words, seq_relationship_logits=related, last_hidden_state=hidden)
        if isinstance(network, TokenClassifier):
            logits = _spread(network.told(states[text.real]), real)
            if not isinstance(network, SpanClassifier):
                return Output(logits, last_hidden_state=hidden)
            start, end = logits.unbind(-1)
            return Output(start_logits=start, end_logits=end, last_hidden_state=hidden)
        pooled = None if network.pooler is None else network.pooled(states)
        return Output(last_hidden_state=hidden, pooler_output=pooled)

    def _check_text(self, text: TokenBatch, other: Tensor | None) -> None:
        if other is not None:
            raise UserError("decoder_input_ids: this model has one text, which is input_ids")
        _check("input_ids", text.tokens, self.network.config.vocabulary)
        if text.tokens.size(1) > self.network.limit:
            raise UserError(
                f"input_ids has {text.tokens.size(1)} real tokens, the model sees at most {self.network.limit} at once"
            )

    def _continue(self, text: TokenBatch, other: Tensor | None, real: Tensor) -> Output:
        self._check_text(text, other)
        if isinstance(self.network, Classifier):
            states, logits = self.network.label(text)
            return Output(logits, last_hidden_state=_spread(states[text.real], real))
        found = self.network.encode(text)[text.real]
        return Output(_spread(self.network.output(found), real), last_hidden_state=_spread(found, real))

    def _answer(self, source: TokenBatch, target: Tensor | None, real: Tensor) -> Output:
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


def _check(name: str, ids: Tensor, count: int, of: str = "vocabulary's ids") -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= count:
        raise UserError(f"{name} holds {low if low < 0 else high}, but the {of} are 0 … {count - 1}")


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
