"""`doctor` checks that several tasks share: sample counts, lengths, tokenizer coverage, and leaks between splits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.data.cache import Report
from regard.data.pairs import PairDataset
from regard.data.splits.hashed import digests, duplicates
from regard.text.vocabulary import Vocabulary

READ = 2000  # samples whose tokenizer coverage is measured
SHOWN = 3  # leaked samples in a warning


@dataclass
class Findings:
    """What `doctor` reports: tables of facts, errors that prevent the run, and warnings."""

    facts: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def inspect_samples(splits: Mapping[str, Any], findings: Findings, max_length: int, size_notes: int = 0) -> None:
    """How many samples were read, kept and skipped, and why. The first notes of a report may state sizes only."""
    table = {}
    for name, split in splits.items():
        report = split.report
        findings.warnings += [f"{name}: {note}" for note in report.notes[size_notes:]]
        skipped = {reason: skip.count for reason, skip in report.skipped.items()}
        table[name] = {"read": report.read, "kept": report.kept, "skipped": sum(skipped.values()), **skipped}
        warn_skipped(name, report, findings, f"; data.max_length is {max_length}" if max_length else "")
    findings.facts["samples"] = table
    warn_without_validation(splits, findings)


def warn_skipped(name: str, report: Report, findings: Findings, hint: str = "") -> None:
    """A warning where more than 5 % of a split were skipped."""
    if report.kept < 0.95 * report.read:
        findings.warnings.append(f"{name}: {report}{hint}")


def warn_without_validation(splits: Iterable[str], findings: Findings) -> None:
    if "validation" not in splits:
        findings.warnings.append(
            "no validation split: the best checkpoint cannot be selected; set data.validation, such as 0.02"
        )


def inspect_lengths(splits: Mapping[str, Any], findings: Findings) -> None:
    """Quantiles of the number of tokens per sample, of source and target."""
    table = {}
    for name, split in splits.items():
        for side, lengths in (("source", split.source_lengths), ("target", split.target_lengths)):
            if len(lengths) and np.max(lengths) > 1:  # a label is always one target
                quantiles = np.percentile(lengths, (0, 50, 95, 99, 100)).tolist()
                table[f"{name} {side}"] = dict(zip(("min", "median", "95%", "99%", "max"), quantiles, strict=True))
    findings.facts["sample_tokens"] = table


def inspect_coverage(
    splits: Mapping[str, PairDataset], vocabulary: Vocabulary, sides: Sequence[str], findings: Findings
) -> None:
    """How well the tokenizer, which was trained on train alone, fits each split."""
    table: dict[str, dict[str, float]] = {}
    for name, split in splits.items():
        for index, side in enumerate(sides):
            tokenizer = getattr(vocabulary, side)
            coverage = tokenizer.coverage(split.text(row)[index] for row in range(min(READ, len(split))))
            table[f"{name} {side}"] = {
                "vocabulary": tokenizer.size,
                "tokens_per_word": round(coverage.tokens_per_word, 3),
                "unknown_percent": round(100 * coverage.unknown_rate, 3),
            }
            if coverage.unknown_rate > 0.01:
                findings.warnings.append(
                    f"{name}: {coverage.unknown_rate:.1%} of the {side} tokens are unknown; "
                    'use subwords (tokenizer.kind = "bpe") or a larger tokenizer.vocab_size'
                )
            trained = table.get(f"train {side}", {}).get("tokens_per_word", 0)
            if trained and coverage.tokens_per_word > 1.5 * trained:
                findings.warnings.append(
                    f"{name}: {coverage.tokens_per_word:.2f} tokens per {side} word, in train {trained:.2f}: another "
                    "language?"
                )
    findings.facts["tokenizer"] = table


def inspect_leaks(splits: Mapping[str, PairDataset], findings: Findings) -> None:
    """Samples of validation and test that are in train too."""
    for what, joined in (("same_source", False), ("same_pair", True)):
        hashes = {
            name: digests("\t".join(text) if joined else text[0] for text in map(split.text, range(len(split))))
            for name, split in splits.items()
        }
        for name, leaked in overlaps(what, hashes, findings).items():
            if joined and len(leaked):
                examples = "; ".join(" → ".join(splits[name].text(int(index))) for index in leaked[:SHOWN])
                findings.warnings.append(
                    f"{name}: {len(leaked)} of {len(hashes[name])} samples are in train too, so its scores are too "
                    f"high: {examples}"
                )


def overlaps(what: str, hashes: Mapping[str, np.ndarray], findings: Findings) -> dict[str, np.ndarray]:
    """Indices of the samples of each other split whose digests train has too; their counts are a fact."""
    table = findings.facts.setdefault("train_overlap", {})
    leaked = {}
    for name in [name for name in hashes if name != "train"]:
        leaked[name] = np.flatnonzero(duplicates(hashes["train"], hashes[name]))
        table.setdefault(name, {})[what] = len(leaked[name])
    return leaked


def warn_overlaps(what: str, hashes: Mapping[str, np.ndarray], findings: Findings, problem: str) -> None:
    """The same, with a warning for each split: how many of its samples have this problem."""
    for name, leaked in overlaps(what, hashes, findings).items():
        if len(leaked):
            findings.warnings.append(f"{name}: {len(leaked)} of {len(hashes[name])} {problem}")
