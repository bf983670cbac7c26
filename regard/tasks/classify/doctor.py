"""What the doctor finds in labels: how many samples each has in each part, or how numbers are spread."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from regard.data.pairs import PairDataset
from regard.data.targets import RegressionTargets, SingleLabelTargets, targets_of
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
    targets = targets_of(network.problem_type, network.labels)
    assert isinstance(targets, SingleLabelTargets)
    for part, corpus in parts.items():
        for label, count in zip(network.labels, targets.counts(corpus).tolist(), strict=True):
            table[label][part] = count
    findings.facts["labels"] = table
    rare = [label for label, counts in table.items() if counts["train"] < RARE]
    if rare:
        findings.warnings.append(f"train: fewer than {RARE} samples of {', '.join(rare)}: too few to learn from")


def _spread(corpus: PairDataset) -> dict[str, float]:
    values = RegressionTargets().values(corpus)
    return {name: float(getattr(values, name)()) for name in ("min", "mean", "max", "std")} if len(values) else {}
