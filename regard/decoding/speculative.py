"""Greedy answers in fewer steps: several next tokens are guessed, and one step over all of them says which were right.

A step over eight tokens reads the weights once, as a step over one does. What comes out is what plain greedy search
writes, whatever was guessed: only where the two best logits are alike to the last digits may rounding decide otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding.logits_processors import restrict
from regard.decoding.search import Hypothesis
from regard.layers.autoregressive import NOTHING, CausalLM, KVCache
from regard.layers.state import State

MOST = 16  # tokens guessed at once
LONGEST_GRAM = 3


class DraftProposer(Protocol):
    """Says what may follow a text, at most `count` tokens; it is asked with the same text grown on."""

    def __call__(self, text: list[int], count: int) -> list[int]: ...


class Speculation(NamedTuple):
    """An answer, and how it came about: steps of the network, tokens guessed, and guesses that were right."""

    answer: Hypothesis
    steps: int
    guessed: int
    right: int


@torch.inference_mode()
def speculate(
    network: CausalLM,
    prompt: Tensor,
    ends: Sequence[int],
    options: DecodeOptions,
    limit: int,
    guess: DraftProposer,
    stopped: Callable[[list[int]], bool] | None = None,
) -> Speculation:
    """The greedy answer to one prompt (1, length), of at most `limit` tokens, end included."""
    state, text, forced = network.read(prompt[:, :-1]), prompt[0].tolist(), prompt.size(1)
    total, ended, over, stuck, width = 0.0, False, False, False, 4
    steps = guessed = right = 0
    while len(text) - forced < limit and not (ended or over or stuck):
        past: KVCache = state.hypothesis
        length = past.memories[0].length if past.memories else 0
        most = min(width, limit - (len(text) - forced) - 1, network.limit - length - 1)  # it slides when plain would
        ahead = guess(text, most) if most > 0 else []
        logits, state = network.step(torch.tensor([[text[-1], *ahead]], device=prompt.device), state)
        kept = 0
        for place, expected in enumerate([*ahead, None]):
            history = torch.tensor([text], device=logits.device)
            row, normaliser = restrict(logits[:, place].float(), history, len(text) - forced, ends, options)
            best, token = row[0].max(-1)
            if best == -torch.inf:  # nothing may follow
                stuck = True
                break
            total += float(best - normaliser[0])
            if ended := int(token) in ends:
                break
            text.append(int(token))
            over = stopped is not None and stopped(text[forced:])
            if over or int(token) != expected:
                break
            kept += 1
        if ahead:  # as if only what was right had been read
            state = State(None, state.hypothesis.until(length + 1 + kept))
        steps, guessed, right = steps + 1, guessed + len(ahead), right + kept
        width = min(MOST, 2 * width) if kept == len(ahead) else kept + 1
    said = text[forced:]
    score = total / max(1, len(said) + ended) ** options.length_penalty
    return Speculation(Hypothesis(said, score, total, ended or over), steps, guessed, right)


class PromptLookup:
    """Guesses that what followed the last few tokens before will follow them again. Saxena 2023."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], int] = {}  # the last few tokens → the place behind them, the latest one
        self.read = 0

    def __call__(self, text: list[int], count: int) -> list[int]:
        for end in range(self.read + 1, len(text)):  # what ends with the last token itself has no follower yet
            for size in range(1, min(LONGEST_GRAM, end) + 1):
                self.known[tuple(text[end - size : end])] = end
        self.read = len(text) - 1
        for size in range(min(LONGEST_GRAM, len(text)), 0, -1):
            if (place := self.known.get(tuple(text[-size:]))) is not None:
                return text[place : place + count]
        return []


class DraftModel:
    """Guesses what a smaller model would write: Leviathan et al. 2023, with greedy choices."""

    def __init__(self, network: CausalLM, device: Any):
        self.network, self.device = network, device
        self.state = NOTHING
        self.seen: list[int] = []  # the tokens that the state knows

    def __call__(self, text: list[int], count: int) -> list[int]:
        count = min(count, self.network.limit - len(text) - 1)
        if count < 1:
            return []  # beyond its own context it has nothing to say
        same = 0
        while same < min(len(self.seen), len(text) - 1) and self.seen[same] == text[same]:
            same += 1
        if same:
            self.state = State(None, self.state.hypothesis.until(same))
        else:
            self.state = NOTHING
        new, guesses = text[same:], []
        for _ in range(count):
            x, self.state = self.network.advance(torch.tensor([new], device=self.device), self.state)
            new = [int(self.network.output(x[:, -1]).argmax())]
            guesses += new
        self.seen = [*text, *guesses[:-1]]
        return guesses
