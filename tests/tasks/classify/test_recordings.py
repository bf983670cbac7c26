"""Keyword spotting: every source gives the same training, predictions equal validation, and runs resume exactly."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import regard
from regard.audio.read import read_audio
from regard.audio.sources import read_recording
from regard.cli.main import main
from regard.config.recipe import Recipe, load_recipe
from regard.errors import UserError
from regard.training.build import prepare_network, prepare_task, resume, start
from regard.training.doctor import examine

RATE = 4_000
LABELS = ("falling", "rising")
SPEAKERS = ("anna", "ben", "cleo")

RECIPE = """
task = "classify"
output = "{output}"
[data]
sampling_rate = 4000
{data}
[model]
{model}
[train]
batch_size = 7
max_steps = {steps}
eval_steps = 4
save_steps = 4
learning_rate = 1e-2
warmup_steps = 2
threads = 1
{augment}
"""
RECURRENT = 'family = "speech_recurrent"\nbins = 13\nwidth = 16\ndepth = 2\nmax_frames = 200\ndropout = 0.1'
TRANSFORMER = """family = "speech_transformer"
bins = 13\nwidth = 12\nheads = 3\ndepth = 2\nfeedforward = 24\nchannels = 4\nmax_frames = 200\ndropout = 0.1"""
AUGMENT = """[augment]
speeds = [0.9, 1.0, 1.1]
frequency_masks = 1
frequency_mask_width = 3
time_masks = 1
time_mask_width = 5"""
ARCHIVE = 'train = "clips.zip"\nfile_name = "{label}_{speaker}_{index}"\n'


def written(
    folder: Path, data: str, model: str = RECURRENT, augment: str = "", steps: int = 8, name: str = "r"
) -> Recipe:
    path = folder / f"{name}.toml"
    path.write_text(RECIPE.format(output=folder / name, data=data, model=model, augment=augment, steps=steps))
    return load_recipe(path)


def glide(label: str, speaker: str, index: int) -> np.ndarray:
    """A tone whose pitch rises or falls; speakers differ in pitch, recordings in length and noise."""
    rng = np.random.default_rng((LABELS.index(label), SPEAKERS.index(speaker), index))
    time = np.arange(int(RATE * rng.uniform(0.2, 0.4))) / RATE
    change = 900 if label == "rising" else -900
    begin = (300 if label == "rising" else 800) * (1 + 0.2 * SPEAKERS.index(speaker))
    return 0.5 * np.sin(2 * np.pi * (begin * time + change * time**2)) + 0.01 * rng.standard_normal(len(time))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per class, an archive of the same files with the label in their names, and a table."""
    folder = tmp_path_factory.mktemp("recordings")
    rows = ["audio,label,speaker"]
    with zipfile.ZipFile(folder / "clips.zip", "w") as archive:
        for label in LABELS:
            (folder / "clips" / label).mkdir(parents=True)
            for speaker in SPEAKERS:
                for index in range(10):
                    path = folder / "clips" / label / f"{speaker}_{index}.wav"
                    soundfile.write(path, glide(label, speaker, index), RATE)
                    archive.write(path, f"{label}_{speaker}_{index}.wav")
                    rows.append(f"{path.relative_to(folder).as_posix()},{label},{speaker}")
    (folder / "clips.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(clips: Path) -> Path:
    """A trained run."""
    recipe = written(clips, 'train = "clips"\nvalidation = 0.2\ntest = 0.2', steps=40, name="trained")
    start(recipe, quiet=True)
    return clips / "trained"


def task_of(recipe: Recipe) -> Any:
    return prepare_task(recipe, prepare_network(recipe))


def contents(split: Any) -> list[bytes]:
    """The samples of all recordings of a split."""
    return sorted(read_recording(split.text(index).source, RATE).tobytes() for index in range(len(split)))


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sources_give_the_same_training_split(clips: Path) -> None:
    tasks = [
        task_of(written(clips, data, name=f"source{index}"))
        for index, data in enumerate(('train = "clips"', ARCHIVE, 'train = "clips.csv"'))
    ]
    expected = contents(tasks[0].training)
    assert len(expected) == 60
    for task in tasks:
        assert task.labels == LABELS and contents(task.training) == expected


@pytest.mark.parametrize(
    ("data", "held_out"),
    [
        ('test = {speaker = "ben"}', lambda speaker, index: speaker == "ben"),
        ('test = {speaker = ["ben", "cleo"], index = [0, 3]}', lambda name, index: name != "anna" and index in (0, 3)),
        ('test = {index = [0, 1, 2]}\nvalidation = {index = 9}', lambda speaker, index: index < 3),
        ('test = {speaker = "ben"}\nvalidation = 0.2', lambda speaker, index: speaker == "ben"),
    ],
)  # fmt: skip
def test_splits_are_selected_by_the_fields_of_names(data: str, held_out: Any, clips: Path) -> None:
    task = task_of(written(clips, ARCHIVE + data, name="selected"))
    splits = {name: task.dataset(name) for name in ("train", "validation", "test")}
    found: dict[str, str] = {}
    for name, split in splits.items():
        for index in range(len(split) if split else 0):
            member = Path(split.text(index).source).stem
            assert member not in found
            found[member] = name
    assert len(found) == 60  # none is lost
    for member, name in found.items():
        _, speaker, index = member.split("_")
        assert (name == "test") == held_out(speaker, int(index)), member
        if "validation = {index = 9}" in data:
            assert (name == "validation") == (index == "9")
    if "validation = 0.2" in data:
        assert len(splits["validation"]) == 8  # of 40 that are left


def test_a_column_of_a_table_selects_too(clips: Path) -> None:
    task = task_of(written(clips, 'train = "clips.csv"\ntest = {speaker = "cleo"}', name="selected"))
    assert len(task.training) == 40 and len(task.dataset("test")) == 20
    (clips / "own.csv").write_text((clips / "clips.csv").read_text().replace("speaker", "person"))
    data = 'train = "clips.csv"\ntest = "own.csv"\nvalidation = {speaker = "ben"}'
    assert len(task_of(written(clips, data, name="own")).dataset("test")) == 60  # a file of its own is complete


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ('train = "clips.csv"\ntest = {speeker = "ben"}', r"data\.test names 'speeker'.*'speaker'"),
        ('train = "clips.csv"\ntest = {}', r"data\.test"),
        ('train = "clips.csv"\ntest = {speaker = []}', r"data\.test"),
        ('train = "clips.csv"\ntest = {speaker = 1.5}', r"data\.test"),
        ('train = {speaker = "ben"}', r"data\.train"),
        ('train = "clips"\ntext = "body"', r"data\.text"),
        ('train = "clips"\nimage = "file"', r"data\.image"),
        ('train = "clips"\nsplit_by = "containing_text"', "containing_text"),
        ('train = "clips"\nvalidation = 0.2\nsplit_by = "patient"', "patient"),
        ('train = "clips"\nfile_name = "{digit}-{speaker}"', "file_name"),
        ('synthetic = "shapes"\ntrain = 5', "shapes"),
        ('train = "nowhere"', "not found"),
    ],
)
def test_wrong_options_are_errors(data: str, problem: str, clips: Path) -> None:
    with pytest.raises(UserError, match=problem):
        task_of(written(clips, data, name="wrong"))


