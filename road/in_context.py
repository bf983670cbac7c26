"""python -m road.in_context [--runs FOLDER] [--write]: in-context learning, trained and measured.

road/in-context.json               every measurement
docs/in-context.md                 its tables and examples, between <!-- NAME --> and <!-- end -->
docs/figures/in-context/*.svg      its charts
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config.recipe import load_recipe
from regard.data.synthetic.in_context import LESSONS, tasks
from regard.explorer.charts import heatmap, line_chart
from regard.training.checkpoint import write_atomically
from road.runs import is_finished, journal, say

HOME = Path(__file__).resolve().parents[1]
MEASURED, PAGE, FIGURES = Path("road/in-context.json"), Path("docs/in-context.md"), Path("docs/figures/in-context")
LESSON, SQL = "in-context", "text-to-sql"
SHOTS = {LESSON: (0, 1, 2, 4, 8), SQL: (0, 1, 2, 4)}
MOST = 8  # shots, where accuracy is followed through training
ORDER = (0, 2, 1, 2, 3, 0, 1)  # of the pairs in the prompt of the picture, the question last
EXAMPLES = 60  # questions among which those on the page are the first


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m road.in_context", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where the runs are kept")
    parser.add_argument("--write", action="store_true", help="only write the page from what is measured")
    options = parser.parse_args(arguments)
    path = HOME / MEASURED
    if not options.write:
        runs = {name: train(name, options.runs / name) for name in (LESSON, SQL)}
        results = {LESSON: of_lesson(runs[LESSON]), SQL: of_sql(runs[SQL])}
        write_atomically(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    results = json.loads(path.read_text(encoding="utf-8"))
    draw(results, HOME / FIGURES)
    page = (HOME / PAGE).read_text(encoding="utf-8")
    (HOME / PAGE).write_text(filled(page, results), encoding="utf-8")


def train(name: str, run: Path) -> Path:
    """The finished run of a built-in recipe: started, resumed, or already there."""
    from regard.training.build import resume, start

    if not (run / "recipe.toml").is_file():
        start(load_recipe(name, [f"output={run}"]))
    elif not is_finished(run, 0):
        resume(run)
    return run


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def of_lesson(run: Path) -> dict[str, Any]:
    """Accuracy over shots and over training, scores of the heads, and attention weights of the best one."""
    from regard.explorer.induction import head_scores
    from regard.model import load

    model = load(run)
    results, exam = over_shots(run, model, SHOTS[LESSON])
    results["training"] = list(over_training(run, exam))
    results["heads"] = head_scores(model)
    return results | {"attention": attention_weights(model, max(results["heads"], key=lambda head: head["answers"]))}


def over_shots(run: Path, model: Any, shots: Sequence[int]) -> tuple[dict[str, Any], Any]:
    """Facts of the run, and the accuracy on its test split by number of shots."""
    from regard.tasks.generate.few_shot import FewShotOptions, benchmark_of, evaluate

    exam = benchmark_of(model.recipe, None, FewShotOptions())
    results = facts(run, model) | evaluate(model, exam, shots)
    say(f"{run.name}: {results['shots']}")
    return results, exam


def over_training(run: Path, exam: Any) -> Iterator[dict[str, Any]]:
    """Accuracy with the most shots, and the best scores of heads, at each checkpoint."""
    from regard.explorer.induction import head_scores
    from regard.model import load
    from regard.tasks.generate.few_shot import evaluate

    losses = {line["step"]: line["validation"]["loss"] for line in journal(run) if "validation" in line}
    for folder in sorted(run.glob("checkpoint-*"), key=lambda folder: int(folder.name.partition("-")[2])):
        model, step = load(folder), int(folder.name.partition("-")[2])
        (row,) = evaluate(model, exam, [MOST])["shots"]
        scored = head_scores(model)
        best = {name: max(head[name] for head in scored) for name in ("answers", "prefix_matching")}
        say(f"step {step}: accuracy {row['accuracy']} %, {best}")
        yield {"step": step, "loss": round(losses[step], 4), **row, **best}


def attention_weights(model: Any, head: dict[str, Any]) -> dict[str, Any]:
    """Attention weights of a head at each position before an answer, in a prompt of the validation split."""
    from regard.data.synthetic.in_context import completion, prompt

    lesson = model.recipe.data.synthetic
    template, pairs = LESSONS[lesson].template, next(tasks(lesson, 5, "validation", 1)).pairs
    shown = [pairs[index] for index in ORDER]
    query = shown.pop()
    trace = model.trace(prompt(shown, query.text, template), target=completion(query.label, template))
    columns = trace.labels(head["site"])[1]
    weights = trace.weights(head["site"], head["head"])
    positions = [position for position, token in enumerate(columns) if token.strip() in {pair.text for pair in pairs}]
    return {
        **head,
        "columns": columns,
        "rows": [trace.output[position] for position in positions],
        "weights": [[round(float(weight), 3) for weight in weights[position]] for position in positions],
    }


def of_sql(run: Path) -> dict[str, Any]:
    """Accuracy over shots, by category, and examples of generated queries."""
    from regard.model import load

    model = load(run)
    return over_shots(run, model, SHOTS[SQL])[0] | {"examples": example_queries(model)}


def example_queries(model: Any) -> list[dict[str, Any]]:
    """After two shots that show the made-up word: the first two correct queries, and the first wrong one."""
    from regard.config.recipe import DecodeOptions
    from road.text_to_sql import items as sql

    items = [item for item in sql.items(1, "test", EXAMPLES, 2) if item.own and item.determined]
    answers = (
        model.predictor()
        .text_generator()
        .run([item.prompt for item in items], DecodeOptions(max_new_tokens=64, stop=("\n",)))
    )
    examples = []
    for item, answer in zip(items, answers, strict=True):
        query = sql.statement(answer.text)
        right = sql.is_correct(query, item.gold, item.table)
        examples.append({"prompt": item.prompt, "gold": item.gold, "answer": query, "right": right})
    right, wrong = ([each for each in examples if each["right"] == verdict] for verdict in (True, False))
    return [*right[:2], *wrong[:1]]


def facts(run: Path, model: Any) -> dict[str, Any]:
    """Size and length of the run, and the minutes of its steps at their median speed."""
    lines = [line for line in journal(run) if "tokens_per_second" in line]
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    recipe = model.recipe
    length = recipe.data.max_length or model.network.max_positions
    size = recipe.train.batch_size or recipe.train.batch_tokens // length
    speed = statistics.median(line["tokens_per_second"] for line in lines)
    return {
        "parameters": sum(each.numel() for each in model.network.parameters()),
        "steps": lines[-1]["step"],
        "tokens": lines[-1]["step"] * size * length,
        "tokens_per_second": round(speed),
        "minutes": round(lines[-1]["step"] * size * length / speed / 60, 1),
        "threads": environment["threads"],
    }


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw(results: dict[str, Any], folder: Path) -> None:
    """The charts."""
    from regard.cli.evaluate import draw_chart
    from regard.tasks.generate.few_shot import curve as shots_curve
    from road.text_to_sql.dataset import CATEGORIES

    folder.mkdir(parents=True, exist_ok=True)
    lesson = results[LESSON]
    by_category = results[SQL]["categories"]
    draw_chart(folder / "shots.svg", shots_curve("the model", lesson))
    steps = lesson["training"]
    line_chart(
        folder / "training.svg", f"Accuracy with {MOST} shots, and the best head, over training", "steps", "%",
        {
            "accuracy": curve(steps, "step"),
            "attention on correct answers": ([(row["step"], 100 * row["answers"]) for row in steps], []),
        },
    )  # fmt: skip
    attention = lesson["attention"]
    title = f"{attention['site']}, head {attention['head']}: attention weights before each answer"
    tokens = [f"{token} ←" for token in attention["rows"]]
    heatmap(folder / "head.svg", title, tokens, attention["columns"], attention["weights"])
    kinds = {kind: [row for row in by_category if row["category"] == kind] for kind in CATEGORIES}
    lines = {kind: curve(rows, "shots") for kind, rows in kinds.items()}
    line_chart(folder / "sql.svg", "Execution accuracy of the queries", "shots", "accuracy (%)", lines)


def curve(rows: Sequence[dict[str, Any]], across: str) -> tuple[list[tuple[float, float]], list[float]]:
    """Points of accuracy, and their confidence intervals."""
    return [(row[across], row["accuracy"]) for row in rows], [row["interval"] for row in rows]


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its tables and examples replaced by what was measured."""
    for name, text in sections(results).items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = pattern.sub(lambda match, text=text: f"{match[1]}\n{text}\n{match[2]}", page)
    return page


