"""A student learns from its teacher: the loss of the paper, the teacher's layers, exact resume, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import regard
from regard.config.recipe import DistilOptions
from regard.errors import UserError
from regard.image.processor import ImageProcessor
from regard.interop import folder as folders
from regard.interop.processors import FeatureProcessor
from regard.layers.encoder import spaced
from regard.models.deit import DistilledClassifier
from regard.models.heads.sequence import Classifier
from regard.models.registry import build, family_of
from regard.tasks.classify.problem_type import Regression
from regard.tasks.distillation import SOFT_LOSSES, Predicted, Teacher, read_teacher
from regard.training.build import prepare_network, prepare_task, resume, start
from tests.tasks.classify.test_encoder_training import SCRATCH
from tests.tasks.classify.test_task import LABELS
from tests.tasks.classify.test_task import lay_out as lay_out_labels
from tests.tasks.classify.test_task import recipe as of_labels
from tests.tasks.fill.test_task import lay_out as lay_out_texts
from tests.tasks.fill.test_task import recipe as of_words

DEEP = SCRATCH + "\ndepth = 4"


def teacher(place: Path, *overrides: str) -> Path:
    """A classifier of four layers, trained for a moment."""
    start(of_labels(lay_out_labels(place), DEEP, 3, f"output={place / 'teacher'}", *overrides), quiet=True)
    return place / "teacher"


def student(place: Path, model: str = "depth = 2", steps: int = 4, *overrides: str) -> Any:
    return of_labels(place, model, steps, f"distil.teacher={place / 'teacher'}", *overrides)


def prepared(options: Any) -> tuple[Any, Any]:
    loaded = prepare_network(options)
    return loaded.network, prepare_task(options, loaded)


def test_which_layers_are_kept() -> None:
    assert spaced(12, 6) == [0, 2, 4, 7, 9, 11]  # as DistilBERT
    assert spaced(6, 3) == [0, 2, 5] and spaced(4, 4) == [0, 1, 2, 3] and spaced(5, 1) == [0]


def test_a_student_begins_with_its_teacher_s_layers(tmp_path: Path) -> None:
    place = teacher(tmp_path)
    network, task = prepared(student(tmp_path))
    given: Any = regard.load(place)
    whole = prepare_network(of_labels(tmp_path, f'from = "{place}"', 1)).network
    for kept, number in zip(network.body.encoder.blocks, spaced(4, 2), strict=True):
        wanted = whole.body.encoder.blocks[number].state_dict()  # type: ignore[index]
        assert all(torch.equal(each, wanted[name]) for name, each in kept.state_dict().items())
    assert torch.equal(network.head.weight, whole.head.weight) and network.config.depth == 2  # type: ignore[union-attr]
    assert given.network.config.depth == task.teacher.network.config.depth == 4


def test_the_loss_is_the_paper_s(tmp_path: Path) -> None:
    """KL at a temperature, times its square; the data's; and the cosine of the hidden states of real tokens."""
    teacher(tmp_path)
    options = [
        f"distil.{name}" for name in ("temperature=3.0", "kl_weight=0.5", "task_weight=0.25", "cosine_weight=2.0")
    ]
    network, task = prepared(student(tmp_path, "depth = 2", 4, *options))
    batch = next(task.batches(0, 0, 1))
    network.eval()
    with torch.no_grad():
        said, shown = network(batch.inputs), task.teacher.network(batch.inputs)
        wanted, at = F.softmax(shown / 3, 1), F.softmax(said / 3, 1)
        soft = 9 * (wanted * (wanted / at).log()).sum(1).mean()
        states, others = network.encode(batch.inputs), task.teacher.network.encode(batch.inputs)
        angles = [
            1 - torch.dot(x, y) / x.norm() / y.norm()
            for row, other, length in zip(states, others, batch.inputs.lengths.tolist(), strict=True)
            for x, y in zip(row[:length], other[:length], strict=True)
        ]
        hard = F.cross_entropy(said, batch.labels)
        loss = task.loss(network, batch) / task.num_targets(batch)
    assert torch.allclose(loss, 0.5 * soft + 0.25 * hard + 2 * torch.stack(angles).mean(), atol=1e-5)


