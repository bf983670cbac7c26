"""Searching and sampling: against exhaustive search on random tables, and the laws every generator obeys."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import search_laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding import search
from regard.decoding.candidates import blockwise_topk, draw, random_numbers, truncate
from regard.decoding.logits_processors import process_logits
from regard.errors import UserError
from regard.layers.pytree import State, reorder

BEGIN, END = 1, 0
law = settings(derandomize=True, deadline=None, max_examples=60)


class Prefix(NamedTuple):
    """What the toy carries for each hypothesis; an owner, to prove that rows and sources stay together."""

    node: Tensor
    extra: tuple[Tensor, int, None]


class Tree:
    """A toy generator whose logits are a random table's row for the prefix and the source."""

    def __init__(self, vocabulary: int, depth: int, sources: int = 5, seed: int = 0, spread: float = 1.5):
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary, self.size = vocabulary, min(vocabulary ** (depth + 1), 9973)  # where prefixes may collide
        self.table = spread * torch.randn(sources, self.size, vocabulary, generator=generator)
        self.batches: list[int] = []

    def start(self, source: Tensor) -> State:
        return State((source, None), Prefix(torch.zeros_like(source), (source, 0, None)))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        (source, _), (node, (owner, length, _)) = state
        rows, batch = len(tokens), len(source)
        assert len(node) == rows
        assert torch.equal(owner, source.repeat_interleave(rows // batch))
        assert source.unique().numel() == batch, "the source part was repeated"
        self.batches.append(batch)
        logits = []
        for token in tokens.T:
            node = (node * self.vocabulary + token) % self.size
            logits.append(self.table[owner, node])
        return torch.stack(logits, 1), State((source, None), Prefix(node, (owner, length + tokens.size(1), None)))

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        return self.step(target, self.start(source))[0]

    def allowed(self, source: int, prefix: list[int], options: DecodeOptions) -> dict[int, float]:
        """The log probabilities of what may follow, spelled out."""
        history = [BEGIN, *prefix]
        logits = [float(logit) for logit in self(torch.tensor([source]), torch.tensor([history]))[0, -1]]
        penalty, size = options.repetition_penalty, options.no_repeat_ngram_size
        for token in {*history} - {END}:
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        total = math.log(sum(map(math.exp, logits)))
        grams = {tuple(history[position : position + size]) for position in range(len(history) - size + 1)}
        return {
            token: logit - total
            for token, logit in enumerate(logits)
            if (len(prefix) >= options.min_new_tokens if token == END else True)
            and (token == END or not size or (*history, token)[-size:] not in grams)
        }


def endings(
    tree: Tree, source: int, options: DecodeOptions, limit: int
) -> Iterator[tuple[tuple[int, ...], bool, float]]:
    """All possible outputs: tokens, finished, log probability."""

    def decode_steps(prefix: list[int], total: float) -> Iterator[tuple[tuple[int, ...], bool, float]]:
        follow = tree.allowed(source, prefix, options) if len(prefix) < limit else {}
        if not follow:
            yield tuple(prefix), False, total
        for token, log_probability in follow.items():
            if token == END:
                yield tuple(prefix), True, total + log_probability
            else:
                yield from decode_steps([*prefix, token], total + log_probability)

    yield from decode_steps([], 0.0)


def plain_beam(tree: Tree, source: int, options: DecodeOptions, limit: int) -> list[float]:
    """The scores of beam search as one would explain it: no early stop, no batch, the best finished ones at the end."""
    growing: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended = []
    for length in range(1, limit + 1):
        follow = [
            (total + log_probability, (*prefix, token))
            for total, prefix in growing
            for token, log_probability in tree.allowed(source, list(prefix), options).items()
        ]
        follow.sort(reverse=True)
        ahead = follow[: options.num_beams]
        ended += [total / length**options.length_penalty for total, prefix in ahead if prefix[-1] == END]
        growing = [each for each in follow if each[1][-1] != END][: options.num_beams]
    ended += [total / limit**options.length_penalty for total, _ in growing]
    return sorted(ended, reverse=True)[: options.num_return_sequences]


RULES = st.fixed_dictionaries(
    {
        "length_penalty": st.sampled_from([0.0, 1.0, 0.6, 2.0, -1.0]),
        "min_new_tokens": st.integers(0, 3),
        "no_repeat_ngram_size": st.integers(0, 3),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 0.8]),
    }
)
SPREADS = st.sampled_from([0.5, 1.5, 6.0])  # from unsure to almost certain, where length decides


