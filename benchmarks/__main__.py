"""python -m benchmarks [--json] [--rounds N] [--threads N] [--cpu] [NAME …]: all of it in one run, as ratios."""

import argparse
import importlib
import json
import os
import platform
from dataclasses import asdict
from typing import Any

from benchmarks.sides import CLOCK, Result

SUBJECTS = {
    "generation": "transformers, CTranslate2 and llama.cpp, GPT-2 124M, 32 tokens read and 96 written, greedy",
    "embeddings": "onnxruntime and sentence-transformers, all-MiniLM-L6-v2, 512 texts of 6 to 50 words, batch 32",
    "translation": "transformers' MarianMTModel, 6+6 layers of 512, 8,000 tokens, beam 5, 20 tokens out",
    "training": "a plain loop around torch's nn.Transformer, 3+3 layers of 256, 8,000 tokens, some 1,000 a batch",
    "language": "nanoGPT and transformers' GPT2LMHeadModel, a training step of GPTs of 4×128 and 6×384",
    "microbatches": "regard without micro-batches in threads, a training step of the same GPTs",
    "encoding": "transformers' DebertaV2Model, version 3, 12 layers of 768, states of texts",
    "speech": "transformers and faster-whisper, Whisper tiny.en, eight recordings of 2 to 12 seconds, greedy",
    "vision": "transformers' ViT-B/16 and Swin-T, 224 × 224 pixels, and a training step of a small ViT",
}


def machine(threads: int) -> dict[str, Any]:
    from importlib.metadata import version

    from regard.runtime.machine import environment

    facts = environment(threads, {})
    named = {name: version(name) for name in ("regard", "torch", "transformers")}
    return {
        "cpu": facts["cpu"],
        "cores": facts["cores"],
        "threads": threads,
        "python": platform.python_version(),
    } | named


def show(results: dict[str, list[Result]], facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for subject, rows in results.items():
        console.print(f"[bold]regard and {SUBJECTS[subject]}[/bold]")
        table = Table()
        for name in ("", "unit", "regard", "peer", "ratio", "spread"):
            table.add_column(name, justify="left" if name in ("", "unit") else "right")
        for row in rows:
            spread = f"{row.lowest:.2f}–{row.highest:.2f}"
            table.add_row(row.name, row.unit, f"{row.regard:,.0f}", f"{row.peer:,.0f}", f"{row.ratio:.2f}×", spread)
        console.print(table)
        for row in rows:
            console.print(f"{row.name}: {row.note}")
        console.print()
    console.print("Above 1× regard is faster. " + ", ".join(f"{name} {value}" for name, value in facts.items()))


def main() -> None:
    from regard.runtime.machine import choose_threads

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Side by side with peers, as ratios.")
    parser.add_argument("subjects", nargs="*", metavar="NAME", help=f"which; by default all: {', '.join(SUBJECTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each side")
    parser.add_argument("--threads", type=int, default=0, help="of each side; 0: the physical cores")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--cpu", action="store_true", help="on a busy machine: one thread, and its time on the CPU")
    options = parser.parse_args()
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; possible: {', '.join(SUBJECTS)}")
    if options.cpu and options.threads > 1:
        parser.error("--cpu is for one thread: several wait for each other, and waiting would count")
    threads = choose_threads(1 if options.cpu else options.threads)
    os.environ[CLOCK] = "cpu" if options.cpu else "wall"
    results = {
        name: importlib.import_module(f"benchmarks.{name}").measure(options.rounds, threads)
        for name in options.subjects or SUBJECTS
    }
    facts = machine(threads)
    if options.json:
        print(json.dumps({"machine": facts} | {name: [asdict(row) for row in rows] for name, rows in results.items()}))
    else:
        show(results, facts)


if __name__ == "__main__":
    main()
