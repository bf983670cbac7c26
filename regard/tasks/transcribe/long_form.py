"""Recordings of any length by Whisper, in windows of 30 seconds. Radford et al. 2022, sections 3.8 and 4.5.

window ─▶ encode ─▶ decode with timestamps, hotter while the text is implausible ─▶ segments
  ▲                                                                                    │
  └──────────────────── the next window begins at the last timestamp ◀─────────────────┘
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from regard.audio.processor import AudioProcessor
from regard.config.recipe import DecodeOptions
from regard.decoding.search import Hypothesis
from regard.interop.whisper import SECONDS_PER_STATE
from regard.layers.pytree import State
from regard.tasks.transcribe.alignment import token_times
from regard.tasks.transcribe.timing import TimedText, timed_words
from regard.tasks.transcribe.whisper import WhisperDecoder

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LEAST_ADVANCE = 0.2  # seconds from one window to the next,
LEAST_WINDOW = 0.1  # and of what is left at the end
HOT = 0.5  # above this temperature, a text is not given to the next window


@dataclass(frozen=True)
class LongFormOptions:
    """Section 4.5, with the published values."""

    words: bool = False  # also the times of words
    condition_on_previous_text: bool = True
    temperatures: tuple[float, ...] = TEMPERATURES
    max_compression_ratio: float = 2.4  # of a text: more is a repetition
    min_log_probability: float = -1.0  # the mean of a text's tokens: less is a guess,
    max_no_speech: float = 0.6  # or silence, where that is more probable than this


@dataclass(frozen=True)
class Segment:
    """A piece of a transcript, with seconds from the beginning of the recording."""

    text: str
    start: float
    end: float
    tokens: tuple[int, ...]
    log_probability: float  # the mean of the tokens of its window
    words: tuple[TimedText, ...] = ()


def transcribe_windows(
    decoder: WhisperDecoder, processor: AudioProcessor, samples: np.ndarray, options: LongFormOptions
) -> Iterator[Segment]:
    """The segments of a recording, window by window. Each window is normalised alone, as recordings in training are."""
    length = len(samples) / processor.rate
    limit = processor.window_seconds
    start, previous, language = 0.0, [], decoder.language
    while start == 0 or start < length - LEAST_WINDOW:
        piece = samples[round(start * processor.rate) :][: processor.window_samples]
        seconds = len(piece) / processor.rate
        if not piece.any():  # digital silence
            start += limit
            continue
        state = decoder.encode(processor([piece]))
        (prompt,) = decoder.prompts(state, 1, timestamps=True)
        if not language and decoder.tokens.languages:  # the whole recording has that of its first window
            (language,) = (code for code, id in decoder.tokens.languages.items() if id == prompt[1])
            decoder = replace(decoder, language=language)
        context = [*previous_text(decoder, previous), *prompt] if options.condition_on_previous_text else prompt
        best, temperature = decode_window(decoder, state, context, options)
        if best is None:
            start += limit
            continue
        pieces, advance = split_segments(best.tokens, decoder.tokens.first_timestamp, min(seconds, limit))
        words = window_words(decoder, state, pieces, prompt, seconds) if options.words else [()] * len(pieces)
        mean = mean_log_probability(best)
        for (begin, end, tokens), spoken in zip(pieces, words, strict=True):
            if text := decoder.text(tokens):
                shifted = tuple(TimedText(word.text, start + word.start, start + word.end) for word in spoken)
                yield Segment(text, start + begin, start + end, tuple(decoder.words(tokens)), mean, shifted)
        previous = [] if temperature > HOT else [*previous, *best.tokens]
        start += max(advance, LEAST_ADVANCE)


def previous_text(decoder: WhisperDecoder, previous: Sequence[int]) -> list[int]:
    """The prompt's part with the text so far, at most half of what the decoder reads."""
    if decoder.tokens.previous is None or not previous:
        return []
    return [decoder.tokens.previous, *previous[-(decoder.network.max_positions // 2 - 1) :]]


def decode_window(
    decoder: WhisperDecoder, state: State, prompt: Sequence[int], options: LongFormOptions
) -> tuple[Hypothesis | None, float]:
    """The first plausible text, at rising temperatures, and its temperature; None where nobody speaks."""
    limit = max(1, decoder.network.max_positions // 2)
    base = replace(decoder.options, max_new_tokens=min(decoder.options.max_new_tokens or limit, limit))
    temperatures = (base.temperature,) if base.temperature else options.temperatures
    best, temperature = None, 0.0
    for temperature in temperatures:
        ((best, *_),) = decoder.decode(state, [prompt], True, _at(base, temperature), keys=[0])
        unsure = mean_log_probability(best) < options.min_log_probability
        if unsure and decoder.no_speech(state) > options.max_no_speech:
            return None, temperature
        if not unsure and compression_ratio(decoder.text(best.tokens)) <= options.max_compression_ratio:
            break
    return best, temperature


def _at(options: DecodeOptions, temperature: float) -> DecodeOptions:
    """Sampling at a temperature above 0, else as it is."""
    return replace(options, temperature=temperature, num_beams=1, num_return_sequences=1) if temperature else options


def mean_log_probability(hypothesis: Hypothesis) -> float:
    """Of its tokens, the end included."""
    return hypothesis.log_probability / (len(hypothesis.tokens) + 1)


def compression_ratio(text: str) -> float:
    """How much shorter a text becomes: repetitions compress well."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def split_segments(
    tokens: Sequence[int], first_timestamp: int, seconds: float
) -> tuple[list[tuple[float, float, list[int]]], float]:
    """Beginning, end and tokens of each segment of a window that lasts `seconds`; and where the next window begins.

    A segment between two timestamps is complete. After the last pair of timestamps the window is read again, unless
    one timestamp alone says that nothing follows.
    """

    def time(token: int) -> float:
        return min((token - first_timestamp) * SECONDS_PER_STATE, seconds)

    is_time = [token >= first_timestamp for token in tokens]
    closed = is_time[-2:] == [False, True]
    cuts = [index for index in range(1, len(tokens)) if is_time[index - 1] and is_time[index]]
    if not cuts:
        stamps = [token for token, stamp in zip(tokens, is_time, strict=True) if stamp]
        begin = time(stamps[0]) if stamps and is_time[0] else 0.0
        end = time(stamps[-1]) if stamps and time(stamps[-1]) > begin else seconds
        return [(begin, end, [token for token in tokens if token < first_timestamp])], seconds
    segments = []
    for begin, end in zip([0, *cuts], [*cuts, len(tokens)] if closed else cuts, strict=False):
        text = [token for token in tokens[begin:end] if token < first_timestamp]
        segments.append((time(tokens[begin]), time(tokens[end - 1]), text))
    return segments, seconds if closed else time(tokens[cuts[-1] - 1])


def window_words(
    decoder: WhisperDecoder,
    state: State,
    pieces: Sequence[tuple[float, float, list[int]]],
    prompt: Sequence[int],
    seconds: float,
) -> list[tuple[TimedText, ...]]:
    """The words of each segment of a window, aligned together."""
    texts = [decoder.words(tokens) for _, _, tokens in pieces]
    joined = [token for text in texts for token in text]
    without_timestamps = [*prompt, decoder.tokens.no_timestamps]
    times = token_times(decoder.network, state, without_timestamps, joined, decoder.tokens.alignment_heads, seconds)
    words, first = [], 0
    for text in texts:
        words.append(timed_words(decoder.tokenizer, text, times[first : first + len(text)]))
        first += len(text)
    return [_not_before(spoken, begin) for spoken, (begin, _, _) in zip(words, pieces, strict=True)]


def _not_before(words: tuple[TimedText, ...], begin: float) -> tuple[TimedText, ...]:
    """The first word begins with its segment: a path of the alignment begins with the window."""
    if not words:
        return words
    first = replace(words[0], start=min(max(words[0].start, begin), words[0].end))
    return first, *words[1:]
