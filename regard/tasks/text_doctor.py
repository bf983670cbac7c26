"""What the doctor finds in running text: documents, tokens, bytes, blocks or rows they are cut into, and repeats."""

from collections.abc import Container
from typing import TYPE_CHECKING

from regard.data.duplicates import digests, duplicates
from regard.data.packing import blocks_per_epoch
from regard.data.token_stream import TokenStream
from regard.tasks.fill.batches import rows_per_epoch
from regard.tasks.fill.sentences import SentenceDataset
from regard.tasks.fill.task import Fill
from regard.tasks.generate.task import Generate
from regard.text.vocabulary import MISSING, Tokenizer

if TYPE_CHECKING:
    from regard.training.doctor import Findings

COUNTED = 1 << 22  # tokens among which the unknown ones are counted


def running_text(parts: dict[str, TokenStream], task: Generate, findings: "Findings") -> None:
    """Facts about each part, and about an epoch of training."""
    table: dict[str, dict[str, float]] = {}
    for part, stream in parts.items():
        table[part] = _facts(stream, task.tokenizer)
        _warn(part, stream, table, findings)
    findings.facts["text"] = table
    findings.facts["blocks"] = {
        "vocabulary": task.tokenizer.size,
        "tokens_a_block": task.length,
        "blocks_a_batch": task.packing.batch_size,
        "blocks_per_epoch": blocks_per_epoch(task.training, task.packing),
        "batches_per_epoch": task.batches_per_epoch,
    }
    _want_validation(parts, findings)
    _repeats(parts, task.tokenizer.end, findings)


def hidden_words(parts: dict[str, TokenStream | SentenceDataset], task: Fill, findings: "Findings") -> None:
    """Facts about each part whose words are hidden, and about an epoch of training."""
    table: dict[str, dict[str, float]] = {}
    for part, each in parts.items():
        report = each.report
        rows = rows_per_epoch(each, task.tokenizer, task.masking)
        table[part] = {"documents": report.kept, "skipped": report.read - report.kept, "rows": rows}
        if report.kept < 0.95 * report.read:
            findings.warnings.append(f"{part}: {report}")
    findings.facts["text"] = table
    findings.facts["rows"] = {
        "vocabulary": task.tokenizer.size,
        "tokens_a_row": task.length,
        "rows_a_batch": task.masking.batch_size,
        "batches_per_epoch": task.batches_per_epoch,
    }
    _want_validation(parts, findings)


def _want_validation(parts: Container[str], findings: "Findings") -> None:
    if "validation" not in parts:
        findings.warnings.append(
            "no validation part: no best checkpoint can be chosen; set data.validation, such as 0.02"
        )


def _facts(stream: TokenStream, tokenizer: Tokenizer) -> dict[str, float]:
    report = stream.report
    return {
        "documents": report.kept,
        "skipped": report.read - report.kept,
        "tokens": len(stream),
        "bytes": stream.bytes,
        "bytes_per_token": round(stream.bytes / len(stream), 3),
        "unknown_percent": round(100 * _unknown(stream, tokenizer), 3),
    }


def _unknown(stream: TokenStream, tokenizer: Tokenizer) -> float:
    """The share of unknown tokens; tokenizers of bytes, which know every text, name their end token for them."""
    if tokenizer.unknown in (MISSING, tokenizer.end):
        return 0.0
    return float((stream.tokens[:COUNTED] == tokenizer.unknown).mean())


def _warn(part: str, stream: TokenStream, table: dict[str, dict[str, float]], findings: "Findings") -> None:
    report, unknown = stream.report, table[part]["unknown_percent"]
    findings.warnings += [f"{part}: {note}" for note in report.notes[1:]]  # the first one says the sizes
    if report.kept < 0.95 * report.read:
        findings.warnings.append(f"{part}: {report}")
    if unknown > 1:
        findings.warnings.append(
            f"{part}: {unknown:.1f} % of the tokens are unknown; "
            'take a tokenizer of bytes (tokenizer.kind = "byte_bpe"), which knows every text'
        )
    fits, trained = table[part]["bytes_per_token"], table["train"]["bytes_per_token"]
    if 1.5 * fits < trained:
        findings.warnings.append(f"{part}: {fits:.2f} bytes a token, in train {trained:.2f}: one language?")


def _repeats(parts: dict[str, TokenStream], end: int, findings: "Findings") -> None:
    """Documents of validation and test that train has too."""
    hashes = {
        split: digests(document.tobytes() for document in stream.split_at(end)) for split, stream in parts.items()
    }
    table = {}
    for split in [split for split in parts if split != "train"]:
        count = int(duplicates(hashes["train"], hashes[split]).sum())
        table[split] = {"same_document": count}
        if count:
            findings.warnings.append(
                f"{split}: {count} of {len(hashes[split])} documents are in train too, so its likelihood flatters"
            )
    findings.facts["also_in_train"] = table
