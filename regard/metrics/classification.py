"""Metrics of classifiers: accuracy, F1, Matthews' correlation and the confusion matrix.

Shapes: confusion (expected labels, predicted labels), in counts; multi-label arrays (samples, labels).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from regard.metrics.bootstrap import SIGNATURE, bootstrap

TOP = 5  # labels among which `top5_accuracy` finds the right one; it is computed where there are more


def confusion(predicted: Sequence[int], expected: Sequence[int], labels: int) -> np.ndarray:
    """How often each label (row) was predicted as each (column)."""
    table = np.zeros((labels, labels), np.int64)
    np.add.at(table, (np.asarray(expected, int), np.asarray(predicted, int)), 1)
    return table


def accuracy(table: np.ndarray) -> float:
    """Percent."""
    return 100.0 * float(np.trace(table)) / max(1, int(table.sum()))


def by_class(table: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall and F1 of each label, in percent."""
    return precision_recall_f1(np.diag(table), table.sum(0), table.sum(1))


def macro_f1(table: np.ndarray) -> float:
    """The mean F1 of the labels that occur, predicted or expected: rare labels count as much as frequent ones."""
    occur = table.sum(0) + table.sum(1) > 0
    return float(by_class(table)["f1"][occur].mean()) if occur.any() else 0.0


def f1_of(table: np.ndarray, label: int) -> float:
    """The F1 of one label, in percent: that of "paraphrase" in MRPC (Dolan & Brockett 2005)."""
    return float(by_class(table)["f1"][label])


def matthews(table: np.ndarray) -> float:
    """Matthews' correlation, in percent (Warstadt et al. 2019, CoLA); for more than two labels Gorodkin's R_K (2004).

    0 if all predictions, or all expected labels, are the same.
    """
    right = float(np.trace(table))
    total = float(table.sum())
    predicted = table.sum(0).astype(float)
    expected = table.sum(1).astype(float)
    norm = float(np.sqrt((total**2 - predicted @ predicted) * (total**2 - expected @ expected)))
    return 100.0 * (right * total - float(predicted @ expected)) / norm if norm > 0 else 0.0


def single_label_metrics(table: np.ndarray) -> dict[str, float]:
    """Every metric of one label per text; `f1` is that of the second of two labels, as of "1" besides "0"."""
    metrics = {"accuracy": accuracy(table), "macro_f1": macro_f1(table), "matthews_correlation": matthews(table)}
    return metrics | ({"f1": f1_of(table, 1)} if len(table) == 2 else {})


def multi_label_metrics(predicted: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Micro F1, macro F1 of the labels that occur, and the share of texts with all labels right."""
    counts = [table.sum(0) for table in (predicted & expected, predicted, expected)]
    occur = (predicted | expected).any(0)
    return {
        "micro_f1": float(precision_recall_f1(*(count.sum() for count in counts))["f1"]),
        "macro_f1": float(precision_recall_f1(*counts)["f1"][occur].mean()) if occur.any() else 0.0,
        "subset_accuracy": 100.0 * float((predicted == expected).all(1).mean()),
    }


def top_k_accuracy(scores: np.ndarray, expected: Sequence[int], k: int = TOP) -> np.ndarray:
    """For each sample 100 if its label is among the k with the highest scores (samples, labels), else 0."""
    of_label = np.take_along_axis(scores, np.asarray(expected, int)[:, None], 1)
    return 100.0 * ((scores > of_label).sum(1) < k)


def single_label_report(scores: np.ndarray, expected: Sequence[int], labels: Sequence[str]) -> dict[str, object]:
    """Scores with intervals, a row per label, and the confusion matrix, from probabilities (samples, labels).

    `majority_baseline` is the accuracy of always predicting the most frequent label.
    """
    size = len(labels)
    predicted = scores.argmax(1).tolist()
    probabilities = np.take_along_axis(scores, np.asarray(expected, int)[:, None], 1)
    in_top = top_k_accuracy(scores, expected)
    table = confusion(predicted, expected, size)
    cells = np.asarray(expected) * size + np.asarray(predicted)  # of the flattened table

    def statistic(rows: np.ndarray) -> dict[str, float]:
        metrics = single_label_metrics(np.bincount(cells[rows], minlength=size**2).reshape(size, size))
        return metrics | ({"top5_accuracy": float(in_top[rows].mean())} if size > TOP else {})

    signature = {
        "macro_f1": f"mean of {len({*predicted, *expected})} labels|{SIGNATURE}",
        "f1": f"of {labels[-1]!r}|{SIGNATURE}",
        "matthews_correlation": f"of {size}|{SIGNATURE}",
        "top5_accuracy": f"of {size}|{SIGNATURE}",
    }
    return {
        "loss": float(-np.log(np.maximum(probabilities, 1e-30)).mean()),
        "majority_baseline": 100.0 * float(table.sum(1).max()) / max(1, int(table.sum())),
        "scores": bootstrap(statistic, len(cells), signature),
        "by_label": by_row(labels, {"samples": table.sum(1), **by_class(table)}),
        "confusion_matrix": {
            label: dict(zip(labels, table[index].tolist(), strict=True)) for index, label in enumerate(labels)
        },
    }


def multi_label_report(
    probabilities: np.ndarray, expected: np.ndarray, labels: Sequence[str], threshold: float
) -> dict[str, object]:
    """Scores with intervals and a row per label; a label is predicted from the probability `threshold` on.

    `empty_baseline` is the `subset_accuracy` of never predicting any label.
    """
    predicted = probabilities >= threshold
    occurring = int((predicted | expected).any(0).sum())
    signature = {
        "micro_f1": f"over all|{SIGNATURE}",
        "macro_f1": f"mean of {occurring} labels|{SIGNATURE}",
        "subset_accuracy": f"all labels|{SIGNATURE}",
    }
    likelihood = np.clip(np.where(expected, probabilities, 1 - probabilities), 1e-30, 1)
    metrics = precision_recall_f1((predicted & expected).sum(0), predicted.sum(0), expected.sum(0))
    return {
        "loss": float(-np.log(likelihood).mean()),
        "threshold": threshold,
        "empty_baseline": 100.0 * float((~expected).all(1).mean()),
        "scores": bootstrap(
            lambda rows: multi_label_metrics(predicted[rows], expected[rows]), len(predicted), signature
        ),
        "by_label": by_row(labels, {"samples": expected.sum(0), **metrics}),
    }


def precision_recall_f1(right: np.ndarray, predicted: np.ndarray, expected: np.ndarray) -> dict[str, np.ndarray]:
    """From counts, in percent; 0 where a denominator is."""
    return {
        "precision": 100.0 * right / np.maximum(1, predicted),
        "recall": 100.0 * right / np.maximum(1, expected),
        "f1": 200.0 * right / np.maximum(1, predicted + expected),
    }


def by_row(names: Sequence[str], columns: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Columns as a row of values for each name."""
    return {name: {key: values[index].item() for key, values in columns.items()} for index, name in enumerate(names)}
