"""Windows over texts that contain the answers to questions: prepared on disk or in memory, and batched.

    [CLS] question [SEP] tokens 0 … 255 of the text   [SEP]
    [CLS] question [SEP] tokens 128 … 383 of the text [SEP]      a window begins every `stride` tokens

columns   context, spans (each token's first character, and the one after its last), text
          question, facts (JSON: id, question, answers, the indices of its text and its windows)
          windows (question, begin, end, first, last), lengths

`first` and `last` are the answer's tokens in the text, ABSENT if the window does not contain all of them; the network
is then to point at the first token of the row ([CLS]). Devlin et al. 2019, sections 4.2 and 4.3. A text that occurs in
consecutive questions is kept once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
from torch import Tensor

from regard.data.cache import Report, cache_path, options_key, smallest_uint
from regard.data.files import hash_files, is_text
from regard.data.ragged import SCALAR, TEXT, Column, DatasetWriter, Layout, RaggedDataset, in_memory
from regard.data.ragged import prepare as prepare_dataset
from regard.data.splits.hashed import file_of
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import to_device
from regard.progress import shown
from regard.tasks.answer.files import Gold, Question, read
from regard.tasks.answer.options import AnswerData
from regard.text.special_tokens import FramedRow, padded, pair_frame
from regard.text.tokenizer import Tokenizer

FORMAT = "windows 4"  # part of every key: increase it when what is written changes

CHUNK = 512  # questions encoded at once

ABSENT = -1  # no token of this window


class Window(NamedTuple):
    """Tokens `begin` … `end` of the text of a question; the answer's tokens, or ABSENT."""

    question: int
    begin: int
    end: int
    first: int
    last: int


# ── the dataset ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Windows(RaggedDataset):
    """Questions whose texts are split into windows."""

    def __init__(self, tokenizer: Tokenizer, columns: Mapping[str, Column], facts: dict[str, Any]):
        super().__init__(columns, facts)
        self.frame = pair_frame(tokenizer)
        self.padding = max(tokenizer.pad, 0)
        self.lengths = self.source_lengths = self.target_lengths = columns["lengths"].values
        self.unanswered: int = facts["unanswered"]  # questions that their texts do not answer

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def questions(self) -> int:
        return len(self.columns["question"])

    def window(self, index: int) -> Window:
        return Window(*self.columns["windows"][index].tolist())

    def windows_of(self, question: int) -> range:
        """The indices of a question's windows."""
        first, count = self._facts(question)["windows"]
        return range(first, first + count)

    def question(self, index: int) -> Question:
        facts = self._facts(index)
        golds = tuple(Gold(text, start) for text, start in facts["answers"])
        context = self.columns["text"].text(facts["context"])
        return Question(facts["id"], facts["question"], context, golds, "", facts["location"])

    def spans(self, question: int) -> np.ndarray:
        """The first character of each token of a question's text, and the one after its last: (tokens, 2)."""
        return self.columns["spans"][self._facts(question)["context"]].reshape(-1, 2)

    def row(self, index: int) -> FramedRow:
        window = self.window(index)
        context = self.columns["context"][self._facts(window.question)["context"]]
        return self.frame.wrap(self.columns["question"][window.question], context[window.begin : window.end])

    def _facts(self, question: int) -> dict[str, Any]:
        return json.loads(self.columns["facts"].text(question))


