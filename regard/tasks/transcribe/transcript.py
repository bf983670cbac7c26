"""What speech recognition predicts."""

from dataclasses import dataclass

from regard.tasks.transcribe.timing import TimedText


@dataclass(frozen=True)
class Transcript:
    """What is said in a recording. `score` is the length-normalised log-probability.

    `words` and `segments` are on request (timestamps); `alternatives` are the next best transcripts.
    """

    text: str
    score: float
    tokens: tuple[int, ...] = ()  # without the end token
    finished: bool = True  # False: max_new_tokens was reached
    truncated: bool = False  # only the beginning of the recording was used
    words: tuple[TimedText, ...] | None = None
    segments: tuple[TimedText, ...] | None = None
    alternatives: tuple["Transcript", ...] = ()
