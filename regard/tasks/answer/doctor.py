"""What the doctor finds in questions: their windows, those without an answer, and texts that several parts have."""

from typing import TYPE_CHECKING

import numpy as np

from regard.data.duplicates import digests, duplicates
from regard.tasks.answer.windows import ABSENT, Windows

if TYPE_CHECKING:
    from regard.training.doctor import Findings

EMPTY = 0.7  # a share of windows without an answer from which on they are most of what is learnt


def questions(parts: dict[str, Windows], findings: "Findings") -> None:
    """Facts about each part, and what endangers the run."""
    table: dict[str, dict[str, float]] = {}
    for part, windows in parts.items():
        absent = sum(windows.window(number).first == ABSENT for number in range(len(windows)))
        middle, most, high = np.percentile(windows.lengths, (50, 95, 100)).tolist()
        table[part] = {
            "questions": windows.questions,
            "without_answer": windows.unanswered,
            "windows": len(windows),
            "windows_without_answer": absent,
            "median_tokens": middle,
            "95%": most,
            "max": high,
        }
        if part == "train" and absent > EMPTY * len(windows):
            findings.warnings.append(
                f"train: {absent} of {len(windows)} windows hold no answer: raise data.max_length or data.stride, so "
                "that fewer windows are cut from each text"
            )
    findings.facts["questions"] = table
    _leaks(parts, findings)


def _leaks(parts: dict[str, Windows], findings: "Findings") -> None:
    """Questions of validation and test whose text train has too."""
    hashes = {
        split: digests(windows.question(index).context for index in range(windows.questions))
        for split, windows in parts.items()
    }
    table = {}
    for split in [split for split in parts if split != "train"]:
        count = int(duplicates(hashes["train"], hashes[split]).sum())
        table[split] = {"same_text": count}
        if count:
            findings.warnings.append(
                f"{split}: {count} of {len(hashes[split])} questions are asked of texts that train has too, so its "
                "scores flatter"
            )
    findings.facts["also_in_train"] = table