def prepare(
    data: AnswerData, split: str, tokenizer: Tokenizer, cache: Path, max_length: int, base_dir: Path | None = None
) -> Windows:
    """A split's questions, from the cache if the same files, options and tokenizer were prepared before."""
    path = file_of(data, split, base_dir)
    hashes = hash_files(path)
    report = Report(unit="questions")
    key = [FORMAT, options_key(data, split), json.dumps(hashes), str(max_length), tokenizer.content()]

    def write(writer: DatasetWriter) -> None:
        writer.hashes = hashes
        windows = WindowWriter(writer, tokenizer, max_length, data.stride or max(1, max_length // 3))
        questions = read(data, split, base_dir)
        with shown("preparing: {} questions") as show:
            while chunk := list(islice(questions, CHUNK)):
                # The cache outlives the folder of the file, so locations are relative to it.
                windows.add([q._replace(location=q.location.removeprefix(f"{path.parent}/")) for q in chunk])
                show(report.read)
        windows.finish()

    return prepare_dataset(cache_path(cache, key), _layouts(tokenizer), write, partial(Windows, tokenizer), report)


def live_windows(questions: Sequence[Question], tokenizer: Tokenizer, max_length: int, stride: int = 0) -> Windows:
    """The windows of these questions, in memory. `stride` is by default half of `max_length`.

    A question that cannot be used is an error; its id is the index of the input.
    """
    for question in questions:
        for name, text in (("question", question.text), ("context", question.context)):
            if not is_text(text):
                raise UserError(f"has a {name} that is not text: {text!r:.60}", int(question.id))
            if not text.strip():
                raise UserError(f"has an empty {name}", int(question.id))

    def write(writer: DatasetWriter) -> None:
        windows = WindowWriter(writer, tokenizer, max_length, stride or max(1, max_length // 2), strict=True)
        windows.add(questions)
        windows.finish()

    return in_memory(_layouts(tokenizer), write, partial(Windows, tokenizer), Report(unit="questions"))


def _layouts(tokenizer: Tokenizer) -> dict[str, Layout]:
    tokens = Layout(smallest_uint(tokenizer.size))
    layouts = {"context": tokens, "spans": Layout("int32"), "text": TEXT, "question": tokens, "facts": TEXT}
    return layouts | {"windows": Layout("int32", len(Window._fields)), "lengths": SCALAR}


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class WindowWriter:
    """Appends questions to a dataset, a chunk at once; `strict`: a question that is too long is an error."""

    def __init__(self, writer: DatasetWriter, tokenizer: Tokenizer, max_length: int, stride: int, strict: bool = False):
        self.writer = writer
        self.tokenizer = tokenizer
        self.frame = pair_frame(tokenizer)
        self.max_length = max_length
        self.stride = stride
        self.strict = strict
        self.unanswered = 0
        self.extended = 0  # answers that end inside a token
        self._context: str | None = None  # the last one written
        self._spans = np.zeros((0, 2), np.int32)

    def add(self, questions: Sequence[Question]) -> None:
        self.writer.report.read += len(questions)
        texts = list(dict.fromkeys(question.context for question in questions))
        encoded = self.tokenizer.encodings(texts, special_tokens=False)
        contexts = dict(zip(texts, encoded, strict=True))
        rows = self.tokenizer.encode_many([question.text for question in questions])
        for question, row in zip(questions, rows, strict=True):
            self._add(question, row, contexts[question.context])

    def _add(self, question: Question, row: list[int], encoded: tokenizers.Encoding) -> None:
        report = self.writer.report
        budget = self.max_length - self.frame.size - len(row)  # tokens of the text in a window
        if not self.strict and (not row or not question.context.strip()):
            return report.skip("empty question or text", question.location)
        if budget < self.stride:
            max_question = self.max_length - self.frame.size - self.stride
            if self.strict:
                raise UserError(
                    f"has a question of {len(row)} tokens; at most {max_question} leave room for the passage in a "
                    f"window of {self.max_length}: {question.text!r:.60}…",
                    int(question.id),
                )
            return report.skip(f"a question longer than {max_question} tokens", question.location)
        if question.context != self._context:
            self._context = question.context
            self._spans = trimmed_spans(encoded.offsets, question.context)
            self.writer["context"].extend([encoded.ids])
            self.writer["spans"].extend([self._spans.ravel()])
            self.writer["text"].extend_texts([question.context])
        answer = None
        if question.answers:
            text, start = question.answers[0]
            answer = token_span(self._spans, start, start + len(text))
            if answer is None:
                return report.skip("nothing left of the answer after normalisation", question.location)
            first, last = answer
            self.extended += question.context[self._spans[first, 0] : self._spans[last, 1]].strip() != text.strip()
        else:
            self.unanswered += 1
        report.kept += 1
        return self._add_windows(question, row, budget, answer)

    def _add_windows(self, question: Question, row: list[int], budget: int, answer: tuple[int, int] | None) -> None:
        index = self.writer["question"].rows
        windows = []
        for begin, end in split_into_windows(len(self._spans), budget, self.stride):
            inside = answer if answer and begin <= answer[0] and answer[1] < end else (ABSENT, ABSENT)
            windows.append(Window(index, begin, end, *inside))
        facts = {
            "id": question.id,
            "question": question.text,
            "answers": question.answers,
            "context": self.writer["text"].rows - 1,
            "windows": [self.writer["windows"].rows, len(windows)],
            "location": question.location,
        }
        self.writer["question"].extend([row])
        self.writer["facts"].extend_texts([json.dumps(facts, ensure_ascii=False)])
        self.writer["windows"].extend(windows)
        overhead = self.frame.size + len(row)
        self.writer["lengths"].extend_array([overhead + window.end - window.begin for window in windows])

    def finish(self) -> None:
        report = self.writer.report
        if not report.kept:
            raise UserError(f"no question left to use: {report}")
        report.notes.append(f"{self.writer['windows'].rows} windows of at most {self.max_length} tokens")
        if self.unanswered:
            report.notes.append(f"{self.unanswered} without an answer in their text")
        if self.extended:
            report.notes.append(f"{self.extended} answers end inside a token: the full token is the target")
        self.writer.facts["unanswered"] = self.unanswered


def split_into_windows(length: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """Windows of `size` tokens over a text, one every `stride`, until one contains its last token."""
    begin = 0
    while True:
        yield begin, min(begin + size, length)
        if begin + size >= length:
            return
        begin += stride


def token_span(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that contain characters start … end; None if there is none."""
    inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end) & (spans[:, 1] > spans[:, 0]))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def trimmed_spans(offsets: Sequence[tuple[int, int]], text: str) -> np.ndarray:
    """Each token's characters, without the spaces that some tokenizers include."""
    spans = np.array(offsets, np.int32).reshape(-1, 2)
    for token, (start, end) in enumerate(offsets):
        if start < end and (text[start].isspace() or text[end - 1].isspace()) and (inner := text[start:end].strip()):
            begin = start + text[start:end].index(inner[0])
            spans[token] = begin, begin + len(inner)
    return spans


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class QABatch(NamedTuple):
    """Windows as input of the network, and the positions of the answers in their rows."""

    text: TokenBatch
    first: Tensor  # (batch): position of the answer's first token; 0 if the window does not contain it
    last: Tensor  # (batch)
    context: Tensor  # (batch, 2): begin and end of the window's passage tokens
    indices: Tensor  # (batch): the windows' indices

    def to(self, device: torch.device | str) -> "QABatch":
        return to_device(self, device)


def collate(dataset: Windows, indices: Sequence[int]) -> QABatch:
    """These windows as one batch."""
    rows = [dataset.row(index) for index in indices]
    context = []
    answers = []
    for index, row in zip(indices, rows, strict=True):
        window = dataset.window(index)
        begin = row.begins[1]
        offset = begin - window.begin
        context.append([begin, offset + window.end])
        answers.append((0, 0) if window.first == ABSENT else (offset + window.first, offset + window.last))
    first, last = torch.tensor(answers, dtype=torch.int64).T
    return QABatch(padded(rows, dataset.padding), first, last, torch.tensor(context), torch.tensor(list(indices)))
