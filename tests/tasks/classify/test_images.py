"""Image classification: every format gives the same training, predictions equal validation, and runs resume exactly."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checkpoints import change
from image_runs import publish_vit, task_of, write_recipe
from PIL import Image
from safetensors.torch import load_file
from transformers import ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import regard
from regard.cli.main import main
from regard.config.recipe import Recipe
from regard.data.synthetic.shapes import SHAPES, scene
from regard.errors import UserError
from regard.model import Model
from regard.tasks.classify.files import read
from regard.tasks.classify.images import Images
from regard.tasks.classify.options import ClassifyData
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine

VIT = 'family = "vit"\nimage_size = 16\npatch = 4\nwidth = 24\nheads = 3\ndepth = 2\ndropout = 0.1'
SYNTHETIC = 'synthetic = "shapes"\ntrain = 61\nvalidation = 23\ntest = 29'
AUGMENT = """[augment]
horizontal_flip = 0.5
min_crop_area = 0.5
crop_padding = 2
rand_augment = 1
random_erasing = 0.3
mixup = 0.4
cutmix = 0.8
repeats = 2"""
LABELS = ("bright", "dark")


def written(folder: Path, data: str, model: str = VIT, augment: str = "", steps: int = 8, name: str = "run") -> Recipe:
    tables = f"[data]\n{data}\n[model]\n{model}"
    return write_recipe(folder / f"{name}.toml", "classify", tables, augment, steps)


def pixels(label: str, index: int) -> np.ndarray:
    rng = np.random.default_rng((LABELS.index(label), index))
    low = 128 if label == "bright" else 0
    return rng.integers(low, low + 128, (20 + index % 5, 17, 3), np.uint8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per class, and tables of the same files."""
    folder = tmp_path_factory.mktemp("images")
    rows = []
    for label in LABELS:
        (folder / "photos" / label).mkdir(parents=True)
        for index in range(31):
            path = folder / "photos" / label / f"{index:02}.png"
            Image.fromarray(pixels(label, index)).save(path)
            rows.append((path.relative_to(folder).as_posix(), label))
    (folder / "photos.csv").write_text("image,label\n" + "".join(f"{name},{label}\n" for name, label in rows))
    (folder / "photos.tsv").write_text("kind\tfile\n" + "".join(f"{label}\t{name}\n" for name, label in rows))
    lines = (json.dumps({"image": name, "label": label}) for name, label in rows)
    (folder / "photos.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(photos: Path) -> Path:
    """A trained run."""
    recipe = written(photos, 'train = "photos"\nvalidation = 0.2\ntest = 0.2', steps=40, name="trained")
    start(recipe, quiet=True)
    return photos / "trained"


FORMATS = {
    "folder": 'train = "photos"',
    "csv": 'train = "photos.csv"',
    "tsv": 'train = "photos.tsv"\nimage = "file"\nlabel = "kind"',
    "jsonl": 'train = "photos.jsonl"',
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_give_the_same_splits(name: str, photos: Path) -> None:
    held_out = "\nvalidation = 0.2\ntest = 0.1"
    expected = task_of(written(photos, FORMATS["folder"] + held_out, name="first"))
    task = task_of(written(photos, FORMATS[name] + held_out, name="other"))
    for split, other in ((task.training, expected.training), (task.validation, expected.validation)):
        names = [{Path(each.text(index).source).resolve() for index in range(len(each))} for each in (split, other)]
        assert len(split) == len(other) and names[0] == names[1]
    assert task.labels == LABELS
    assert len(task.training) == 44 and len(task.validation) == 12


def test_equal_images_are_never_in_two_splits(photos: Path, tmp_path: Path) -> None:
    for index in range(40):
        path = tmp_path / "photos" / LABELS[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(LABELS[index % 2], index // 4)).save(path)
    task = task_of(written(tmp_path, 'train = "photos"\nvalidation = 0.3'))
    images = [{split.image(index).tobytes() for index in range(len(split))} for split in task.splits.values()]
    assert images[0].isdisjoint(images[1]) and len(task.training) + len(task.validation) == 40


def test_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 16, 16), np.uint8)
    labels = (images.mean((1, 2)) > 127.5).astype(np.uint8)
    np.savez_compressed(tmp_path / "all.npz", images=images, labels=labels)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (tmp_path / f"all-{name}-ubyte").write_bytes(header + array.tobytes())
    grey = f"{VIT}\nchannels = 1"
    tasks = [
        task_of(written(tmp_path, f'train = "{name}"\nvalidation = 0.2', grey, name=f"run{index}"))
        for index, name in enumerate(("all.npz", "all-images-idx3-ubyte"))
    ]
    for task in tasks:
        assert len(task.training) == 40 and task.labels == ("0", "1")
        for index in range(40):
            image = int(task.training.text(index).source.rpartition("#")[2])
            assert (task.training.image(index)[..., 0] == images[image]).all()
            assert task.training.text(index).target == str(labels[image])


def test_synthetic_images_have_their_labels(tmp_path: Path) -> None:
    task = task_of(written(tmp_path, SYNTHETIC))
    assert task.labels == tuple(sorted(SHAPES)) and (len(task.training), len(task.validation)) == (61, 23)
    assert task.validation.text(5) == ("shapes:1:validation:5", scene(1, "validation", 5).label)


def test_training_learns_and_validation_equals_prediction(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = regard.load(run)
    with pytest.raises(SystemExit) as done:
        main(["evaluate", str(run), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert done.value.code == 0 and found["samples"] == 12
    scores = {each["name"]: each["value"] for each in found["scores"]}
    assert scores["accuracy"] == 100
    assert model.recipe is not None
    task = task_of(replace(model.recipe, output=str(run.parent / "unused")))
    network = model.network.eval()
    for index in range(len(task.validation)):
        logits = network(task.collate(task.validation, [index]).inputs)
        prediction = model.run(task.validation.text(index).source)
        expected = dict(zip(network.labels, logits.softmax(-1)[0].tolist(), strict=True))
        assert prediction.scores == pytest.approx(expected, abs=1e-5)


def test_inputs_are_files_pillow_images_and_arrays(run: Path, photos: Path) -> None:
    model = regard.load(run)
    path = photos / "photos" / "dark" / "03.png"
    with Image.open(path) as image:
        image.load()
        values = [str(path), path, image, np.asarray(image)]
        singles = [model.run(value) for value in values]
    together = model.run(values)
    for prediction in (*singles, *together):
        assert prediction.label == "dark" and prediction.score == pytest.approx(singles[0].score, abs=1e-5)
    assert isinstance(model.run(np.zeros((3, 9, 11, 3), np.uint8)), list)
    for wrong in (3, [3], "missing.png", ["missing.png"], np.zeros((9, 9)), photos):
        with pytest.raises(UserError):
            model.run(wrong)


def test_other_images_of_a_batch_change_nothing(run: Path, photos: Path) -> None:
    model = regard.load(run)
    paths = sorted((photos / "photos").rglob("*.png"))[20:40]
    together = model.run(paths)
    for path, prediction in zip(paths, together, strict=True):
        assert model.run(path).scores == pytest.approx(prediction.scores, abs=1e-5)


def test_the_command_line_takes_files_folders_and_tables(
    run: Path, photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as done:
            main(["run", str(run), *arguments])
        assert done.value.code == 0
        return capfd.readouterr().out.splitlines()

    path = str(photos / "photos" / "bright" / "00.png")
    assert printed(path) == ["bright"]
    lines = printed(path, str(photos / "photos" / "dark"))
    assert lines[0] == f"{path}\tbright" and len(lines) == 32
    assert all(line.endswith("\tdark") for line in lines[1:])
    assert len(printed(str(photos / "photos"))) == 62
    renamed = (photos / "photos.csv").read_text().replace("image,", "file_name,", 1)
    (photos / "metadata.csv").write_text(renamed)
    rows = printed("--file", str(photos / "metadata.csv"))
    assert rows == printed("--file", str(photos / "photos.csv"))
    assert rows == ["bright"] * 31 + ["dark"] * 31
    assert printed("--file", str(photos / "photos.tsv"), "--column", "file") == [
        "dark" if "dark" in r else r for r in rows
    ]
    with pytest.raises(SystemExit) as refused:
        main(["run", str(run), str(photos / "photos"), "--overlay", "overlay.png"])
    assert refused.value.code == 2 and "photos is a folder" in capfd.readouterr().err.replace("\n", " ")
    (entry,) = map(json.loads, printed(path, "--json"))
    assert entry["label"] == "bright" and entry["location"] == path
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), str(photos / "photos"), "--json"])
    assert json.loads(capfd.readouterr().out)["samples"] == 62


def test_attention_is_traced_over_patches(run: Path, photos: Path) -> None:
    model = regard.load(run)
    trace = model.trace(photos / "photos" / "dark" / "03.png", prove=True)
    assert trace.sites == ["encoder.blocks.0.self", "encoder.blocks.1.self"]
    axes = trace.axes.at(trace.sites[0])
    assert axes is not None and axes[0].grid == (4, 4) and axes[0].unit == "patch"
    assert trace.source[:3] == ["[CLS]", "0,0", "0,1"] and len(trace.source) == 17
    weights = trace.weights(trace.sites[1], head=2)
    assert weights.shape == (17, 17)
    torch.testing.assert_close(weights.sum(-1), torch.ones(17))
    computed, used = trace.proof(trace.sites[0])
    torch.testing.assert_close(computed, used, atol=1e-5, rtol=1e-5)
    assert trace.answer == "dark"


def test_a_saved_classifier_has_its_processor(run: Path, photos: Path, tmp_path: Path) -> None:
    model = regard.load(run)
    model.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved")
    path = photos / "photos" / "bright" / "07.png"
    assert again.run(path).scores == pytest.approx(model.run(path).scores, abs=1e-6)
    assert json.loads((tmp_path / "saved" / "preprocessor_config.json").read_text())["size"] == {
        "height": 16,
        "width": 16,
    }


def test_training_continues_from_a_checkpoint(run: Path, photos: Path) -> None:
    recipe = written(photos, 'train = "photos.csv"\nvalidation = 0.2', f'from = "{run}"', steps=4, name="tuned")
    start(recipe, quiet=True)
    assert regard.load(photos / "tuned").run(photos / "photos" / "bright" / "07.png").label == "bright"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT classifier as transformers saves it."""
    folder = publish_vit(tmp_path_factory.mktemp("published"), 2, resample=3)
    change(folder, id2label={"0": "bright", "1": "dark"}, label2id={"bright": 0, "dark": 1})
    return folder


def test_a_published_checkpoint_predicts_as_transformers_does(published: Path, photos: Path) -> None:
    model = regard.load(published)
    theirs: Any = ViTForImageClassification.from_pretrained(published).eval()
    processor: Any = ViTImageProcessorPil.from_pretrained(published)
    for path in sorted((photos / "photos").rglob("*.png"))[:5]:
        inputs = processor(Image.open(path), return_tensors="pt")
        expected = theirs(**inputs).logits.softmax(-1)[0].tolist()
        assert list(model.run(path).scores.values()) == pytest.approx(expected, abs=1e-5)


def test_a_published_checkpoint_is_fine_tuned(published: Path, photos: Path) -> None:
    recipe = written(photos, 'train = "photos"\nvalidation = 0.2', f'from = "{published}"', steps=4, name="fine-tuned")
    start(recipe, quiet=True)
    saved = json.loads((photos / "fine-tuned" / "checkpoint-4" / "preprocessor_config.json").read_text())
    assert saved["size"] == {"height": 18, "width": 18} and saved["resample"] == 3
    assert ViTForImageClassification.from_pretrained(photos / "fine-tuned" / "checkpoint-4").config.num_labels == 2


def test_a_new_head_is_for_other_labels_and_resumes_exactly(published: Path, photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    copytree(published, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"id2label": {0: "cat", 1: "bright"}}))
    data = f'train = "{photos / "photos"}"\nvalidation = 0.2'
    with pytest.raises(UserError, match=r"has no label 'dark'; its labels: cat, bright\. .* model\.new_head=true"):
        task_of(written(tmp_path, data, f'from = "{other}"', name="kept"))
    model = f'from = "{other}"\nnew_head = true'
    for name, steps in (("stopped", 4), ("whole", 8)):
        recipe = written(tmp_path, data, model, steps=steps, name=name)
        start(replace(recipe, train=replace(recipe.train, schedule="constant")), quiet=True)
    resume(tmp_path / "stopped", quiet=True, overrides=["train.max_steps=8"])
    stopped, whole = (
        load_file(tmp_path / name / "checkpoint-8" / "model.safetensors") for name in ("stopped", "whole")
    )
    assert stopped.keys() == whole.keys() and all(stopped[name].equal(whole[name]) for name in whole)
    assert list(regard.load(tmp_path / "whole").run(photos / "photos" / "dark" / "00.png").scores) == [*LABELS]


GEOMETRIES = {
    "vit": "patch = 4\nwidth = 12\nheads = 3\ndepth = 1",
    "deit": "patch = 4\nwidth = 12\nheads = 3\ndepth = 1",
    "swin": "patch = 2\nembedding_width = 12\nwindow = 3\ndepths = [2, 1]\nheads = [2, 3]",
    "hybrid": "base_width = 8\ndepths = [1, 1]\nwidth = 12\nheads = 3\ndepth = 1",
    "cnn": "base_width = 8\ndepths = [1, 1]",
}


@pytest.mark.parametrize("family", GEOMETRIES)
def test_traces_of_all_families_have_their_patches(family: str, photos: Path) -> None:
    model_table = f'family = "{family}"\nimage_size = 16\n{GEOMETRIES[family]}'
    recipe = written(photos, SYNTHETIC, model_table, name=f"traced-{family}")
    loaded = prepare_network(recipe)
    model = Model(loaded.network.eval(), loaded.processor, {}, {}, recipe)
    trace = model.trace("shapes:1:test:3")
    assert bool(trace.sites) == (family != "cnn")
    for site in trace.sites:
        queries, keys = trace.labels(site)
        weights = trace.weights(site)
        assert weights.shape[-2:] == (len(queries), len(keys))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        axes = trace.axes.at(site)
        assert axes is not None and axes[1].grid is not None
        rows, columns = axes[1].grid
        assert len(axes[1].labels) - rows * columns in (0, 1, 2)


# ── augmentation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_with_augmentation_resumes_exactly(tmp_path: Path) -> None:
    stopped = written(tmp_path, SYNTHETIC, augment=AUGMENT, steps=8, name="stopped")
    start(replace(stopped, train=replace(stopped.train, schedule="constant")), quiet=True)
    whole = written(tmp_path, SYNTHETIC, augment=AUGMENT, steps=12, name="whole")
    start(replace(whole, train=replace(whole.train, schedule="constant")), quiet=True)
    resume(tmp_path / "stopped", quiet=True, overrides=["train.max_steps=12"])
    weights = [load_file(tmp_path / name / "checkpoint-12" / "model.safetensors") for name in ("whole", "stopped")]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_batches_are_augmented_in_training_only(tmp_path: Path) -> None:
    task = task_of(written(tmp_path, SYNTHETIC, augment=AUGMENT))
    batch = task.training_batch([3, 5, 8, 13], 0)
    assert batch.indices.tolist() == [3, 3, 5, 5]
    assert batch.labels.shape == (4, 6) and batch.inputs.pixels.shape == (4, 3, 16, 16)
    torch.testing.assert_close(batch.labels.sum(1), torch.ones(4))
    again = task.training_batch([3, 5, 8, 13], 0)
    assert torch.equal(again.inputs.pixels, batch.inputs.pixels)
    assert not torch.equal(task.training_batch([3, 5, 8, 13], 1).inputs.pixels, batch.inputs.pixels)
    plain = task.collate(task.validation, [3, 5])
    assert plain.labels.shape == (2,)
    assert torch.equal(plain.inputs.pixels[1], task.collate(task.validation, [5]).inputs.pixels[0])


def test_the_loss_of_mixed_labels_is_the_mean_of_theirs(tmp_path: Path) -> None:
    task = task_of(written(tmp_path, SYNTHETIC))
    logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    first, second = torch.tensor([0, 2, 4, 5, 1]), torch.tensor([1, 2, 3, 0, 5])
    soft = 0.3 * F.one_hot(first, 6).float() + 0.7 * F.one_hot(second, 6).float()
    expected = 0.3 * task.problem_type.loss(logits, first) + 0.7 * task.problem_type.loss(logits, second)
    torch.testing.assert_close(task.problem_type.loss(logits, soft), expected)


def test_augmentation_is_for_images(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("text,label\na,x\nb,y\nc,x\nd,y\n")
    text = 'family = "bert"\nwidth = 24\nheads = 3\ndepth = 1\nmax_positions = 16'
    recipe = written(tmp_path, 'train = "texts.csv"', text, "[augment]\nmixup = 0.2")
    with pytest.raises(UserError, match=r"augment\.mixup"):
        task_of(recipe)


# ── errors and checks ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ('train = "photos"\ntext = "body"', r"data\.text"),
        ('train = "photos"\nmax_length = 5', r"data\.max_length"),
        ('train = "photos"\nproblem_type = "multi_label"', "multi_label"),
        ('train = "photos"\nsplit_by = "patient"', "split_by"),
        ('train = "photos.csv"\nimage = "file"', "no column 'file'"),
        ('train = "photos.csv"\nsplit_by = "containing_text"', "containing_text"),
        ('train = "nowhere"', "not found"),
        ('train = "photos/dark"', "dark: its images are in no subfolder; expected a folder per class"),
        ('train = "photos/dark/00.png"', r"unknown file type; expected a folder .* \.jsonl\), or arrays"),
        ('synthetic = "dates"\ntrain = 5', "shapes"),
    ],
)
def test_wrong_options_are_errors(data: str, problem: str, photos: Path) -> None:
    with pytest.raises(UserError, match=problem):
        task_of(written(photos, data, name="wrong"))


def test_a_folder_without_images_or_with_one_class_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match="no images"):
        task_of(written(tmp_path, 'train = "photos"'))
    (tmp_path / "photos" / "one").mkdir()
    Image.new("L", (5, 5)).save(tmp_path / "photos" / "one" / "a.png")
    with pytest.raises(UserError, match="the one label 'one'"):
        task_of(written(tmp_path, 'train = "photos"'))


def test_doctor_reports_unreadable_images_sizes_and_duplicates(photos: Path, tmp_path: Path) -> None:
    for label in LABELS:
        (tmp_path / "photos" / label).mkdir(parents=True)
        (tmp_path / "held" / label).mkdir(parents=True)
        for index in range(12):
            Image.fromarray(pixels(label, index)).save(tmp_path / "photos" / label / f"{index}.png")
        Image.fromarray(pixels(label, 3)).save(tmp_path / "held" / label / "same.png")
        Image.fromarray(pixels(label, 99)).convert("L").save(tmp_path / "held" / label / "other.png")
    (tmp_path / "photos" / "dark" / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 damaged")
    findings = examine(written(tmp_path, 'train = "photos"\nvalidation = "held"'))
    told = "\n".join(findings.warnings)
    assert "1 × unreadable image" in told and "damaged.jpg" in told and "max_length" not in told
    assert "validation: 2 of 4 images are in train too" in told
    assert "different channels" in told
    assert findings.facts["image_sizes"]["train"]["largest"] == "24 × 17"
    assert findings.facts["image_sizes"]["validation"]["grey"] == 2


def test_a_column_keeps_groups_together(photos: Path, tmp_path: Path) -> None:
    rows = [
        f"{photos}/photos/{LABELS[index % 2]}/{index // 2:02}.png,{LABELS[index % 2]},p{index // 6}\n"
        for index in range(48)
    ]
    (tmp_path / "scans.csv").write_text("image,label,patient\n" + "".join(rows))
    data = ClassifyData(train="scans.csv", validation=0.4, split_by="patient", stratify=False)
    groups = [{record.group for record in read(data, split, tmp_path, Images)} for split in ("train", "validation")]
    assert groups[0].isdisjoint(groups[1]) and len(groups[0] | groups[1]) == 8 and all(groups)
