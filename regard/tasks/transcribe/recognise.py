"""From features to tokens: CTC search, an attention decoder, or both; and the time of each token.

Shapes: frames (batch, length, bins).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.candidates import key_of
from regard.decoding.ctc import ctc_log_probs, forced_alignment, greedy_search, prefix_beam_search
from regard.decoding.joint import JointDecoder
from regard.decoding.search import Hypothesis
from regard.errors import UserError
from regard.layers.audio_encoder import Emissions
from regard.layers.inputs import AudioBatch
from regard.models.heads.ctc import CTC
from regard.tasks.seq2seq import decode
from regard.text.tokenizer import Tokenizer

CTC_OPTIONS = ("num_beams", "num_return_sequences", "seed")  # that a search without decoder has

Times = list[tuple[float, float]]  # of tokens: seconds from the beginning of the recording


@dataclass(frozen=True)
class Recognition:
    """How recordings become tokens. The blank of CTC is the padding token."""

    network: Any
    tokenizer: Tokenizer
    options: DecodeOptions = field(default_factory=DecodeOptions)
    ctc_weight: float = 0.0  # λ of joint decoding; 0: the attention decoder alone

    @property
    def blank(self) -> int:
        return self.tokenizer.pad

    @property
    def has_ctc_head(self) -> bool:
        """Whether the encoder of an encoder–decoder also has a CTC head."""
        return getattr(self.network.config, "ctc_weight", 0.0) > 0

    def emissions(self, audio: AudioBatch) -> Emissions | None:
        """The logits of CTC; None where the network has no CTC output."""
        if isinstance(self.network, CTC):
            return self.network(audio)
        return self.network.start_with_emissions(audio)[1] if self.has_ctc_head else None

    @torch.inference_mode()
    def __call__(self, audio: AudioBatch) -> list[list[Hypothesis]]:
        """Hypotheses for each recording, best first."""
        audio = audio.to(next(self.network.parameters()).device)
        if isinstance(self.network, CTC):
            return self._search_ctc(audio)
        stride = self.network.stride
        limit = 2 * audio.lengths // stride + 20
        if self.options.max_new_tokens:
            limit = torch.full_like(limit, self.options.max_new_tokens)
        limit = limit.clamp(max=self.network.max_positions - 1)
        keys = [self._key(audio, row) for row in range(audio.batch_size)] if self.options.temperature else []
        if not (self.ctc_weight and self.has_ctc_head):
            return decode(self.network, audio, self.tokenizer, self.options, limit, keys)
        joint: Any = JointDecoder(self.network, self.blank, self.tokenizer.end, self.ctc_weight)
        options = replace(self.options, suppress_tokens=(*self.options.suppress_tokens, self.blank))
        return decode(joint, audio, self.tokenizer, options, limit, keys)

    @staticmethod
    def _key(audio: AudioBatch, row: int) -> int:
        """What decides the draws of a recording, besides the seed: its features, without padding."""
        return key_of(audio.frames[row, : audio.lengths[row]].cpu().contiguous().numpy().view(np.int32).ravel())

    def _search_ctc(self, audio: AudioBatch) -> list[list[Hypothesis]]:
        default = DecodeOptions()
        for name in (option.name for option in fields(default) if option.name not in CTC_OPTIONS):
            if getattr(self.options, name) != getattr(default, name):
                raise UserError(f"{name} is for models with a decoder; this one has a CTC output: use num_beams")
        logits, lengths = self.network(audio)
        log_probs = ctc_log_probs(logits, lengths, self.blank)
        if self.options.num_beams == 1:
            return [[best] for best in greedy_search(log_probs, self.blank)]
        count = self.options.num_return_sequences
        return [prefix_beam_search(row, self.blank, self.options.num_beams, count) for row in log_probs]


def ctc_times(log_probs: Tensor, tokens: Sequence[int], blank: int, step: float) -> Times:
    """The times of tokens in the most probable alignment; a state lasts `step` seconds."""
    return [(span.start * step, span.end * step) for span in forced_alignment(log_probs, tokens, blank)]


def attention_times(trace: Trace, site: str, step: float) -> Times:
    """The times of tokens by attention: from the state that a token attends to most, to that of the next one.

    Where attention goes back, a token begins where the one before it does.
    """
    peaks = trace.weights(site).mean(0).argmax(-1).cummax(0).values.tolist()  # the last row is that of the end
    return [(start * step, max(end, start + 1) * step) for start, end in pairwise(peaks)]
