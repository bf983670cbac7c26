"""Joint CTC/attention decoding: an attention decoder whose tokens are also scored by CTC. Watanabe et al. 2017.

    (1 − λ) log p_attention(token | prefix)  +  λ log p_CTC(token | prefix)

p_CTC(token | prefix) = ψ(prefix · token) / ψ(prefix), where ψ is the probability that the output begins with a prefix.

Shapes: log_probs (batch, frames, vocabulary); forward variables (rows, frames + 1), before the first frame and after
each; rows are batch · beams.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.decoding.ctc import ctc_log_probs
from regard.layers.inputs import AudioBatch
from regard.layers.protocols import Decodable
from regard.layers.pytree import State


class JointModel(Decodable, Protocol):
    """A decoder whose encoder also has a CTC head."""

    def start_with_emissions(self, source: Any) -> tuple[State, Any]:
        """The state before the first token, and the logits of the frames with their lengths."""
        ...


class Prefix(NamedTuple):
    """The forward variables of a prefix: of alignments up to each frame that end with blank, or with its last token."""

    blank: Tensor
    spoken: Tensor
    last: Tensor  # (rows,): the last token; that of an empty prefix is blank
    score: Tensor  # (rows,): log ψ of the prefix

    @classmethod
    def empty(cls, log_probs: Tensor, blank: int) -> "Prefix":
        silence = torch.nn.functional.pad(log_probs[:, :, blank].cumsum(1), (1, 0))
        last = torch.full_like(log_probs[:, 0, 0], blank, dtype=torch.long)
        return cls(silence, torch.full_like(silence, -torch.inf), last, torch.zeros_like(log_probs[:, 0, 0]))

    @property
    def total(self) -> Tensor:
        """The log probability of the prefix as the full output, (rows,)."""
        return torch.logaddexp(self.blank[:, -1], self.spoken[:, -1])

    def extension_scores(self, log_probs: Tensor) -> Tensor:
        """log ψ of this prefix with each token appended, (rows, vocabulary): the token begins in some frame."""
        before = torch.logaddexp(self.blank, self.spoken)[:, :-1, None]
        scores = (before + log_probs).logsumexp(1)
        repeated = log_probs.gather(2, self.last[:, None, None].expand(-1, log_probs.size(1), 1)).squeeze(2)
        again = (self.blank[:, :-1] + repeated).logsumexp(1)  # a repetition begins after a blank
        return scores.scatter(1, self.last[:, None], again[:, None])

    def append(self, token: Tensor, log_probs: Tensor, blank: int) -> "Prefix":
        """The prefix with a token (rows,) appended. Algorithm 2 of Watanabe et al. 2017."""
        repeats = (token == self.last)[:, None]
        before = torch.where(repeats, self.blank, torch.logaddexp(self.blank, self.spoken))
        emitted = log_probs.gather(2, token[:, None, None].expand(-1, log_probs.size(1), 1)).squeeze(2)
        spoken = [torch.full_like(before[:, 0], -torch.inf)]
        blanked = [spoken[0]]
        for frame in range(log_probs.size(1)):
            previous = spoken[-1]
            spoken.append(torch.logaddexp(previous, before[:, frame]) + emitted[:, frame])
            blanked.append(torch.logaddexp(previous, blanked[-1]) + log_probs[:, frame, blank])
        score = (before[:, :-1] + emitted).logsumexp(1)
        return Prefix(torch.stack(blanked, 1), torch.stack(spoken, 1), token, score)


class JointDecoder:
    """Both distributions as one `Decodable`; the search must suppress the blank.

    By Hölder's inequality the joint scores sum to at most one. The rest is given to the blank, so that the search,
    which normalises logits, leaves the scores as they are.
    """

    def __init__(self, network: JointModel, blank: int, end: int, weight: float):
        self.network = network
        self.blank = blank
        self.end = end
        self.weight = weight

    def start(self, source: AudioBatch) -> State:
        state, (logits, lengths) = self.network.start_with_emissions(source)
        log_probs = ctc_log_probs(logits, lengths, self.blank)
        return State((state.source, log_probs), (state.hypothesis, None))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        source, log_probs = state.source
        hypothesis, prefix = state.hypothesis
        logits, after = self.network.step(tokens, State(source, hypothesis))
        attention = logits.float().log_softmax(-1)
        by_row = log_probs.repeat_interleave(tokens.size(0) // log_probs.size(0), 0)
        joint = []
        for index, token in enumerate(tokens.unbind(1)):
            # The first token is the one that begins every output.
            prefix = Prefix.empty(by_row, self.blank) if prefix is None else prefix.append(token, by_row, self.blank)
            joint.append(self._mix(attention[:, index], self._ctc(prefix, by_row)))
        return torch.stack(joint, 1), State((after.source, log_probs), (after.hypothesis, prefix))

    def _ctc(self, prefix: Prefix, log_probs: Tensor) -> Tensor:
        """Log probabilities of what follows a prefix: tokens, and the end of the output."""
        scores = prefix.extension_scores(log_probs)
        scores[:, self.blank] = -torch.inf
        scores[:, self.end] = prefix.total
        return scores - prefix.score[:, None]

    def _mix(self, attention: Tensor, ctc: Tensor) -> Tensor:
        joint = (1 - self.weight) * attention + self.weight * ctc
        joint[:, self.blank] = torch.log1p(-joint.logsumexp(-1).exp().clamp(max=1.0))
        return joint