def test_several_labels_are_each_a_yes_or_a_no() -> None:
    said, shown = torch.randn(5, 3), torch.randn(5, 3)
    wanted, at = torch.sigmoid(shown / 2), torch.sigmoid(said / 2)
    apart = wanted * (wanted / at).log() + (1 - wanted) * ((1 - wanted) / (1 - at)).log()
    assert torch.allclose(SOFT_LOSSES["multi_label"](said, shown, 2.0), 4 * apart.mean(), atol=1e-5)


def test_regression_is_distilled_in_the_units_of_the_task_loss() -> None:
    """So that soft and hard keep their shares, whatever the size of the numbers."""
    said, shown = torch.randn(5, 1), torch.randn(5, 1)
    network = SimpleNamespace(problem_type="regression", eval=lambda: network, requires_grad_=lambda _: network)
    options = DistilOptions("a", kl_weight=1.0, task_weight=1.0, cosine_weight=0.0)
    losses = []
    for scale in (1.0, 64.0):
        found, wanted = (Predicted(torch.zeros(0), (scale * each,)) for each in (said, shown))
        scaled: Any = SimpleNamespace(scale=scale)
        hard = Regression(scaled).loss(found.logits[0], wanted.logits[0][:, 0])
        losses.append(Teacher(network, options, {}, scale).loss(hard, found, wanted, 5))
    assert torch.allclose(losses[0], 2 * F.mse_loss(said, shown, reduction="sum"), atol=1e-5)
    assert torch.allclose(losses[0], losses[1], atol=1e-5)


@pytest.mark.parametrize(
    ("problem_type", "expected"),
    [
        ("single_label", lambda own, target: F.cross_entropy(own, target.argmax(-1))),
        ("multi_label", lambda own, target: F.binary_cross_entropy(own.sigmoid(), (target.sigmoid() > 0.5).float())),
        ("regression", F.mse_loss),
    ],
)
def test_a_distillation_head_learns_the_predictions_of_the_teacher(problem_type: str, expected: Any) -> None:
    """Touvron et al. 2021, equation 3: half of the loss on the labels, half on the teacher's labels."""
    labelled, distilled, target = torch.randn(3, 5, 4).unbind()
    network = SimpleNamespace(problem_type=problem_type, eval=lambda: network, requires_grad_=lambda _: network)
    options = DistilOptions("a", kl_weight=0.0, task_weight=0.5, cosine_weight=0.0, hard_weight=0.5)
    student = Predicted(torch.zeros(0), (labelled,), distilled=(distilled,))
    loss = Teacher(network, options, {}).loss(torch.tensor(7.0), student, Predicted(torch.zeros(0), (target,)), 5)
    torch.testing.assert_close(loss, 3.5 + 0.5 * 5 * expected(distilled, target))


def test_a_cnn_teaches_a_deit_by_its_labels_but_not_by_its_states(tmp_path: Path) -> None:
    processor = FeatureProcessor(ImageProcessor.default(12, 12, 3))
    labels = ["a", "b", "c"]
    cnn = Classifier(build({"family": "cnn", "image_size": 12, "base_width": 4}), labels)
    folders.save(tmp_path, cnn, processor, {})
    deit: Any = build({"family": "deit", "image_size": 12, "patch": 4, "width": 16, "heads": 2, "depth": 1})
    student = DistilledClassifier(deit, labels)
    options = DistilOptions(str(tmp_path), kl_weight=0.0, cosine_weight=0.0, hard_weight=0.5)
    read = read_teacher(tmp_path, options, student, processor, torch.device("cpu"))
    assert family_of(read.network) == "cnn"
    options = DistilOptions(str(tmp_path), cosine_weight=1.0)
    with pytest.raises(UserError, match=r"of family 'cnn', its student of 'deit': .* distil.cosine_weight = 0"):
        read_teacher(tmp_path, options, student, processor, torch.device("cpu"))


def test_the_teacher_stays_as_it_is_and_is_not_saved(tmp_path: Path) -> None:
    place = teacher(tmp_path)
    before = (place / "checkpoint-3/model.safetensors").read_bytes()
    network, task = prepared(student(tmp_path))
    assert not task.teacher.network.training and network.train().training
    task.loss(network, next(task.batches(0, 0, 1))).backward()
    assert all(each.grad is None for each in task.teacher.network.parameters())
    start(student(tmp_path), quiet=True)
    assert (place / "checkpoint-3/model.safetensors").read_bytes() == before
    saved = load_file(tmp_path / "run/checkpoint-4/model.safetensors")
    assert {int(name.split(".")[3]) for name in saved if "layer." in name} == {0, 1}
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert "teacher/model.safetensors" in environment["data"]
    answer: Any = regard.load(tmp_path / "run").run("w0 w1")
    assert answer.label in LABELS


