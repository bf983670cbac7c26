"""Speculative decoding: several next tokens are proposed, and one step over all of them verifies them.

A step over eight tokens reads the weights once, as a step over one does. The answer is that of greedy search, whatever
was proposed: only where the two best logits are equal up to rounding may it differ.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding.logits_processors import process_logits
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.search import Hypothesis
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import CausalLM, TruncatableLM

MAX_PROPOSED = 16  # tokens at once
MAX_NGRAM = 3

Stop = Callable[[list[int]], bool]  # whether an answer's tokens are complete


class DraftProposer(Protocol):
    """Proposes at most `count` tokens that may follow a text; each call has the text of the last one, continued."""

    def __call__(self, text: list[int], count: int) -> list[int]: ...


class Speculation(NamedTuple):
    """An answer, and its cost: steps of the model, tokens proposed, and proposals accepted."""

    answer: Hypothesis
    steps: int
    proposed: int
    accepted: int


@torch.inference_mode()
def speculate(
    network: CausalLM,
    prompt: Tensor,
    eos_ids: Sequence[int],
    options: DecodeOptions,
    limit: int,
    propose: DraftProposer,
    stop: Stop | None = None,
) -> Speculation:
    """The greedy answer to one prompt (1, length), of at most `limit` tokens, end included."""
    if not isinstance(network, TruncatableLM):
        raise UserError(
            f"speculative decoding is not available for {type(network).__name__}: its state cannot be taken back to "
            "before a rejected token; decode without a draft model and without prompt lookup"
        )
    state = network.start(TokenBatch(prompt, torch.tensor([prompt.size(1)], device=prompt.device)))
    verifier = Verifier(prompt[0].tolist(), eos_ids, options, stop)
    text = verifier.text
    steps = proposed = accepted = 0
    width = 4
    while len(verifier.answer) < limit and not verifier.done:
        length = network.state_length(state)
        available = min(limit - len(verifier.answer), network.max_positions - length) - 1  # slides as plain search
        draft = propose(text, min(width, available)) if available > 0 else []
        logits, state = network.step(torch.tensor([[text[-1], *draft]], device=prompt.device), state)
        right = verifier.accept(logits, draft)
        if draft:  # as if only the accepted tokens had been read
            state = network.truncate(state, length + 1 + right)
        steps += 1
        proposed += len(draft)
        accepted += right
        width = min(MAX_PROPOSED, 2 * width) if right == len(draft) else right + 1
    return Speculation(verifier.hypothesis(), steps, proposed, accepted)


class Verifier:
    """The text so far; accepts of each draft what greedy search would write, and one token more."""

    def __init__(self, prompt: list[int], eos_ids: Sequence[int], options: DecodeOptions, stop: Stop | None):
        self.text = prompt
        self.prompted = len(prompt)
        self.eos_ids = eos_ids
        self.options = options
        self.stop = stop
        self.total = 0.0  # log probability
        self.ended = self.stopped = self.stuck = False

    @property
    def answer(self) -> list[int]:
        return self.text[self.prompted :]

    @property
    def done(self) -> bool:
        return self.ended or self.stopped or self.stuck

    def accept(self, logits: Tensor, draft: list[int]) -> int:
        """Append tokens by the logits (1, 1 + draft, vocabulary) up to the first not proposed; gives how many were."""
        for index, expected in enumerate([*draft, None]):
            history = torch.tensor([self.text], device=logits.device)
            written = len(self.text) - self.prompted
            row, normalizer = process_logits(logits[:, index].float(), history, written, self.eos_ids, self.options)
            best, token = row[0].max(-1)
            if best == -torch.inf:  # no token may follow
                self.stuck = True
                return index
            self.total += float(best - normalizer[0])
            if int(token) in self.eos_ids:
                self.ended = True
                return index
            self.text.append(int(token))
            self.stopped = self.stop is not None and self.stop(self.answer)
            if self.stopped or int(token) != expected:
                return index
        return len(draft)

    def hypothesis(self) -> Hypothesis:
        score = self.total / max(1, len(self.answer) + self.ended) ** self.options.length_penalty
        return Hypothesis(self.answer, score, self.total, self.ended or self.stopped)


class PromptLookup:
    """Proposes what followed the last few tokens when they occurred before. Saxena 2023."""

    def __init__(self) -> None:
        self.ngrams: dict[tuple[int, ...], int] = {}  # the last few tokens → the latest position after them
        self.read = 0

    def __call__(self, text: list[int], count: int) -> list[int]:
        for end in range(self.read + 1, len(text)):  # an n-gram that ends with the last token has no successor yet
            for size in range(1, min(MAX_NGRAM, end) + 1):
                self.ngrams[tuple(text[end - size : end])] = end
        self.read = len(text) - 1
        for size in range(min(MAX_NGRAM, len(text)), 0, -1):
            if (position := self.ngrams.get(tuple(text[-size:]))) is not None:
                return text[position : position + count]
        return []


class DraftModel:
    """Proposes what a smaller model would write: Leviathan et al. 2023, with greedy choices."""

    def __init__(self, network: CausalLM, device: torch.device):
        self.cache = PrefixCache(network)
        self.device = device

    def __call__(self, text: list[int], count: int) -> list[int]:
        network = self.cache.network
        count = min(count, network.max_positions - len(text) - 1)
        if count < 1:
            return []  # beyond its context it proposes nothing
        new = text[self.cache.rewind(text[:-1]) :]
        draft = []
        for _ in range(count):
            x = self.cache.decode(torch.tensor([new], device=self.device))
            new = [int(network.output(x[:, -1]).argmax())]
            draft += new
        return draft
