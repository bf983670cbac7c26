"""Recordings of any length: windows, segments, and what happens to implausible texts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.audio.processor import AudioProcessor
from regard.config.recipe import DecodeOptions
from regard.decoding.search import Hypothesis
from regard.interop.processors import FeatureProcessor
from regard.interop.whisper import SpeechTokens
from regard.layers.audio_encoder import Encoded
from regard.models.registry import build
from regard.tasks.transcribe.long_form import (
    LongFormOptions,
    compression_ratio,
    decode_window,
    split_segments,
    transcribe_windows,
)
from regard.tasks.transcribe.whisper import WhisperDecoder
from regard.tasks.transcribe.windows import WindowTranscriber
from tests.interop.test_whisper import BEGIN, END, NO_TIMESTAMPS, PREVIOUS, TOKENS, speech_tokens, tokenizer

FIRST = NO_TIMESTAMPS + 1
RATE = 16_000


def at(seconds: float) -> int:
    """The timestamp of this time."""
    return FIRST + round(seconds / 0.02)


@pytest.mark.parametrize(
    ("tokens", "segments", "advance"),
    [
        ([at(0), 5, 6, at(1.2)], [(0, 1.2, [5, 6])], 9.0),
        ([at(0.4), 5, 6], [(0.4, 9.0, [5, 6])], 9.0),
        ([at(0), 5, at(1), at(1.5), 6, 7, at(3)], [(0, 1, [5]), (1.5, 3, [6, 7])], 9.0),
        ([at(0), 5, at(1), at(1.5), 6, 7, at(3), at(3)], [(0, 1, [5]), (1.5, 3, [6, 7])], 3.0),
        ([at(0), 5, at(1), at(1), 6, 7], [(0, 1, [5])], 1.0),
        ([at(2), 5, at(20)], [(2, 9.0, [5])], 9.0),
        ([], [(0, 9.0, [])], 9.0),
    ],
)
def test_segments_are_between_timestamps(tokens: list[int], segments: list[Any], advance: float) -> None:
    """What follows the last pair is left to the next window, unless one timestamp alone ends the text."""
    found, end = split_segments(tokens, FIRST, 9.0)
    assert end == pytest.approx(advance)
    assert [tokens for *_, tokens in found] == [tokens for *_, tokens in segments]
    for (begin, stop, _), (expected_begin, expected_stop, _) in zip(found, segments, strict=True):
        assert (begin, stop) == (pytest.approx(expected_begin), pytest.approx(expected_stop))


class Scripted:
    """A decoder that gives one answer for each temperature."""

    network: Any = type("Network", (), {"max_positions": 40})
    options = DecodeOptions()

    def __init__(self, answers: dict[float, Hypothesis], no_speech: float = 0.0):
        self.answers = answers
        self.silence = no_speech
        self.asked: list[float] = []

    def decode(self, state: Any, prompts: Any, timestamps: bool, options: DecodeOptions, keys: Any) -> Any:
        self.asked.append(options.temperature)
        return [[self.answers[options.temperature]]]

    def no_speech(self, state: Any) -> float:
        return self.silence

    def text(self, tokens: list[int]) -> str:
        return " ".join(f"word{token}" for token in tokens)


GOOD = Hypothesis([1, 2, 3], 0.0, -1.0, True)
UNSURE = Hypothesis([1, 2, 3], 0.0, -9.0, True)
LOOP = Hypothesis([7] * 60, 0.0, -1.0, True)


@pytest.mark.parametrize(
    ("answers", "no_speech", "expected", "asked"),
    [
        ({0.0: GOOD}, 0.9, (GOOD, 0.0), [0.0]),
        ({0.0: LOOP, 0.2: GOOD}, 0.0, (GOOD, 0.2), [0.0, 0.2]),
        ({0.0: UNSURE, 0.2: LOOP, 0.4: GOOD}, 0.0, (GOOD, 0.4), [0.0, 0.2, 0.4]),
        ({0.0: UNSURE}, 0.7, (None, 0.0), [0.0]),
        (dict.fromkeys((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), LOOP), 0.9, (LOOP, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
    ids=["plausible", "repetition", "unsure", "silence", "hopeless"],
)
def test_the_temperature_rises_until_a_text_is_plausible(
    answers: Any, no_speech: float, expected: Any, asked: list[float]
) -> None:
    decoder: Any = Scripted(answers, no_speech)
    assert decode_window(decoder, decoder, [1], LongFormOptions()) == expected
    assert decoder.asked == asked


def test_repetitions_compress_well() -> None:
    assert (
        compression_ratio("no no no no " * 20) > 2.4 > compression_ratio("Please enter the number to be blacklisted.")
    )


@pytest.fixture
def transcriber() -> WindowTranscriber:
    """Random weights, and windows of one second."""
    config = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 5, "chunk_length": 1}
    processor = FeatureProcessor(AudioProcessor.from_config(config), tokenizer())
    torch.manual_seed(0)
    model = dict(family="whisper", bins=5, width=22, heads=2, decoder_heads=11, depth=3, source_positions=50)
    network: Any = build(model | dict(max_positions=24), vocabulary=TOKENS + 41).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    tokens = speech_tokens({})
    assert tokens is not None
    suppressed = tuple(token for token in range(END + 1, FIRST))
    decoding = DecodeOptions(suppress_tokens=suppressed)
    return WindowTranscriber.of(network, processor, tokens, decoding, {"language": "de"})


def noise(seconds: float, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, round(seconds * RATE)).astype(np.float32)


def test_segments_of_a_long_recording_are_in_order_and_inside_it(transcriber: WindowTranscriber) -> None:
    (transcript,) = transcriber([noise(5.3)], timed=True)
    assert transcript.segments
    assert transcript.words
    assert transcript.text == " ".join(segment.text for segment in transcript.segments)
    assert [word for segment in transcript.segments for word in segment.text.split()] == [
        word.text for word in transcript.words
    ]
    for segment in transcript.segments:
        assert 0 <= segment.start <= segment.end <= 5.3
    starts = [segment.start for segment in transcript.segments]
    assert starts == sorted(starts)
    assert max(segment.end for segment in transcript.segments) > 1.0  # not only the first window


def test_recordings_of_a_batch_do_not_depend_on_each_other(transcriber: WindowTranscriber) -> None:
    recordings = [noise(0.9, 2), noise(2.1, 3), noise(0.2, 4), np.zeros(RATE, np.float32)]
    together = transcriber(recordings, timed=False)
    for samples, transcript in zip(recordings, together, strict=True):
        (alone,) = transcriber([samples], timed=False)
        assert (alone.text, alone.tokens) == (transcript.text, transcript.tokens)
        assert alone.score == pytest.approx(transcript.score, abs=1e-4)
    assert together[3].text == ""


def test_silence_has_no_words_and_costs_nothing(transcriber: WindowTranscriber, monkeypatch: Any) -> None:
    monkeypatch.setattr(WhisperDecoder, "listen", lambda *_: pytest.fail("silence was encoded"))
    (transcript,) = transcriber([np.zeros(3600 * RATE, np.float32)], timed=True)
    assert (transcript.text, transcript.segments, transcript.words) == ("", (), ())


def test_the_text_so_far_is_the_beginning_of_the_next_prompt(transcriber: WindowTranscriber, monkeypatch: Any) -> None:
    prompts: list[list[int]] = []
    decode = WhisperDecoder.decode

    def watched(self: Any, state: Any, given: Any, *more: Any, **options: Any) -> Any:
        prompts.append(list(given[0]))
        return decode(self, state, given, *more, **options)

    monkeypatch.setattr(WhisperDecoder, "decode", watched)
    calm = replace(transcriber.options, temperatures=(0.0,), max_no_speech=1.0)
    list(transcribe_windows(transcriber.decoder, transcriber.processor, noise(3.5), calm))
    first, second, *_ = prompts
    assert first[0] == BEGIN
    assert second[0] == PREVIOUS
    assert second[-len(first) :] == first
    assert len(second) <= 12 + len(first)
    prompts.clear()
    alone = replace(calm, condition_on_previous_text=False)
    list(transcribe_windows(transcriber.decoder, transcriber.processor, noise(3.5), alone))
    assert len(prompts) > 1
    assert all(prompt == first for prompt in prompts)


@torch.no_grad()
def test_a_language_that_is_not_given_is_the_most_probable_one(transcriber: WindowTranscriber) -> None:
    decoder = replace(transcriber.decoder, language="")
    tokens: SpeechTokens = replace(decoder.tokens, default_language="")
    decoder = replace(decoder, tokens=tokens)
    encoded = Encoded(torch.randn(3, 50, 22), torch.full((3,), 50))
    state = decoder.start(encoded)
    logits, _ = decoder.network.step(torch.full((3, 1), BEGIN), state)
    expected = ["en" if row[tokens.languages["en"]] > row[tokens.languages["de"]] else "de" for row in logits[:, 0]]
    assert decoder.detect_languages(state, 3) == expected
    assert decoder.prompts(state, 3, timestamps=True) == [tokens.prompt(code, "transcribe", True) for code in expected]
