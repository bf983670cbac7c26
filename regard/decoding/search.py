"""One search for all models; greedy search, beam search and sampling differ only in how they choose candidates.

A model offers
    start(source) -> state                     before the first token
    step(tokens, state) -> logits, state       tokens (rows, new) in, logits (rows, new, vocabulary) out
Rows are batch · beams, the hypotheses of one source adjacent; the source part of the state has one row per source.

Shapes: tokens (batch, beams, length), logits (batch, beams, vocabulary), all else (batch, beams or candidates).
The batch shrinks as sources are done. A log probability of -inf marks an empty slot of the beam.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.config.recipe import DecodeOptions
from regard.decoding.candidates import Candidates, select_live, strategy
from regard.decoding.logits_processors import LogitsProcessor, process_logits
from regard.layers.protocols import Decodable
from regard.layers.pytree import State, reorder, tensors


class Hypothesis(NamedTuple):
    """New tokens, without the end token. Not finished: stopped at the limit, or no token was allowed to follow.

    score = log probability / length ** length_penalty; the length includes the end token. The log probability is the
    model's, before temperature and truncation but after the repetition penalty.
    """

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool


EosIds = int | tuple[int, ...]  # the token or tokens that end an answer; -1 is none


class DecodeStart(NamedTuple):
    """The first tokens of the outputs, and where they end."""

    begin: int | Tensor  # the first token, or the forced first tokens (batch, n)
    eos_ids: EosIds
    limit: int | Tensor  # of new tokens, end included, for all sources or for each
    read: int = 0  # how many of the forced tokens the initial state has read
    keys: Sequence[int] = ()  # what decides the draws of each source, besides the seed
    stop: Callable[[list[int]], bool] | None = None  # whether an answer's tokens are complete
    processors: Sequence[LogitsProcessor] = ()  # further rules about what may follow


class DecodeStep(NamedTuple):
    """After a step: which sources are still decoded, and the tokens and log probabilities of their hypotheses."""

    sources: Tensor
    tokens: Tensor
    total: Tensor


class FinishedHypotheses:
    """The best hypotheses of each source that came to an end, at most `size` of them."""

    def __init__(self, size: int, length_penalty: float, limits: Tensor):
        self.size = size
        self.length_penalty = float(length_penalty)  # a tensor of integers has no negative power
        self.limits = limits
        self.kept: list[list[Hypothesis]] = [[] for _ in limits]
        self.to_beat = torch.full(limits.shape, -torch.inf, device=limits.device)  # the worst, once `size` are kept

    def score(self, total: Tensor, length: Tensor) -> Tensor:
        return total / length.clamp(min=1) ** self.length_penalty

    def add(self, step: DecodeStep, where: Tensor, finished: bool, end_tokens: int = 0) -> bool:
        """Keep those hypotheses `where` it is True that are among the best; `end_tokens` count for their length.

        Gives whether it is True anywhere.
        """
        if not where.any():
            return False
        sources, tokens, total = step
        scores = self.score(total, torch.tensor(tokens.size(-1) + end_tokens)).masked_fill(~where, -torch.inf)
        new = scores > self.to_beat[sources, None]
        owners = sources[:, None].expand_as(new)
        columns = (column[new].tolist() for column in (owners, tokens, scores, total))
        for source, answer, score, log_probability in zip(*columns, strict=True):
            kept = self.kept[source]
            insort(kept, Hypothesis(answer, score, log_probability, finished), key=lambda each: -each.score)
            del kept[self.size :]
            if len(kept) == self.size:
                self.to_beat[source] = kept[-1].score
        return True

    def can_improve(self, sources: Tensor, total: Tensor, length: int) -> Tensor:
        """Whether a live hypothesis of a source can still come among the best.

        Log probabilities only fall: at best nothing more is lost, and the end comes at the length with the best score,
        which is the limit if length is rewarded, else the next token.
        """
        limits = self.limits[sources]
        best_length = limits if self.length_penalty > 0 else torch.full_like(limits, length + 1)
        return (length < limits) & (self.score(total.amax(1), best_length) > self.to_beat[sources])


def search(
    network: Decodable,
    source: Any,
    begin: int | Tensor,
    eos_ids: EosIds,
    options: DecodeOptions,
    limit: int | Tensor,
    **more: Any,
) -> list[list[Hypothesis]]:
    """The `num_return_sequences` best continuations of each source, best first; `more` are fields of DecodeStart."""
    return BeamSearch(network, source, DecodeStart(begin, eos_ids, limit, **more), options).run()


class BeamSearch:
    """The live hypotheses of a search: iterate for those after each step; afterwards `finished` has the results."""

    @torch.inference_mode()
    def __init__(self, network: Decodable, source: Any, start: DecodeStart, options: DecodeOptions):
        begin, eos_ids, limit, read, keys, self.stop, self.processors = start
        self.network = network
        self.options = options
        self.state = network.start(source)
        anchor = begin[:, 0] if isinstance(begin, Tensor) else next(tensors(self.state))
        self.sources = torch.arange(anchor.size(0), device=anchor.device)
        forced = begin if isinstance(begin, Tensor) else torch.full_like(self.sources, begin)[:, None]
        self.tokens = forced[:, None]
        self.total = torch.zeros(self.tokens.shape[:2], device=anchor.device)  # log probabilities
        self.forced = self.tokens.size(-1)
        self.unread = self.forced - read
        self.eos_ids = tuple(token for token in ((eos_ids,) if isinstance(eos_ids, int) else eos_ids) if token >= 0)
        self.limits = torch.as_tensor(limit, device=anchor.device).clamp(min=1).expand_as(self.sources)
        self.first = int(self.limits.min())  # the earliest and the latest step at which a limit is reached
        self.last = int(self.limits.max())
        self.finished = FinishedHypotheses(options.num_return_sequences, options.length_penalty, self.limits)
        self.choose, self.width = strategy(options, keys or [0] * len(self.sources), self.last, anchor.device)

    def run(self) -> list[list[Hypothesis]]:
        """The result: the best hypotheses of each source."""
        for _ in self:
            pass
        return self.finished.kept

    @torch.inference_mode()
    def __iter__(self) -> Iterator[DecodeStep]:
        for length in range(1, self.last + 1):
            logits, base = self.step(length)
            any_stuck = (self.options.forbids or self.processors) and self.finish_stuck(logits)
            candidates = self.choose(logits, base, self.sources, length - 1)
            ended, any_ended = self.finish_ended(candidates)
            beams = self.total.size(1)
            parent = self.extend(candidates, ended)
            yield self.live
            if self.width == 1 and length < self.first and not (any_stuck or any_ended or self.stop):
                continue  # nothing ended, and every hypothesis stays in its row
            self.finish_stopped()
            at_limit = (length >= self.limits[self.sources])[:, None].expand_as(self.total)
            self.finished.add(self.live, at_limit, finished=False)
            if not self.prune(parent, beams, length):
                return

    @property
    def live(self) -> DecodeStep:
        return DecodeStep(self.sources, self.tokens[..., self.forced :], self.total)

    def step(self, length: int) -> tuple[Tensor, Tensor]:
        """Logits of the allowed tokens, and what makes them total log probabilities."""
        logits, self.state = self.network.step(self.tokens[..., -self.unread :].flatten(0, 1), self.state)
        self.unread = 1
        history = self.tokens.flatten(0, 1)
        logits, normalizer = process_logits(logits[:, -1].float(), history, length - 1, self.eos_ids, self.options)
        for process in self.processors:
            logits = process(logits, history, length - 1)
        return logits.unflatten(0, self.total.shape), self.total - normalizer.view_as(self.total)

    def finish_stuck(self, logits: Tensor) -> bool:
        """A hypothesis that no token may follow ends unfinished."""
        return self.finished.add(self.live, logits.amax(-1) == -torch.inf, finished=False)

    def finish_ended(self, candidates: Candidates) -> tuple[Tensor, bool]:
        """Keep the candidates within the beam that end; gives which of all candidates do, and whether one was kept."""
        ended = torch.zeros_like(candidates.token, dtype=torch.bool)
        for eos_id in self.eos_ids:
            ended |= candidates.token == eos_id
        within = ended[:, : self.width]
        if not within.any():
            return ended, False
        answers = gather_beams(self.tokens, candidates.parent)[:, : self.width, self.forced :]
        step = DecodeStep(self.sources, answers, candidates.total[:, : self.width])
        self.finished.add(step, within, finished=True, end_tokens=1)
        return ended, True

    def extend(self, candidates: Candidates, ended: Tensor) -> Tensor:
        """The best candidates that did not end become the live hypotheses; gives the parents that they continue."""
        parent, token, self.total = select_live(candidates, ended, self.width)
        self.tokens = torch.cat([gather_beams(self.tokens, parent), token[..., None]], -1)
        return parent

    def finish_stopped(self) -> None:
        """Finish the hypotheses whose text is complete."""
        if self.stop is None:
            return
        _, answers, total = self.live
        beams = zip((total > -torch.inf).tolist(), answers.tolist(), strict=True)
        complete = [[alive and self.stop(tokens) for alive, tokens in zip(*row, strict=True)] for row in beams]
        stopped = torch.tensor(complete, dtype=torch.bool, device=total.device)
        self.finished.add(self.live, stopped, finished=True)
        self.total = self.total.masked_fill(stopped, -torch.inf)

    def prune(self, parent: Tensor, beams: int, length: int) -> bool:
        """Drop the sources that are done, and order the state as the live hypotheses; False when all are done."""
        keep = self.finished.can_improve(self.sources, self.total, length).nonzero().squeeze(1)
        if not len(keep):
            return False
        rows = parent[keep] + beams * keep[:, None]
        self.state = reorder_state(self.state, keep, rows.flatten(), len(self.sources), beams)
        self.sources = self.sources[keep]
        self.tokens = self.tokens[keep]
        self.total = self.total[keep]
        return True


def gather_beams(tokens: Tensor, parent: Tensor) -> Tensor:
    """The tokens of each candidate's parent."""
    if tokens.size(1) == parent.size(1) == 1:
        return tokens
    return tokens.gather(1, parent[..., None].expand(-1, -1, tokens.size(-1)))


def reorder_state(state: State, keep: Tensor, rows: Tensor, batch: int, beams: int) -> State:
    """The state of the kept sources and of their hypotheses `rows`; what does not change is not copied."""
    source = state.source if len(keep) == batch else reorder(state.source, keep)
    same = torch.equal(rows, torch.arange(batch * beams, device=rows.device))
    return State(source, state.hypothesis if same else reorder(state.hypothesis, rows))
