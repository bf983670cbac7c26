"""One search for every generator; greedy, beam and sampling differ only in how they choose candidates.

A generator offers
    start(source) -> state                     what it knows before the first token
    step(tokens, state) -> logits, state       tokens (rows, new) in, logits (rows, new, vocabulary) out
Rows are batch · beams, the hypotheses of one source adjacent; the source part of the state has one row per source.

Shapes: tokens (batch, beams, length), logits (batch, beams, vocabulary), all else (batch, beams or candidates).
The batch shrinks as sources are done. A log probability of -inf marks an empty place in the beam.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from collections.abc import Generator as Steps
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding.logits_processors import restrict
from regard.decoding.sampling import draw, random_numbers, truncate
from regard.decoding.topk import best
from regard.errors import UserError
from regard.layers.state import State, reorder, tensors


class Generator(Protocol):
    """What can be searched."""

    def start(self, source: Any) -> State: ...
    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


class Hypothesis(NamedTuple):
    """New tokens, without the end token. Not finished: cut off at the limit, or no token was allowed to follow.

    score = log probability / length ** length_penalty; the length counts the end token. The log probability is the
    network's own, before temperature and cuts but after the repetition penalty.
    """

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool


class Candidates(NamedTuple):
    """Ways to go on: which hypothesis of the source, with which token, and the total log probability."""

    parent: Tensor
    token: Tensor
    total: Tensor


# From the logits, what to add to a logit for the total log probability (`rest`), the sources' numbers, and the step.
Choice = Callable[[Tensor, Tensor, Tensor, int], Candidates]
Ends = int | tuple[int, ...]  # the token or tokens that end an answer; -1 is none


class DecodeStart(NamedTuple):
    """What answers begin with, and where they end."""

    begin: int | Tensor  # the first token, or the forced first tokens (batch, n)
    end: Ends
    limit: int | Tensor  # of new tokens, end included, for all sources or for each
    read: int = 0  # how many of the forced tokens the state knows from its start
    keys: Sequence[int] = ()  # what decides the draws of each source, besides the seed
    stopped: Callable[[list[int]], bool] | None = None  # says of an answer's tokens that no more are wanted


class DecodeStep(NamedTuple):
    """Between two steps: which sources still grow, and the tokens and log probabilities of their hypotheses."""

    sources: Tensor
    tokens: Tensor
    total: Tensor


class FinishedHypotheses:
    """The best hypotheses of each source that came to an end, at most `size` of them."""

    def __init__(self, size: int, length_penalty: float, limits: Tensor):
        self.size, self.length_penalty, self.limits = size, length_penalty, limits
        self.kept: list[list[Hypothesis]] = [[] for _ in limits]
        self.to_beat = torch.full(limits.shape, -torch.inf, device=limits.device)  # the worst, once `size` are kept

    def score(self, total: Tensor, length: Tensor) -> Tensor:
        return total / length.clamp(min=1) ** self.length_penalty

    def offer(
        self, sources: Tensor, tokens: Tensor, total: Tensor, where: Tensor, finished: bool, ending: int = 0
    ) -> None:
        """Keeps those hypotheses that are among the best, of the ones offered by `where`; `ending` tokens follow."""
        if not where.any():
            return
        scores = self.score(total, torch.tensor(tokens.size(-1) + ending)).masked_fill(~where, -torch.inf)
        new = scores > self.to_beat[sources, None]
        owners = sources[:, None].expand_as(new)
        columns = (part[new].tolist() for part in (owners, tokens, scores, total))
        for source, said, score, log_probability in zip(*columns, strict=True):
            kept = self.kept[source]
            insort(kept, Hypothesis(said, score, log_probability, finished), key=lambda each: -each.score)
            del kept[self.size :]
            if len(kept) == self.size:
                self.to_beat[source] = kept[-1].score

    def open(self, sources: Tensor, total: Tensor, length: int) -> Tensor:
        """Whether a growing hypothesis of a source can still come among the best.

        Log probabilities only fall: at best nothing more is lost, and the end comes where the length serves the score
        most, which is at the limit if length is rewarded, else at the very next token.
        """
        limits = self.limits[sources]
        best_length = limits if self.length_penalty > 0 else torch.full_like(limits, length + 1)
        return (length < limits) & (self.score(total.amax(1), best_length) > self.to_beat[sources])


def search(
    network: Generator,
    source: Any,
    begin: int | Tensor,
    end: Ends,
    options: DecodeOptions,
    limit: int | Tensor,
    **more: Any,
) -> list[list[Hypothesis]]:
    """The `num_return_sequences` best continuations of each source, best first; `more` as an DecodeStart has it."""
    return run_to_end(decode_steps(network, source, DecodeStart(begin, end, limit, **more), options))


def run_to_end(growing: Steps[DecodeStep, None, list[list[Hypothesis]]]) -> list[list[Hypothesis]]:
    """What a search finds in the end."""
    while True:
        try:
            next(growing)
        except StopIteration as done:
            return done.value


@torch.inference_mode()
def decode_steps(
    network: Generator, source: Any, outset: DecodeStart, options: DecodeOptions
) -> Steps[DecodeStep, None, list[list[Hypothesis]]]:
    """The search, step by step: what grows after each, and in the end all hypotheses."""
    begin, end, limit, read, keys, stopped = outset
    ends = tuple(token for token in ((end,) if isinstance(end, int) else end) if token >= 0)
    state = network.start(source)
    anchor = begin[:, 0] if isinstance(begin, Tensor) else next(tensors(state))
    sources = torch.arange(anchor.size(0), device=anchor.device)
    limits = torch.as_tensor(limit, device=anchor.device).clamp(min=1).expand_as(sources)
    tokens = torch.full_like(sources, begin)[:, None, None] if isinstance(begin, int) else begin[:, None]
    total = torch.zeros(tokens.shape[:2], device=anchor.device)  # log probabilities
    forced, new = tokens.size(-1), tokens.size(-1) - read
    finals = FinishedHypotheses(options.num_return_sequences, options.length_penalty, limits)
    soonest, last = int(limits.min()), int(limits.max())
    choose, width = strategy(options, keys or [0] * len(sources), last, anchor.device)

    for length in range(1, last + 1):
        logits, state = network.step(tokens[..., -new:].flatten(0, 1), state)
        logits, normaliser = restrict(logits[:, -1].float(), tokens.flatten(0, 1), length - 1, ends, options)
        logits, rest = logits.unflatten(0, total.shape), total - normaliser.view_as(total)
        stuck = options.forbids and bool((mute := logits.amax(-1) == -torch.inf).any())
        if stuck:  # what has nothing to say is over
            finals.offer(sources, tokens[..., forced:], total, mute, finished=False)

        found = choose(logits, rest, sources, length - 1)
        ended = among(found.token, ends)
        inside = ended[:, :width]  # what would not enter the beam may not end
        ending = bool(inside.any())
        if ending:
            said = follow(tokens, found.parent)[:, :width, forced:]
            finals.offer(sources, said, found.total[:, :width], inside, finished=True, ending=1)

        beams, new = total.size(1), 1
        parent, token, total = survivors(found, ended, width)
        tokens = torch.cat([follow(tokens, parent), token[..., None]], -1)
        yield DecodeStep(sources, tokens[..., forced:], total)
        if width == 1 and length < soonest and not (ending or stopped or stuck):
            continue  # all grow on, each as it stands
        if stopped is not None:
            over = halted(tokens[..., forced:], total, stopped)
            finals.offer(sources, tokens[..., forced:], total, over, finished=True)
            total = total.masked_fill(over, -torch.inf)
        cut = (length >= limits[sources])[:, None].expand_as(total)
        finals.offer(sources, tokens[..., forced:], total, cut, finished=False)

        keep = finals.open(sources, total, length).nonzero().squeeze(1)
        if not len(keep):
            break
        rows = parent[keep] + beams * keep[:, None]
        state = advance(state, keep, rows.flatten(), len(sources), beams)
        sources, tokens, total = sources[keep], tokens[keep], total[keep]
    return finals.kept


def among(tokens: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Which of the tokens end an answer."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for end in ends:
        found |= tokens == end
    return found


def halted(tokens: Tensor, total: Tensor, stopped: Callable[[list[int]], bool]) -> Tensor:
    """Which hypotheses the caller has heard enough of."""
    alive = (total > -torch.inf).tolist()
    rows = [
        [lives and stopped(said) for lives, said in zip(*each, strict=True)]
        for each in zip(alive, tokens.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.bool, device=total.device)


def strategy(options: DecodeOptions, keys: Sequence[int], limit: int, device: torch.device) -> tuple[Choice, int]:
    """How candidates are chosen, and how many hypotheses grow side by side."""
    if options.temperature == 0.0 and options.num_beams > 1:
        return partial(widest, width=options.num_beams), options.num_beams
    if options.temperature == 0.0:
        return greedy, 1
    if options.num_beams > 1:
        given = f"decode.num_beams = {options.num_beams} with decode.temperature = {options.temperature}"
        raise UserError(f"{given}: a beam is searched or samples are drawn; set num_beams = 1 or temperature = 0")
    samples = options.num_return_sequences
    numbers = random_numbers(options.seed, keys, samples, limit).to(device)
    return partial(sample, numbers=numbers, options=options), samples


def greedy(logits: Tensor, rest: Tensor, sources: Tensor, step: int) -> Candidates:
    """The best token of the only hypothesis."""
    logit, token = best(logits[:, 0], 1)
    return Candidates(torch.zeros_like(token), token, rest + logit)


def widest(logits: Tensor, rest: Tensor, sources: Tensor, step: int, width: int) -> Candidates:
    """The best tokens of all hypotheses together, best first: twice the width, so that `width` go on if as many end."""
    logit, token = best(logits, min(2 * width, logits.size(-1)))
    total, place = (rest[..., None] + logit).flatten(1).topk(min(2 * width, logit[0].numel()))
    return Candidates(place // logit.size(-1), token.flatten(1).gather(1, place), total)


def sample(
    logits: Tensor, rest: Tensor, sources: Tensor, step: int, numbers: Tensor, options: DecodeOptions
) -> Candidates:
    """One drawn token for each sample; the first draws are all from the one hypothesis there is."""
    uniform = numbers[step, sources]  # (batch, samples)
    cut = truncate(logits / options.temperature, options.top_k, options.top_p, options.min_p)
    token = draw(cut.expand(-1, uniform.size(1), -1), uniform)
    total = rest + logits.expand(-1, uniform.size(1), -1).gather(-1, token[..., None]).squeeze(-1)
    parent = torch.arange(uniform.size(1), device=token.device).clamp(max=rest.size(1) - 1)
    return Candidates(parent.expand_as(token), token, total)


def survivors(found: Candidates, ended: Tensor, width: int) -> Candidates:
    """The candidates that grow on, at most `width`."""
    total = found.total.masked_fill(ended, -torch.inf)
    if total.size(1) <= width:
        return found._replace(total=total)
    total, place = total.topk(width)
    return Candidates(found.parent.gather(1, place), found.token.gather(1, place), total)


def follow(tokens: Tensor, parent: Tensor) -> Tensor:
    """The tokens of each candidate's parent."""
    if tokens.size(1) == parent.size(1) == 1:
        return tokens
    return tokens.gather(1, parent[..., None].expand(-1, -1, tokens.size(-1)))


def advance(state: State, keep: Tensor, rows: Tensor, batch: int, beams: int) -> State:
    """The state of the kept sources and of their hypotheses `rows`; what stays as it is, is not copied."""
    source = state.source if len(keep) == batch else reorder(state.source, keep)
    same = torch.equal(rows, torch.arange(batch * beams, device=rows.device))
    return State(source, state.hypothesis if same else reorder(state.hypothesis, rows))
