"""Image captioning: tables, training and exact resume, predictions, traces, evaluation and `doctor`."""

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_runs import task_of, write_recipe
from PIL import Image
from safetensors.torch import load_file

import regard
from regard.cli.main import main
from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.image.sources import read_image
from regard.tasks.caption.dataset import CaptionDataset, records
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine

LSTM = """family = "show_attend_tell"
embedding_width = 11
width = 22
dropout = 0.1
max_positions = 67
[model.encoder]
family = "cnn"
image_size = 16
base_width = 8
depths = [1, 1]"""
TRANSFORMER = """family = "captioner"
[model.encoder]
family = "vit"
image_size = 16
patch = 4
width = 24
heads = 3
depth = 1
[model.decoder]
family = "gpt"
width = 22
heads = 2
depth = 2
max_positions = 67"""
SHAPES = 'synthetic = "shapes"\ntrain = 61\nvalidation = 13\ntest = 17'
MODELS = {"lstm": LSTM, "transformer": TRANSFORMER}


def written(folder: Path, data: str, model: str = LSTM, more: str = "", steps: int = 4, name: str = "run") -> Recipe:
    tables = f'[data]\n{data}\n[tokenizer]\nkind = "words"\nmin_frequency = 1\n[model]\n{model}'
    return write_recipe(folder / f"{name}.toml", "caption", tables, more, steps)


