"""`regard evaluate --shots`: where questions come from, how a language model answers them, and the curve over shots."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import eq
from string import Formatter
from typing import Any

from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe
from regard.data.synthetic.in_context import FewShotItem, Question
from regard.data.synthetic.prompts import TEMPLATE
from regard.data.synthetic.registry import dataset_names, in_context_dataset
from regard.errors import UserError, nearest
from regard.metrics.bootstrap import SIGNATURE
from regard.progress import counted
from regard.tasks.generate.prompting import (
    Draw,
    Progress,
    accuracy,
    by_generation,
    by_likelihood,
    draw,
    longest,
    read_pairs,
    refuse_long,
)
from regard.tasks.scoring import LineChart

WAYS = ("likelihood", "generation")

QUESTIONS = 500  # of a synthetic dataset, where neither option nor recipe says how many


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
class Exam:
    """Questions that are the same with any number of shots, and figures to see their marks beside."""

    name: str
    ask: Callable[[int], list[FewShotItem]]
    by: str = "likelihood"
    seeds: int = 1  # neighbours that are one row with other shots
    template: str = TEMPLATE
    facts: dict[str, Any] = field(default_factory=dict)
    ideal: Callable[[int], dict[str, float]] = lambda shots: {}  # of all questions (""), and of each category
    categories: tuple[str, ...] = ()

    def questions(self, shots: int) -> list[Question]:
        return [each.question for each in self.ask(shots)]


def evaluate(model: Any, exam: Exam, shots: Sequence[int], batch_size: int = 32, quiet: bool = True) -> dict[str, Any]:
    """Accuracy for each number of shots: over all questions, and over each kind where there are several."""
    tokenizer, limit = model.vocabulary.target, model.network.max_positions
    refuse_long(limit, max(shots), lambda few: longest(tokenizer, exam.questions(few), exam.template))
    asked = {few: exam.ask(few) for few in shots}
    rows, kinds = [], []
    with counted("answering", sum(map(len, asked.values())), quiet) as progress:
        for few, some in asked.items():
            hits = marks(model, exam, some, batch_size, progress)
            ideal = exam.ideal(few)
            rows.append({"shots": few, **_scored(hits, exam.seeds), **_beside(ideal, "")})
            for kind in exam.categories:
                of_kind = [hit for hit, each in zip(hits, some, strict=True) if each.category == kind]
                if of_kind:
                    kinds.append({"shots": few, "questions": kind, **_scored(of_kind), **_beside(ideal, kind)})
    signature = f"by:{exam.by}|template:{exam.template!r}|{SIGNATURE}"
    result = {"split": exam.name, **exam.facts, "signature": signature, "shots": rows}
    return result | ({"kinds": kinds} if kinds else {})


def marks(
    model: Any, exam: Exam, asked: Sequence[FewShotItem], batch_size: int = 32, progress: Progress = lambda done: None
) -> list[bool]:
    """Which questions the model answers right."""
    asking = [each.question for each in asked]
    if exam.by == "generation":
        answers = by_generation(
            model.predictor("generate").text_generator(), asking, exam.template, batch_size, progress
        )
    else:
        tokenizer = model.vocabulary.target
        answers = by_likelihood(model.network, tokenizer, asking, exam.template, batch_size, progress)
    return [each.is_correct(answer) for each, answer in zip(asked, answers, strict=True)]


def _scored(hits: Sequence[bool], seeds: int = 1) -> dict[str, float]:
    percent, interval = accuracy(hits, seeds)
    return {"answers": len(hits), "accuracy": round(percent, 2), "interval": round(interval, 2)}


def _beside(ideal: dict[str, float], kind: str) -> dict[str, float]:
    return {"ideal": round(100 * ideal[kind], 2)} if ideal else {}


# ── where questions come from ────────────────────────────────────────────────────────────────────────────────────────


def exam_of(
    recipe: Recipe | None, file: str | None, prompting: FewShotOptions, text: str = "", label: str = ""
) -> Exam:
    """The file's rows; without one, what the model's recipe makes for its test part, a new task for each question."""
    by = prompting.by
    if by and by not in WAYS:
        raise UserError(f"--by {by} is unknown{nearest(by, WAYS)}")
    if file:
        options = Draw(prompting.limit, prompting.seeds, template_of(prompting.template))
        return _of_file(file, options, by or "likelihood", text, label)
    made = DocumentOptions.of(recipe).synthetic if recipe else ""
    if recipe is None or made not in dataset_names():
        possible = ", ".join(f"data.synthetic = '{name}'" for name in dataset_names())
        raise UserError(f"--shots needs a FILE with the columns text and label, or a model trained on {possible}")
    if prompting.template:
        raise UserError(f"--template is for a FILE: questions of '{made}' are written as in training")
    return _of_dataset(made, prompting.limit or int(DocumentOptions.of(recipe).test or QUESTIONS), prompting.seeds, by)


def _of_file(file: str, options: Draw, by: str, text: str, label: str) -> Exam:
    pairs = read_pairs(file, text, label)
    counts = Counter(pair.label for pair in pairs)
    facts = {"rows": len(pairs), "labels": len(counts), "seeds": options.seeds, "chance": 100 / len(counts)}
    facts["most_frequent_label"] = 100 * max(counts.values()) / len(pairs)

    def ask(shots: int) -> list[FewShotItem]:
        return [FewShotItem(each, partial(eq, each.label)) for each in draw(pairs, shots, options)]

    return Exam(file, ask, by, options.seeds, options.template, facts)


def _of_dataset(name: str, count: int, seeds: int, by: str) -> Exam:
    dataset = in_context_dataset(name)
    if by == "likelihood" and not dataset.has_labels:
        raise UserError(f"--by likelihood needs labels to choose from: answers of '{name}' are generated")

    def ask(shots: int) -> list[FewShotItem]:
        return [item for seed in range(1, seeds + 1) for item in dataset.items(seed, "test", count, shots)]

    facts: dict[str, Any] = {"tasks": name, "seeds": seeds}
    if dataset.has_labels:
        labels = len(ask(0)[0].question.labels)
        facts = {"tasks": name, "labels": labels, "seeds": seeds, "chance": 100 / labels}
    by = by or ("likelihood" if dataset.has_labels else "generation")
    return Exam("test", ask, by, 1, dataset.template, facts, dataset.ideal, dataset.categories)


def template_of(given: str) -> str:
    """A template as typed, where \\n is a line break and \\t a tab; the usual one where none is given."""
    template = given.replace("\\n", "\n").replace("\\t", "\t") or TEMPLATE
    try:
        places = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:  # a brace that nothing closes
        places = []
    if places != ["text", "label"]:
        raise UserError(f"--template {given!r}: expected {{text}} and then {{label}}, each once, as in {TEMPLATE!r}")
    return template


def numbers_of(shots: str) -> list[int]:
    """0,1,2,4,8 as numbers, each once, in order."""
    try:
        found = sorted({int(each) for each in shots.split(",")})
    except ValueError:
        found = [-1]
    if found[0] < 0:
        raise UserError(f"--shots {shots}: expected numbers with commas between, such as 0,1,2,4,8")
    return found


def curve(name: str, results: dict[str, Any]) -> LineChart:
    """Accuracy over shots with its interval, that of an oracle, and chance."""
    rows = results["shots"]
    lines = {name: ([(row["shots"], row["accuracy"]) for row in rows], [row["interval"] for row in rows])}
    if "ideal" in rows[0]:
        lines["ideal learner"] = ([(row["shots"], row["ideal"]) for row in rows], [])
    if "chance" in results:
        lines["chance"] = ([(row["shots"], results["chance"]) for row in rows], [])
    return LineChart("Accuracy over examples in the prompt", "shots", "accuracy (%)", lines)
