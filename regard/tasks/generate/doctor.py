"""`doctor` checks of plain text: documents, tokens, bytes, blocks, and documents shared between splits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from regard.data.packing import blocks_per_epoch
from regard.data.splits.hashed import digests
from regard.data.token_stream import TokenStream
from regard.tasks.inspection import Findings, overlaps, warn_skipped, warn_without_validation
from regard.text.tokenizer import MISSING

if TYPE_CHECKING:
    from regard.tasks.generate.task import Generate

COUNTED = 1 << 22  # tokens among which the unknown ones are counted


def inspect(task: "Generate", splits: Mapping[str, TokenStream], findings: Findings) -> None:
    """Facts about each split, and about an epoch of training."""
    tokenizer = task.tokenizer
    table: dict[str, dict[str, float]] = {}
    for name, stream in splits.items():
        known = tokenizer.unknown in (MISSING, tokenizer.end)  # byte tokenizers know every text
        unknown = 0.0 if known else 100 * float((stream.tokens[:COUNTED] == tokenizer.unknown).mean())
        table[name] = {
            "documents": stream.report.kept,
            "skipped": stream.report.read - stream.report.kept,
            "tokens": len(stream),
            "bytes": stream.bytes,
            "bytes_per_token": round(stream.bytes / len(stream), 3),
            "unknown_percent": round(unknown, 3),
        }
        _warn(name, stream, table, findings)
    findings.facts["text"] = table
    findings.facts["blocks"] = {
        "vocabulary": tokenizer.size,
        "tokens_per_block": task.length,
        "blocks_per_batch": task.packing.batch_size,
        "blocks_per_epoch": blocks_per_epoch(task.training, task.packing),
        "batches_per_epoch": task.batches_per_epoch,
    }
    warn_without_validation(splits, findings)
    hashes = {
        name: digests(document.tobytes() for document in stream.split_at(tokenizer.end))
        for name, stream in splits.items()
    }
    for name, leaked in overlaps("same_document", hashes, findings).items():
        if len(leaked):
            findings.warnings.append(
                f"{name}: {len(leaked)} of {len(hashes[name])} documents are in train too, so its loss is too low"
            )


def _warn(name: str, stream: TokenStream, table: dict[str, dict[str, float]], findings: Findings) -> None:
    findings.warnings += [f"{name}: {note}" for note in stream.report.notes[1:]]  # the first one states sizes
    warn_skipped(name, stream.report, findings)
    if table[name]["unknown_percent"] > 1:
        findings.warnings.append(
            f"{name}: {table[name]['unknown_percent']:.1f} % of the tokens are unknown; "
            'use a byte tokenizer (tokenizer.kind = "byte_bpe"), which knows every text'
        )
    ratio = table[name]["bytes_per_token"]
    trained = table["train"]["bytes_per_token"]
    if 1.5 * ratio < trained:
        findings.warnings.append(f"{name}: {ratio:.2f} bytes per token, in train {trained:.2f}: another language?")
