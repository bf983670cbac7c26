"""Timestamps between the words of a transcript, as logits processors. Radford et al. 2022, section 2.3.

    <|0.00|> first words <|2.40|> <|2.40|> more words <|4.86|> <|endoftext|>

Ids in order: text, then the end token and other special tokens, then the timestamps from 0.00 s on.
Shapes: logits (rows, vocabulary), history (rows, length).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.logits_processors import forbid


@dataclass(frozen=True)
class NotFirst:
    """These tokens may not begin an answer."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor, history: Tensor, written: int) -> Tensor:
        return logits if written else forbid(logits, self.tokens)


@dataclass(frozen=True)
class TimestampRules:
    """A timestamp begins the answer, they come in pairs between segments, and never go back."""

    end: int  # the end token: ids below it are text
    first: int  # the timestamp of 0.00 s
    max_initial: int | None = None  # the last timestamp that may begin the answer, counted from `first`

    def __call__(self, logits: Tensor, history: Tensor, written: int) -> Tensor:
        logits = logits.clone()
        logits[:, self.first - 1] = -torch.inf  # <|notimestamps|>
        if not written:
            logits[:, : self.first] = -torch.inf
            if self.max_initial is not None:
                logits[:, self.first + self.max_initial + 1 :] = -torch.inf
            return logits
        answer = history[:, history.size(1) - written :]
        is_time = answer >= self.first
        closes = is_time[:, -1]  # the last token is a timestamp,
        opens = closes & is_time[:, -2] if written > 1 else closes  # which begins a segment
        closes = closes & ~opens
        logits[:, : self.end] = logits[:, : self.end].masked_fill(closes[:, None], -torch.inf)
        latest = answer.masked_fill(~is_time, self.first - 1).amax(1)
        earliest = torch.where(closes, latest, latest + 1)  # the next segment may begin where the last one ended
        times = torch.arange(self.first, logits.size(1), device=logits.device)
        too_early = (times < earliest[:, None]) | opens[:, None]
        logits[:, self.first :] = logits[:, self.first :].masked_fill(too_early, -torch.inf)
        return self.prefer_timestamps(logits)

    def prefer_timestamps(self, logits: Tensor) -> Tensor:
        """Only timestamps may follow where all of them together are more probable than any other token."""
        certain = logits[:, self.first :].logsumexp(1) > logits[:, : self.first].amax(1)
        logits[:, : self.first] = logits[:, : self.first].masked_fill(certain[:, None], -torch.inf)
        return logits
