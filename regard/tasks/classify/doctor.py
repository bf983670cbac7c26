"""What the doctor finds in labels: how many samples each has in each part, or how numbers are spread."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from regard.data.pairs import PairDataset
from regard.data.targets import Numbers
from regard.models.heads.sequence import Classifier

if TYPE_CHECKING:
    from regard.training.doctor import Findings

RARE = 10  # samples of a label in train


def labels(parts: Mapping[str, PairDataset], network: Classifier, findings: "Findings") -> None:
    """Facts about what texts are called, and a warning of what is too rare to learn."""
    if network.problem_type == "regression":
        findings.facts["numbers"] = {part: _spread(corpus) for part, corpus in parts.items()}
        return
    table: dict[str, dict[str, int]] = {label: {} for label in network.labels}
    before = int(network.problem_type == "multi_label")  # there the first number is for none of them
    for part, corpus in parts.items():
        counts = np.bincount(np.asarray(corpus.target_values, int), minlength=len(network.labels) + before)[before:]
        for label, count in zip(network.labels, counts.tolist(), strict=True):
            table[label][part] = count
    findings.facts["labels"] = table
    rare = [label for label, counts in table.items() if counts["train"] < RARE]
    if rare:
        findings.warnings.append(f"train: fewer than {RARE} samples of {', '.join(rare)}: too few to learn from")


def _spread(corpus: PairDataset) -> dict[str, float]:
    values = Numbers().tensor([corpus.target(number) for number in range(len(corpus))]).numpy()
    return {name: float(getattr(values, name)()) for name in ("min", "mean", "max", "std")} if len(values) else {}