def test_options_of_recordings_are_for_recordings(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\na,x\nb,y\nc,x\nd,y\n")
    text = 'family = "bert"\nwidth = 24\nheads = 3\ndepth = 1\nmax_positions = 16'
    recipe = written(tmp_path, 'train = "texts.csv"', text)
    with pytest.raises(UserError, match=r"data\.sampling_rate"):
        task_of(recipe)


def test_a_table_of_texts_is_split_by_columns_too(tmp_path: Path) -> None:
    rows = [f"word{index},{'xy'[index % 2]},{'abc'[index % 3]}" for index in range(30)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label,source", *rows]) + "\n")
    text = 'family = "bert"\nwidth = 24\nheads = 3\ndepth = 1\nmax_positions = 16'
    recipe = written(tmp_path, 'train = "texts.csv"\ntest = {source = "b"}', text)
    recipe = replace(recipe, data=replace(recipe.data, sampling_rate=16_000))
    task = task_of(recipe)
    assert (len(task.training), len(task.dataset("test"))) == (20, 10)


# ── training and prediction ──────────────────────────────────────────────────────────────────────────────────────────


def test_training_learns_and_validation_equals_prediction(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = regard.load(run)
    with pytest.raises(SystemExit) as done:
        main(["evaluate", str(run), "--json"])
    result = json.loads(capfd.readouterr().out)
    assert done.value.code == 0 and result["samples"] == 12
    assert {score["name"]: score["value"] for score in result["scores"]}["accuracy"] == 100
    assert model.recipe is not None
    task = task_of(replace(model.recipe, output=str(run.parent / "unused")))
    network = model.network.eval()
    for index in range(len(task.validation)):
        logits = network(task.collate(task.validation, [index]).inputs)
        prediction = model.run(task.validation.text(index).source)
        expected = dict(zip(network.labels, logits.softmax(-1)[0].tolist(), strict=True))
        assert prediction.scores == pytest.approx(expected, abs=1e-5)


def test_inputs_are_files_and_arrays(run: Path, clips: Path) -> None:
    model = regard.load(run)
    path = clips / "clips" / "rising" / "anna_3.wav"
    samples = read_audio(path, RATE)
    values = [str(path), path, samples, (samples, RATE), {"array": samples, "sampling_rate": RATE}]
    values.append(f"{clips}/clips.zip/rising_anna_3.wav")
    expected = model.run(str(path))
    assert expected.label == "rising"
    for prediction in [*(model.run(value) for value in values), *model.run(values)]:
        assert prediction.scores == pytest.approx(expected.scores, abs=1e-5)
    for wrong in (3, [3], "missing.wav", ["missing.wav"], np.zeros((9, 9, 9)), clips, np.zeros(RATE * 60)):
        with pytest.raises(UserError):
            model.run(wrong)
    assert model.run(np.zeros(RATE * 60), truncate=True).truncated


def test_other_recordings_of_a_batch_change_nothing(run: Path, clips: Path) -> None:
    model = regard.load(run)
    paths = sorted((clips / "clips").rglob("*.wav"))[20:40]
    for path, prediction in zip(paths, model.run(paths), strict=True):
        assert model.run(path).scores == pytest.approx(prediction.scores, abs=1e-5)


def test_the_command_line_takes_files_folders_archives_and_tables(
    run: Path, clips: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as done:
            main(["run", str(run), *arguments])
        assert done.value.code == 0
        return capfd.readouterr().out.splitlines()

    path = str(clips / "clips" / "falling" / "ben_2.wav")
    assert printed(path) == ["falling"]
    lines = printed(path, str(clips / "clips" / "rising"))
    assert lines[0] == f"{path}\tfalling" and len(lines) == 31
    assert len(printed(str(clips / "clips.zip"))) == 60
    assert printed("--file", str(clips / "clips.csv")) == ["falling"] * 30 + ["rising"] * 30


def test_attention_is_traced_over_time(clips: Path) -> None:
    recipe = written(clips, 'train = "clips"', TRANSFORMER, steps=4, name="traced")
    start(recipe, quiet=True)
    model = regard.load(clips / "traced")
    path = clips / "clips" / "rising" / "anna_3.wav"
    trace = model.trace(path)
    states = -(-max(1, len(read_audio(path, RATE)) // 40) // 4)
    assert trace.sites == ["encoder.blocks.0.self", "encoder.blocks.1.self"]
    assert trace.source[:2] == ["0.00 s", "0.04 s"] and len(trace.source) == states
    weights = trace.weights(trace.sites[1], head=2)
    assert weights.shape == (states, states)
    torch.testing.assert_close(weights.sum(-1), torch.ones(states))


def test_a_saved_classifier_has_its_processor(run: Path, clips: Path, tmp_path: Path) -> None:
    model = regard.load(run)
    model.save(tmp_path / "saved")
    path = clips / "clips" / "rising" / "anna_3.wav"
    assert regard.load(tmp_path / "saved").run(path).scores == pytest.approx(model.run(path).scores, abs=1e-6)
    assert json.loads((tmp_path / "saved" / "preprocessor_config.json").read_text())["sampling_rate"] == RATE


def test_a_run_with_augmentation_resumes_exactly(clips: Path, tmp_path: Path) -> None:
    data = f'train = "{clips}/clips"\nvalidation = 0.2'
    for name, steps in (("stopped", 8), ("whole", 12)):
        recipe = written(tmp_path, data, augment=AUGMENT, steps=steps, name=name)
        start(replace(recipe, train=replace(recipe.train, schedule="constant")), quiet=True)
    resume(tmp_path / "stopped", quiet=True, overrides=["train.max_steps=12"])
    weights = [load_file(tmp_path / name / "checkpoint-12" / "model.safetensors") for name in ("whole", "stopped")]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_batches_are_augmented_in_training_only(clips: Path, tmp_path: Path) -> None:
    task = task_of(written(tmp_path, f'train = "{clips}/clips"\nvalidation = 0.2', augment=AUGMENT))
    indices = [3, 5, 8, 13]
    batch = task.training_batch(indices, 0)
    again = task.training_batch(indices, 0)
    assert torch.equal(again.inputs.frames, batch.inputs.frames)
    other = task.training_batch(indices, 1)
    assert other.inputs.frames.shape != batch.inputs.frames.shape or not torch.equal(
        other.inputs.frames, batch.inputs.frames
    )
    plain = task.collate(task.validation, [3])
    expected = task.modality.audio([read_audio(task.validation.text(3).source, RATE)])
    torch.testing.assert_close(plain.inputs.frames, expected.frames)


def test_doctor_reports_unreadable_recordings_rates_and_duplicates(clips: Path, tmp_path: Path) -> None:
    for name in ("train", "other"):
        for label in LABELS:
            (tmp_path / name / label).mkdir(parents=True)
            for index in range(12):
                soundfile.write(tmp_path / name / label / f"{index}.wav", glide(label, "anna", index), RATE // 2)
    (tmp_path / "train" / "rising" / "broken.wav").write_bytes(b"RIFF broken")
    findings = examine(written(tmp_path, 'train = "train"\nvalidation = "other"'))
    text = "\n".join(findings.warnings)
    assert "unreadable recording" in text and "broken.wav" in text
    assert "resampled to 4,000 Hz" in text
    assert "recordings are in train too" in text
    assert findings.facts["recordings"]["train"]["Hz"] == [RATE // 2]
