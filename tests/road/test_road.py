"""The ablation study: its page has the measured values and matches the code, and it resumes after any interruption."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from regard.config.recipe import load_recipe
from regard.config.recipe_files import shipped_recipes
from regard.errors import UserError
from regard.explorer.charts import COLOURS, Bar, bar_chart, heatmap, line_chart
from regard.training.build import start
from road import code, measure, page, runs
from road.__main__ import MEASURED, go, parse
from road.experiments import PLAN
from road.plan import Experiment, Plan, Sentence
from road.settings import FREE
from road.sheet import Sheet
from road.theory import LAYERS

ROOT = Path(__file__).resolve().parents[2]
every_experiment = pytest.mark.parametrize("experiment", PLAN.experiments, ids=lambda experiment: experiment.name)

RECIPE = """
task = "translate"
[data]
generate = "reverse"
train = 211
validation = 13
test = 19
[tokenizer]
kind = "words"
vocab_size = 60
[model]
{model}
[train]
batch_size = 13
max_steps = {steps}
eval_steps = 100
save_steps = 5
log_steps = 1
keep = 2
warmup_steps = 2
learning_rate = 3e-3
"""
MODELS = {
    "looking": 'family = "transformer"\nwidth = 12\nheads = 3\ndepth = 2\nfeedforward = 17',
    "deaf": 'family = "seq2seq"\nembedding = 11\nwidth = 14\ninform = "first"',
}
STEPS = 101


def tiny(folder: Path, steps: int) -> Plan:
    """A road of two models, one that attends and one that does not, each of a few seconds."""
    experiments = []
    for name, model in MODELS.items():
        recipe = folder / f"{name}.toml"
        recipe.write_text(RECIPE.format(model=model, steps=steps), encoding="utf-8")
        idea = ("One.", "Two.", "Three.")
        experiments.append(
            Experiment(str(recipe), name.title(), "Nobody", idea, "x = x", ("road.plan:Plan.reference",), line=name)
        )
    return Plan(tuple(experiments), (), (), Sentence("3 1 2", "2 1 3"))


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_and_its_charts_are_what_was_measured() -> None:
    files = page.render(PLAN, ROOT / MEASURED)
    drawn = {path.relative_to(ROOT) for path in (ROOT / page.FIGURES).glob("*")}
    stale = [str(path) for path, text in files.items() if not _is_text(ROOT / path, text)]
    stale += sorted(str(path) for path in drawn - files.keys())
    assert not stale, f"run `python -m road --write`: {', '.join(stale)}"


def _is_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


@every_experiment
def test_a_model_has_a_recipe_and_a_description_of_three_sentences(experiment: Experiment) -> None:
    assert experiment.recipe in shipped_recipes()
    for sentence in experiment.idea:
        assert re.fullmatch(r"[^.!?]+[.!?]", sentence), sentence
    assert experiment.code
    for symbol in experiment.code:
        first, last = code.lines(symbol)
        shown = (ROOT / code.path_of(symbol)).read_text(encoding="utf-8").splitlines()[first - 1 : last]
        assert symbol.rpartition(":")[2].rpartition(".")[2] in "\n".join(shown)


def test_every_model_is_in_the_table_of_paths_and_each_line_has_a_colour() -> None:
    assert 0 < sum(bool(experiment.line) for experiment in PLAN.comparison) <= len(COLOURS)
    assert sorted(name for layer in LAYERS for name in layer.experiments) == sorted(
        experiment.name for experiment in PLAN.comparison
    )


@every_experiment
def test_measurements_are_consistent(experiment: Experiment) -> None:
    results = measure.read(ROOT / MEASURED, experiment)
    if results is None:
        return  # the page states it
    assert sum(row["samples"] for row in results["by_length"]) == results["pairs"]["test"]
    attention = results["sentence"]["attention"]
    for row in attention["weights"] if attention else []:
        assert len(row) == len(attention["columns"])
        assert sum(row) == pytest.approx(1, abs=0.02)  # rounded


def test_a_missing_symbol_is_an_error_that_names_it() -> None:
    with pytest.raises(UserError, match="has no 'nothing'"):
        code.link("road.plan:Plan.nothing")


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_charts_are_xml_with_a_description(tmp_path: Path) -> None:
    names = ["<s>", "&", 'a "b"']
    weights = [[0.25, 0.5, 0.25], [0.0, 0.125, 0.875]]
    drawn = {
        heatmap(tmp_path / "heat.svg", "seen <most>", ["x", "</s>"], names, weights): 'x → & 0.50; </s> → a "b" 0.88',
        bar_chart(tmp_path / "bars.svg", "bars", "BLEU", [Bar("a & b", 23.4, 1.2), Bar("c", 7)]): "a & b: 23.4 ± 1.2",
        line_chart(tmp_path / "lines.svg", "lines", "x", "y", {"a < b": ([(1, 2.0), (3, 4.0)], [])}): "a < b: 1 → 2.0",
    }
    for path, words in drawn.items():
        tree = ElementTree.parse(path).getroot()
        described = tree.find("{http://www.w3.org/2000/svg}desc")
        assert tree.get("role") == "img"
        assert described is not None and words in (described.text or "")
        assert tree.find("{http://www.w3.org/2000/svg}title") is not None
    assert len(ElementTree.parse(tmp_path / "heat.svg").findall("{*}rect")) == 5  # none for nothing


# ── runs and measurements ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Plan, Path]:
    """A tiny road whose first model alone is trained and measured."""
    plan = tiny(tmp_path, 5)
    first = plan.comparison[0]
    start(load_recipe(first.recipe, [f"output={tmp_path / 'runs' / first.name}"]), quiet=True)
    measure.measure(tmp_path / MEASURED, runs.job(first, tmp_path / "runs"), plan.shown(first))
    return plan, tmp_path


def test_a_model_is_measured_once_and_shown_as_measured(trained: tuple[Plan, Path]) -> None:
    plan, home = trained
    first, second = plan.comparison
    job = runs.job(first, home / "runs")
    assert job.state == "finished"
    results = measure.read(home / MEASURED, first)
    assert results is not None
    assert len(measure.answers(job.run)) == results["pairs"]["test"]
    assert measure.is_fresh(home / MEASURED, job, plan.sentence)
    another = Sentence("1 2 3", "3 2 1")
    assert not measure.is_fresh(home / MEASURED, job, another)
    measure.measure(home / MEASURED, job, another)  # only what the sentence changes
    again = measure.read(home / MEASURED, first)
    assert again is not None and again["sentence"]["source"] == "1 2 3"
    assert {key: again[key] for key in again if key != "sentence"} == {
        key: results[key] for key in results if key != "sentence"
    }
    results = again
    assert results["training"]["steps"] == 5
    assert results["weights"] == measure.weights_of(job.run)
    text = page.render(plan, home / MEASURED)[page.PAGE]
    assert f"**Not measured yet:** `{second.name}`." in text
    assert f"{results['greedy']['bleu']['value']:.1f} ± " in text
    assert results["sentence"]["source"] in text
    assert {path.name for path in page.render(plan, home / MEASURED)} >= {"looking.svg", "comparison.svg"}


def test_a_changed_recipe_is_noticed(trained: tuple[Plan, Path]) -> None:
    plan, home = trained
    recipe = Path(plan.comparison[0].recipe)
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("keep = 2", "keep = 3\nthreads = 1"), encoding="utf-8")
    assert {"train.keep", "train.threads"} <= set(FREE)
    runs.refuse_another(runs.job(plan.comparison[0], home / "runs"))  # where it ran is of no matter
    recipe.write_text(text.replace("learning_rate = 3e-3", "learning_rate = 2e-3"), encoding="utf-8")
    with pytest.raises(UserError, match=r"another recipe .* train\.learning_rate was 0\.003 and is 0\.002"):
        go(parse(["--runs", str(home / "runs")]), plan, home)
    assert not (home / "runs" / plan.comparison[1].name).exists()
    assert Sheet(plan, home / MEASURED).outdated() == {"Looking": ["train.learning_rate"]}
    text = page.render(plan, home / MEASURED)[page.PAGE]
    assert text.count("**Note:**") == 1
    assert "**Note:** measured before a change of the recipe (`train.learning_rate`): Looking." in text


def test_without_data_no_run_starts(tmp_path: Path) -> None:
    plan = tiny(tmp_path, 5)
    second = Path(plan.comparison[1].recipe)
    named = 'generate = "reverse"\ntrain = 211\nvalidation = 13\ntest = 19'
    second.write_text(second.read_text(encoding="utf-8").replace(named, 'train = "nowhere.{de,en}"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"nowhere\.\{de,en\}' not found.*REGARD_DATA"):
        go(parse(["--runs", str(tmp_path / "runs")]), plan, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_model_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model 'lookin'; did you mean 'looking'\?"):
        go(parse(["--only", "lookin"]), tiny(tmp_path, 5), tmp_path)


def test_several_at_once_have_a_thread_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[list[str]]()
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: begun.append(command[3:]))
    job = runs.job(tiny(tmp_path, 5).comparison[0], tmp_path / "runs")
    runs._start(job, True, 0)
    job.run.mkdir(parents=True)
    (job.run / "recipe.toml").touch()
    runs._start(job, True, 0)
    runs._start(job, False, 0)
    train = ["train", job.experiment.recipe, f"output={job.run}", "--quiet", "train.threads=1"]
    assert begun == [train, ["resume", str(job.run), "--quiet"], ["resume", str(job.run)]]


# ── stopped and killed ───────────────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from road.__main__ import main
from tests.road.test_road import STEPS, tiny
home = Path({home!r})
main(["--runs", str(home / "runs")], tiny(home, STEPS), home)
"""


