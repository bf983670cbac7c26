"""Measurements of a finished run: taken once, and again only if its weights or its recipe change.

measured/NAME.json       all metrics, and what they were taken from
RUN/test-answers.txt     the greedy translations of the test split, a line each
"""

import json
import re
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from regard.config.recipe import Recipe
from regard.metrics.bleu import compare, score
from regard.metrics.bootstrap import Score
from regard.model import load
from regard.runtime.machine import choose_threads
from regard.tasks.translate.alignment import alignment_site
from regard.tasks.translate.dataset import samples
from regard.tasks.translate.evaluate import scores_by_length
from regard.training.checkpoint import best, write_atomically
from road.plan import Experiment, Plan, Sentence
from road.runs import Job, journal, say
from road.settings import changed_since, settings

ANSWERS = "test-answers.txt"
BEAMS = 5
BATCH = 64  # sentences translated at once
SPLITS = ("train", "validation", "test")


def read(folder: Path, experiment: Experiment) -> dict[str, Any] | None:
    """What was measured of a model, if anything."""
    path = folder / f"{experiment.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def answers(run: Path) -> list[str]:
    return (run / ANSWERS).read_text(encoding="utf-8").split("\n")[:-1]


def is_fresh(folder: Path, job: Job, sentence: Sentence) -> bool:
    """Whether what was measured is of these weights, this recipe and this sentence."""
    results = _scored(folder, job)
    return results is not None and results["sentence"]["source"] == sentence.source


def _scored(folder: Path, job: Job) -> dict[str, Any] | None:
    """What was measured of these weights and this recipe."""
    results = read(folder, job.experiment)
    if results is None or not (job.run / ANSWERS).is_file() or results["weights"] != weights_of(job.run):
        return None
    return None if changed_since(results["recipe"], job.recipe) else results


def weights_of(run: Path) -> str:
    """The sha256 of the best checkpoint's weights, by its manifest, which `best` has verified."""
    manifest = json.loads((best(run)[0] / "manifest.json").read_text(encoding="utf-8"))
    return manifest["files"]["model.safetensors"]["sha256"]


def measure(folder: Path, job: Job, sentence: Sentence) -> None:
    """Write all that the page needs of the model; what is known of these weights is not measured again."""
    torch.set_num_threads(choose_threads(0))
    model = load(job.run)
    shown = {"sentence": _sentence(model, sentence)}  # also warms the network up
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, job.experiment, (_scored(folder, job) or _score(model, job)) | shown)


def _score(model: Any, job: Job) -> dict[str, Any]:
    """Translate the test split: scores and speed."""
    threads = torch.get_num_threads()
    pairs = {split: _pairs(job.recipe, split) for split in SPLITS}
    sources, references = ([pair[side] for pair in pairs["test"]] for side in (0, 1))
    results: dict[str, Any] = {
        "weights": weights_of(job.run),
        "recipe": settings(job.recipe),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "training": _training(job.run),
        "machine": _machine(job.run),
        "pairs": {split: len(each) for split, each in pairs.items()},
        "source": _lengths(model, sources),
    }
    lowercase = job.recipe.tokenizer.lowercase
    for way, beams in (("greedy", 1), ("beam", BEAMS)):
        began = time.perf_counter()
        texts = [answer.text for answer in model.run(sources, num_beams=beams, batch_size=BATCH)]
        seconds = time.perf_counter() - began
        scored = {each.name: _rounded(each) for each in score(texts, references, lowercase) if each.name != "exact"}
        results[way] = {"beams": beams, **scored, "seconds": round(seconds, 1), "threads": threads, "batch": BATCH}
        if way == "greedy":
            results["by_length"] = _by_length(sources, references, texts, lowercase)
            write_atomically(job.run / ANSWERS, "".join(text + "\n" for text in texts))
    return results


def compare_all(folder: Path, plan: Plan, jobs: list[Job]) -> None:
    """Test each model's translations against those of its reference, where that was not done for these weights."""
    for job in jobs:
        reference = plan.reference(job.experiment)
        results, other = read(folder, job.experiment), reference and read(folder, reference)
        if not results or not other or not reference:
            continue
        now = {"name": reference.name, "weights": other["weights"], "own": results["weights"]}
        theirs = job.run.with_name(reference.name)
        if {key: results.get("against", {}).get(key) for key in now} == now or not (theirs / ANSWERS).is_file():
            continue
        say(f"{job.name}: against {reference.name}")
        _write(folder, job.experiment, results | {"against": now | _differences(job, theirs)})


def _differences(job: Job, reference: Path) -> dict[str, Any]:
    """The paired bootstrap test between the translations of two runs."""
    targets = [pair[1] for pair in _pairs(job.recipe, "test")]
    tested = compare(answers(reference), answers(job.run), targets, job.recipe.tokenizer.lowercase)
    return {
        each.name: {"difference": round(each.other - each.value, 2), "p": round(each.p_value, 4)}
        for each in tested
        if each.name != "exact"
    }


def _pairs(recipe: Recipe, split: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in samples(recipe, split)]


def _training(run: Path) -> dict[str, Any]:
    """Steps, epochs and speed of the run, from its journal."""
    lines = journal(run)
    steps = [line for line in lines if "tokens_per_second" in line]
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    return {
        "steps": steps[-1]["step"],
        "epochs": round(steps[-1]["epoch"], 1),
        "best_step": json.loads((best(run)[0] / "manifest.json").read_text(encoding="utf-8"))["step"],
        "minutes": round(max(line.get("seconds", 0.0) for line in lines) / 60, 1),
        "threads": environment["threads"],
        "tokens_per_second": round(statistics.median(line["tokens_per_second"] for line in steps)),
    }


def _machine(run: Path) -> dict[str, Any]:
    """The machine of the run."""
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    packages = {name: environment["packages"][name] for name in ("torch", "sacrebleu")}
    return {name: environment[name] for name in ("cpu", "cores", "cuda", "python")} | packages


def _lengths(model: Any, sources: list[str]) -> dict[str, float]:
    """Mean length of the test sources, in words and in the model's tokens."""
    tokens = model.processor.source.encode_many(sources)
    return {
        "words": round(statistics.mean(len(source.split()) for source in sources), 2),
        "tokens": round(statistics.mean(map(len, tokens)), 2),
    }


def _sentence(model: Any, sentence: Sentence) -> dict[str, Any]:
    """The sentence that every model shows: its translation and attention weights."""
    trace = model.trace(sentence.source, num_beams=1)
    results = {**asdict(sentence), "answer": trace.answer, "attention": None}
    site = alignment_site(trace)
    if site is None:
        return results
    rows, columns = trace.labels(site)
    weights = [[round(weight, 3) for weight in row] for row in trace.weights(site).mean(0).tolist()]
    return results | {"attention": {"site": site, "rows": list(rows), "columns": list(columns), "weights": weights}}


def _by_length(sources: list[str], references: list[str], texts: list[str], lowercase: bool) -> list[dict[str, Any]]:
    rows = scores_by_length(sources, references, [texts], lowercase)
    return [row | {"bleu": round(row["bleu"], 2)} for row in rows]


def _rounded(score: Score) -> dict[str, Any]:
    value, interval = (round(float(each), 2) for each in (score.value, score.interval))
    return {"value": value, "interval": interval, "signature": score.signature}


def _write(folder: Path, experiment: Experiment, results: dict[str, Any]) -> None:
    """As JSON, with a list of plain values on one line."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n[^\[\]{}]*\]", lambda each: re.sub(r"\n *", "", re.sub(r",\n *", ", ", each[0])), text)
    write_atomically(folder / f"{experiment.name}.json", text + "\n")
