"""What the doctor finds in questions: their windows, those without an answer, and texts that several parts have."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

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
    table, seen = {}, _texts(parts["train"])
    for part in [each for each in parts if each != "train"]:
        found = _texts(parts[part])
        count = sum(found[text] for text in found.keys() & seen.keys())
        table[part] = {"same_text": count}
        if count:
            findings.warnings.append(
                f"{part}: {count} of {parts[part].questions} questions are asked of texts that train has too, so its "
                "scores flatter"
            )
    findings.facts["also_in_train"] = table


def _texts(windows: Windows) -> dict[bytes, int]:
    """How many questions are asked of each text."""
    found: dict[bytes, int] = {}
    for number in range(windows.questions):
        digest = hashlib.blake2b(windows.question(number).context.encode(), digest_size=8).digest()
        found[digest] = found.get(digest, 0) + 1
    return found
