"""Traces: what was attended to, exactly, for any place, head and row, on demand.

While somebody watches, the fused kernel still runs: a look keeps queries and keys, and weights are recomputed later, in
bands of rows. A site is a place in the computation (`decoder.blocks.2.cross`), told by nested `place`s.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.masks import Bias, Rule
from regard.attention.scores import Product, Score, weigh
from regard.errors import UserError, nearest


@dataclass(frozen=True)
class Look:
    """One use of attention, enough to say later what was seen: the `length` places of a memory from `start` on."""

    score: Score
    query: Tensor
    key: Tensor | None  # not beside kept weights: a past that grows would be there once for each step
    rule: Rule | None
    bias: Bias | None
    start: int
    length: int
    kept: Tensor | None = None  # the weights themselves, where the score is no product
    value: Tensor | None = None  # with the context, on request: the proof that these weights were used
    context: Tensor | None = None

    @property
    def queries(self) -> int:
        return self.query.size(-2)

    def weights(self, rows: slice = slice(None), heads: slice = slice(None), texts: slice = slice(None)) -> Tensor:
        """(texts, heads, rows, length) of the rows, heads and texts of a batch asked for; no others are made."""
        if self.key is None:
            assert self.kept is not None
            return self.kept[texts, heads, rows]
        keys = torch.arange(self.start, self.start + self.length, device=self.key.device)
        places = (keys[-1] + 1 - self.queries + torch.arange(self.queries, device=self.key.device))[rows]
        shared = self.query.size(1) // self.key.size(1)  # heads of queries that one head of keys serves
        key = self.key[texts] if shared == 1 else self.key[texts].repeat_interleave(shared, 1)
        scores = self.score(self.query[texts, heads, rows], key[:, heads])
        if self.bias is not None:
            scores = scores + self.bias.rows_of(texts, heads, places, keys).to(scores.dtype)
        return weigh(scores, None if self.rule is None else _of(self.rule.rows(places, keys), texts))


def _of(rows: Tensor, texts: slice) -> Tensor:
    """What holds of some texts, where it is not the same of all."""
    return rows[texts] if rows.dim() == 4 and rows.size(0) > 1 else rows


@dataclass
class Recorder:
    """Collects the looks of one pass, by site, in the order they happened."""

    prove: bool = False
    looks: dict[str, list[Look]] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)

    def add(self, look: Look) -> None:
        self.looks.setdefault(".".join(self.path), []).append(look)


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def recorder() -> Recorder | None:
    """Who watches this computation, if anybody."""
    return _recorder.get()


@contextmanager
def record(prove: bool = False) -> Iterator[Recorder]:
    """Collect every look while the model runs. With `prove`, keep values and contexts too."""
    token = _recorder.set(watching := Recorder(prove))
    try:
        yield watching
    finally:
        _recorder.reset(token)


class scope:
    """`with place("encoder"): …` names a part of the computation; costs nothing while nobody watches."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self.watching = _recorder.get()
        if self.watching:
            self.watching.path.append(self.name)

    def __exit__(self, *_: object) -> None:
        if self.watching:
            self.watching.path.pop()


def keep(score: Score) -> bool:
    """Products are recomputed from queries and keys; the weights of any other score are kept."""
    return not isinstance(score, Product)