@law
@given(st.integers(2, 4), st.integers(1, 4), RULES, st.integers(0, 999), SPREADS, st.integers(1, 7))
def test_a_full_beam_is_exhaustive_search(
    vocabulary: int, limit: int, rules: dict[str, Any], seed: int, spread: float, count: int
) -> None:
    tree = Tree(vocabulary, limit, 3, seed, spread)
    options = DecodeOptions(num_beams=4**4 + count, num_return_sequences=count, **rules)
    for source, hypotheses in enumerate(search(tree, torch.arange(3), BEGIN, END, options, limit)):
        possible = {
            (tokens, finished): total / max(1, len(tokens) + finished) ** options.length_penalty
            for tokens, finished, total in endings(tree, source, options, limit)
        }
        expected = sorted(possible.values(), reverse=True)[:count]
        assert [each.score for each in hypotheses] == pytest.approx(expected, abs=1e-4)
        for each in hypotheses:  # by score, not by position: equal ones may be in any order
            assert each.score == pytest.approx(possible[tuple(each.tokens), each.finished], abs=1e-4)
        assert len({(tuple(each.tokens), each.finished) for each in hypotheses}) == len(hypotheses)


@law
@given(st.integers(2, 5), RULES, st.integers(0, 999), SPREADS)
def test_stopping_early_changes_nothing(width: int, rules: dict[str, Any], seed: int, spread: float) -> None:
    rules["no_repeat_ngram_size"] = 0  # no dead ends, which the plain search does not know
    tree = Tree(5, 7, 2, seed, spread)
    for count in (1, width):
        options = DecodeOptions(num_beams=width, num_return_sequences=count, **rules)
        for source, hypotheses in enumerate(search(tree, torch.arange(2), BEGIN, END, options, 7)):
            assert [each.score for each in hypotheses] == pytest.approx(plain_beam(tree, source, options, 7), abs=1e-4)


@pytest.mark.parametrize("options", search_laws.OPTIONS)
@pytest.mark.parametrize("seed", range(5))
def test_laws_of_every_generator(options: DecodeOptions, seed: int) -> None:
    tree = Tree(7, 5, seed=seed)
    sources = torch.tensor([3, 0, 4, 1])
    search_laws.batch_mates_do_not_matter(tree, sources, BEGIN, END, options, 5)
    search_laws.steps_agree_with_teacher_forcing(tree, sources, BEGIN, END, options, 5)
    search_laws.greedy_takes_the_best_token(tree, sources, BEGIN, END, 5)


@law
@given(st.integers(1, 3), st.sampled_from([{"num_beams": 3}, {"temperature": 2.0}, {}]), st.integers(0, 999))
def test_no_ngram_is_repeated(size: int, way: dict[str, Any], seed: int) -> None:
    tree = Tree(3, 8, sources=2, seed=seed, spread=0.3)
    options = DecodeOptions(no_repeat_ngram_size=size, min_new_tokens=8, **way)
    for hypotheses in search(tree, torch.arange(2), BEGIN, END, options, 8):
        tokens = [BEGIN, *hypotheses[0].tokens]
        grams = [tuple(tokens[position : position + size]) for position in range(len(tokens) - size + 1)]
        assert len(grams) == len(set(grams))
        assert not hypotheses[0].finished


def test_a_model_that_begins_with_the_end_token_may_still_end() -> None:
    logits = torch.randn(3, 7)
    history = torch.tensor([[END, 4, 4]] * 3)
    options = DecodeOptions(no_repeat_ngram_size=1, repetition_penalty=1.3)
    restricted, _ = process_logits(logits, history, 1, (END,), options)
    assert torch.equal(restricted[:, END], logits[:, END])
    assert restricted[:, 4].eq(-torch.inf).all()


