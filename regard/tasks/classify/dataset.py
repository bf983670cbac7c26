"""Labelled text: one or two texts and what they are called, read from files and prepared once into a PairDataset.

    text        [what its tokenizer puts before a text]  text  end
    two texts   […]  text  end  text2  end

The label is the target, and its one token is its number. Others that open the tokenizer put the same round a text.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
import torch
from tokenizers import processors
from torch import Tensor

from regard.data.cache import Report, options_key
from regard.data.files import Record, expand, hash_files, rows
from regard.data.pairs import PairDataset, prepare_pairs
from regard.data.sampler import BatchOptions, shares
from regard.data.splits.hashed import file_of, fractions, own_file, split_of
from regard.data.splits.stratified import stratified_split
from regard.data.splits.substrings import CONTAINING, LEFT_OUT, assign_splits, normalise
from regard.data.targets import Numbers, Targets, known
from regard.errors import UserError
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.layers.pytree import to_device
from regard.tasks.classify.options import ClassifyData
from regard.text.special_tokens import SpecialTokens, special_tokens_of
from regard.text.vocabulary import MISSING, Tokenizer

BETWEEN = "\x1e"  # stands between two texts where they are kept as one

PLAIN = {
    "single_label": (int,),
    "multi_label": (int, list),
    "regression": (int, float),
}  # what a label may be in JSON, beside text

MOST = 10_000  # labels; more are surely another column

FEW, DECIMAL = 20, re.compile(r"-?\d+[.,]\d+")  # more labels than so many that look like this are surely values


def read(data: ClassifyData, part: str, beside: Path | None = None) -> Iterator[Record]:
    """Every sample of a part in the order of its file: its text is the source, its label the target."""
    return (record for record in assigned(data, part, beside) if not record.left_out)


def assigned(data: ClassifyData, part: str, beside: Path | None = None) -> Iterator[Record]:
    """Every sample of a part, and of train also those that are left out because of what is held out."""
    find_part = None if own_file(data, part) else _parts(data, beside, _stamp(file_of(data, "train", beside)))
    for record in _records(data, part, beside):
        found = find_part(record.group) if find_part else part
        if found == part:
            yield record
        elif found == LEFT_OUT and part == "train":
            yield record._replace(left_out=LEFT_OUT)


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file does."""
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in expand(path).values())


@lru_cache(maxsize=1)  # all parts of a file are told apart by the same reading of it
def _parts(data: ClassifyData, beside: Path | None, stamp: object) -> Callable[[str], str]:
    """What tells the part of a group, of files of this stamp."""
    held_out = fractions(data)

    def choose(groups: Set[str] | None = None) -> Callable[[str], str]:
        if not data.stratify or data.problem_type != "single_label" or not any(held_out):
            return partial(split_of, validation=held_out[0], test=held_out[1])
        labelled = _few(_records(data, "train", beside), "single_label", set())
        known = ((each.group, each.target) for each in labelled if groups is None or each.group in groups)
        return stratified_split(known, *held_out).split_of

    if data.split_by == CONTAINING and any(held_out):
        return assign_splits((record.group for record in _records(data, "train", beside)), choose)
    return choose()


def _records(data: ClassifyData, part: str, beside: Path | None) -> Iterator[Record]:
    """Every sample of the file that a part stands in."""
    text, label, containing = data.text or "text", data.label or "label", data.split_by == CONTAINING
    whole = ("source",) if data.text_pair else ("source", text)  # of two texts, the first alone is a column like others
    group = "" if containing or data.split_by in whole else data.split_by
    required = {"data.text": text, "data.label": label, "data.text_pair": data.text_pair, "data.split_by": group}
    required = {option: name for option, name in required.items() if name}
    path = file_of(data, part, beside)
    for fields, location in rows(path, data.columns, required, {label: PLAIN[data.problem_type]}):
        texts = fields[text]
        if data.text_pair:
            texts = f"{texts.replace(BETWEEN, ' ')}{BETWEEN}{fields[data.text_pair]}"
        groups = normalise(texts) if containing else fields[group] if group else texts
        yield Record(texts, _called(fields[label], data, location), "", groups, location)


