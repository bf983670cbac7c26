"""`regard evaluate`: which samples a model is scored on, and its scores, alone or beside another's."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from regard.cli.options import Machine, Prompting, Scoring, Search
from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.explorer.charts import Line, line_chart
from regard.metrics import bleu as scores
from regard.progress import counted
from regard.tasks import scoring as predictions
from regard.tasks.answer import evaluate as questioning
from regard.tasks.classify import evaluate as labelling
from regard.tasks.embed import evaluate as similarity
from regard.tasks.fill import evaluate as filling
from regard.tasks.generate import evaluate as perplexity
from regard.tasks.generate import few_shot as shots
from regard.tasks.scoring import chosen as part_of
from regard.tasks.scoring import columns
from regard.tasks.tag import evaluate as naming
from regard.tasks.translate.dataset import Sample, samples

LENGTH_GROUPS = 6

COLUMN_OPTIONS = {  # the options of `regard evaluate` for the columns of its FILE
    **dict.fromkeys(("data.text", "data.question", "data.source", "--source"), "--source"),
    **dict.fromkeys(("data.text_pair", "data.context", "--other"), "--other"),
    **dict.fromkeys(("data.label", "data.answer", "data.target", "--target"), "--target"),
}


@dataclass(frozen=True)
class Exam:
    """What `regard evaluate` was asked for."""

    file: str | None
    scoring: Scoring
    search: Search
    prompting: Prompting
    machine: Machine
    quiet: bool
    names: list[str]  # of the models, as they were given

    @property
    def columns(self) -> tuple[str, str]:
        return self.scoring.source, self.scoring.target

    @property
    def named(self) -> tuple[str, ...]:
        """The columns of a file without header."""
        return tuple(name.strip() for name in self.scoring.columns.split(",")) if self.scoring.columns else ()

    def only(self, what: str, *allowed: str) -> None:
        """Options that would change nothing are an error, not a silence."""
        given = self.scoring.given() | self.search.given() | self.prompting.given()
        for name in [*given, *(["compare"] if len(self.names) > 1 else [])]:
            if name not in allowed:
                raise UserError(f"--{name.replace('_', '-')} has no meaning for {what}")


def judge(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Figures of a model, or of two, by what it was made for."""
    if models[0].task not in JUDGES:
        able = ", ".join(JUDGES)
        raise UserError(f"{exam.names[0]} was made to '{models[0].task}': there is no score for it; possible: {able}")
    for name in ("source", "target", "other", "columns"):
        if exam.file is None and getattr(exam.scoring, name):
            raise UserError(f"--{name} is of a FILE, and none is given: a part of the recipe is read as it says")
    written = [path for path in (exam.scoring.plot, exam.scoring.predictions) if path]
    if exam.scoring.plot and exam.scoring.plot.suffix != ".svg":
        raise UserError(f"--plot {exam.scoring.plot}: pictures are written as SVG: name it .svg")
    for path in written:
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
    found = JUDGES[models[0].task](models, exam)
    lines = found.pop(predictions.KEY, None)
    if exam.scoring.predictions:
        predictions.write(exam.scoring.predictions, lines)
    return found | ({"written": written} if written else {})


