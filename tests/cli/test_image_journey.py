"""A folder of photos in two classes: trained from scratch and from a published ViT, predicted, and shown."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Call
from image_runs import publish_vit
from PIL import Image
from transformers import ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

CLASSES = {"night": 0, "snow": 150}  # the least value of their pixels
PHOTOS = 100  # of each class

SCRATCH = ("model.family=vit", "model.image_size=16", "model.patch=4", "model.width=24", "model.heads=3")
SHORT = ("train.max_steps=12", "train.eval_steps=6", "train.save_steps=6", "train.warmup_steps=2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 JPEGs, one of them damaged, and what file managers and notebooks leave behind."""
    folder = tmp_path_factory.mktemp("journey") / "photos"
    for label, low in CLASSES.items():
        (folder / label).mkdir(parents=True)
        for index in range(PHOTOS):
            pixels = np.random.default_rng((low, index)).integers(low, low + 106, (24 + index % 9, 31, 3), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index:02}.jpg")
        (folder / label / "._00.jpg").write_bytes(b"Mac OS X")
    (folder / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (9, 9)).save(folder / ".ipynb_checkpoints" / "00.jpg")
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of eleven other labels, as transformers saves it."""
    return publish_vit(tmp_path_factory.mktemp("published"), 11, image_mean=[0.4, 0.5, 0.6])


@pytest.mark.parametrize("start", ["scratch", "published"])
def test_photos_become_a_classifier_that_shows_its_attention(
    start: str, photos: Path, published: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = SCRATCH if start == "scratch" else (f"model.from={published}", "model.new_head=true")
    code, out, err = call("train", "image", f"data.train={photos}", *model, *SHORT, "output=run", "--json")
    assert code == 0, err
    assert json.loads(out)["status"] == "finished"

    code, out, err = call("evaluate", "run", "--json")
    scores = {score["name"]: score["value"] for score in json.loads(out)["scores"]}
    assert scores["accuracy"] == 100, (err, scores)

    code, out, err = call("run", "run", photos)
    assert code == 0, err
    lines = [line.split("\t") for line in out.splitlines()]
    assert len(lines) == 2 * PHOTOS
    assert all(label == Path(name).parent.name for name, label in lines)

    code, out, err = call("run", "run", photos / "snow" / "07.jpg", "--overlay", "a.png", "--explore", "a.html")
    assert code == 0 and out == "snow\n", err
    with Image.open("a.png") as overlay:
        assert overlay.size[0] > 280 and len(overlay.getcolors(1 << 24) or ()) > 9
    page = Path("a.html").read_text()
    assert re.search("<title>.*07.jpg.*</title>", page) and "data:image/png;base64" in page

    theirs: Any = ViTForImageClassification.from_pretrained("run/checkpoint-12")
    assert theirs.config.id2label == {0: "night", 1: "snow"}
    processor: Any = ViTImageProcessorPil.from_pretrained("run/checkpoint-12")
    with Image.open(photos / "snow" / "07.jpg") as image:
        assert int(theirs(**processor(image, return_tensors="pt")).logits.argmax()) == 1


def test_a_checkpoint_with_other_labels_says_how_to_replace_its_head(
    photos: Path, published: Path, tmp_path: Path, call: Call
) -> None:
    code, _, err = call("train", "image", f"data.train={photos}", f"model.from={published}", f"output={tmp_path}/run")
    message = " ".join(err.split())
    assert code == 1 and "has no label 'night'" in message and "model.new_head=true" in message


def test_an_adapter_with_a_new_head_is_loaded_again(photos: Path, published: Path, tmp_path: Path, call: Call) -> None:
    model = (f"model.from={published}", "model.new_head=true", "model.lora_rank=3")
    code, _, err = call("train", "image", f"data.train={photos}", *model, *SHORT, f"output={tmp_path / 'run'}", "-q")
    assert code == 0, err
    code, out, err = call("run", tmp_path / "run", photos / "snow" / "07.jpg")
    assert code == 0 and out == "snow\n", err


def test_a_new_head_is_not_replaced_again_when_a_run_is_resumed(
    photos: Path, published: Path, tmp_path: Path, call: Call
) -> None:
    model = (f"model.from={published}", "model.new_head=true")
    runs = {name: tmp_path / name for name in ("whole", "resumed")}
    for folder in runs.values():
        code, _, err = call("train", "image", f"data.train={photos}", *model, *SHORT, f"output={folder}", "--quiet")
        assert code == 0, err
    (runs["resumed"] / "checkpoint-12").rename(tmp_path / "elsewhere")
    code, _, err = call("resume", runs["resumed"], "--quiet")
    assert code == 0, err
    weights = [(folder / "checkpoint-12" / "model.safetensors").read_bytes() for folder in runs.values()]
    assert weights[0] == weights[1]
