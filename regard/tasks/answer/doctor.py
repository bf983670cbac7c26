"""`doctor` checks of question answering: windows, unanswerable questions, and passages shared between splits."""

from collections.abc import Mapping

import numpy as np

from regard.data.splits.hashed import digests
from regard.tasks.answer.windows import ABSENT, Windows
from regard.tasks.inspection import Findings, inspect_samples, overlaps

MAX_ABSENT = 0.7  # share of windows without an answer from which on they dominate the training


def inspect(splits: Mapping[str, Windows], findings: Findings, max_length: int) -> None:
    """Facts about each split, and what endangers the run."""
    inspect_samples(splits, findings, max_length, size_notes=1)
    table: dict[str, dict[str, float]] = {}
    for name, windows in splits.items():
        absent = sum(windows.window(index).first == ABSENT for index in range(len(windows)))
        median, percentile_95, maximum = np.percentile(windows.lengths, (50, 95, 100)).tolist()
        table[name] = {
            "questions": windows.questions,
            "without_answer": windows.unanswered,
            "windows": len(windows),
            "windows_without_answer": absent,
            "median_tokens": median,
            "95%": percentile_95,
            "max": maximum,
        }
        if name == "train" and absent > MAX_ABSENT * len(windows):
            findings.warnings.append(
                f"train: {absent} of {len(windows)} windows have no answer: raise data.max_length or data.stride, so "
                "that each passage has fewer windows"
            )
    findings.facts["questions"] = table
    hashes = {
        name: digests(windows.question(index).context for index in range(windows.questions))
        for name, windows in splits.items()
    }
    for name, leaked in overlaps("same_text", hashes, findings).items():
        if len(leaked):
            findings.warnings.append(
                f"{name}: {len(leaked)} of {len(hashes[name])} questions are about passages that are in train too, so "
                "its scores are too high"
            )
