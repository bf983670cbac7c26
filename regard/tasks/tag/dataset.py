"""Tagged sentences: windows of complete words, the prepared dataset, and batches of it.

    [CLS] Ada love ##lace wrote [SEP]
           B    I     ·     O            the first piece of a word carries its tag

columns   sentence, firsts (each word's first token), tags, words (JSON),
          windows (sentence, begin, end, word, until), lengths

A sentence that is too long is split into windows of complete words that overlap by half. Each word is trained and
scored once, in the window where its shorter context is longest: `word` … `until`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.cache import Report, cache_path, options_key, smallest_uint
from regard.data.files import hash_files
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset
from regard.data.ragged import prepare as prepare_dataset
from regard.data.splits.hashed import file_of
from regard.data.targets import SingleLabelTargets
from regard.errors import UserError
from regard.layers.inputs import Ids, TokenBatch
from regard.layers.pytree import select_ragged, select_rows, to_device
from regard.metrics.entities import count_unopened
from regard.tasks.tag.files import Sentence, read
from regard.tasks.tag.options import TagData
from regard.text.special_tokens import FramedRow, SpecialTokens, padded, special_tokens_of
from regard.text.tokenizer import MISSING, Tokenizer

FORMAT = "tags 3"  # part of every key: increase it when what is written changes

CHUNK = 1024  # sentences encoded at once


# ── windows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class WordTokens(NamedTuple):
    """A sentence's tokens, and which of them is each word's first."""

    tokens: list[int]
    firsts: list[int]


class Window(NamedTuple):
    """Tokens begin … end of a sentence, of which the words `word` … `until` count."""

    sentence: int
    begin: int
    end: int
    word: int
    until: int

    def row(self, frame: SpecialTokens, tokens: Ids, firsts: Ids) -> tuple[FramedRow, np.ndarray]:
        """Its row, from the sentence's tokens and its words' first ones, and the positions of the words that count."""
        row = frame.wrap(tokens[self.begin : self.end])
        return row, np.asarray(firsts[self.word : self.until]) - self.begin + row.begins[0]


def tokenize_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[WordTokens]:
    """Words as tokens, tokenized within their sentence; a word of which nothing is left becomes unknown."""
    encodings = tokenizer.encodings([" ".join(words) for words in sentences], special_tokens=False)
    tokenized = []
    for words, encoding in zip(sentences, encodings, strict=True):
        word_ends = np.cumsum([len(word) + 1 for word in words])  # the space after a word belongs to it
        last_characters = np.maximum.accumulate([max(0, end - 1) for _, end in encoding.offsets])
        borders = np.searchsorted(last_characters, word_ends, "left").tolist()
        tokens: list[int] = []
        firsts: list[int] = []
        for begin, end in pairwise([0, *borders]):
            firsts.append(len(tokens))
            tokens += encoding.ids[begin:end] or [tokenizer.unknown]
        tokenized.append(WordTokens(tokens, firsts))
    return tokenized


def split_into_windows(firsts: Sequence[int], length: int, size: int) -> list[tuple[int, int, int, int]]:
    """Windows of complete words, (begin, end, word, until): each as long as possible, half of it new.

    A window whose words all have more context in others is left out.
    A word with more tokens than `size` is represented by the first of them.
    """
    word_ends = [*firsts[1:], length]
    spans = []
    word = 0
    while True:
        until = max(word + 1, int(np.searchsorted(word_ends, firsts[word] + size, "right")))
        spans.append((word, until))
        if until >= len(firsts):
            break
        word = min(until, max(word + 1, int(np.searchsorted(firsts, firsts[word] + size // 2))))
    borders = [0]
    for (_, until), (next_word, _) in pairwise(spans):
        # the first word that has more context before it in the next window than after it in this one
        overlap = range(next_word, until)
        begin = firsts[next_word]
        end = word_ends[until - 1]
        borders.append(next((w for w in overlap if firsts[w] - begin > end - word_ends[w]), until))
    borders.append(len(firsts))
    return [
        (firsts[first], min(word_ends[last - 1], firsts[first] + size), border, next_border)
        for (first, last), (border, next_border) in zip(spans, pairwise(borders), strict=True)
        if border < next_border
    ]


# ── the dataset ──────────────────────────────────────────────────────────────────────────────────────────────────────


class TagDataset(RaggedDataset):
    """Prepared sentences."""

    def __init__(self, tokenizer: Tokenizer, columns: Mapping[str, Column], facts: dict[str, Any]):
        super().__init__(columns, facts)
        self.frame = special_tokens_of(tokenizer, 1)
        self.padding = max(tokenizer.pad, 0)
        self.lengths = self.source_lengths = self.target_lengths = columns["lengths"].values

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sentences(self) -> int:
        return self.report.kept

    def words(self, sentence: int) -> list[str]:
        return json.loads(self.columns["words"].text(sentence))

    def tags(self, sentence: int) -> np.ndarray:
        return self.columns["tags"][sentence]

    def row(self, index: int) -> tuple[FramedRow, np.ndarray, np.ndarray]:
        """A window's row, the positions in it of the words that count, and their tags."""
        window = Window(*self.columns["windows"][index].tolist())
        tokens = self.columns["sentence"][window.sentence]
        firsts = self.columns["firsts"][window.sentence]
        row, positions = window.row(self.frame, tokens, firsts)
        return row, positions, self.tags(window.sentence)[window.word : window.until]


