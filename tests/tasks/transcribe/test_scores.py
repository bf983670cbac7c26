"""Numbers of alignments, and the times of words, from given times of tokens."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from regard.config.options import TokenizerOptions
from regard.tasks.transcribe.dataset import parse_transcript
from regard.tasks.transcribe.options import TranscribeData
from regard.tasks.transcribe.scores import boundary_scores
from regard.tasks.transcribe.timing import LINE, MAX_DURATION, TimedText, group_words, timed_words, to_lines, to_srt
from regard.text.train_tokenizer import train_tokenizer

TIMED = "0.00:0.05:SIL 0.05:0.11:AH0 0.11:0.20:T"


def predictor_with(times: dict[str, list[tuple[float, float]]]) -> Any:
    """One that gives these times for the recordings."""
    return SimpleNamespace(
        rows=lambda names, truncate: names,
        batch=lambda rows: rows[0],
        tokenizer=SimpleNamespace(encode=lambda text: text.split()),
        times=lambda batch, tokens: times[batch],
    )


def test_boundary_errors_are_the_differences_of_starts():
    units = parse_transcript(TIMED, TranscribeData(ignore=("SIL",)), "here").units
    assert units == (TimedText("AH0", 0.05, 0.11), TimedText("T", 0.11, 0.2))
    times = {"a": [(0.06, 0.1), (0.15, 0.2)], "b": [(0.05, 0.1), (0.11, 0.2)], "c": [(0.0, 0.1)]}
    scores = boundary_scores(predictor_with(times), {"a": units, "b": units, "c": units})
    values = {score.name: score.value for score in scores}
    assert values["boundary_error_ms"] == pytest.approx((10 + 40) / 4)
    assert values["within_20_ms"] == pytest.approx(75.0)
    assert boundary_scores(predictor_with(times), {"c": units}) == []


def test_transcripts_may_have_ignored_units_without_times():
    assert parse_transcript("SIL AH0 SIL T", TranscribeData(ignore=("SIL",)), "here").text == "AH0 T"
    assert parse_transcript("12:30 is a time", TranscribeData(), "here").text == "12:30 is a time"


@pytest.mark.parametrize("kind", ["characters", "bpe", "words"])
def test_words_have_the_times_of_their_tokens(kind):
    text = "the cat, the hat"
    tokenizer = train_tokenizer([text] * 9, TokenizerOptions(kind=kind, vocab_size=60, min_frequency=1))
    tokens = tokenizer.encode(text)
    times = [(float(index), index + 0.5) for index in range(len(tokens))]
    words = timed_words(tokenizer, tokens, times)
    assert [word.text for word in words] == text.split()
    assert words[0].start == 0.0
    assert words[-1].end == len(tokens) - 0.5
    assert all(one.end <= other.start for one, other in pairwise(words))
    for word in words:
        part = tokens[int(word.start) : int(word.end) + 1]
        assert tokenizer.decode(part).strip() == word.text


def test_segments_end_at_pauses_and_where_they_would_be_too_long():
    rng = np.random.default_rng(3)
    words, time = [], 0.0
    for _ in range(300):
        time += float(rng.choice([0.05, 0.05, 0.05, 1.5]))
        duration = float(rng.uniform(0.1, 1.0))
        words.append(TimedText("w" * int(rng.integers(1, 12)), time, time + duration))
        time += duration
    segments = group_words(words)
    assert " ".join(segment.text for segment in segments) == " ".join(word.text for word in words)
    assert all(len(segment.text) <= LINE and segment.end - segment.start <= MAX_DURATION for segment in segments)
    assert all(one.end <= other.start for one, other in pairwise(segments))
    assert len(to_lines(segments)) == len(segments) == to_srt(segments).count(" --> ")
    assert group_words([]) == ()
