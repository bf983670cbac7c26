"""`regard evaluate --shots`: few-shot accuracy of a language model, and its curve over the number of examples."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import eq
from string import Formatter
from typing import Any

from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe
from regard.data.synthetic.in_context import TEMPLATE, FewShotItem, Question, dataset_names, in_context_dataset
from regard.errors import UserError, nearest
from regard.metrics.bootstrap import SIGNATURE
from regard.progress import counted
from regard.tasks.generate.prompting import (
    accuracy,
    by_generation,
    by_likelihood,
    draw_questions,
    max_tokens,
    read_pairs,
    reject_long,
)
from regard.tasks.predictor import LoadedModel
from regard.tasks.scoring import LineChart

WAYS = ("likelihood", "generation")

QUESTIONS = 500  # default number of questions of a synthetic dataset


@dataclass(frozen=True)
class FewShotOptions:
    """Options of a few-shot evaluation."""

    shots: str = ""  # numbers of examples in the prompt, separated by commas
    by: str = ""  # one of WAYS
    template: str = ""
    seeds: int = 3  # repetitions of each question with other examples
    limit: int = 0  # questions; 0 = all


OPTIONS = tuple(option.name for option in fields(FewShotOptions))


@dataclass(frozen=True)
class Benchmark:
    """Questions for any number of shots, and baselines to compare the accuracy with."""

    name: str
    items: Callable[[int], list[FewShotItem]]  # by number of shots
    by: str = "likelihood"
    seeds: int = 1  # consecutive items that are one row with other shots
    template: str = TEMPLATE
    facts: dict[str, Any] = field(default_factory=dict)
    ideal: Callable[[int], dict[str, float]] = lambda shots: {}  # accuracy by category; "" for all questions
    categories: tuple[str, ...] = ()

    def questions(self, shots: int) -> list[Question]:
        return [item.question for item in self.items(shots)]


def evaluate(
    model: LoadedModel, benchmark: Benchmark, shots: Sequence[int], batch_size: int = 32, quiet: bool = True
) -> dict[str, Any]:
    """Accuracy for each number of shots: over all questions, and over each category where there are several."""
    tokenizer = model.processor.target
    template = benchmark.template
    limit = model.network.max_positions
    reject_long(limit, max(shots), lambda k: max_tokens(tokenizer, benchmark.questions(k), template))
    items_by_shots = {k: benchmark.items(k) for k in shots}
    rows = []
    categories = []
    with counted("answering", sum(map(len, items_by_shots.values())), quiet) as progress:
        for k, items in items_by_shots.items():
            questions = [item.question for item in items]
            if benchmark.by == "generation":
                generator = model.predictor("generate").text_generator()
                answers = by_generation(generator, questions, template, batch_size, progress)
            else:
                answers = by_likelihood(model.network, tokenizer, questions, template, batch_size, progress)
            hits = [item.is_correct(answer) for item, answer in zip(items, answers, strict=True)]
            ideal = benchmark.ideal(k)
            rows.append({"shots": k, **_metrics(hits, ideal, "", benchmark.seeds)})
            for category in benchmark.categories:
                subset = [hit for hit, item in zip(hits, items, strict=True) if item.category == category]
                if subset:
                    categories.append({"shots": k, "category": category, **_metrics(subset, ideal, category)})
    signature = f"by:{benchmark.by}|template:{template!r}|{SIGNATURE}"
    results = {"split": benchmark.name, **benchmark.facts, "signature": signature, "shots": rows}
    return results | ({"categories": categories} if categories else {})


def _metrics(hits: Sequence[bool], ideal: dict[str, float], category: str, seeds: int = 1) -> dict[str, float]:
    percent, interval = accuracy(hits, seeds)
    metrics = {"answers": len(hits), "accuracy": round(percent, 2), "interval": round(interval, 2)}
    return metrics | ({"ideal": round(100 * ideal[category], 2)} if ideal else {})


# ── sources of questions ─────────────────────────────────────────────────────────────────────────────────────────────


def benchmark_of(
    recipe: Recipe | None, file: str | None, options: FewShotOptions, text: str = "", label: str = ""
) -> Benchmark:
    """The rows of the file; without one, the test split of the recipe's synthetic dataset."""
    by = options.by
    if by and by not in WAYS:
        raise UserError(f"--by {by} is unknown{nearest(by, WAYS)}")
    if file:
        return _of_file(file, options, text, label)
    name = DocumentOptions.of(recipe).synthetic if recipe else ""
    if recipe is None or name not in dataset_names():
        possible = ", ".join(f"data.synthetic = '{known}'" for known in dataset_names())
        raise UserError(f"--shots needs a FILE with the columns text and label, or a model trained on {possible}")
    if options.template:
        raise UserError(f"--template is for a FILE: questions of '{name}' are written as in training")
    count = options.limit or int(DocumentOptions.of(recipe).test or QUESTIONS)
    return _of_dataset(name, count, options.seeds, by)


