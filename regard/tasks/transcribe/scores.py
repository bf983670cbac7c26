"""Numbers of alignments: how attention moves through recordings, and how far boundaries are from reference times."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regard.attention.trace import Trace
from regard.metrics.alignment import coverage, monotonicity
from regard.metrics.bootstrap import Score, bootstrap, bootstrap_mean
from regard.tasks.transcribe.timing import TimedText

MAX_TRACED = 200  # recordings whose attention is traced
TOLERANCE = 0.02  # seconds within which a boundary counts as right


def alignment_weights(trace: Trace) -> np.ndarray | None:
    """The attention of the output over the states of the recording, mean over heads, without the end token's.

    Of the last layer with cross-attention; None where there is none.
    """
    sites = [site for site in trace.sites if site.endswith("cross")]
    return trace.weights(sites[-1]).float().mean(0)[:-1].cpu().numpy() if sites else None


def attention_scores(predictor: Any, names: Sequence[str], texts: Sequence[str]) -> list[Score]:
    """Monotonicity and coverage of the attention over these recordings.

    Empty for models without a decoder, and for Whisper, whose windows are mostly padding.
    """
    if predictor.speech_tokens is not None:
        return []
    values = []
    for name, text in list(zip(names, texts, strict=True))[:MAX_TRACED]:
        weights = alignment_weights(predictor.trace(name, text, False, True, {})) if text else None
        if weights is not None and len(weights):
            values.append((monotonicity(weights), coverage(weights)))
    columns = zip(("monotonicity", "coverage"), zip(*values, strict=True), strict=False)
    return [bootstrap_mean(name, 100 * np.array(column)) for name, column in columns]


def boundary_scores(predictor: Any, references: Mapping[str, Sequence[TimedText]]) -> list[Score]:
    """How far the starts of the reference's units are from those that the model aligns to them, in milliseconds.

    The model is given the units, so that only their times can differ. Resamples are of recordings.
    """
    errors = []
    for name, units in references.items():
        (row,) = predictor.rows([name], truncate=True)
        tokens = predictor.tokenizer.encode(" ".join(unit.text for unit in units))
        times = predictor.times(predictor.batch([row]), tokens)
        if len(times) == len(units):
            errors.append([abs(start - unit.start) for (start, _), unit in zip(times, units, strict=True)])

    def statistic(rows: np.ndarray) -> dict[str, float]:
        chosen = np.concatenate([errors[row] for row in rows])
        within = 100 * float((chosen <= TOLERANCE).mean())
        return {"boundary_error_ms": 1000 * float(chosen.mean()), f"within_{TOLERANCE * 1000:.0f}_ms": within}

    return bootstrap(statistic, len(errors)) if errors else []