class Trace:
    """The looks of one input (and its output), to be asked."""

    def __init__(
        self,
        recorder: Recorder,
        source: Sequence[str] = (),
        target: Sequence[str] = (),
        output: Sequence[str] = (),
        answer: str = "",
        text: int = 0,
    ):
        """Pieces read (`source`), given to the decoder (`target`) and written by it (`output`), one step ahead.

        Of several texts that were read at once, the looks are those of one.
        """
        self.looks, self.text = recorder.looks, slice(text, text + 1)
        self.source, self.target, self.output, self.answer = list(source), list(target), list(output), answer

    @property
    def sites(self) -> list[str]:
        return list(self.looks)

    def weights(self, site: str, head: int | None = None, rows: slice | None = None) -> Tensor:
        """(queries, keys) of one head, or (heads, queries, keys); `rows` limits the queries."""
        looks, rows = self._looks(site), slice(None) if rows is None else rows
        count = looks[0].query.size(1)
        if head is not None and not 0 <= head < count:
            raise UserError(f"no head {head} at '{site}'; possible: 0 to {count - 1}")
        heads = slice(None) if head is None else slice(head, head + 1)
        if len(looks) == 1:
            found = looks[0].weights(rows, heads, self.text)[0]
        else:  # a recurrent decoder looks once for each word, perhaps at a past that grows
            longest = looks[-1].length
            each = [look.weights(heads=heads, texts=self.text)[0] for look in looks]
            found = torch.cat([F.pad(one, (0, longest - one.size(-1))) for one in each], -2)[:, rows]
        return found if head is None else found[0]

    def proof(self, site: str) -> tuple[Tensor, Tensor]:
        """weights · values, and the context that was used; made by `trace(…, prove=True)`."""
        pairs = []
        for look in self._looks(site):
            if look.value is None or look.context is None:
                raise ValueError("values were not kept: trace with prove=True")
            weights, value = look.weights(texts=self.text), look.value[self.text]
            value = value.repeat_interleave(weights.size(1) // value.size(1), 1)
            pairs.append((weights @ value, look.context[self.text]))
        mixed, used = zip(*pairs, strict=True)
        return torch.cat(mixed, -2)[0], torch.cat(used, -2)[0]

    def labels(self, site: str) -> tuple[list[str], list[str]]:
        """The pieces being written or read while looking (rows), and those looked at (columns)."""
        parts = site.split(".")
        if parts[-1] == "pooling":
            return [self.answer or "the text"], self.source
        rows = self.source if parts[0] == "encoder" else self.output
        columns = self.source if "cross" in parts or parts[0] == "encoder" else self.target
        if parts[-1] == "past":  # what it looks at is its first state, and its state after each piece
            columns = ["·", *columns[:-1]]
        length = self._looks(site)[-1].length
        return rows, columns if len(columns) == length else ["all that was read"] * length

    def explore(self, path: str | None = None):
        """The page of this trace: a file, or shown inline in a notebook."""
        from regard.explorer.page import explore

        return explore(self, path)

    def _looks(self, site: str) -> list[Look]:
        if not self.looks:
            raise UserError(f"no attention at '{site}': this model attends to nothing")
        if site not in self.looks:
            raise UserError(f"no attention at '{site}'{nearest(site, self.sites)}")
        return self.looks[site]


class Segmented(Trace):
    """Of a text that was read in segments, all at once: each has its own sites, `segments.2.encoder.blocks.0.self`."""

    def __init__(self, recorder: Recorder, segments: Sequence[Sequence[str]], source: Sequence[str], answer: str = ""):
        """The pieces of each segment, and those of the whole text."""
        super().__init__(recorder, source, answer=answer)
        self.parts = [Trace(recorder, pieces, answer=answer, text=number) for number, pieces in enumerate(segments)]

    @property
    def sites(self) -> list[str]:
        return [f"segments.{number}.{site}" for number, part in enumerate(self.parts) for site in part.sites]

    def weights(self, site: str, head: int | None = None, rows: slice | None = None) -> Tensor:
        part, site = self._part(site)
        found = part.weights(site, head)[..., : len(part.source), : len(part.source)]  # behind it is padding
        return found if rows is None else found[..., rows, :]

    def proof(self, site: str) -> tuple[Tensor, Tensor]:
        part, site = self._part(site)
        return part.proof(site)

    def labels(self, site: str) -> tuple[list[str], list[str]]:
        part, site = self._part(site)
        rows, columns = part.labels(site)
        return rows, columns if len(columns) == len(part.source) else part.source

    def _part(self, site: str) -> tuple[Trace, str]:
        """The segment's own trace, and what the site is called there."""
        for number, part in enumerate(self.parts):
            if site.startswith(f"segments.{number}."):
                return part, site.removeprefix(f"segments.{number}.")
        raise UserError(f"no attention at '{site}'{nearest(site, self.sites)}")
