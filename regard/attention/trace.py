"""Traces: the exact attention weights of any site, head and query, computed on demand from its records.

The task defines what the positions at a site are (tokens, patches of an image, later frames), as `Axes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.recording import AttentionRecord, Recorder
from regard.errors import UserError, nearest


@dataclass(frozen=True)
class Axis:
    """The positions on one side of an attention map: a label each, what they are, and the grid they form, if any.

    The frames of a recording form one row.
    """

    labels: Sequence[str] = ()
    unit: str = "token"
    grid: tuple[int, int] | None = None  # rows and columns of an image's patches, the last positions; None: a sequence
    extent: tuple[float, float] = (1.0, 1.0)  # height and width of the grid, as shares of the network's input

    @classmethod
    def patches(
        cls, rows: int, columns: int, tokens: Sequence[str] = (), extent: tuple[float, float] = (1.0, 1.0)
    ) -> "Axis":
        """The patches of an image, labelled with their row and column, after `tokens` such as [CLS]."""
        cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        return cls([*tokens, *cells], "patch", (rows, columns), extent)

    @property
    def first_patch(self) -> int:
        """The number of positions before the grid."""
        assert self.grid is not None
        return len(self.labels) - self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Picture:
    """The image of a trace, and the box (left, top, right, bottom) of its pixels that the network's input shows.

    That of a recording is its spectrogram, whose columns are frames.
    """

    pixels: Tensor  # (height, width, channels) of type uint8, with 1 or 3 channels
    box: tuple[float, float, float, float]
    name: str = "image"  # its file


@dataclass(frozen=True)
class Axes:
    """The axes (queries, keys) of each site, by pattern; the first pattern that matches a site counts."""

    sites: Mapping[str, tuple[Axis, Axis]] = field(default_factory=dict)
    source: Axis = Axis()  # the encoder's input
    target: Axis = Axis()  # the decoder's input
    output: Axis = Axis()  # the decoder's output, one step ahead

    def at(self, site: str) -> tuple[Axis, Axis] | None:
        return next((axes for pattern, axes in self.sites.items() if fnmatchcase(site, pattern)), None)

    @classmethod
    def encoder(cls, source: Axis, pooled: str = "") -> "Axes":
        """Of an encoder: every position attends to all. `pooled` labels the pooled vector."""
        return cls(
            {
                "*pooling": (Axis([pooled or "pooled"]), source),
                "*.past": (source, _before(source)),
                "*": (source, source),
            },
            source,
        )

    @classmethod
    def causal(cls, target: Axis, output: Axis) -> "Axes":
        """Of a causal language model: each input token attends to itself and to those before it."""
        return cls({"*": (target, target)}, target=target, output=output)

    @classmethod
    def encoder_decoder(cls, source: Axis, target: Axis, output: Axis) -> "Axes":
        """Of an encoder–decoder: rows of cross-attention are labelled with the token generated from it."""
        sites = {
            "encoder.*.past": (source, _before(source)),
            "encoder.*": (source, source),
            "*.cross": (output, source),
            "*.past": (target, _before(target)),
            "*": (target, target),
        }
        return cls(sites, source, target, output)


def _plural(axis: Axis) -> str:
    return {"patch": "patches"}.get(axis.unit, f"{axis.unit}s")


def _before(axis: Axis) -> Axis:
    """The states before each position: an initial one, and that after each position but the last."""
    return Axis(["·", *axis.labels[:-1]], axis.unit)


class Trace:
    """The attention of one input (and its output)."""

    def __init__(
        self,
        recorder: Recorder,
        axes: Axes | None = None,
        answer: str = "",
        batch_index: int = 0,
        picture: Picture | None = None,
    ):
        """Of a batch, the sequence at `batch_index` is shown. `picture`: the image, or spectrogram, of the input."""
        self.records = recorder.records
        self.axes = axes or Axes()
        self.answer = answer
        self.batch = slice(batch_index, batch_index + 1)
        self.picture = picture

    def __repr__(self) -> str:
        sides = {"source": self.axes.source, "target": self.axes.target}
        counts = [f"{len(axis.labels)} {side} {_plural(axis)}" for side, axis in sides.items() if axis.labels]
        ends = " … ".join(dict.fromkeys((self.sites[0], self.sites[-1]))) if self.sites else "none"
        layers = f"{len(self.sites)} attention layer{'' if len(self.sites) == 1 else 's'}: {ends}"
        return f"{type(self).__name__}({', '.join([*counts, layers])})"

    def _repr_html_(self) -> str | None:
        """The attention viewer in a notebook; None, which shows the `repr`, where there is no attention."""
        from regard.explorer.page import inline

        return inline(self) if self.sites else None

    @property
    def source(self) -> list[str]:
        """The encoder's input."""
        return list(self.axes.source.labels)

    @property
    def target(self) -> list[str]:
        """The decoder's input."""
        return list(self.axes.target.labels)

    @property
    def output(self) -> list[str]:
        """The decoder's output, one step ahead of `target`."""
        return list(self.axes.output.labels)

    @property
    def sites(self) -> list[str]:
        return list(self.records)

    def weights(self, site: str, head: int | None = None, rows: slice | None = None) -> Tensor:
        """(queries, keys) of one head, or (heads, queries, keys); `rows` limits the queries."""
        records = self._records(site)
        rows = slice(None) if rows is None else rows
        count = records[0].query.size(1)
        if head is not None and not 0 <= head < count:
            raise UserError(f"no head {head} at '{site}'; possible: 0 to {count - 1}")
        heads = slice(None) if head is None else slice(head, head + 1)
        if len(records) == 1:
            weights = records[0].weights(rows, heads, self.batch)[0]
        else:  # a recurrent decoder attends once for each token, perhaps to a past that grows
            length = records[-1].length
            steps = [record.weights(heads=heads, batch=self.batch)[0] for record in records]
            weights = torch.cat([F.pad(step, (0, length - step.size(-1))) for step in steps], -2)[:, rows]
        return weights if head is None else weights[0]

    def proof(self, site: str) -> tuple[Tensor, Tensor]:
        """weights · values, and the context that was used; made by `trace(…, prove=True)`."""
        computed = []
        used = []
        for record in self._records(site):
            if record.value is None or record.context is None:
                raise ValueError("values were not kept: trace with prove=True")
            weights = record.weights(batch=self.batch)
            value = record.value[self.batch]
            value = value.repeat_interleave(weights.size(1) // value.size(1), 1)
            computed.append(weights @ value)
            used.append(record.context[self.batch])
        return torch.cat(computed, -2)[0], torch.cat(used, -2)[0]

    def labels(self, site: str) -> tuple[list[str], list[str]]:
        """Labels of the queries (rows) and of the keys (columns) of a site."""
        records = self._records(site)
        length = records[-1].length
        axes = self.axes.at(site)
        if axes is None:
            queries = sum(record.queries for record in records)
            return [str(index) for index in range(queries)], [str(index) for index in range(length)]
        rows, columns = (list(axis.labels) for axis in axes)
        return rows, columns if len(columns) == length else ["entire source"] * length

    def explore(
        self,
        path: Path | str | None = None,
        sites: Sequence[str] | None = None,
        heads: Sequence[int] | None = None,
        rows: slice | None = None,
        columns: slice | None = None,
    ):
        """The page of this trace: a file, or shown inline in a notebook. Large traces are limited by default."""
        from regard.explorer.page import Selection, explore

        return explore(self, path, Selection(sites, heads, rows, columns))

    def overlay(
        self,
        path: Path | str,
        site: str = "",
        head: int | None = None,
        queries: Sequence[str | int] = (),
        rollout: bool = False,
    ) -> Path:
        """A PNG file with the weights over the patches of the image, a panel for each query; `head` None: the mean.

        Of a recording, the spectrogram with a row of weights for each query below it.

        By default of the last layer, for each word of a caption or learned token ([CLS]), else the mean over queries.
        """
        from regard.explorer.alignment import write_figure

        return write_figure(path, self, site, head, queries, rollout)

    def _records(self, site: str) -> list[AttentionRecord]:
        if not self.records:
            raise UserError(f"no attention at '{site}': this model has no attention layers")
        if site not in self.records:
            raise UserError(f"no attention at '{site}'{nearest(site, self.sites)}")
        return self.records[site]


class SegmentedTrace(Trace):
    """Of an input encoded in segments. Each segment has its own sites, such as `segments.2.encoder.blocks.0.self`."""

    def __init__(self, recorder: Recorder, segments: Sequence[Axis], source: Axis, answer: str = ""):
        """`segments` are the axes of each segment, `source` that of the full input."""
        super().__init__(recorder, Axes.encoder(source, answer), answer)
        self.segments = [
            Trace(recorder, Axes.encoder(axis, answer), answer, index) for index, axis in enumerate(segments)
        ]

    @property
    def sites(self) -> list[str]:
        return [f"segments.{index}.{site}" for index, segment in enumerate(self.segments) for site in segment.sites]

    def weights(self, site: str, head: int | None = None, rows: slice | None = None) -> Tensor:
        segment, site = self._segment(site)
        length = len(segment.source)
        weights = segment.weights(site, head)[..., :length, :length]  # without padding
        return weights if rows is None else weights[..., rows, :]

    def proof(self, site: str) -> tuple[Tensor, Tensor]:
        segment, site = self._segment(site)
        return segment.proof(site)

    def labels(self, site: str) -> tuple[list[str], list[str]]:
        segment, site = self._segment(site)
        rows, columns = segment.labels(site)
        return rows, columns if len(columns) == len(segment.source) else segment.source

    def _segment(self, site: str) -> tuple[Trace, str]:
        """The segment's trace, and the name of the site in it."""
        for index, segment in enumerate(self.segments):
            if site.startswith(f"segments.{index}."):
                return segment, site.removeprefix(f"segments.{index}.")
        raise UserError(f"no attention at '{site}'{nearest(site, self.sites)}")
