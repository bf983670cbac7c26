"""How well labels are told: accuracy, F1, and which label was taken for which.

Shapes: confusion (labels wanted, labels found), in counts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.tasks.scores import RESAMPLES, SEED, Score


def confusion(found: Sequence[int], wanted: Sequence[int], labels: int) -> np.ndarray:
    """How often each label (row) was called each (column)."""
    table = np.zeros((labels, labels), np.int64)
    np.add.at(table, (np.asarray(wanted, int), np.asarray(found, int)), 1)
    return table


def accuracy(table: np.ndarray) -> float:
    """Percent."""
    return 100.0 * float(np.trace(table)) / max(1, int(table.sum()))


def by_class(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1 of each label, in percent; 0 where nothing was called so, or was to be."""
    right, found, wanted = np.diag(table), table.sum(0), table.sum(1)
    precision, recall = (100.0 * right / np.maximum(1, all_of) for all_of in (found, wanted))
    return precision, recall, 200.0 * right / np.maximum(1, found + wanted)


def macro_f1(table: np.ndarray) -> float:
    """The mean F1 of the labels that occur, as answers or as references: rare ones count as much as frequent ones."""
    occur = table.sum(0) + table.sum(1) > 0
    return float(by_class(table)[2][occur].mean()) if occur.any() else 0.0


def f1_of(table: np.ndarray, label: int) -> float:
    """The F1 of one label, in percent: that of "paraphrase" in MRPC (Dolan & Brockett 2005)."""
    return float(by_class(table)[2][label])


def matthews(table: np.ndarray) -> float:
    """Matthews' correlation, in percent (Warstadt et al. 2019, CoLA); of more labels than two, Gorodkin's R_K (2004).

    0 where all are called the same, or are to be.
    """
    right, total = float(np.trace(table)), float(table.sum())
    found, wanted = table.sum(0).astype(float), table.sum(1).astype(float)
    size = float(np.sqrt((total**2 - found @ found) * (total**2 - wanted @ wanted)))
    return 100.0 * (right * total - float(found @ wanted)) / size if size > 0 else 0.0


def several(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Texts of several labels, True where one holds (samples, labels): F1 over all, the labels' mean, all right."""
    right, called, held = (found & wanted).sum(0), found.sum(0), wanted.sum(0)
    each = 200.0 * right / np.maximum(1, called + held)
    occur = called + held > 0
    return {
        "micro_f1": 200.0 * float(right.sum()) / max(1, int((called + held).sum())),
        "macro_f1": float(each[occur].mean()) if occur.any() else 0.0,
        "exact": 100.0 * float((found == wanted).all(1).mean()),
    }


def report(found: Sequence[int], wanted: Sequence[int], chances: Sequence[float], labels: Sequence[str]) -> dict:
    """Scores with intervals, a row a label, and the confusions; `chances` are those given to what was wanted.

    `most_frequent` is the accuracy of always saying the label that occurs most.
    """
    table = confusion(found, wanted, len(labels))
    resampled = _resampled(np.asarray(found), np.asarray(wanted), len(labels))
    signature = f"labels:{len(labels)}|bs:{RESAMPLES}|seed:{SEED}"
    scores = [
        Score("accuracy", accuracy(table), _half(resampled[:, 0]), signature),
        Score("macro_f1", macro_f1(table), _half(resampled[:, 1]), signature),
    ]
    loss = float(-np.log(np.maximum(np.asarray(chances, float), 1e-30)).mean())
    precision, recall, f1 = by_class(table)
    rows: dict[str, Any] = {
        label: {
            "samples": int(table[number].sum()),
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
        }
        for number, label in enumerate(labels)
    }
    counts = {label: dict(zip(labels, table[number].tolist(), strict=True)) for number, label in enumerate(labels)}
    frequent = 100.0 * float(table.sum(1).max()) / max(1, int(table.sum()))
    return {"loss": loss, "most_frequent": frequent, "scores": scores, "by_label": rows, "called": counts}


def _resampled(found: np.ndarray, wanted: np.ndarray, labels: int) -> np.ndarray:
    """Accuracy and F1 of resamples of the samples (Efron 1979)."""
    chance = np.random.default_rng(SEED)
    rows = []
    for _ in range(RESAMPLES):
        some = chance.integers(len(found), size=len(found))
        table = confusion(found[some].tolist(), wanted[some].tolist(), labels)
        rows.append((accuracy(table), macro_f1(table)))
    return np.array(rows)


def _half(values: np.ndarray) -> float:
    """Half the width of the 95 % interval."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(high - low) / 2
