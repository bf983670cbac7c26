"""When words are spoken: from the frames of tokens to words, to lines of subtitles, and to SRT and WebVTT."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.text.tokenizer import Tokenizer

WORD = re.compile(r"\S+")

LINE = 42  # characters of a subtitle,
PAUSE = 0.8  # seconds of silence after which a new one begins,
MAX_DURATION = 7.0  # and seconds that one lasts: usual limits of broadcasters


@dataclass(frozen=True)
class TimedText:
    """A word or a segment, with the seconds from the beginning of the recording."""

    text: str
    start: float
    end: float


def timed_words(
    tokenizer: Tokenizer, tokens: Sequence[int], times: Sequence[tuple[float, float]]
) -> tuple[TimedText, ...]:
    """The words of an output, from the times of its tokens."""
    borders = [len(tokenizer.decode(tokens[:count])) for count in range(len(tokens) + 1)]
    words = []
    for match in WORD.finditer(tokenizer.decode(tokens)):
        spoken = [
            times[index]
            for index in range(len(tokens))
            if borders[index] < match.end() and borders[index + 1] > match.start()
        ]
        words.append(TimedText(match[0], spoken[0][0], spoken[-1][1]))
    return tuple(words)


def group_words(words: Sequence[TimedText]) -> tuple[TimedText, ...]:
    """Segments of words: a new one begins after a pause, and where one would be too long to read."""
    segments: list[TimedText] = []
    for word in words:
        last = segments[-1] if segments else None
        joins = last is not None and (
            word.start - last.end <= PAUSE
            and len(last.text) + 1 + len(word.text) <= LINE
            and word.end - last.start <= MAX_DURATION
        )
        if last is not None and joins:
            segments[-1] = TimedText(f"{last.text} {word.text}", last.start, word.end)
        else:
            segments.append(word)
    return tuple(segments)


def clock(seconds: float, separator: str = ".") -> str:
    """HH:MM:SS.mmm"""
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    full_seconds, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02d}:{minutes:02d}:{full_seconds:02d}{separator}{milliseconds:03d}"


def to_lines(segments: Sequence[TimedText]) -> list[str]:
    """A line per segment with its times."""
    return [f"[{clock(each.start)} → {clock(each.end)}] {each.text}" for each in segments]


def to_srt(segments: Sequence[TimedText]) -> str:
    """Subtitles in SubRip's format."""
    return "\n".join(
        f"{index}\n{clock(each.start, ',')} --> {clock(each.end, ',')}\n{each.text}\n"
        for index, each in enumerate(segments, 1)
    )


def to_vtt(segments: Sequence[TimedText]) -> str:
    """Subtitles as WebVTT, where "&" and "<" are markup."""
    cues = [
        f"{clock(each.start)} --> {clock(each.end)}\n{each.text.replace('&', '&amp;').replace('<', '&lt;')}\n"
        for each in segments
    ]
    return "\n".join(["WEBVTT\n", *cues])