def begin(home: Path) -> subprocess.Popen[bytes]:
    """A separate study, whose output goes to a file."""
    script = SCRIPT.format(paths=[str(ROOT), str(ROOT / "tests")], home=str(home))
    with (home / "said.txt").open("a") as said:
        return subprocess.Popen([sys.executable, "-c", script], stderr=said, stdout=subprocess.DEVNULL)


def wait_for(process: subprocess.Popen[bytes], moment: Callable[[], bool]) -> None:
    """Until the moment; a process that ends before it has failed."""
    until = time.monotonic() + 300
    while not moment():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)


def past(run: Path, step: int) -> Callable[[], bool]:
    return lambda: any(line["step"] >= step for line in runs.journal(run))


def kept(folder: Path) -> dict[str, int]:
    """When each file was written last."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_road_waits_for_what_another_left_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with runs.alone(tmp_path) as lock:
        left = subprocess.Popen(["sleep", "0.5"], pass_fds=[lock])
    with runs.alone(tmp_path):
        assert left.wait(0.2) == 0
    assert "waiting: " in capfd.readouterr().err


def test_stopped_and_killed_runs_end_like_an_uninterrupted_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the first model; SIGKILL while its run continues alone; SIGKILL of road and run in the second model."""
    home = tmp_path / "home"
    home.mkdir()
    first, second = home / "runs" / "looking", home / "runs" / "deaf"
    road = begin(home)
    wait_for(road, past(first, 11))
    road.send_signal(signal.SIGINT)
    assert road.wait(300) == 130
    assert f"stopped; resume with: python -m road --runs {home / 'runs'}" in (home / "said.txt").read_text()
    assert not (first / ".lock").exists()

    road = begin(home)
    wait_for(road, past(first, runs.journal(first)[-1]["step"] + 11))
    road.kill()
    road.wait()

    road = begin(home)
    wait_for(road, past(second, 31))
    road.kill()
    road.wait()
    os.kill(int((second / ".lock").read_text()), signal.SIGKILL)
    assert "models: 1 trained, 1 to train" in (home / "said.txt").read_text()
    before = kept(first)

    plan = tiny(home, STEPS)
    assert go(parse(["--runs", str(home / "runs"), "--jobs", "2"]), plan, home) == 0
    assert "training 1 of 1: deaf" in capfd.readouterr().err
    after = {path: time for path, time in kept(first).items() if path != measure.ANSWERS}
    assert after == before  # nothing that was finished is touched
    for experiment in plan.comparison:
        whole = tmp_path / "whole" / experiment.name
        start(load_recipe(experiment.recipe, [f"output={whole}"]), quiet=True)
        results = measure.read(home / MEASURED, experiment)
        assert results is not None
        assert results["weights"] == measure.weights_of(whole)
    results = measure.read(home / MEASURED, plan.comparison[1])
    assert results is not None and results["against"]["name"] == "looking"

    everything = kept(home / "runs"), kept(home / "road")
    assert go(parse(["--runs", str(home / "runs")]), plan, home) == 0
    assert (kept(home / "runs"), kept(home / "road")) == everything
    assert json.loads((home / MEASURED / "deaf.json").read_text())["sentence"]["attention"] is None
