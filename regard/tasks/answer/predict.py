"""Extractive question answering on passages of any length: the best spans of their windows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.attention.trace import Axes, Axis, Trace, record
from regard.errors import UserError
from regard.models.heads.span import SpanClassifier
from regard.tasks.answer.files import questions
from regard.tasks.answer.scoring import BATCH, MAX_WINDOW, find_spans, score_windows
from regard.tasks.answer.spans import RankedAnswer, best_disjoint, best_of, rank_answers
from regard.tasks.answer.windows import Ask, live_windows
from regard.tasks.encoding import EncodedText, encode_texts
from regard.tasks.predictor import Predictor, Progress, RunInput, Segment, positive
from regard.text.sentences import sentence_around
from regard.text.tokenizer import Tokenizer

CHUNK = 256  # questions whose windows are built at once
MIN_CANDIDATES = 20  # spans over which an answer's probability is computed


@dataclass(frozen=True)
class SpanAnswer:
    """A span of the passage, from character `start` up to `end`; without text, the passage has no answer.

    `score` is its probability among the candidate spans, an uncalibrated softmax.
    """

    text: str
    score: float
    start: int
    end: int
    sentence: str = ""  # around the answer
    sentence_start: int = 0
    alternatives: tuple["SpanAnswer", ...] = ()  # next best ones elsewhere in the passage

    @property
    def truncated(self) -> bool:
        """Never: a long passage is read in windows."""
        return False


class AnswerPredictor(Predictor):
    """`run` and `trace` of extractive question-answering models."""

    task = "answer"
    batch_size = BATCH
    description = "a question-answering model"
    options = ("context", "best", "threshold")
    text_columns = ("question",)
    batch_size = BATCH

    def is_single(self, inputs: Any) -> bool:
        pair = isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(text, str) for text in inputs)
        return pair or super().is_single(inputs)

    def predict(
        self, inputs: list[Any], options: dict[str, Any], *, batch_size: int, truncate: bool, progress: Progress
    ) -> list[SpanAnswer]:
        best = positive(options, "best", 1)
        threshold = options.get("threshold", 0.0 if self.network.allows_no_answer else None)
        if threshold is not None and type(threshold) not in (int, float):
            raise UserError(f"threshold = {threshold!r} should be a number: the minimum margin of no answer")
        asks = [parse_question(value, index, options.get("context")) for index, value in enumerate(inputs)]
        window = (self.data.max_length, self.data.stride)
        return answer(self.network, self.tokenizer, asks, window, batch_size, best, threshold, progress)

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        return encode_texts(self.tokenizer, texts, self.network.max_positions, truncate)

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
        ask = parse_question(value, None, options.pop("context", None))
        return trace_answer(self.network, self.tokenizer, ask, truncate, prove)

    def second_column(self, requested: str, has_context: bool) -> str:
        if has_context and requested:
            raise UserError(f"--text-pair {requested} and --context: give the passages by one of the two")
        return "" if has_context else requested or self.data.context or "context"

    def read_special(self, path: Path, paired: bool) -> Iterator[RunInput] | None:
        if not path.name.removesuffix(".gz").endswith(".json"):
            return None
        return (
            RunInput((question.text, question.context) if paired else question.text, question.location)
            for question in questions(path, self.data)
        )

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        if second is None:
            return super().parse_row(text, second, extra, location)
        return RunInput((text, second), location, not (text.strip() and second.strip()))

    def segments(self, prediction: SpanAnswer) -> list[Segment]:
        """Each answer with its score, and its sentence with the answer highlighted."""
        segments = []
        for answer in (prediction, *prediction.alternatives):
            if not answer.text:
                segments += [Segment("no answer in the passage", "strong"), Segment(f"  {answer.score:.2f}\n", "dim")]
                continue
            start = answer.start - answer.sentence_start
            end = start + len(answer.text)
            details = f"  {answer.score:.2f}  characters {answer.start:,} to {answer.end:,}\n  "
            segments += [
                Segment(_one_line(answer.text), "strong"),
                Segment(details, "dim"),
                Segment(_one_line(answer.sentence[:start])),
                Segment(_one_line(answer.sentence[start:end]), "highlight"),
                Segment(_one_line(answer.sentence[end:]) + "\n"),
            ]
        return [*segments[:-1], Segment(segments[-1].text.removesuffix("\n"), segments[-1].style)]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def answer(
    network: SpanClassifier,
    tokenizer: Tokenizer,
    asks: Sequence[Ask],
    window: tuple[int, int] = (0, 0),
    batch_size: int = BATCH,
    best: int = 1,
    threshold: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[SpanAnswer]:
    """The answer to each question, with the next best up to `best`; `window` is the length and stride of windows.

    With a threshold, "no answer" is a candidate: it is the best one where its score, a sum of logits, exceeds that of
    the best span by more than the threshold.
    """
    choose = partial(best_disjoint, best=max(best, MIN_CANDIDATES))
    length = window[0] or min(MAX_WINDOW, network.max_positions)
    answers: list[SpanAnswer] = []
    for start in range(0, len(asks), CHUNK):
        chunk = asks[start : start + CHUNK]
        windows = live_windows(chunk, tokenizer, length, window[1], before=start)
        spans = find_spans(network, windows, range(len(chunk)), batch_size, choose)
        for index, (ask, candidates) in enumerate(zip(chunk, spans, strict=True)):
            ranked = rank_answers(candidates, windows.spans(index), ask.context, threshold)[:best]
            first, *rest = (_span_answer(span, ask.context) for span in ranked)
            answers.append(replace(first, alternatives=tuple(rest)))
        progress(len(chunk))
    return answers


def _span_answer(span: RankedAnswer, context: str) -> SpanAnswer:
    start, end = sentence_around(context, span.start, span.end) if span.text else (0, 0)
    return SpanAnswer(span.text, span.score, span.start, span.end, context[start:end], start)


def parse_question(value: Any, index: int | None, context: str | None = None) -> Ask:
    """A question with its passage: two texts, or {"question", "context"}, or one text with a tab between them.

    With a `context` for all questions, the value is a question alone.
    """
    if context is not None:
        return Ask(value, context)
    if isinstance(value, Mapping):
        if value.keys() != {*Ask._fields}:
            raise UserError(f"has the keys {', '.join(map(str, value))}; expected question and context", index)
        return Ask(value["question"], value["context"])
    pair = value.split("\t", 1) if isinstance(value, str) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise UserError(
            "should be a question and its passage, separated by a tab, or give the passage with --context FILE "
            f"(context=…): {value!r:.60}",
            index,
        )
    return Ask(*pair)


@torch.no_grad()
def trace_answer(
    network: SpanClassifier, tokenizer: Tokenizer, ask: Ask, truncate: bool = False, prove: bool = False
) -> Trace:
    """The attention over a question and its passage, which must fit into one window."""
    windows = live_windows([ask], tokenizer, network.max_positions)
    if len(windows) > 1 and not truncate:
        size = windows.frame.size + len(tokenizer.encode(ask.question)) + len(windows.spans(0))
        raise UserError(
            f"question and passage have {size} tokens, the model's context is {network.max_positions}: shorten the "
            "passage, or truncate it with truncate=True"
        )
    with record(prove) as recorder:
        scored = score_windows(network, windows, [0])[0]
    threshold = 0.0 if network.allows_no_answer else None
    text = rank_answers(best_of([scored]), windows.spans(0), ask.context, threshold)[0].text
    return Trace(recorder, Axes.encoder(Axis(tokenizer.pieces(windows.row(0).tokens.tolist())), text), text)
