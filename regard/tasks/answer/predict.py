"""Extractive question answering on passages of any length: the best spans of their windows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, Trace
from regard.data.files import is_text
from regard.errors import UserError
from regard.tasks.answer.files import Question, questions
from regard.tasks.answer.spans import BATCH, MAX_WINDOW, RankedAnswer, best_of, find_spans, rank_answers, score_windows
from regard.tasks.answer.windows import live_windows
from regard.tasks.encoding import EncoderPredictor
from regard.tasks.predictor import Inference, Options, RunInput, Segment, positive
from regard.text.sentences import sentence_around

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
        """Never: a long passage is split into windows."""
        return False


class AnswerPredictor(EncoderPredictor):
    """`run` and `trace` of extractive question-answering models."""

    task = "answer"
    description = "a question-answering model"
    options = ("context", "best", "threshold")
    text_columns = ("question",)
    batch_size = BATCH

    def is_single(self, inputs: Any) -> bool:
        pair = isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(text, str) for text in inputs)
        return pair or super().is_single(inputs)

    def is_empty(self, value: Any) -> bool:
        """Whether the question or its passage is empty."""
        parts = value.values() if isinstance(value, Mapping) else value.split("\t", 1) if is_text(value) else value
        return any(map(super().is_empty, parts)) if isinstance(parts, Iterable) else False

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[SpanAnswer]:
        """The answer to each question, with the next best up to `best`.

        With a threshold, "no answer" is a candidate: it is the best one where its score, a sum of logits, exceeds that
        of the best span by more than the threshold.
        """
        best = positive(options, "best", 1)
        threshold = options.get("threshold", 0.0 if self.network.allows_no_answer else None)
        if threshold is not None and type(threshold) not in (int, float):
            raise UserError(f"threshold = {threshold!r} should be a number: the minimum margin of no answer")
        parsed = [parse_question(value, index, options.get("context")) for index, value in enumerate(inputs)]
        length = self.data.max_length or min(MAX_WINDOW, self.network.max_positions)
        answers: list[SpanAnswer] = []
        for start in range(0, len(parsed), CHUNK):
            chunk = parsed[start : start + CHUNK]
            windows = live_windows(chunk, self.tokenizer, length, self.data.stride)
            count = max(best, MIN_CANDIDATES)
            spans = find_spans(self.network, windows, range(len(chunk)), inference.batch_size, count)
            for index, (question, candidates) in enumerate(zip(chunk, spans, strict=True)):
                context = question.context
                ranked = rank_answers(candidates, windows.spans(index), context, threshold)[:best]
                first, *rest = (SpanAnswer(*answer, *_sentence(answer, context)) for answer in ranked)
                answers.append(replace(first, alternatives=tuple(rest)))
            inference.progress(len(chunk))
        return answers

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        """The attention over a question and its passage, which must fit into one window."""
        question = parse_question(value, None, options.pop("context", None))
        max_positions = self.network.max_positions
        windows = live_windows([question], self.tokenizer, max_positions)
        if len(windows) > 1 and not truncate:
            size = windows.frame.size + len(self.tokenizer.encode(question.text)) + len(windows.spans(0))
            raise UserError(
                f"question and passage have {size} tokens, the model's context is {max_positions}: shorten the "
                "passage, or truncate it with truncate=True"
            )
        with record(prove) as recorder:
            scored = score_windows(self.network, windows, [0])[0]
        threshold = 0.0 if self.network.allows_no_answer else None
        text = rank_answers(best_of([scored]), windows.spans(0), question.context, threshold)[0].text
        pieces = self.tokenizer.pieces(windows.row(0).tokens.tolist())
        return Trace(recorder, Axes.encoder(Axis(pieces), text), text)

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

    def segments(self, prediction: SpanAnswer, value: Any, options: Mapping[str, Any]) -> list[Segment]:
        """Each answer with its score, and its sentence with the answer highlighted; "…" where the passage continues."""
        context = parse_question(value, None, options.get("context")).context
        segments = []
        for answer in (prediction, *prediction.alternatives):
            if not answer.text:
                segments += [Segment("no answer in the passage", "strong"), Segment(f"  {answer.score:.2f}\n", "dim")]
                continue
            start = answer.start - answer.sentence_start
            end = start + len(answer.text)
            rest = context[answer.sentence_start + len(answer.sentence) :].strip()
            details = f"  {answer.score:.2f}  characters {answer.start:,} to {answer.end:,}\n  "
            segments += [
                Segment(_one_line(answer.text), "strong"),
                Segment(details, "dim"),
                Segment("… " if context[: answer.sentence_start].strip() else "", "dim"),
                Segment(_one_line(answer.sentence[:start])),
                Segment(_one_line(answer.sentence[start:end]), "highlight"),
                Segment(_one_line(answer.sentence[end:].rstrip())),
                Segment(" …\n" if rest else "\n", "dim"),
            ]
        return [*segments[:-1], Segment(segments[-1].text.removesuffix("\n"), segments[-1].style)]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _sentence(answer: RankedAnswer, context: str) -> tuple[str, int]:
    """The sentence around an answer, and its first character."""
    start, end = sentence_around(context, answer.start, answer.end) if answer.text else (0, 0)
    return context[start:end], start


def parse_question(value: Any, index: int | None, context: str | None = None) -> Question:
    """A question with its passage: two texts, or {"question", "context"}, or one text with a tab between them.

    With a `context` for all questions, the value is a question alone.
    """
    pair = value.split("\t", 1) if isinstance(value, str) else value
    if context is not None:
        pair = (value, context)
    elif isinstance(value, Mapping):
        if value.keys() != {"question", "context"}:
            raise UserError(f"has the keys {', '.join(map(str, value))}; expected question and context", index)
        pair = (value["question"], value["context"])
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise UserError(
            "should be a question and its passage, separated by a tab, or give the passage with --context FILE "
            f"(context=…): {value!r:.60}",
            index,
        )
    return Question(str(index or 0), pair[0], pair[1])
