"""Word, character and phoneme error rates of transcripts, in percent, by jiwer.

    (substitutions + deletions + insertions) / units of the reference, over all samples together

Words and characters are compared in lower case and without punctuation, except apostrophes within words.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.errors import UserError
from regard.metrics.bootstrap import RESAMPLES, SIGNATURE, Difference, Score, bootstrap, resample

KINDS = ("substitutions", "deletions", "insertions")

APOSTROPHES = re.compile(r"(?<=\w)['’](?=\w)")
PHONEMES = "per"
TEXT_METRICS = ("wer", "cer")


class Edits(NamedTuple):
    """Edits of each sample, and the units of its reference."""

    counts: np.ndarray  # (samples, 3): substitutions, deletions, insertions
    units: np.ndarray  # (samples,)

    def rate(self, rows: Any = slice(None)) -> float:
        """The error rate of these samples."""
        return 100.0 * float(self.counts[rows].sum() / max(self.units[rows].sum(), 1))

    def to_dict(self) -> dict[str, int]:
        """The numbers of edits of all samples, and of units."""
        return dict(zip(KINDS, self.counts.sum(0).tolist(), strict=True)) | {"units": int(self.units.sum())}


def normalise(text: str) -> str:
    """Lower case, spaces for punctuation, and single spaces; "don't" keeps its apostrophe."""
    marked = APOSTROPHES.sub("\0", unicodedata.normalize("NFKC", text).lower())
    kept = (" " if unicodedata.category(each)[0] in "PS" else each for each in marked)
    return " ".join("".join(kept).replace("\0", "'").split())


def edits(metric: str, predictions: Sequence[str], references: Sequence[str]) -> Edits:
    """The edits that turn each reference into its prediction, in the units of a metric."""
    jiwer = _jiwer()
    process = jiwer.process_characters if metric == "cer" else jiwer.process_words
    clean = (lambda text: " ".join(text.split())) if metric == PHONEMES else normalise
    result = process([clean(text) for text in references], [clean(text) for text in predictions])
    counts = np.zeros((len(references), len(KINDS)), np.int64)
    sides = ("ref", "hyp")
    for row, chunks in zip(counts, result.alignments, strict=True):
        for chunk in chunks:
            lengths = [getattr(chunk, f"{side}_end_idx") - getattr(chunk, f"{side}_start_idx") for side in sides]
            if chunk.type in ("substitute", "delete", "insert"):
                row[("substitute", "delete", "insert").index(chunk.type)] += max(lengths)
    return Edits(counts, np.array([len(units) for units in result.references]))


def quick(metrics: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The values alone, for the evaluations during training."""
    return {name: edits(name, predictions, references).rate() for name in metrics}


def score(metric: str, predictions: Sequence[str], references: Sequence[str]) -> Score:
    """The error rate with its interval over resampled recordings."""
    counted = edits(metric, predictions, references)
    return bootstrap(lambda rows: {metric: counted.rate(rows)}, len(references), _signature(metric))[0]


def compare(metric: str, first: Sequence[str], second: Sequence[str], references: Sequence[str]) -> Difference:
    """Paired bootstrap test: how often a resample differs as much by chance."""
    systems = edits(metric, first, references), edits(metric, second, references)
    one, other = (system.rate() for system in systems)
    gains = np.array(resample(lambda rows: systems[1].rate(rows) - systems[0].rate(rows), len(references)))
    extreme = np.abs(gains - gains.mean()) >= abs(other - one)
    p_value = float((extreme.sum() + 1) / (RESAMPLES + 1)) if one != other else 1.0
    return Difference(metric, one, other, p_value)


def _signature(metric: str) -> str:
    treatment = "case:mixed" if metric == PHONEMES else "case:lc|punct:no"
    return f"nrefs:1|{SIGNATURE}|{treatment}|jiwer"


def _jiwer() -> Any:
    """The library that counts edits; it comes with an extra."""
    try:
        import jiwer
    except ImportError:
        raise UserError("error rates need jiwer: pip install 'regard[speech]'") from None
    return jiwer