def _few(records: Iterable[Record], kind: str, found: set[str]) -> Iterator[Record]:
    """Those that have a label, whose labels are `found` on the way; too many different ones are an error."""
    for record in records:
        found.update(
            label for label in (json.loads(record.target) if kind == "multi_label" else [record.target]) if label
        )
        if len(found) > MOST:
            raise UserError(
                f"{record.location}: over {MOST:,} different labels so far; is data.label the right column?"
            )
        if record.target:
            yield record


def _called(given: str, data: ClassifyData, location: str) -> str:
    """A label as it is kept: several as a JSON list, each once."""
    if data.problem_type == "multi_label":
        each = _listed(given, location) if given.startswith("[") else given.split(data.label_separator)
        found = dict.fromkeys(_short(label, data) for label in each)
        return json.dumps([label for label in found if label], ensure_ascii=False)
    return _short(given, data)


def _short(label: str, data: ClassifyData) -> str:
    return (label.split(data.label_prefix_until)[0] if data.label_prefix_until else label).strip()


def _listed(given: str, location: str) -> list[str]:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) or type(each) is int for each in found):
        raise UserError(f'{location}: the label {given:.60} is no list of labels, such as ["sport", "money"]')
    return [str(each) for each in found]


def learn_labels(data: ClassifyData, beside: Path | None = None) -> tuple[str, ...]:
    """Every label of the training file, in the order of their letters: also one that only a part held out of it has."""
    found: set[str] = set()
    for _ in _few(_records(data, "train", beside), data.problem_type, found):
        pass
    if len(found) < 2:
        only = f"the one label {found.pop()!r}" if found else "no label"
        raise UserError(f"{file_of(data, 'train', beside)}: has {only}; to tell texts apart takes two")
    if len(found) > FEW and all(map(DECIMAL.fullmatch, found)):
        raise UserError(
            f"{file_of(data, 'train', beside)}: the labels are {len(found)} different numbers such as {min(found)}: "
            "give data.problem_type = 'regression' to predict values, or write them as words if they are names"
        )
    return tuple(sorted(found))