def sections(results: dict[str, Any]) -> dict[str, str]:
    """The generated sections of the page by name."""
    lesson = results[LESSON]
    sql = results[SQL]
    return {
        "shots": table(lesson["shots"], {"shots": "shots", "accuracy": percent, "Bayes-optimal": "ideal"}),
        "training": table(
            lesson["training"],
            {"step": "step", "loss": "loss", f"accuracy with {MOST} shots": percent}
            | {"best head: answers": "answers", "best head: prefix matching": "prefix_matching"},
        ),
        "heads": table(
            lesson["heads"],
            {"site": "site", "head": "head", "answers": "answers", "prefix matching": "prefix_matching"},
        ),
        "runs": table(
            [{"recipe": name, **run} for name, run in results.items()],
            {"recipe": "recipe", "parameters": "parameters", "steps": "steps", "training tokens": "tokens"}
            | {"tokens per second": "tokens_per_second", "minutes": "minutes"},
        ),
        "queries": table(
            [
                row
                for few in sql["shots"]
                for row in [few, *(each for each in sql["categories"] if each["shots"] == few["shots"])]
            ],
            {"shots": "shots", "questions": lambda row: row.get("category", "all"), "answers": "answers"}
            | {"accuracy": percent, "Bayes-optimal": "ideal"},
        ),
        "examples": "\n\n".join(map(example, sql["examples"])),
    }


def example(row: dict[str, Any]) -> str:
    """A prompt and the generated query."""
    verdict = "" if row["right"] else f"\n\nwhich is wrong: `{row['gold']}`"
    return f"```text\n{row['prompt']} {row['answer']}\n```{verdict}"


def percent(row: dict[str, Any]) -> str:
    return f"{row['accuracy']:.1f} ± {row['interval']:.1f} %"


def table(rows: Sequence[dict[str, Any]], columns: Mapping[str, str | Callable[[dict[str, Any]], str]]) -> str:
    """A table of chosen fields of each row, by the headings of its columns."""
    lines = [list(columns), ["---", *["--:"] * (len(columns) - 1)]]
    lines += [[cell(row[of] if isinstance(of, str) else of(row)) for of in columns.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
