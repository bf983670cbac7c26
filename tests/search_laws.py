"""Laws of searching that hold for every generator: called with a toy here, with each model elsewhere."""

from typing import Any

import pytest
import torch

from regard.config.recipe import DecodeOptions
from regard.decoding import Hypothesis, search
from regard.layers.pytree import reorder

OPTIONS = [
    DecodeOptions(),
    DecodeOptions(num_beams=3, num_return_sequences=2, length_penalty=0.7),
    DecodeOptions(num_beams=5, num_return_sequences=5, no_repeat_ngram_size=2, min_new_tokens=3),
    DecodeOptions(temperature=1.3, num_return_sequences=3, top_k=11, top_p=0.95, min_p=0.01, seed=7),
]


def same(left: list[Hypothesis], right: list[Hypothesis]) -> bool:
    """The same tokens, and the same scores but for rounding."""
    return [each.tokens for each in left] == [each.tokens for each in right] and all(
        one.score == pytest.approx(other.score, abs=1e-4) for one, other in zip(left, right, strict=True)
    )


def batch_mates_do_not_matter(network: Any, source: Any, begin: int, end: int, options: DecodeOptions, limit: int):
    """Each source alone, and all in the opposite order, find what they find together."""
    together = search(network, source, begin, end, options, limit)
    backwards = torch.arange(len(together)).flip(0)
    for index, hypotheses in enumerate(together):
        assert same(search(network, reorder(source, torch.tensor([index])), begin, end, options, limit)[0], hypotheses)
    backwards_results = search(network, reorder(source, backwards), begin, end, options, limit)
    assert all(same(left, right) for left, right in zip(backwards_results, together[::-1], strict=True))


def steps_agree_with_teacher_forcing(
    network: Any, source: Any, begin: int, end: int, options: DecodeOptions, limit: int
):
    """The log probability found step by step is that of one pass over the answer, and the score follows."""
    assert options.repetition_penalty == 1.0
    for index, hypotheses in enumerate(search(network, source, begin, end, options, limit)):
        assert len(hypotheses) == options.num_return_sequences
        assert [each.score for each in hypotheses] == sorted((each.score for each in hypotheses), reverse=True)
        for each in hypotheses:
            sequence = [*each.tokens, end] if each.finished else each.tokens
            logits = network(reorder(source, torch.tensor([index])), torch.tensor([[begin, *sequence[:-1]]]))
            forced = logits[0].log_softmax(-1).gather(1, torch.tensor(sequence)[:, None]).sum().item()
            assert len(sequence) <= limit
            assert end not in each.tokens
            assert each.log_probability == pytest.approx(forced, abs=1e-3)
            assert each.score == pytest.approx(forced / len(sequence) ** options.length_penalty, abs=1e-3)


def greedy_takes_the_best_token(network: Any, source: Any, begin: int, end: int, limit: int):
    """Greedy search is the argmax of one pass over the prefix, token by token, until the end."""
    for index, hypotheses in enumerate(search(network, source, begin, end, DecodeOptions(), limit)):
        tokens = [begin]
        while len(tokens) <= limit and (len(tokens) == 1 or tokens[-1] != end):
            tokens.append(int(network(reorder(source, torch.tensor([index])), torch.tensor([tokens]))[0, -1].argmax()))
        assert hypotheses[0].finished == (tokens[-1] == end)
        assert hypotheses[0].tokens == (tokens[1:-1] if hypotheses[0].finished else tokens[1:])
