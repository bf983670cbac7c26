"""The loop: accumulation is the full batch, schedules are what they say, and a run ends when and how it should."""

import json
import math
import os
import signal
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from toy import LENGTH, WORDS, Network, ToyBatch, ToyTask, digest, go, make_recipe

from regard.config.recipe import TrainOptions
from regard.errors import UserError
from regard.runtime import machine
from regard.training import checkpoint
from regard.training.display import SHOWN, Display
from regard.training.distributed import Group
from regard.training.doctor import measure
from regard.training.length import EVALUATION_SHARE, MEASURED_SHARE, RunLength
from regard.training.loop import Loop, RunOutput, train
from regard.training.optim import EMA, AdamW, learning_rate
from regard.training.resume import Progress


class Joined(ToyTask):
    """The same samples in batches three times as large."""

    def batch(self, index: int) -> ToyBatch:
        pieces = [ToyTask.batch(self, 3 * index + piece) for piece in range(3)]
        return ToyBatch(torch.cat([piece.tokens for piece in pieces]), torch.cat([piece.indices for piece in pieces]))


def events(run: Path, key: str) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if key in line]


def test_accumulated_batches_train_as_one_large_batch(tmp_path: Path) -> None:
    options = ("train.learning_rate=0.01", "train.warmup_steps=3")
    _, pieces = go(tmp_path / "pieces", *options, "train.gradient_accumulation_steps=3", dropout=0.0)
    _, full = go(tmp_path / "full", *options, task=Joined(11), dropout=0.0)
    for one, other in zip(pieces.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    losses = [[line["loss"] for line in events(tmp_path / name, "loss")] for name in ("pieces", "full")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_it_learns_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    options = ("train.learning_rate=0.02", "train.warmup_steps=10", "train.max_steps=90", "train.log_steps=10")
    _, first = go(tmp_path / "first", *options)
    _, second = go(tmp_path / "second", *options, "train.eval_steps=7", "train.save_steps=40")
    _, other = go(tmp_path / "other", *options, "seed=2")
    assert digest(first) == digest(second) != digest(other)
    losses = [line["loss"] for line in events(tmp_path / "first", "learning_rate")]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("warmup", [0, 13])
@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant"])
def test_schedules_rise_to_the_peak_then_never_rise(schedule, warmup: int) -> None:
    options = TrainOptions(learning_rate=3.0, warmup_steps=warmup, schedule=schedule)
    rates = [learning_rate(step, options, 101) for step in range(1, 102)]
    top = max(warmup - 1, 0)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if warmup or schedule in ("inverse_sqrt", "constant"):
        assert max(rates) == pytest.approx(3.0)
    if schedule in ("cosine", "linear"):
        assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    if schedule == "constant":
        assert rates[-1] == 3.0


def test_the_slanted_triangular_schedule_is_its_formula() -> None:
    """Howard & Ruder 2018, equation 3, with cut_frac 0.1 and ratio 32; and any length of a run has a peak."""
    options = TrainOptions(learning_rate=3.0, schedule="slanted_triangular", warmup_steps=77)
    for step in range(1, 201):
        share = step / 20 if step < 20 else 1 - (step - 20) / (20 * (1 / 0.1 - 1))
        assert learning_rate(step, options, 200) == pytest.approx(3.0 * (1 + share * 31) / 32)
    for steps in (1, 2, 9, 101):
        assert max(learning_rate(step, options, steps) for step in range(1, steps + 1)) == 3.0
    with pytest.raises(UserError, match=r"cannot be combined with train\.minutes = 5"):
        TrainOptions(schedule="slanted_triangular", minutes=5)


@pytest.mark.parametrize("steps", [1, 7, 40])
def test_a_short_run_warms_up_in_its_first_quarter(steps: int) -> None:
    options = TrainOptions(learning_rate=3.0, warmup_steps=100, schedule="linear")
    rates = [learning_rate(step, options, steps) for step in range(1, steps + 1)]
    assert max(rates) == rates[-(-steps // 4) - 1] == 3.0


def test_inverse_square_root_is_the_papers_formula() -> None:
    """Vaswani et al. 2017, eq. 3, divided by its own value at the peak."""
    options = TrainOptions(learning_rate=1.0, warmup_steps=17)
    for step in (1, 5, 17, 18, 400):
        paper = min(step**-0.5, step * 17**-1.5) / 17**-0.5
        assert learning_rate(step, options, 0) == pytest.approx(paper)


def test_only_matrices_are_decayed() -> None:
    network = Network()
    groups = AdamW(network, TrainOptions(weight_decay=0.3)).param_groups
    decayed = {id(each) for group in groups if group["weight_decay"] for each in group["params"]}
    assert decayed == {id(network.mix.weight)}
    assert sum(len(group["params"]) for group in groups) == len(list(network.parameters()))


@pytest.mark.parametrize("divisor", [1, 3])
def test_updates_are_those_of_torchs_adamw(divisor: int) -> None:
    """With gradients clipped on the way, and a parameter that has none at times."""
    ours, theirs = Network(), Network()
    theirs.load_state_dict(ours.state_dict())
    optimizer = AdamW(ours, TrainOptions(weight_decay=0.3, betas=(0.8, 0.95)))
    alike = dict(zip(ours.parameters(), theirs.parameters(), strict=True))
    groups = [
        {"params": [alike[each] for each in group["params"]], "weight_decay": group["weight_decay"]}
        for group in optimizer.param_groups
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-9)
    for index in range(5):
        for position, (one, other) in enumerate(alike.items()):
            one.grad = None if (index, position) == (2, 0) else torch.randn(one.shape)
            other.grad = None if one.grad is None else one.grad / divisor
        full = torch.cat([one.grad.flatten() for one in alike if one.grad is not None])
        norm = optimizer.gradient_norm()
        assert norm == pytest.approx(float(full.norm()), rel=1e-6)
        optimizer.update(0.01, norm, norm / divisor)
        reference.step()
    for one, other in alike.items():
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
    optimizer.zero_grad()
    assert all(each.grad is None for each in ours.parameters())


def test_the_average_is_applied_and_taken_away() -> None:
    network = Network()
    average = EMA(network, 0.5)
    before = digest(network)
    raw = network.mix.weight.detach().clone()
    with torch.no_grad():
        network.mix.weight += 2
    average.update(step=100)
    with average.applied():
        torch.testing.assert_close(network.mix.weight.data, raw + 1)
    torch.testing.assert_close(network.mix.weight.data, raw + 2)
    with torch.no_grad():
        network.mix.weight.copy_(raw)
    assert digest(network) == before


def test_the_saved_model_is_the_averaged_one(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    _, network = go(tmp_path / "run", "train.ema_decay=0.9", "train.learning_rate=0.05", "train.warmup_steps=2")
    folder = tmp_path / "run" / "checkpoint-23"
    saved, training = load_file(folder / "model.safetensors"), load_file(folder / "training.safetensors")
    assert torch.equal(saved["mix.weight"], training["average/mix.weight"])
    assert torch.equal(network.mix.weight.data, training["weights/mix.weight"])
    assert not torch.equal(saved["mix.weight"], network.mix.weight.data)


def test_a_poisoned_batch_is_skipped_and_named(tmp_path: Path) -> None:
    outcome, network = go(tmp_path / "run", task=ToyTask(11, poison=frozenset({4, 5, 9})))
    assert outcome.status == "finished"
    assert all(bool(parameter.isfinite().all()) for parameter in network.parameters())
    skipped = events(tmp_path / "run", "skipped")
    assert [(line["step"], line["skipped"]["batches"]) for line in skipped] == [(5, [4]), (6, [5]), (10, [9])]
    assert skipped[0]["skipped"]["samples"] == [4000 + sample for sample in range(11 + 4 % 3)]


def test_three_skipped_batches_in_a_row_end_the_run_and_keep_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3 updates in a row"):
        go(tmp_path / "run", "train.save_steps=3", task=ToyTask(11, poison=frozenset({7, 8, 9})))
    folder, refused = checkpoint.newest(tmp_path / "run")
    assert not refused
    assert folder is not None
    training = json.loads((folder / "training.json").read_text())
    assert training["step"] == 9
    assert training["skipped"] == 2


def test_patience_runs_out_and_the_best_stays(tmp_path: Path) -> None:
    options = ("train.eval_steps=2", "train.patience=3", "train.keep=1", "train.max_steps=99")
    task = ToyTask(11, scores=(1.0, 5.0, 4.0, 6.0, 6.0, 2.0, 5.5, 9.0))
    outcome, _ = go(tmp_path / "run", *options, task=task)
    assert outcome.status == "out of patience"
    assert (outcome.progress.step, outcome.progress.best_step, outcome.progress.best_score) == (14, 8, 6.0)
    assert checkpoint.best(tmp_path / "run")[0].name == "checkpoint-8"
    assert checkpoint.steps(tmp_path / "run") == [8, 14]


def test_epochs_become_steps(tmp_path: Path) -> None:
    outcome, _ = go(tmp_path / "run", "train.epochs=1.5", "train.gradient_accumulation_steps=2")
    assert outcome.progress.step == math.ceil(1.5 * ToyTask.batches_per_epoch / 2)
    assert events(tmp_path / "run", "epoch")[-1]["epoch"] == pytest.approx(1.6)


class Clock:
    """A clock that a task moves: so many seconds a step, so many an evaluation."""

    def __init__(self, step: float, evaluation: float) -> None:
        self.now, self.step, self.evaluation = 100.0, step, evaluation

    def __call__(self) -> float:
        return self.now


class Timed(ToyTask):
    def __init__(self, clock: Clock) -> None:
        super().__init__(3)
        self.clock = clock

    def loss(self, network, batch):
        self.clock.now += self.clock.step if network.training else 0
        return super().loss(network, batch)

    def validate(self, network):
        self.clock.now += self.clock.evaluation
        return super().validate(network)


@pytest.mark.parametrize(("step", "evaluation"), [(1.0, 0.1), (0.5, 2.0), (2.0, 3.0), (1.0, 30.0)])
def test_minutes_are_kept(tmp_path: Path, step: float, evaluation: float) -> None:
    clock = Clock(step, evaluation)
    options = ("train.minutes=5", "train.eval_steps=20", "train.schedule=cosine", "train.warmup_steps=10")
    outcome, _ = go(tmp_path / "run", *options, task=Timed(clock), clock=clock)
    assert outcome.status == "finished"
    assert 0.88 * 300 <= clock.now - 100 <= 1.06 * 300 + evaluation
    length = json.loads((tmp_path / "run" / "length.json").read_text())
    tenth = math.ceil(MEASURED_SHARE * (300 * (1 - EVALUATION_SHARE)) / step)  # steps of a tenth of the training time
    assert length == {"minutes": 5, "max_steps": outcome.progress.step, "measured_at": min(50, tenth)}
    assert events(tmp_path / "run", "learning_rate")[-1]["learning_rate"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "linear", "cosine"])
def test_minutes_of_few_steps_leave_the_warm_up(tmp_path: Path, schedule: str) -> None:
    clock = Clock(4.0, 0.5)
    options = ("train.minutes=2", f"train.schedule={schedule}", "train.warmup_steps=400", "train.log_steps=1")
    outcome, _ = go(tmp_path / "run", *options, task=Timed(clock), clock=clock)
    rates = [event["learning_rate"] for event in events(tmp_path / "run", "learning_rate")]
    steps = outcome.progress.step
    assert 25 <= steps < 50 and len(rates) == steps
    peak = make_recipe(tmp_path / "run").train.learning_rate
    assert max(rates) == pytest.approx(peak)
    assert rates.index(max(rates)) <= steps / 4 + 1


def test_slow_first_steps_are_not_measured(tmp_path: Path) -> None:
    progress = Progress()
    length = RunLength(tmp_path, make_recipe(tmp_path, "train.max_steps=0", "train.minutes=1").train)
    for progress.step in range(1, 50):
        progress.seconds += 1.0 if progress.step < 4 else 0.3
        if length.measure(progress):
            break
    assert progress.step == 12  # 3 · 1 + 9 · 0.3 ≥ 5.4 seconds
    assert progress.max_steps == 12 + int((54 - 5.7) / 0.3)


def test_the_first_step_which_allocates_is_not_measured(tmp_path: Path) -> None:
    progress = Progress(step=1, seconds=10.0)
    length = RunLength(tmp_path, make_recipe(tmp_path, "train.max_steps=0", "train.minutes=1").train)
    assert not length.measure(progress)
    for progress.step in range(2, 50):
        progress.seconds += 0.5
        if length.measure(progress):
            break
    assert (progress.step, progress.max_steps) == (3, 3 + int((54 - 11) / 0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("train.epochs=2",), "train.epochs = 2 is only 20 updates"),
        (("train.minutes=2",), "train.minutes = 2 is only 27 updates"),
        (("train.max_steps=20",), ""),
        (("train.epochs=10",), ""),
        (("train.epochs=2", "train.min_steps=100"), "10 epochs instead of 2, for 100 updates"),
    ],
)
def test_a_run_too_short_to_learn_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    clock = Clock(4.0, 0.5)
    go(tmp_path / "run", *options, task=Timed(clock), clock=clock, quiet=False)
    err = capsys.readouterr().err
    assert said in err if said else "updates" not in err


def test_a_length_once_measured_holds_also_when_the_run_begins_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "length.json").write_text('{"max_steps": 61, "measured_at": 50}')
    clock = Clock(1.0, 0.0)
    outcome, _ = go(tmp_path / "run", "train.minutes=5", task=Timed(clock), clock=clock)
    assert outcome.progress.step == 61


def test_minutes_too_few_to_measure_still_end(tmp_path: Path) -> None:
    clock = Clock(20.0, 1.0)
    outcome, _ = go(tmp_path / "run", "train.minutes=2", task=Timed(clock), clock=clock)
    assert 5 <= outcome.progress.step <= 7


def test_changed_data_cannot_be_resumed(tmp_path: Path) -> None:
    go(tmp_path / "run")
    task = ToyTask(11)
    task.fingerprint = {"toy": "1"}
    with pytest.raises(UserError, match=r"these data files changed since it started: toy"):
        go(tmp_path / "run", task=task)


def test_the_recorded_threads_are_set_again(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    go(tmp_path / "run", "train.threads=2")
    torch.set_num_threads(1)
    go(tmp_path / "run", "train.threads=1")
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_reduced_precision_still_learns(tmp_path: Path) -> None:
    options = ("train.learning_rate=0.02", "train.warmup_steps=10", "train.max_steps=100", "train.log_steps=10")
    _, network = go(tmp_path / "run", *options, "train.precision=bfloat16")
    losses = [line["loss"] for line in events(tmp_path / "run", "learning_rate")]
    assert losses[-1] < losses[0] - 0.3
    assert network.mix.weight.dtype == torch.float32


def test_threads_come_from_the_recipe_then_the_environment_then_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert machine.choose_threads(5) == 5
    assert machine.choose_threads(0) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= machine.choose_threads(0) <= machine.usable_cores()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.patience=3", "train.patience = 3 needs data.validation"),
        ("train.epochs=inf", "train.epochs = inf: must be finite"),
        ("train.learning_rate=inf", "train.learning_rate = inf: must be finite"),
        ("decode.length_penalty=-inf", "decode.length_penalty = -inf: must be finite"),
        ("model.dropout=inf", "model.dropout = inf: must be finite"),
        (f"seed={10**23}", f"seed = {10**23}: must be between 0 and"),
        ("seed=-1", "seed = -1: must be between 0 and"),
    ],
)
def test_options_without_effect_or_end_are_errors(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        make_recipe(tmp_path / "run", "data.validation=''", override)
    assert message in str(error.value)


def test_a_network_used_for_inference_is_trained_as_any_other(tmp_path: Path) -> None:
    """Dropout acts from the first step on, whatever mode the network comes in."""
    digests = []
    for mode in (True, False):
        torch.manual_seed(1)
        network, run = Network().train(mode), tmp_path / str(mode)
        recipe = make_recipe(run, "train.save_steps=100")
        run.mkdir()
        train(network, ToyTask(11), recipe, RunOutput(run, lambda folder: None, Display(True)))
        digests.append(digest(network))
    assert digests[0] == digests[1]


def test_other_minutes_are_measured_again(tmp_path: Path) -> None:
    clock = Clock(1.0, 0.0)
    first, _ = go(tmp_path / "run", "train.minutes=5", task=Timed(clock), clock=clock)
    again, _ = go(tmp_path / "run", "train.minutes=5", task=Timed(clock), clock=clock)
    longer, _ = go(tmp_path / "run", "train.minutes=8", task=Timed(clock), clock=clock)
    assert first.progress.step == again.progress.step == pytest.approx(270, abs=3)
    assert longer.progress.step == pytest.approx(432, abs=3)


def test_tensorboard_has_each_step_once(tmp_path: Path) -> None:
    """Also those that were taken after the checkpoint from which the run resumes."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, options = tmp_path / "run", ("train.tensorboard=true", "train.log_steps=1", "train.eval_steps=5")
    go(run, *options, "train.save_steps=5")
    for step in (20, 23):
        checkpoint.remove(checkpoint.folder_of(run, step))
    go(run, *options)
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == list(range(1, 24))
    assert [event.step for event in board.Scalars("validation/score")] == [5, 10, 15, 20, 23]


class Wide(ToyTask):
    """One batch, not among the first, has thirty times the samples."""

    def batch(self, index: int) -> ToyBatch:
        return Joined(110).batch(index) if index == 9 else super().batch(index)


def test_the_cost_is_that_of_the_largest_batch_and_of_complete_checkpoints(tmp_path: Path) -> None:
    run, costs = tmp_path / "run", []
    go(run, "train.ema_decay=0.9")
    recipe = make_recipe(tmp_path / "none", "train.ema_decay=0.9")
    for task in (ToyTask(11), Wide(11)):
        output = RunOutput(run, lambda folder: None, Display(True))
        loop = Loop(Network(), task, recipe, output, Group(torch.device("cpu")))
        costs.append(measure(loop, task, steps=2))
    assert costs[1].activation_bytes > 10 * costs[0].activation_bytes
    files = [path.stat().st_size for path in (run / "checkpoint-23").glob("*.safetensors")]
    assert 0 < sum(files) - costs[0].checkpoint_bytes < 4096  # the headers


def test_long_samples_are_shown_truncated(capfd: pytest.CaptureFixture[str]) -> None:
    Display().samples([("word " * 1500, "short [b]", "x" * SHOWN), ("a", "b", "y" * (SHOWN + 1))])
    shown = capfd.readouterr().err.splitlines()
    assert all(len(line) <= SHOWN + 13 for line in shown) and shown[0].endswith("word…")
    assert shown[1].endswith("  short [b]") and shown[2].endswith("x" * SHOWN) and shown[6].endswith(f"y{'…'}")


def test_tensorboard_is_written_on_request(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    go(tmp_path / "run", "train.tensorboard=true")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


class OnPolicy:
    """Batches that the network makes itself: it completes random prompts, and learns from what it sampled."""

    batches_per_epoch = 0

    def __init__(self, network: Network) -> None:
        self.network = network

    def batches(self, start: int, rank: int, world: int) -> Iterator[ToyBatch]:
        for index in count(start * world + rank, world):
            generator = torch.Generator().manual_seed(index)
            tokens = torch.randint(WORDS, (11, LENGTH), generator=generator)
            with torch.no_grad():
                self.network.eval()
                probabilities = self.network(tokens).softmax(-1)
                self.network.train()
            tokens[:, 0] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
            yield ToyBatch(tokens, torch.arange(11) + 1000 * index)

    def epoch(self, batches: int) -> float:
        return 0.0


@pytest.mark.parametrize("stops", [(1,), (4, 9, 17)])
def test_batches_of_the_network_itself_resume_exactly(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Interrupted after some steps, also between two checkpoints, the run ends with the same weights."""

    class Stopping(OnPolicy):
        def batches(self, start: int, rank: int, world: int) -> Iterator[ToyBatch]:
            for step, batch in enumerate(super().batches(start, rank, world), start // 2):
                if step in pending:
                    pending.remove(step)
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch

    options = ("train.learning_rate=0.02", "train.gradient_accumulation_steps=2", "train.save_steps=5")
    _, straight = go(tmp_path / "straight", *options, source=OnPolicy)
    _, fixed = go(tmp_path / "fixed", *options)
    assert digest(straight) != digest(fixed)  # the policy's batches are others
    pending = list(stops)
    statuses = []
    while not statuses or statuses[-1] == "interrupted":
        outcome, resumed = go(tmp_path / "stopped", *options, source=Stopping)
        statuses.append(outcome.status)
    assert statuses == ["interrupted"] * len(stops) + ["finished"]
    assert digest(resumed) == digest(straight)


def test_steps_saves_and_evaluations_need_no_batch_source(tmp_path: Path) -> None:
    """As an algorithm drives them that decides itself when it steps, logs, evaluates and saves."""
    run = tmp_path / "run"
    run.mkdir()
    recipe = make_recipe(run, "train.max_steps=0", "train.epochs=1", "train.save_steps=2")
    network = Network()

    def write_model(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")

    loop = Loop(network, ToyTask(11), recipe, RunOutput(run, write_model, Display(True)), Group(torch.device("cpu")))
    assert loop.recover() == []
    network.train()
    for batch in islice(OnPolicy(network).batches(0, 0, 1), 4):
        loop.step([batch, batch])
        loop.log()
    loop.evaluate()
    loop.save()
    assert (loop.progress.step, loop.progress.batch, loop.progress.evaluated) == (4, 8, 4)
    assert checkpoint.steps(run) == [4] and len(events(run, "validation")) == 1
    assert "epoch" not in events(run, "learning_rate")[0]
    before = digest(network)
    again = Loop(Network(), ToyTask(11), recipe, RunOutput(run, write_model, Display(True)), loop.group)
    again.recover()
    assert again.progress == loop.progress and digest(again.network) == before