def _answers(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of models that answer questions from texts."""
    exam.only("a model that answers questions", "source", "other", "target", "columns", "compare", "predictions")
    if any(model.task != "answer" for model in models):
        raise UserError("--compare: a model that answers questions is compared with another that does")
    columns = (exam.scoring.source, exam.scoring.other, exam.scoring.target)
    chosen = questioning.select(models[0].recipe, exam.file, columns, exam.named)
    return questioning.evaluate(models, chosen, exam.machine.batch_size, exam.quiet)


def _labels(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of models that tell labels."""
    exam.only("a model of labels", "source", "other", "target", "columns", "truncate", "compare", "plot", "predictions")
    if not all(model.is_classifier for model in models):
        raise UserError("--compare: a model that tells labels is compared with another that does")
    options = {"batch_size": exam.machine.batch_size, "truncate": exam.scoring.truncate, "quiet": exam.quiet}
    chosen = labelling.select(models[0], exam.file, *exam.columns, exam.scoring.other, exam.named)
    found = labelling.evaluate(models, chosen, **options)
    if exam.scoring.plot:
        labelling.draw_confusions(exam.scoring.plot, Path(exam.names[0]).name, found)
    return found


def _vectors(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of models that make one vector of a text."""
    exam.only("a model that embeds", "source", "other", "target", "columns", "truncate")
    scoring = exam.scoring
    chosen = similarity.select(exam.file, exam.named, (scoring.source, scoring.other, scoring.target))
    return similarity.evaluate(models[0], chosen, exam.machine.batch_size, scoring.truncate, exam.quiet)


def _hidden(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of a model that finds hidden words."""
    exam.only("a model that fills in words", "source")
    return filling.evaluate(models[0], filling.select(models[0], exam.file, exam.scoring.source), exam.quiet)


def _tags(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of models that tag words."""
    exam.only("a model that tags words", "source", "target", "compare", "predictions")
    if len({model.task for model in models}) > 1:
        raise UserError("--compare: a model that tags words is compared with another that does")
    chosen = naming.select(models[0], exam.file, *exam.columns)
    return naming.evaluate(models, chosen, exam.machine.batch_size, exam.quiet)


def _texts(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of a language model: of running text, or with `--shots` of questions with examples before them."""
    (model, *_), prompting = models, exam.prompting
    options = {"batch_size": exam.machine.batch_size, "quiet": exam.quiet}
    if not prompting.shots:
        exam.only("running text, unless it is asked with --shots", "source", "target", "stride")
        chosen = perplexity.select(model.recipe, exam.file, exam.scoring.source, model.vocabulary.target)
        return perplexity.evaluate(model, chosen, prompting.stride, **options)
    exam.only("questions with --shots", "source", "target", "plot", *(set(prompting.given()) - {"stride"}))
    questions = shots.exam_of(model.recipe, exam.file, prompting, *exam.columns)
    found = shots.evaluate(model, questions, shots.numbers_of(prompting.shots), **options)
    if exam.scoring.plot:
        shots.draw_curve(exam.scoring.plot, model.folder.parent.name if model.recipe else model.folder.name, found)
    return found


def _translations(models: list[Any], exam: Exam) -> dict[str, Any]:
    """Of models that turn one text into another."""
    exam.only(
        "a model that translates", *(set(exam.scoring.given()) - {"other", "columns"}), *exam.search.given(), "compare"
    )
    recipe, scoring = models[0].recipe, exam.scoring
    folded = recipe is not None and recipe.tokenizer.lowercase if scoring.lowercase is None else scoring.lowercase
    options = exam.search.given() | {"batch_size": exam.machine.batch_size, "truncate": scoring.truncate}
    options |= {"by_length": scoring.by_length or scoring.plot is not None, "quiet": exam.quiet}
    found = evaluate(models, select(recipe, exam.file, *exam.columns), folded, **options)
    if scoring.plot:
        draw_lengths(scoring.plot, [Path(name).name for name in exam.names], found["by_length"])
    return found


JUDGES: dict[str, Callable[[list[Any], Exam], dict[str, Any]]] = {
    "answer": _answers,
    "classify": _labels,
    "embed": _vectors,
    "fill": _hidden,
    "generate": _texts,
    "tag": _tags,
    "translate": _translations,
}


@dataclass(frozen=True)
class Selection:
    """Pairs of texts, and where they come from."""

    name: str
    pairs: list[Sample]


def select(recipe: Recipe | None, file: str | None, source: str, target: str) -> Selection:
    """The file's samples; without one the test part of the model's recipe, else its validation part."""
    sides = columns(recipe, source=source, target=target)
    asked, part = part_of(recipe, "translate", file, ", such as test.{de,en}", **sides)
    return Selection(file or part, _read(asked, part))


def _read(recipe: Recipe, part: str) -> list[Sample]:
    pairs = list(samples(recipe, part))
    if not pairs:
        raise UserError(f"{getattr(recipe.data, part)}: no samples to score")
    return pairs


def evaluate(
    models: list[Any], chosen: Selection, lowercase: bool, by_length: bool = False, quiet: bool = True, **options: Any
) -> dict[str, Any]:
    """Scores of one model, or of two with the paired test of their difference."""
    sources, references = [pair.source for pair in chosen.pairs], [pair.target for pair in chosen.pairs]
    with counted("answering", len(sources) * len(models), quiet) as progress:
        answers = [[answer.text for answer in model.run(sources, **options, progress=progress)] for model in models]
    found = [scores.score(each, references, lowercase) for each in answers]
    result: dict[str, Any] = {"samples": len(references), "part": chosen.name}
    result |= predictions.lines_of(range(1, len(sources) + 1), sources, references, answers)
    if by_length:
        result["by_length"] = lengths(sources, references, answers, lowercase)
    if len(models) == 1:
        return result | {"scores": found[0]}
    named = [
        {"model": name, **asdict(each)}
        for name, scored in zip(("first", "second"), found, strict=True)
        for each in scored
    ]
    result["scores"] = named
    differences = scores.compare(answers[0], answers[1], references, lowercase)
    return result | {"comparison": [each.to_dict() for each in differences]}


def lengths(
    sources: list[str], references: list[str], answers: list[list[str]], lowercase: bool
) -> list[dict[str, Any]]:
    """BLEU over groups of like source length, in words, about equally many samples each: Bahdanau's figure 2."""
    words = np.array([len(source.split()) for source in sources])
    edges = np.unique(np.quantile(words, np.linspace(0, 1, LENGTH_GROUPS + 1), method="nearest"))
    edges = edges if len(edges) > 1 else np.append(edges, edges[-1])
    rows = []
    for low, high in pairwise(edges):
        inside = np.flatnonzero((words >= low + (low != edges[0])) & (words <= high))
        if not len(inside):
            continue
        row: dict[str, Any] = {
            "words": f"{low + (low != edges[0])}–{high}",
            "mean": round(float(words[inside].mean()), 1),
        }
        row["samples"] = len(inside)
        for name, each in zip(("bleu", "second"), answers, strict=False):
            picked = [each[i] for i in inside], [references[i] for i in inside]
            row[name] = scores.quick(*picked, lowercase)["bleu"]
        rows.append(row)
    return rows


def draw_lengths(path: Path, names: list[str], rows: list[dict[str, Any]]) -> None:
    """BLEU by source length as a picture, a line a model."""
    lines = [
        Line(name, [(row["mean"], row[key]) for row in rows])
        for name, key in zip(names, ("bleu", "second"), strict=False)
    ]
    line_chart(path, "BLEU by length of the source", "words in the source (mean of each group)", "BLEU", lines)
