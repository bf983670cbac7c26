"""Timestamps in transcripts: the rules are those of the reference implementation."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.decoding.timestamps import NotFirst, TimestampRules
from regard.layers.pytree import State

END, NO_TIMESTAMPS, TOKENS = 11, 16, 31
FIRST = NO_TIMESTAMPS + 1
PROMPT = [12, 13]


def reference(max_initial: int | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        from transformers import WhisperTimeStampLogitsProcessor

    settings: Any = SimpleNamespace(
        no_timestamps_token_id=NO_TIMESTAMPS, eos_token_id=END, bos_token_id=END,
        max_initial_timestamp_index=max_initial,
    )  # fmt: skip
    return WhisperTimeStampLogitsProcessor(settings, len(PROMPT))


def random_logits(rows: int, seed: int) -> Tensor:
    return 3 * torch.randn(rows, TOKENS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("max_initial", [None, 3])
def test_the_rules_are_those_of_the_reference_along_random_answers(max_initial: int | None) -> None:
    """Every next token is drawn from those that are allowed, so that all reachable histories occur."""
    ours, theirs = TimestampRules(END, FIRST, max_initial), reference(max_initial)
    generator = torch.Generator().manual_seed(5)
    history = torch.tensor([PROMPT] * 200)
    for written in range(9):
        logits = random_logits(len(history), written)
        allowed = ours(logits, history, written)
        expected = theirs(history, logits)
        assert torch.equal(allowed, expected)
        alive = (allowed > -torch.inf).any(1)
        draws = allowed[alive].softmax(1).multinomial(1, generator=generator)
        history = torch.cat([history[alive], draws], 1)
        history = history[history[:, -1] != END]
    assert len(history) > 20


class Noise:
    """A network without a memory: its logits depend on the step alone."""

    def start(self, source: Tensor) -> State:
        return State(source, source[:, None])

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        history = torch.cat([state.hypothesis, tokens], 1)
        rows = [random_logits(tokens.size(1), int(history[row].sum())) for row in range(len(tokens))]
        return torch.stack(rows), State(state.source, history)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_obeys_them(beams: int) -> None:
    sources = torch.arange(40)
    begin = torch.tensor([PROMPT] * 40)
    rules = (TimestampRules(END, FIRST, 4), NotFirst((FIRST, FIRST + 1)))
    options = DecodeOptions(num_beams=beams, suppress_tokens=tuple(range(END + 1, FIRST)))
    found = search(Noise(), sources, begin, END, options, 12, processors=rules)
    for best, *_ in found:
        times = [token for token in best.tokens if token >= FIRST]
        assert times == sorted(times)
        assert FIRST + 2 <= best.tokens[0] <= FIRST + 4
        text = "".join("t" if token >= FIRST else "w" for token in best.tokens)
        assert "ttt" not in text
        assert "wtw" not in text
    assert any(len(best.tokens) > 4 for best, *_ in found)
    unruled = search(Noise(), sources, begin, END, options, 12)
    assert [best.tokens for best, *_ in unruled] != [best.tokens for best, *_ in found]