def prepare(
    data: TagData,
    split: str,
    tokenizer: Tokenizer,
    tags: SingleLabelTargets,
    cache: Path,
    max_length: int,
    base_dir: Path | None = None,
    seed: int = 1,
) -> TagDataset:
    """A split's sentences, from the cache if the same files, options, tokenizer and tags were prepared before."""
    if data.synthetic:
        description = f"{data.synthetic} {seed} {split} {getattr(data, split)}"
        hashes = {data.synthetic: hashlib.sha256(description.encode()).hexdigest()}
    else:
        hashes = hash_files(file_of(data, split, base_dir))
    overhead = special_tokens_of(tokenizer, 1).size
    if max_length - overhead < 2:
        raise UserError(f"data.max_length = {max_length} leaves no room for words: increase it")
    report = Report(unit="sentences")

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes
        without_begin = 0
        sentences = read(data, split, base_dir, seed)
        while chunk := list(islice(sentences, CHUNK)):
            report.read += len(chunk)
            rows = tokenize_words(tokenizer, [sentence.words for sentence in chunk])
            for sentence, (tokens, firsts) in zip(chunk, rows, strict=True):
                if MISSING in tokens:
                    report.skip("a word of which the tokenizer leaves nothing", sentence.location)
                    continue
                spans = split_into_windows(firsts, len(tokens), max_length - overhead)
                writer["windows"].extend([Window(report.kept, *span) for span in spans])
                writer["lengths"].extend_array([overhead + end - begin for begin, end, _, _ in spans])
                writer["sentence"].extend([tokens])
                writer["firsts"].extend([firsts])
                writer["tags"].extend([tag_indices(sentence, tags)])
                writer["words"].extend_texts([json.dumps(sentence.words, ensure_ascii=False)])
                report.kept += 1
                without_begin += count_unopened(sentence.tags)
        if not report.kept:
            raise UserError(f"no sentence left to use: {report}")
        if writer["windows"].rows > report.kept:
            report.notes.append(f"{writer['windows'].rows} windows of at most {max_length} tokens")
        if without_begin:
            report.notes.append(f"{without_begin} words continue an entity that none began (I- after O): they begin it")

    layouts = {"sentence": Layout(smallest_uint(tokenizer.size)), "firsts": Layout("int32"), "tags": Layout("uint16")}
    layouts |= {"words": TEXT, "windows": Layout("int32", len(Window._fields)), "lengths": SCALAR}
    key = [FORMAT, options_key(data, split), json.dumps(hashes), str(max_length), tags.content(), tokenizer.content()]
    return prepare_dataset(cache_path(cache, key), layouts, write, partial(TagDataset, tokenizer), report)


def tag_indices(sentence: Sentence, tags: SingleLabelTargets) -> list[int]:
    """The indices of a sentence's tags; a tag that is not in the training split is an error that names its location."""
    for index, tag in enumerate(sentence.tags):
        if tag not in tags.table:
            raise UserError(
                f"{sentence.location}: the tag {tag!r} of word {index + 1}, {sentence.words[index]!r}, is none of "
                f"those that the model predicts: {', '.join(islice(tags.table, 12))}"
            )
    return [tags.table[tag] for tag in sentence.tags]


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class TaggedBatch(NamedTuple):
    """Sentences, or windows of them, and the tags of the words that count."""

    text: TokenBatch
    at: Tensor  # (batch, length): True on the first piece of a word that counts
    tags: Tensor  # (words): the indices of their tags, row by row
    indices: Tensor  # (batch): the windows' indices

    def to(self, device: torch.device | str) -> "TaggedBatch":
        return to_device(self, device)

    def rows(self, chosen: slice) -> "TaggedBatch":
        """A slice of its windows."""
        tags = select_ragged(self.at, self.tags, chosen)
        return TaggedBatch(select_rows(self.text, chosen), self.at[chosen], tags, self.indices[chosen])


def collate(dataset: TagDataset, indices: Sequence[int]) -> TaggedBatch:
    """These windows as one batch."""
    rows, positions, tags = zip(*(dataset.row(index) for index in indices), strict=True)
    text = padded(rows, dataset.padding)
    flat_tags = torch.from_numpy(np.concatenate(tags).astype(np.int64))
    return TaggedBatch(text, mark_positions(text, positions), flat_tags, torch.tensor(list(indices)))


def mark_positions(text: TokenBatch, positions: Sequence[np.ndarray]) -> Tensor:
    """True at these positions of each row."""
    marked = torch.zeros(text.tokens.shape, dtype=torch.bool)
    for row, columns in enumerate(positions):
        marked[row, torch.from_numpy(columns.astype(np.int64))] = True
    return marked