def test_limits_hold_for_each_source_and_done_sources_leave_the_batch() -> None:
    tree = Tree(5, 6)
    limits = torch.tensor([2, 6, 1, 4, 3])
    options = DecodeOptions(min_new_tokens=9)
    hypotheses = search(tree, torch.arange(5), BEGIN, END, options, limits)
    assert [len(each.tokens) for (each,) in hypotheses] == limits.tolist()
    assert tree.batches == [5, 4, 3, 2, 1, 1]
    alone = search(tree, torch.tensor([4]), BEGIN, END, options, 3)
    assert alone[0] == hypotheses[4]


def test_a_source_that_ends_at_once_is_dropped() -> None:
    tree = Tree(5, 4)
    tree.table[:, :, END] = -9.0
    tree.table[[1, 3], :, END] = 9.0
    for options in (DecodeOptions(), DecodeOptions(num_beams=3), DecodeOptions(temperature=0.1)):
        tree.batches.clear()
        hypotheses = search(tree, torch.arange(5), BEGIN, END, options, 4)
        assert [each[0].tokens == [] for each in hypotheses] == [False, True, False, True, False]
        assert tree.batches == [5, 3, 3, 3]


def test_forced_first_tokens_are_followed_and_not_returned() -> None:
    tree = Tree(5, 6)
    forced = torch.tensor([[BEGIN, 3, 2], [BEGIN, 4, 4]])
    for options in (DecodeOptions(), DecodeOptions(num_beams=3)):
        together = search(tree, torch.arange(2), forced, END, options, 3)
        for row in range(2):
            (hypotheses,) = search(tree, torch.tensor([row]), forced[row : row + 1], END, options, 3)
            assert hypotheses == together[row]
    greedy = search(tree, torch.arange(2), forced, END, DecodeOptions(min_new_tokens=1), 1)
    expected = tree(torch.arange(2), forced)[:, -1, 1:].argmax(-1) + 1
    assert [hypotheses[0].tokens for hypotheses in greedy] == expected[:, None].tolist()


@pytest.mark.parametrize("way", [{}, {"num_beams": 3}, {"temperature": 1.0}])
def test_a_hypothesis_without_an_allowed_token_stays_unfinished(way: dict[str, Any]) -> None:
    tree = Tree(3, 5)
    options = DecodeOptions(no_repeat_ngram_size=1, min_new_tokens=5, **way)
    for (hypotheses,) in search(tree, torch.arange(4), BEGIN, END, options, 5):
        assert (hypotheses.tokens, hypotheses.finished) == ([2], False)


def test_a_beam_that_also_draws_is_refused() -> None:
    with pytest.raises(UserError, match=r"num_beams = 2 and decode.temperature = 0.5"):
        search(Tree(3, 2), torch.arange(2), BEGIN, END, DecodeOptions(num_beams=2, temperature=0.5), 2)


def test_samples_have_the_frequencies_of_the_softmax() -> None:
    count, temperature, tree = 20_011, 1.7, Tree(5, 2)
    options = DecodeOptions(temperature=temperature, num_return_sequences=count, min_new_tokens=2)
    (hypotheses,) = search(tree, torch.tensor([2]), BEGIN, END, options, 2)
    seen = Counter(tuple(each.tokens) for each in hypotheses)
    first = (tree(torch.tensor([2]), torch.tensor([[BEGIN]]))[0, -1, 1:] / temperature).softmax(-1)
    chi_square = 0.0
    for token, probability in enumerate(first.tolist(), start=1):
        second = (tree(torch.tensor([2]), torch.tensor([[BEGIN, token]]))[0, -1, 1:] / temperature).softmax(-1)
        for follow, conditional in enumerate(second.tolist(), start=1):
            expected = count * probability * conditional
            chi_square += (seen[token, follow] - expected) ** 2 / expected
    assert chi_square < 37.7  # 15 degrees of freedom: 0.1 % of correct samples are above
    assert sum(seen.values()) == count


