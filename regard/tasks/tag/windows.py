"""TaggedBatch sentences → tokens on disk: the pieces of words, and windows over sentences that are too long."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard.data.cache import (
    Report,
    atomic_folder,
    cache_path,
    hash_file,
    open_cached,
    settle,
    smallest_uint,
    write_facts,
)
from regard.data.files import expand
from regard.data.ragged import RaggedWriter
from regard.data.splits.hashed import file_of, fractions
from regard.data.targets import Labels
from regard.errors import UserError
from regard.metrics.iob import unbegun
from regard.tasks.tag.dataset import TaggedCorpus, Window
from regard.tasks.tag.files import Sentence, read
from regard.text.special_tokens import special_tokens_of
from regard.text.vocabulary import MISSING, Tokenizer

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

FORMAT = "tags 2"  # part of every key: raise it when the files change

AT_ONCE = 1024  # sentences encoded at once


# ── words and windows ────────────────────────────────────────────────────────────────────────────────────────────────


class Pieces(NamedTuple):
    """A sentence's tokens, and which of them is each word's first."""

    tokens: list[int]
    firsts: list[int]


def pieces(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
    """Words as tokens, in the sentence they stand in; one that the tokenizer leaves nothing of is unknown."""
    found = tokenizer.inner.encode_batch([" ".join(words) for words in sentences], add_special_tokens=False)
    return [
        _pieces(words, encoded.ids, encoded.offsets, tokenizer.unknown)
        for words, encoded in zip(sentences, found, strict=True)
    ]


def _pieces(words: Sequence[str], ids: list[int], offsets: list[tuple[int, int]], unknown: int) -> Pieces:
    ends = np.cumsum([len(word) + 1 for word in words])  # the space behind a word is still its own
    owners = np.searchsorted(ends, [max(0, end - 1) for _, end in offsets], "right").tolist()
    tokens, firsts, next_token = [], [], 0
    for word in range(len(words)):
        firsts.append(len(tokens))
        while next_token < len(ids) and owners[next_token] <= word:
            tokens.append(ids[next_token])
            next_token += 1
        if len(tokens) == firsts[-1]:
            tokens.append(unknown)
    return Pieces(tokens, firsts)


def cut(firsts: Sequence[int], length: int, room: int) -> list[tuple[int, int, int, int]]:
    """Windows of whole words, (begin, end, word, until): each as long as it may be, half of it new.

    One whose words all have more context in others is not read.
    A word with more pieces than a window has room for is read by the first of them.
    """
    ends = [*firsts[1:], length]
    spans, word = [], 0
    while True:
        until = max(word + 1, int(np.searchsorted(ends, firsts[word] + room, "right")))
        spans.append((word, until))
        if until >= len(firsts):
            break
        word = min(until, max(word + 1, int(np.searchsorted(firsts, firsts[word] + room // 2))))
    borders = [0, *(_border(firsts, ends, *pair) for pair in pairwise(spans)), len(firsts)]
    return [
        (firsts[first], min(ends[last - 1], firsts[first] + room), borders[number], borders[number + 1])
        for number, (first, last) in enumerate(spans)
        if borders[number] < borders[number + 1]
    ]


def _border(firsts: Sequence[int], ends: Sequence[int], one: tuple[int, int], other: tuple[int, int]) -> int:
    """The first word that has more before it in the second window than it has behind it in the first."""
    begin, end = firsts[other[0]], ends[one[1] - 1]
    for word in range(other[0], one[1]):
        if firsts[word] - begin > end - ends[word]:
            return word
    return one[1]


# ── prepared ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def prepare(
    data: "DataOptions",
    part: str,
    tokenizer: Tokenizer,
    tags: Labels,
    cache: Path,
    max_length: int,
    beside: Path | None = None,
    seed: int = 1,
) -> TaggedCorpus:
    """A part's sentences, found in the cache when the same files, options, tokenizer and tags were prepared."""
    if data.generate:
        made = f"{data.generate} {seed} {part} {getattr(data, part)}"
        hashes = {data.generate: hashlib.sha256(made.encode()).hexdigest()}
    else:
        hashes = {name or path.name: hash_file(path) for name, path in expand(file_of(data, part, beside)).items()}
    key = json.dumps([hashes, data.text, data.label, fractions(data), part, max_length])
    folder = cache_path(cache, [FORMAT, key, tags.content(), tokenizer.content()])
    frame, padding = special_tokens_of(tokenizer, 1), max(tokenizer.pad, 0)
    found = open_cached(folder, lambda place: TaggedCorpus(place, frame, padding))
    if found is not None:
        return found
    if max_length - frame.size < 2:
        raise UserError(f"data.max_length = {max_length} leaves no room for words: give more")
    with atomic_folder(folder) as place, Writer(place, tokenizer, tags, max_length, frame.size) as writer:
        writer.write(read(data, part, beside, seed))
        writer.finish(hashes)
    return TaggedCorpus(folder, frame, padding)


