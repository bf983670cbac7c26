"""How well labels are told: accuracy, F1, and which label was taken for which.

Shapes: confusion (labels wanted, labels found), in counts.
"""

from collections.abc import Sequence

import numpy as np

from regard.metrics.bleu import RESAMPLES, SEED, Score, resampled, spread


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


def figures(table: np.ndarray) -> dict[str, float]:
    """Every figure of one label a text; `f1` is that of the second of two labels, as of "1" beside "0"."""
    found = {"accuracy": accuracy(table), "macro_f1": macro_f1(table), "matthews_correlation": matthews(table)}
    return found | ({"f1": f1_of(table, 1)} if len(table) == 2 else {})


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
    loss = float(-np.log(np.maximum(np.asarray(chances, float), 1e-30)).mean())
    precision, recall, f1 = by_class(table)
    counts = {label: dict(zip(labels, table[number].tolist(), strict=True)) for number, label in enumerate(labels)}
    return {
        "loss": loss,
        "most_frequent": 100.0 * float(table.sum(1).max()) / max(1, int(table.sum())),
        "scores": _scores(table, labels, np.asarray(found), np.asarray(wanted)),
        "by_label": _rows(labels, table.sum(1), precision, recall, f1),
        "called": counts,
    }


def report_several(chances: np.ndarray, wanted: np.ndarray, labels: Sequence[str], least: float) -> dict:
    """The same of several labels a text, by the probabilities of each and what holds (samples, labels).

    `least` is the probability from which on a label holds; `nothing_said` is the `exact` of never telling any.
    """
    found = chances >= least
    occurring = int((found | wanted).any(0).sum())
    right, called, held = (found & wanted).sum(0), found.sum(0), wanted.sum(0)
    precision, recall = (100.0 * right / np.maximum(1, count) for count in (called, held))
    sure = np.clip(np.where(wanted, chances, 1 - chances), 1e-30, 1)

    def score(name: str) -> Score:
        which = {"micro_f1": "over all|", "macro_f1": f"mean of {occurring} labels|", "exact": "all labels|"}[name]
        return resampled(name, lambda some: several(found[some], wanted[some])[name], len(found), which)

    return {
        "loss": float(-np.log(sure).mean()),
        "threshold": least,
        "nothing_said": 100.0 * float((~wanted).all(1).mean()),
        "scores": [score(name) for name in ("micro_f1", "macro_f1", "exact")],
        "by_label": _rows(labels, held, precision, recall, 200.0 * right / np.maximum(1, called + held)),
    }


def _rows(labels: Sequence[str], samples: np.ndarray, *figures: np.ndarray) -> dict[str, dict[str, float]]:
    """A row a label: its samples, and precision, recall and F1 of it alone."""
    names = ("precision", "recall", "f1")
    return {
        label: {"samples": int(samples[number])}
        | {name: float(each[number]) for name, each in zip(names, figures, strict=True)}
        for number, label in enumerate(labels)
    }


def _scores(table: np.ndarray, labels: Sequence[str], found: np.ndarray, wanted: np.ndarray) -> list[Score]:
    """Every figure, with its interval over resamples of the samples (Efron 1979); which F1 is which, it says."""
    chance, codes, size = np.random.default_rng(SEED), wanted * len(labels) + found, len(labels)
    rows = [
        figures(np.bincount(codes[chance.integers(len(codes), size=len(codes))], minlength=size**2).reshape(size, size))
        for _ in range(RESAMPLES)
    ]
    occurring = len({*found.tolist(), *wanted.tolist()})
    which = {
        "macro_f1": f"mean of {occurring} labels|",
        "f1": f"of {labels[-1]!r}|",
        "matthews_correlation": f"of {size}|",
    }
    return [
        spread(name, value, [row[name] for row in rows], f"{which.get(name, '')}bs:{RESAMPLES}|seed:{SEED}")
        for name, value in figures(table).items()
    ]