@law
@given(st.integers(0, 9999), st.integers(1, 700), st.integers(1, 11), st.booleans())
def test_the_best_through_blocks_are_the_best(seed: int, size: int, count: int, forbidden: bool) -> None:
    logits = torch.randn(3, 2, size, generator=torch.Generator().manual_seed(seed))
    if forbidden:
        logits[..., 1:] = -torch.inf
    values, indices = blockwise_topk(logits, min(count, size))
    assert torch.equal(values, logits.topk(min(count, size)).values)
    assert torch.equal(logits.gather(-1, indices), values)
    assert all(len(set(row)) == min(count, size) for row in indices.flatten(0, 1).tolist())


@law
@given(st.integers(0, 9999), st.integers(2, 17))
def test_drawing_inverts_the_distribution(seed: int, vocabulary: int) -> None:
    logits = 3 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed))
    logits[seed % vocabulary] = -torch.inf
    steps = 10_007
    uniform = (torch.arange(steps) + 0.5) / steps
    counts = draw(logits.expand(steps, -1), uniform).bincount(minlength=vocabulary)
    assert counts[seed % vocabulary] == 0
    assert torch.allclose(counts / steps, logits.softmax(-1), atol=1.5 / steps)


def test_the_edges_of_the_unit_interval_draw_possible_tokens() -> None:
    logits = torch.tensor([-torch.inf, 0.0, 1.0, -torch.inf])
    edges = torch.tensor([0.0, 1 - 2**-24])
    assert draw(logits.expand(2, -1), edges).tolist() == [1, 2]


@law
@given(st.integers(0, 9999), st.integers(1, 13), st.floats(0.01, 0.99), st.floats(0.01, 1.0))
def test_cuts_keep_exactly_the_right_tokens(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = 2 * torch.randn(3, 11, generator=torch.Generator().manual_seed(seed))

    def kept(row: int, **cut: Any) -> set[int]:
        left = truncate(logits, **cut)[row]
        stays = left > -torch.inf
        assert torch.equal(left[stays], logits[row][stays])
        return set(stays.nonzero().flatten().tolist())

    for row in range(3):
        probability = logits[row].double().softmax(-1).tolist()
        order = sorted(range(11), key=lambda token: -probability[token])
        assert kept(row, top_k=top_k) == set(order[:top_k])
        held = [sum(probability[token] for token in order[:position]) for position in range(11)]
        assert kept(row, top_p=top_p) == {token for token, before in zip(order, held, strict=True) if before < top_p}
        assert kept(row, min_p=min_p) == {
            token for token in order if probability[token] >= min_p * probability[order[0]]
        }
        assert kept(row) == set(order)


def test_random_numbers_depend_on_seed_source_sample_and_step_alone() -> None:
    uniform = random_numbers(seed=3, keys=[8, 4], samples=5, length=101)
    assert torch.equal(random_numbers(3, [4], 2, 7), uniform[:7, 1:, :2])
    assert uniform.unique().numel() > 1000
    assert not torch.equal(random_numbers(4, [8, 4], 5, 101), uniform)
    assert 0 <= uniform.min() < uniform.max() < 1


def test_the_same_seed_gives_the_same_sample_and_another_seed_another() -> None:
    tree = Tree(7, 6)

    def sample(seed: int, count: int, sources: list[int]) -> list[list[list[int]]]:
        options = DecodeOptions(temperature=1.5, num_return_sequences=count, seed=seed, min_new_tokens=4)
        return [
            [each.tokens for each in hypotheses]
            for hypotheses in search(tree, torch.tensor(sources), BEGIN, END, options, 6)
        ]

    assert sample(1, 3, [4, 2, 0])[2] == sample(1, 3, [0])[0]
    assert sample(1, 1, [0])[0][0] in sample(1, 3, [2, 0])[1]
    assert sample(1, 3, [0]) != sample(2, 3, [0])


def test_pick_keeps_the_shape_of_a_state() -> None:
    state = Prefix(torch.arange(5), (torch.arange(10).view(5, 2), 3, None))
    picked = reorder(state, torch.tensor([4, 0, 0]))
    assert isinstance(picked, Prefix)
    assert picked.node.tolist() == [4, 0, 0]
    assert picked.extra[0].tolist() == [[8, 9], [0, 1], [0, 1]]
    assert picked.extra[1:] == (3, None)