def _of_file(file: str, options: FewShotOptions, text: str, label: str) -> Benchmark:
    template = template_of(options.template)
    pairs = read_pairs(file, text, label)
    counts = Counter(pair.label for pair in pairs)
    facts = {"rows": len(pairs), "labels": len(counts), "seeds": options.seeds, "chance": 100 / len(counts)}
    facts["majority_baseline"] = 100 * max(counts.values()) / len(pairs)

    def items(shots: int) -> list[FewShotItem]:
        questions = draw_questions(pairs, shots, options.limit, options.seeds, template)
        return [FewShotItem(question, partial(eq, question.label)) for question in questions]

    return Benchmark(file, items, options.by or "likelihood", options.seeds, template, facts)


def _of_dataset(name: str, count: int, seeds: int, by: str) -> Benchmark:
    dataset = in_context_dataset(name)
    if by == "likelihood" and not dataset.has_labels:
        raise UserError(f"--by likelihood needs labels to choose from: answers of '{name}' are generated")

    def items(shots: int) -> list[FewShotItem]:
        return [item for seed in range(1, seeds + 1) for item in dataset.items(seed, "test", count, shots)]

    facts: dict[str, Any] = {"dataset": name, "seeds": seeds}
    if dataset.has_labels:
        labels = len(items(0)[0].question.labels)
        facts = {"dataset": name, "labels": labels, "seeds": seeds, "chance": 100 / labels}
    by = by or ("likelihood" if dataset.has_labels else "generation")
    return Benchmark("test", items, by, 1, dataset.template, facts, dataset.ideal, dataset.categories)


def template_of(text: str) -> str:
    """A template of the command line, where \\n is a line break and \\t a tab; TEMPLATE where it is empty."""
    template = text.replace("\\n", "\n").replace("\\t", "\t") or TEMPLATE
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:  # unbalanced braces
        names = []
    if names != ["text", "label"]:
        raise UserError(f"--template {text!r}: expected {{text}} and then {{label}}, each once, as in {TEMPLATE!r}")
    return template


def parse_shots(shots: str) -> list[int]:
    """Different numbers of shots in ascending order, from a list such as 0,1,2,4,8."""
    try:
        counts = sorted({int(count) for count in shots.split(",")})
    except ValueError:
        counts = [-1]
    if counts[0] < 0:
        raise UserError(f"--shots {shots}: expected numbers with commas between, such as 0,1,2,4,8")
    return counts


def curve(name: str, results: dict[str, Any]) -> LineChart:
    """Accuracy over shots with its interval, that of an oracle, and chance."""
    rows = results["shots"]
    lines = {name: ([(row["shots"], row["accuracy"]) for row in rows], [row["interval"] for row in rows])}
    if "ideal" in rows[0]:
        lines["Bayes-optimal"] = ([(row["shots"], row["ideal"]) for row in rows], [])
    if "chance" in results:
        lines["chance"] = ([(row["shots"], results["chance"]) for row in rows], [])
    return LineChart("Accuracy over examples in the prompt", "shots", "accuracy (%)", lines)