class Writer:
    """Appends sentences to the arrays of a folder, some at once."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, tags: Labels, max_length: int, frame: int):
        self.folder, self.tokenizer, self.tags = folder, tokenizer, tags
        self.max_length, self.frame = max_length, frame
        self.report = Report(unit="sentences")
        self.windows = self.unbegun = 0
        self.dtype = smallest_uint(tokenizer.size)
        self._stack = ExitStack()

    def __enter__(self) -> "Writer":
        kinds = {"sentence.tokens": self.dtype, "firsts.places": "int32", "tags.numbers": "uint16"}
        kinds |= {"words.bytes": "uint8", "windows.table": "int32"}
        self._rows = {
            name: self._stack.enter_context(RaggedWriter(self.folder / name, kind)) for name, kind in kinds.items()
        }
        self._lengths = self._stack.enter_context((self.folder / "windows.lengths").open("wb"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, found: Iterator[Sentence]) -> None:
        while chunk := list(islice(found, AT_ONCE)):
            self.report.read += len(chunk)
            for sentence, row in zip(chunk, pieces(self.tokenizer, [each.words for each in chunk]), strict=True):
                if MISSING in row.tokens:
                    self.report.skip("a word of which the tokenizer leaves nothing", sentence.place)
                else:
                    self._add(sentence, row)

    def _add(self, sentence: Sentence, row: Pieces) -> None:
        found = cut(row.firsts, len(row.tokens), self.max_length - self.frame)
        table = [Window(self.report.kept, *each) for each in found]
        self._rows["sentence.tokens"].extend([row.tokens])
        self._rows["firsts.places"].extend([row.firsts])
        self._rows["tags.numbers"].extend([tag_numbers(sentence, self.tags)])
        self._rows["words.bytes"].extend_texts([json.dumps(sentence.words, ensure_ascii=False)])
        self._rows["windows.table"].extend(table)
        self._lengths.write(np.array([self.frame + each.end - each.begin for each in table], np.int32).tobytes())
        self.windows += len(table)
        self.report.kept += 1
        self.unbegun += unbegun(sentence.tags)

    def finish(self, hashes: dict[str, str]) -> None:
        """Puts everything on the disk, the report last."""
        if not self.report.kept:
            raise UserError(f"no sentence left to use: {self.report}")
        if self.windows > self.report.kept:
            self.report.notes.append(f"{self.windows} windows of at most {self.max_length} tokens")
        if self.unbegun:
            self.report.notes.append(f"{self.unbegun} words go on with what none began (I- after O): they begin it")
        for rows in self._rows.values():
            rows.settle()
        settle(self._lengths)
        facts = {"report": asdict(self.report), "hashes": hashes, "dtype": self.dtype, "windows": self.windows}
        write_facts(self.folder / "tags.json", facts)


def tag_numbers(sentence: Sentence, tags: Labels) -> list[int]:
    """The numbers of a sentence's tags; one that training never showed is an error, with its place."""
    for number, tag in enumerate(sentence.tags):
        if tag not in tags.table:
            raise UserError(
                f"{sentence.place}: the tag {tag!r} of word {number + 1}, {sentence.words[number]!r}, is none of those "
                f"that the model tells: {', '.join(islice(tags.table, 12))}"
            )
    return [tags.table[tag] for tag in sentence.tags]