def test_an_interrupted_student_resumes_bit_identically(tmp_path: Path) -> None:
    teacher(tmp_path)
    start(student(tmp_path, "depth = 2", 8, f"output={tmp_path / 'whole'}"), quiet=True)
    start(student(tmp_path), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=8"])
    first, second = (load_file(tmp_path / each / "checkpoint-8/training.safetensors") for each in ("whole", "run"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_another_teacher_is_refused_on_resume(tmp_path: Path) -> None:
    place = teacher(tmp_path)
    start(student(tmp_path), quiet=True)
    weights = place / "checkpoint-3/model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(bytes(changed))
    (place / "checkpoint-3/manifest.json").unlink()
    with pytest.raises(UserError, match=r"teacher/model\.safetensors"):
        resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=8"])


@pytest.mark.parametrize("pairs", ["none", "next"])
def test_masked_lm_is_distilled_from_a_teacher(pairs: str, tmp_path: Path) -> None:
    """Over masked positions only, and pairs; a new student approaches its teacher's predictions."""
    lay_out_texts(tmp_path)
    deep = 'family = "bert"\nwidth = 24\nheads = 2\nlimit = 48\ndepth = 4\ndropout = 0.0'
    start(of_words(tmp_path, f"output={tmp_path / 'teacher'}", model=deep, pairs=pairs, steps=9), quiet=True)
    taught = [f"distil.teacher={tmp_path / 'teacher'}", "distil.task_weight=0"]
    options = of_words(tmp_path, *taught, model=deep.replace("depth = 4", "depth = 2"), pairs=pairs, steps=12)
    network, task = prepared(options)
    batch = next(task.batches(99, 0, 1))
    start(options, quiet=True)
    after: Any = regard.load(tmp_path / "run").network
    with torch.no_grad():
        assert task.loss(after, batch) < 0.7 * task.loss(network.eval(), batch)


def test_a_student_of_its_own_family_has_its_teacher_s_tokens(tmp_path: Path) -> None:
    teacher(tmp_path)
    options = student(tmp_path, SCRATCH.replace("24", "16"), 1, "distil.cosine_weight=0")
    assert options.tokenizer.folder == str(tmp_path / "teacher")
    network, task = prepared(options)
    assert network.config.width == 16 and torch.isfinite(task.loss(network, next(task.batches(0, 0, 1))))
    with pytest.raises(UserError, match=r"width 24, its student of 16.*distil.cosine_weight = 0"):
        prepared(student(tmp_path, SCRATCH.replace("24", "16"), 1))


def test_impossible_options_are_errors(tmp_path: Path) -> None:
    place = teacher(tmp_path)
    with pytest.raises(UserError, match="has 4 layers"):
        prepared(student(tmp_path, "depth = 5"))
    with pytest.raises(UserError, match=r"distil\.temperature"):
        student(tmp_path, "depth = 2", 4, "distil.temperature=0")
    with pytest.raises(UserError, match="the teacher is not used"):
        student(tmp_path, "depth = 2", 4, "distil.kl_weight=0", "distil.cosine_weight=0")
    start(of_labels(tmp_path, DEEP, 1, f"output={tmp_path / 'other'}", "tokenizer.vocab_size=270"), quiet=True)
    with pytest.raises(UserError, match="other tokens"):
        prepared(student(tmp_path, f'from = "{tmp_path / "other"}"'))
    with pytest.raises(UserError, match=r"model\.depth and model\.lora_rank"):
        of_labels(tmp_path, f'from = "{place}"\ndepth = 2\nlora_rank = 2', 3)
    read = 'family = "recurrent"\nembedding = 8\nwidth = 8'
    start(of_labels(tmp_path, read, 1, f"output={tmp_path / 'reader'}"), quiet=True)
    with pytest.raises(UserError, match=r"model\.depth = 1: only encoders of Transformer blocks"):
        prepared(of_labels(tmp_path, f'from = "{tmp_path / "reader"}"\ndepth = 1', 1))
    lay_out_texts(tmp_path)
    with pytest.raises(UserError, match="is a Classifier, its student a MaskedLM"):
        prepared(of_words(tmp_path, f"distil.teacher={place}", pairs="none"))