def learn_scale(data: ClassifyData, beside: Path | None = None) -> tuple[float, float]:
    """The mean of the training part's numbers, and the power of two nearest their standard deviation."""
    records = known(read(data, "train", beside), Numbers())
    values = np.array([float(record.target) for record in records if record.target])
    if not len(values) or values.std() == 0:
        only = f"the one value {values[0]:g}" if len(values) else "no number"
        raise UserError(f"{file_of(data, 'train', beside)}: has {only} for a label; to tell texts apart takes two")
    return float(values.mean()), 2.0 ** round(float(np.log2(values.std())))


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_end_token(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, whose own post-processor puts an end behind each text: the token that a label is told from.

    Padding must be another token than the end, since others find a text's last token by it.
    """
    if tokenizer.end == MISSING:
        raise UserError("the tokenizer has no token for 'end', behind which a label is told; name it as eos_token")
    inner = tokenizers.Tokenizer.from_str(tokenizer.inner.to_str())
    names = {token: inner.id_to_token(token) for token in (*tokenizer.head, tokenizer.end)}
    head, end = [names[token] for token in tokenizer.head], names[tokenizer.end]
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=[*head, "$A", end],
        pair=[*head, "$A", end, "$B:0", end],
        special_tokens=[(name, token) for token, name in names.items()],
    )
    others = (tokenizer.pad, tokenizer.unknown, tokenizer.begin, 0, 1)
    padding = next(token for token in others if token not in (MISSING, tokenizer.end))
    made = Tokenizer(inner, tokenizer.ids | {"pad": padding}, tokenizer.literal)
    said = ("add_bos_token", "add_eos_token")  # would speak over the post-processor
    made.settings = {key: value for key, value in tokenizer.settings.items() if key not in said}
    return made


def split_pair(text: str, paired: bool) -> str | tuple[str, ...]:
    """A text as a PairDataset keeps it, or the two that it keeps as one."""
    return tuple(text.split(BETWEEN, 1)) if paired else text


@dataclass(frozen=True)
class Texts:
    """Texts, or pairs of them, as the rows of tokens that a network reads."""

    tokenizer: Tokenizer
    paired: bool = False

    @property
    def size(self) -> int:
        return self.tokenizer.size

    @property
    def table(self) -> Mapping[str, int]:
        return self.tokenizer.table

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return self.rows([split_pair(text, self.paired) for text in texts])

    def rows(self, texts: Sequence[str | tuple[str, ...]]) -> list[list[int]]:
        """What the tokenizer puts round a text is part of it; what it would pad with is not."""
        found = [each.ids for each in self.tokenizer.inner.encode_batch_fast(list(texts))]  # type: ignore[arg-type]
        return [self._unpadded(row) for row in found]

    def sequences(self, rows: Sequence[Ids]) -> TokenBatch:
        """Rows as a network reads them: of pairs with their segments, where the tokenizer tells them apart."""
        text = pad(rows, 0)
        if not self.paired or len({*self._frame.text_segments}) < 2 or not self._frame.specials[1]:
            return text
        return text._replace(segments=pad([self._segments(row) for row in rows], 0).tokens)

    def _segments(self, row: Ids) -> np.ndarray:
        (first, middle, _), found = self._frame.specials, np.asarray(row)
        between = np.flatnonzero(found[len(first) :] == middle[0])
        begin = len(first) + int(between[0]) + len(middle) if len(between) else len(found)
        return np.where(np.arange(len(found)) < begin, *self._frame.text_segments)

    @cached_property
    def _frame(self) -> SpecialTokens:
        return special_tokens_of(self.tokenizer, 2)

    def _unpadded(self, row: list[int]) -> list[int]:
        last = len(row)
        while last > 1 and row[last - 1] == self.tokenizer.pad:
            last -= 1
        return row[:last]

    def content(self) -> str:
        return f"{self.tokenizer.content()} enclosed {self.paired}"


class Sides(NamedTuple):
    """What makes tokens of texts, and of labels."""

    source: Texts
    target: Targets


def prepare(
    data: ClassifyData, part: str, sides: Sides, cache: Path, max_length: int, beside: Path | None = None
) -> PairDataset:
    """A split as a PairDataset, from the cache if the same files, options, tokenizer and labels were prepared."""
    hashes = hash_files(file_of(data, part, beside))
    key = [options_key(data, part), json.dumps(hashes)]
    records = known(assigned(data, part, beside), sides.target)
    return prepare_pairs(records, key, sides, cache, max_length, Report(), hashes)


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Labelled(NamedTuple):
    """Texts and the numbers of their labels."""

    text: TokenBatch
    labels: Tensor  # (batch), of several a text (batch, labels)
    index: Tensor  # (batch): the samples' numbers in the corpus

    def to(self, device: torch.device | str) -> "Labelled":
        return to_device(self, device)


def collate(corpus: PairDataset, numbers: Sequence[int], sides: Sides) -> Labelled:
    """These samples as one batch."""
    labels = sides.target.tensor([corpus.target(number) for number in numbers])
    text = sides.source.sequences([corpus.source(number) for number in numbers])
    return Labelled(text, labels, torch.tensor(list(numbers), dtype=torch.int64))


def stream(
    corpus: PairDataset, sides: Sides, options: BatchOptions, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[Labelled]:
    """Batches without end, from the rank's own number `start`: its k-th is batch k·world + rank of all."""
    for samples in shares(corpus, options, start, rank, world):
        yield collate(corpus, samples, sides)
