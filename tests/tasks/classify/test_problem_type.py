"""Labels of every kind from end to end: several a text, or a number; trained, validated, evaluated, read by others."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import regard
from regard.cli.main import main
from regard.errors import UserError
from regard.models import registry as models
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.sequence import Classifier
from regard.tasks.classify.problem_type import MultiLabel, problem_type_of
from regard.tasks.registry import build
from regard.training.build import prepare_network, start
from regard.training.doctor import examine
from tests.tasks.classify.test_task import opened, recipe
from tests.test_model import folder

SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 32\ndropout = 0.0'
OFTEN = (
    "train.eval_steps=100",
    "train.save_steps=100",
    "tokenizer.kind=words",
    "train.learning_rate=5e-3",
    "train.batch_size=30",
)


def told(words: list[str], kind: str) -> str:
    """What a text is called: which of three words it has, or how many of them, far from zero."""
    if kind == "multi_label":
        return "|".join(f"has {word}" for word in ("w0", "w1", "w2") if word in words)
    return str(2000 + 100 * sum(word in ("w0", "w1", "w2") for word in words))


def lay_out(place: Path, kind: str, count: int = 300) -> Path:
    chance = random.Random(3)
    for name, size in (("train", count), ("validation", 40), ("test", 40)):
        texts = [[f"w{chance.randrange(5)}" for _ in range(chance.randint(1, 3))] for _ in range(size)]
        rows = [f"{told(words, kind)}\t{' '.join(words)}" for words in texts]
        (place / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]))
    return place


def made(place: Path, kind: str, steps: int = 100, *more: str, model: str = SCRATCH) -> Any:
    options = [f"data.problem_type={kind}", "data.label_separator=|", "data.test=test.tsv", *OFTEN, *more]
    return recipe(lay_out(place, kind), model, steps, *options)


def evaluated(run: Path, capfd: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(run), "--json", "--threads", "1", *more])
    printed = capfd.readouterr()
    assert left.value.code == 0, printed.err
    return json.loads(printed.out)


def test_multi_label_classification_is_trained_run_and_evaluated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = start(made(tmp_path, "multi_label", 100), quiet=True)
    assert outcome.progress.best_score is not None and outcome.progress.best_score > 80  # micro F1
    model: Any = regard.load(tmp_path / "run")
    rows = [line.split("\t") for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]]
    answers = model.run([text for _, text in rows])
    for answer in answers:
        assert set(answer.labels) == {label for label, chance in answer.scores.items() if chance >= 0.5}
    for answer in model.run([text for _, text in rows[:5]], threshold=0.1):
        assert set(answer.labels) == {label for label, chance in answer.scores.items() if chance >= 0.1}
    with pytest.raises(UserError, match=r"threshold = 2 should be between 0 and 1"):
        model.run(rows[0][1], threshold=2)
    found = evaluated(tmp_path / "run", capfd, "--predictions", str(tmp_path / "told.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == [list(answer.labels) for answer in answers]
    assert lines[0]["scores"] == pytest.approx(answers[0].scores, abs=1e-6)
    assert [line["reference"] for line in lines] == [[label for label in row[0].split("|") if label] for row in rows]
    right = [
        set(answer.labels) == set(filter(None, row[0].split("|"))) for answer, row in zip(answers, rows, strict=True)
    ]
    micro, macro, exact = found["scores"]
    assert [each["name"] for each in (micro, macro, exact)] == ["micro_f1", "macro_f1", "subset_accuracy"]
    assert exact["value"] == pytest.approx(100 * np.mean(right)) and found["threshold"] == 0.5
    assert found["empty_baseline"] == pytest.approx(100 * np.mean([not row[0] for row in rows]))
    assert found["by_label"]["has w1"]["samples"] == sum("has w1" in row[0] for row in rows)
    theirs = opened(model.folder)
    assert theirs.config.problem_type == "multi_label_classification"
    inputs = model.processor.target.inner.encode(rows[0][1])
    chances = theirs(torch.tensor([inputs.ids])).logits.sigmoid()[0].tolist()
    assert chances == pytest.approx(list(answers[0].scores.values()), abs=1e-5)
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "run"), rows[0][1]])
    assert capfd.readouterr().out.strip() == ", ".join(answers[0].labels)


def test_regression_targets_are_standardised_and_predictions_are_in_original_units(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = start(made(tmp_path, "regression", 100), quiet=True)
    assert outcome.progress.best_score is not None and outcome.progress.best_score > 50  # Pearson
    model: Any = regard.load(tmp_path / "run")
    assert model.network.scale == 64.0  # the power of two nearest the deviation
    rows = [line.split("\t") for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]]
    answers = model.run([text for _, text in rows])
    theirs = opened(model.folder)
    assert theirs.config.problem_type == "regression"
    inputs = model.processor.target.inner.encode(rows[0][1])
    assert theirs(torch.tensor([inputs.ids])).logits.item() == pytest.approx(answers[0].value, rel=1e-5)
    model.save(tmp_path / "copy")
    assert regard.load(tmp_path / "copy").run([text for _, text in rows]) == answers
    more = ("--compare", str(tmp_path / "copy"), "--predictions", str(tmp_path / "told.jsonl"))
    found = evaluated(tmp_path / "run", capfd, *more)
    line = json.loads((tmp_path / "told.jsonl").read_text().splitlines()[0])
    assert line["prediction"] == line["second"] == answers[0].value and line["reference"] == float(rows[0][0])
    pearson, spearman, error = found["scores"]
    values, wanted = np.array([answer.value for answer in answers]), np.array([float(row[0]) for row in rows])
    assert pearson["value"] == pytest.approx(100 * np.corrcoef(values, wanted)[0, 1])
    assert error["value"] == pytest.approx(np.mean((values - wanted) ** 2)) and 0 < spearman["value"] <= 100
    assert found["mean_baseline_mse"] == pytest.approx(np.var(wanted))
    assert found["comparison"]["metric"] == "mse" and found["comparison"]["p"] == 1.0


@pytest.mark.parametrize("kind", ["multi_label", "regression"])
def test_a_pre_trained_encoder_is_adapted_to_either(kind: str, tmp_path: Path) -> None:
    place = folder(tmp_path, MaskedLM)
    start(made(tmp_path, kind, 3, model=f'from = "{place}"\nlora_rank = 2'), quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert model.network.problem_type == kind
    model.save(tmp_path / "merged")
    assert regard.load(tmp_path / "merged").run(["w0 w5"]) == model.run(["w0 w5"])


def test_a_language_model_supports_both_problem_types(tmp_path: Path) -> None:
    """Its head has no bias, and others call it `score`."""
    for kind in ("multi_label", "regression"):
        place = tmp_path / kind
        place.mkdir()
        start(made(place, kind, 2, model='family = "gpt"\npreset = "tiny"\nwidth = 24\nlimit = 32'), quiet=True)
        model: Any = regard.load(place / "run")
        answer, row = model.run("w0 w3"), model.predictor().modality.encoder.rows(["w0 w3"])[0]
        logits = opened(model.folder)(torch.tensor([row])).logits[0]
        ours = answer.value if kind == "regression" else list(answer.scores.values())
        assert ours == pytest.approx(logits.item() if kind == "regression" else logits.sigmoid().tolist(), rel=1e-4)


def test_the_losses_are_their_definitions(tmp_path: Path) -> None:
    for kind in ("multi_label", "regression"):
        place = tmp_path / kind
        place.mkdir()
        options = made(place, kind, 1, *(["train.class_weights=balanced"] if kind == "multi_label" else []))
        loaded = prepare_network(options)
        task: Any = build(options, loaded.processor, loaded.network)
        batch = next(task.batches(0, 0, 1))
        with torch.no_grad():
            logits: Any = loaded.network.eval()(batch.inputs)
        if kind == "regression":
            expected = ((logits[:, 0] - batch.labels) / 64).square().sum()
            assert abs(float(logits.mean()) - 2120) < 100  # it begins near the mean
        else:
            lines = (place / "train.tsv").read_text().splitlines()[1:]
            held = np.mean([[f"has {word}" in line for word in ("w0", "w1", "w2")] for line in lines], 0)
            share = torch.tensor((1 - held) / held, dtype=torch.float32)
            expected = F.binary_cross_entropy_with_logits(logits, batch.labels, pos_weight=share, reduction="none")
            expected = expected.mean(1).sum()
            assert isinstance(task.problem_type, MultiLabel)
        torch.testing.assert_close(task.loss(loaded.network, batch).detach(), expected)


def test_options_of_another_problem_type_are_errors(tmp_path: Path) -> None:
    cases = (
        ("regression", "train.class_weights=balanced", "regression has no classes"),
        ("multi_label", "train.label_smoothing=0.1", "is for single-label classification"),
        ("multi_label", "train.score=accuracy", "expected one of: micro_f1, macro_f1, subset_accuracy, loss"),
        ("regression", "train.score=f1", "expected one of: pearsonr, spearmanr, mse, loss"),
        (
            "single_label",
            "train.score=f1",
            "expected one of: accuracy, macro_f1, matthews_correlation, loss",
        ),  # of five labels
    )
    for kind, given, said in cases:
        options = made(
            tmp_path, "regression" if kind == "single_label" else kind, 1, given, f"data.problem_type={kind}"
        )
        with pytest.raises(UserError, match=said):
            start(options, quiet=True)
    start(made(tmp_path, "regression", 1), quiet=True)
    again = made(
        tmp_path, "regression", 1, "data.problem_type=one", f"output={tmp_path}/never", model=f'from = "{tmp_path}/run"'
    )
    with pytest.raises(
        UserError, match=r"data\.problem_type = 'single_label', but the model was trained for 'regression'"
    ):
        start(again, quiet=True)
    (tmp_path / "train.tsv").write_text("label\ttext\n7\tw1\n7\tw2\n")
    with pytest.raises(UserError, match=r"train\.tsv: has the one value 7 for a label"):
        start(recipe(tmp_path, SCRATCH, 1, "data.problem_type=number", f"output={tmp_path}/never"), quiet=True)


def test_the_doctor_counts_labels_of_every_problem_type(tmp_path: Path) -> None:
    found = examine(made(tmp_path, "multi_label", 9))
    lines = (tmp_path / "train.tsv").read_text().splitlines()
    assert found.facts["labels"]["has w2"]["train"] == sum("has w2" in line for line in lines)
    found = examine(made(tmp_path, "regression", 9))
    values = [float(line.split("\t")[0]) for line in (tmp_path / "train.tsv").read_text().splitlines()[1:]]
    assert found.facts["numbers"]["train"]["mean"] == pytest.approx(np.mean(values), rel=1e-5)


def test_two_labels_have_glues_metrics_and_a_chart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(5)
    for name in ("train", "validation"):
        texts = [[f"w{chance.randrange(5)}" for _ in range(4)] for _ in range(60)]
        rows = [f"{int('w0' in words)}\t{' '.join(words)}" for words in texts]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]))
    outcome = start(recipe(tmp_path, SCRATCH, 60, *OFTEN, "train.score=matthews_correlation"), quiet=True)
    found = evaluated(tmp_path / "run", capfd, "--plot", str(tmp_path / "mistakes.svg"))
    assert found["written"] == [str(tmp_path / "mistakes.svg")]
    scores = {each["name"]: each for each in found["scores"]}
    assert outcome.progress.best_score == pytest.approx(scores["matthews_correlation"]["value"])
    assert scores["f1"]["value"] == pytest.approx(found["by_label"]["1"]["f1"])
    assert scores["f1"]["signature"].startswith("of '1'") and found["probabilities"] == "uncalibrated"
    picture = (tmp_path / "mistakes.svg").read_text()
    for row in found["confusion_matrix"].values():
        assert all(f">{count}</text>" in picture for count in row.values())


def test_regression_targets_may_have_any_number_format(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start(made(tmp_path, "regression", 1), quiet=True)
    (tmp_path / "own.csv").write_text("text,label\nw1 w2,.5\nw3,+1\nw4 w5,2.\n")
    found = evaluated(tmp_path / "run", capfd, str(tmp_path / "own.csv"))
    assert found["samples"] == 3


def test_a_changed_split_of_a_file_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [f"{'ab'[number % 2]}\tw{number % 7} w{number}" for number in range(80)]
    (tmp_path / "train.tsv").write_text("\n".join(["label\ttext", *rows]))
    start(recipe(tmp_path, SCRATCH, 1, "data.validation=0.2"), quiet=True)
    assert "may have been trained on" not in evaluated(tmp_path / "run", capfd)["note"]
    (tmp_path / "train.tsv").write_text("\n".join(["label\ttext", *rows, "a\tnew"]))
    assert "may have been trained on" in evaluated(tmp_path / "run", capfd)["note"]
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--source", "text"])
    assert "--source is for a FILE, and none is given" in capfd.readouterr().err


def test_a_baseline_is_the_metrics_of_a_constant_prediction() -> None:
    body: Any = models.build({"family": "gpt", "width": 8, "heads": 2, "depth": 1}, vocabulary=9)
    single = problem_type_of(Classifier(body, ["a", "b", "c"])).baseline(torch.tensor([0, 2, 2, 2]))
    assert (single["accuracy"], single["matthews_correlation"]) == (75, 0)
    assert single["loss"] == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75))
    multi = problem_type_of(Classifier(body, ["a", "b"], problem_type="multi_label"))
    assert multi.baseline(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]]))["subset_accuracy"] == pytest.approx(
        200 / 3
    )
    values = torch.tensor([1.0, 2.0, 6.0])
    regression = problem_type_of(Classifier(body, ["v"], problem_type="regression", scale=2.0)).baseline(values)
    assert regression["mse"] == pytest.approx(values.var(correction=0).item()) and regression["pearsonr"] == 0
