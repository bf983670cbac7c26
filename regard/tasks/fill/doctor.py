"""`doctor` checks of masked language modelling: documents and rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from regard.tasks.fill.batches import rows_per_epoch
from regard.tasks.inspection import Findings, warn_skipped, warn_without_validation

if TYPE_CHECKING:
    from regard.tasks.fill.task import Fill


def inspect(task: "Fill", splits: Mapping[str, Any], findings: Findings) -> None:
    """Facts about each split, and about an epoch of training."""
    table: dict[str, dict[str, float]] = {}
    for name, split in splits.items():
        report = split.report
        rows = rows_per_epoch(split, task.tokenizer, task.masking)
        table[name] = {"documents": report.kept, "skipped": report.read - report.kept, "rows": rows}
        warn_skipped(name, report, findings)
    findings.facts["text"] = table
    findings.facts["rows"] = {
        "vocabulary": task.tokenizer.size,
        "tokens_a_row": task.length,
        "rows_a_batch": task.masking.batch_size,
        "batches_per_epoch": task.batches_per_epoch,
    }
    warn_without_validation(splits, findings)
