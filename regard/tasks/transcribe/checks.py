"""`doctor` checks of speech recognition: lengths, empty transcripts, labels longer than CTC has states, new units."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from regard.audio.dataset import AudioDataset
from regard.data.splits.hashed import digests
from regard.tasks.inspection import READ, SHOWN, Findings, inspect_samples, warn_overlaps
from regard.tasks.transcribe.dataset import TOO_SHORT, Limits
from regard.text.tokenizer import Tokenizer

PROBLEMS = ("unreadable recording", "recording not found", "empty target", TOO_SHORT)
FASTEST = 30.0  # characters per second: no one reads faster


def inspect_recordings(
    splits: Mapping[str, AudioDataset], findings: Findings, tokenizer: Tokenizer, limits: Limits
) -> None:
    """Facts and warnings about recordings and their transcripts."""
    inspect_samples(splits, findings, limits.max_tokens)
    findings.facts["recordings"] = {name: _durations(split) for name, split in splits.items()}
    for name, split in splits.items():
        _warn_problems(name, split, findings)
        _warn_fast(name, split, findings)
        if name != "train":
            _warn_unseen(name, split, tokenizer, findings)
    hashes = {
        name: digests(split.frames(index).numpy().tobytes() for index in range(len(split)))
        for name, split in splits.items()
    }
    warn_overlaps("same_recording", hashes, findings, "recordings are in train too, so its scores are too high")


def _durations(split: AudioDataset) -> dict[str, Any]:
    seconds = np.array([split.seconds(index) for index in range(len(split))])
    low, middle, high = np.percentile(seconds, (0, 50, 100))
    rates = Counter(split.original(index)[0] for index in range(len(split)))
    return {
        "hours": round(float(seconds.sum()) / 3600, 3),
        "shortest": f"{low:.2f} s",
        "median": f"{middle:.2f} s",
        "longest": f"{high:.2f} s",
        "tokens per second": round(float(np.sum(split.target_lengths)) / max(float(seconds.sum()), 1e-9), 1),
        "sampling rates": ", ".join(f"{rate} Hz: {count}" for rate, count in rates.most_common()),
    }


def _warn_problems(name: str, split: AudioDataset, findings: Findings) -> None:
    hints = {TOO_SHORT: "; lower model.halvings, or use longer units (tokenizer.kind)"}
    for reason in PROBLEMS:
        if skip := split.report.skipped.get(reason):
            findings.warnings.append(f"{name}: {skip.count} × {reason}; first: {skip.first}{hints.get(reason, '')}")


def _warn_fast(name: str, split: AudioDataset, findings: Findings) -> None:
    """Transcripts that are too long to have been said: of other recordings, or of truncated ones."""
    fast = []
    for index in range(len(split)):
        sample = split.text(index)
        if len(sample.target) > FASTEST * max(split.seconds(index), 0.1):
            fast.append(f"{sample.source} ({split.seconds(index):.1f} s): {sample.target!r:.40}")
    if fast:
        findings.warnings.append(
            f"{name}: {len(fast)} transcripts have more than {FASTEST:g} characters per second; are they of other "
            f"recordings? {'; '.join(fast[:SHOWN])}"
        )


def _warn_unseen(name: str, split: AudioDataset, tokenizer: Tokenizer, findings: Findings) -> None:
    """Units that the tokenizer of the training split does not have."""
    texts = [split.text(index).target for index in range(min(READ, len(split)))]
    words = tokenizer.unknown_words(texts)
    if words:
        shown = ", ".join(repr(word) for word, _ in Counter(words).most_common(SHOWN))
        findings.warnings.append(f"{name}: {len(words)} units are not in train, so they are never recognised: {shown}")