def command(*arguments: object) -> None:
    with pytest.raises(SystemExit) as exit:
        main([*map(str, arguments), "--quiet"])
    assert not exit.value.code


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with two captions each, in a folder and in an archive."""
    folder = tmp_path_factory.mktemp("captions")
    (folder / "photos").mkdir()
    for index in range(23):
        pixels = np.random.default_rng(index).integers(0, 256, (19, 13 + index % 3, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{index}.png")
    names = [f"{index}.png" for index in range(23)]
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for name in names:
            archive.write(folder / "photos" / name, name)
    with (folder / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption"])
        for what in ("noise", "grey"):  # the captions of an image are in two rows
            rows.writerows([f"photos/{name}", f"some {what} of {name[0]}"] for name in names)
    objects = [{"picture": name, "texts": [f"some noise of {name[0]}", f"some grey of {name[0]}"]} for name in names]
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, objects)))
    return folder


@pytest.fixture(scope="module", params=MODELS)
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps on synthetic images."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        start(written(folder, SHAPES, MODELS[request.param]), quiet=True)
    return folder / "run"


JSON = 'train = "{folder}/captions.jsonl"\nimage = "picture"\ncaption = "texts"\nvalidation = 0.3'


def test_tables_and_archives_give_the_same_samples(photos: Path, tmp_path: Path) -> None:
    tables = {
        "csv": f'train = "{photos}/captions.csv"\nvalidation = 0.3',
        "jsonl": JSON.format(folder=photos) + f'\nimages = "{photos}/photos"',
        "zip": JSON.format(folder=photos) + f'\nimages = "{photos}/photos.zip"',
    }
    found = {}
    for name, data in tables.items():
        split: CaptionDataset = task_of(written(tmp_path, data, name=name)).training
        assert len(split) == 2 * split.num_images
        found[name] = {
            split.name(image).rpartition("/")[2]: (split.references(image), split.image(image).tobytes())
            for image in range(split.num_images)
        }
    assert found["jsonl"] == found["zip"]
    assert all(len(references) == 2 for references, _ in found["csv"].values())
    both = found["csv"].keys() & found["zip"].keys()  # splits are by the path in the table
    assert both and all(found["csv"][name] == found["zip"][name] for name in both)


def test_all_captions_of_an_image_are_in_one_split(photos: Path, tmp_path: Path) -> None:
    recipe = written(tmp_path, f'train = "{photos}/captions.csv"\nvalidation = 0.3\ntest = 0.2')
    names = {split: {record.image for record in records(recipe, split)} for split in ("train", "validation", "test")}
    assert sum(map(len, names.values())) == 23 == len(set().union(*names.values()))
    assert all(names.values())


def test_what_cannot_be_used_is_counted(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    rows = [("a.png", "no such file"), ("broken.png", "damaged"), ("", "no name"), (photos / "photos/1.png", "")]
    rows += [(photos / "photos/2.png", "word " * 70), (photos / "photos/3.png", "a fine caption")]
    (tmp_path / "t.tsv").write_text("\n".join("\t".join(map(str, row)) for row in [("image", "caption"), *rows]))
    report = str(task_of(written(tmp_path, 'train = "t.tsv"')).training.report)
    assert report.startswith("6 images read, 1 kept")
    for reason in ("image not found", "unreadable image", "no image", "no caption", "longer than 64 tokens"):
        assert f"1 skipped: {reason}" in report


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('train = "captions.csv"\ncaption = "captoin"', r"no column 'captoin'.*data.caption"),
        ('train = "captions.csv"\nimages = "pictures"', r"data file 'pictures' not found"),
        ('synthetic = "dates"\ntrain = 7', r"data.synthetic = 'dates' is not a dataset of captions"),
        ('train = "captions.csv"\nmax_length = 67', r"data.max_length = 67.*at most 66 tokens"),
    ],
)
def test_errors_name_the_option(photos: Path, tmp_path: Path, data: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_of(written(tmp_path, data.replace("captions.csv", f"{photos}/captions.csv")))


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_images_with_captions_are_not_mixed(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"augment.{name} = 0.4: mixed images have no caption"):
        written(tmp_path, SHAPES, more=f"[augment]\n{name} = 0.4")


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, model: str) -> None:
    more = "attention_penalty = 0.1\n[augment]\ncrop_padding = 2\nrandom_erasing = 0.3"
    start(written(tmp_path, SHAPES, MODELS[model], more, steps=8, name="whole"), quiet=True)
    start(written(tmp_path, SHAPES, MODELS[model], more, steps=8, name="resumed"), quiet=True)
    for path in (tmp_path / "resumed" / "checkpoint-8").iterdir():
        path.unlink()
    (tmp_path / "resumed" / "checkpoint-8").rmdir()
    resume(tmp_path / "resumed", quiet=True)
    first, second = (load_file(tmp_path / run / "checkpoint-8/model.safetensors") for run in ("whole", "resumed"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_training_continues_from_a_checkpoint(trained: Path, photos: Path, tmp_path: Path) -> None:
    recipe = written(tmp_path, f'train = "{photos}/captions.csv"', f'from = "{trained}"', steps=2, name="tuned")
    start(recipe, quiet=True)
    before, after = regard.load(trained), regard.load(tmp_path / "tuned")
    assert after.processor.content() == before.processor.content()
    pairs = zip(before.network.parameters(), after.network.parameters(), strict=True)
    changes = [float((first - second).detach().abs().max()) for first, second in pairs]
    assert 0 < max(changes) < 0.1  # two small steps away


def test_the_attention_penalty_adds_the_paper_s_term(tmp_path: Path) -> None:
    plain, penalised = (
        task_of(written(tmp_path, SHAPES, more=more, name=f"p{index}"))
        for index, more in enumerate(("", "attention_penalty = 0.5"))
    )
    network = prepare_network(written(tmp_path, SHAPES, name="n")).network.eval()
    batch = plain.collate(plain.training, range(7))
    with torch.no_grad():
        added = float(penalised.loss(network, batch) - plain.loss(network, batch))
    cells = 8 * 8
    assert 0 < added <= 0.5 * 7 * (cells + 64 * 64)
    assert added > 0.5 * 7 * 0.5 * cells  # captions are short: most cells are attended to less than half


def test_predictions_do_not_depend_on_the_batch_or_on_how_an_image_is_given(trained: Path, tmp_path: Path) -> None:
    model = regard.load(trained)
    names = [f"shapes:1:test:{index}" for index in range(5)]
    files = []
    for index, name in enumerate(names):
        files.append(tmp_path / f"{index}.png")
        Image.fromarray(read_image(name).pixels).save(files[-1])
    expected = model.run(names, batch_size=2)
    assert [caption.text for caption in model.run(files)] == [caption.text for caption in expected]
    assert [model.run(str(file)).text for file in files] == [caption.text for caption in expected]
    assert model.run(Image.open(files[0])).text == model.run(read_image(names[0]).pixels).text == expected[0].text
    assert [caption.score for caption in expected] == pytest.approx([model.run(name).score for name in names], abs=1e-4)
    beams = model.run(names[0], num_beams=3, num_return_sequences=3)
    assert len(beams.alternatives) == 2 and beams.score >= beams.alternatives[0].score
    sampled = [model.run(names[0], temperature=1.0, seed=4).text for _ in range(2)]
    assert sampled[0] == sampled[1]


def test_a_trace_has_words_by_patches(trained: Path) -> None:
    model = regard.load(trained)
    trace = model.trace("shapes:1:test:3", target="a red circle", prove=True)
    site = next(site for site in trace.sites if site.endswith("cross"))
    words, patches = trace.labels(site)
    assert "".join(words[:3]).split() == ["a", "red", "circle"] and len(words) == 4
    axes = trace.axes.at(site)
    assert axes is not None and axes[1].grid is not None
    rows, columns = axes[1].grid
    assert len(patches) == len(axes[1].labels) == trace.weights(site).shape[-1]
    assert len(patches) - rows * columns == len(model.network.encoder.tokens)
    for each in trace.sites:
        mixed, used = trace.proof(each)
        torch.testing.assert_close(mixed, used, atol=1e-5, rtol=0)
        assert len(trace.labels(each)[0]) == trace.weights(each).shape[1]
    assert model.trace("shapes:1:test:3").answer == model.run("shapes:1:test:3").text


def test_evaluation_has_every_metric_and_pointing_with_its_chance(trained: Path, tmp_path: Path, capsys: Any) -> None:
    predictions = tmp_path / "rows.jsonl"
    command("evaluate", trained, "--json", "--predictions", predictions)
    results = json.loads(capsys.readouterr().out)
    names = {score["name"] for score in results["scores"]}
    assert names == {"bleu1", "bleu2", "bleu3", "bleu4", "chrf", "cider", "exact"}
    assert results["images"] == results["pointing_images"] == 17
    assert 0 < results["pointing_chance"] < 50
    assert all(score["name"].endswith("cross") and 0 <= score["value"] <= 100 for score in results["pointing"])
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert len(rows) == 17 and rows[0]["reference"][0].startswith("a ")


def test_the_command_line_captions_files_folders_and_tables(trained: Path, photos: Path, capsys: Any) -> None:
    command("run", trained, photos / "photos")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 23 and lines[0].startswith(str(photos / "photos" / "0.png"))
    command("run", trained, "--file", photos / "captions.csv")
    assert len(capsys.readouterr().out.splitlines()) == 46


def test_an_error_names_the_file(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"a.png: not an image"):
        regard.load(trained).run(tmp_path / "a.png")


def test_doctor_counts_captions_and_finds_leaked_images(photos: Path, tmp_path: Path) -> None:
    data = f'train = "{photos}/captions.csv"\nvalidation = "{photos}/captions.csv"'
    findings = examine(written(tmp_path, data))
    assert findings.facts["captions"]["train"] == {"images": 23, "captions": 46, "per image": 2.0}
    assert any("23 of 23 images are in train too" in warning for warning in findings.warnings)
    assert not findings.errors
