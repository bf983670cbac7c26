"""Encoders of images: regard beside transformers, ViT-B/16 and Swin-T with random weights; training of a small ViT."""

import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import training
from benchmarks.sides import Result, Work, compare
from benchmarks.training import prepared

BATCHES = (1, 8)
LABELS = 10
SMALL: dict[str, Any] = dict(
    image_size=32, patch_size=4, hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=384,
    id2label={label: str(label) for label in range(LABELS)},
)  # fmt: skip
TRAINED, STEPS = 64, 5  # images of a batch, batches of a round
RECIPE = """
task = "classify"
[data]
train = "train.npz"
[model]
from = "{1}"
[train]
batch_size = {0}
max_steps = 1000000
"""


def measure(rounds: int, threads: int) -> list[Result]:
    results = []
    for name in ("ViT-B/16", "Swin-T"):
        with TemporaryDirectory() as folder:
            write(Path(folder), name)
            for batch in BATCHES:
                for precision in ("float32", "int8"):
                    sides = {
                        "regard": (ours, folder, precision, batch, threads),
                        "peer": (theirs, folder, name, batch, threads),
                    }
                    check = agreement if precision == "float32" else lambda ours, theirs: "against float32"
                    results.append(
                        compare(f"{name}, {precision}, batch {batch}", "images/s", batch, sides, rounds, check)
                    )
    with TemporaryDirectory() as folder:
        write_training(Path(folder))
        sides = {"regard": (training.ours, folder, threads, STEPS), "peer": (their_training, folder, threads)}
        name = f"ViT 6×192, training, batch {TRAINED}"
        results.append(compare(name, "images/s", TRAINED * STEPS, sides, rounds, losses))
    return results


def _model(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        import transformers as hf

        if name == "Swin-T":
            config = hf.SwinConfig(image_size=224, embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24])
            return hf.SwinForImageClassification, config
        return hf.ViTForImageClassification, hf.ViTConfig(**(SMALL if name == "ViT 6×192" else {}))


def write(folder: Path, name: str) -> None:
    kind, config = _model(name)
    torch.manual_seed(1)
    kind(config).save_pretrained(folder)


def images(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def ours(folder: str, precision: str, batch: int, threads: int) -> Work:
    import regard
    from regard.layers.inputs import ImageBatch

    torch.set_num_threads(threads)
    network = regard.load(folder, device="cpu", precision=precision).network
    pixels = ImageBatch(images(batch, 224))
    return _inference(lambda: network(pixels))


def theirs(folder: str, name: str, batch: int, threads: int) -> Work:
    torch.set_num_threads(threads)
    kind, _ = _model(name)
    model = kind.from_pretrained(folder).eval()
    pixels = images(batch, 224)
    return _inference(lambda: model(pixels).logits)


def _inference(compute: Callable[[], torch.Tensor]) -> Work:
    def work() -> Any:
        with torch.inference_mode():
            return compute().numpy()

    return work


def write_training(folder: Path) -> None:
    """A recipe that trains the small ViT on random images, from weights that both sides load."""
    write(folder / "vit", "ViT 6×192")
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (TRAINED * STEPS, 32, 32, 3), np.uint8)
    np.savez(folder / "train.npz", images=pixels, labels=np.arange(len(pixels)) % LABELS)
    (folder / "recipe.toml").write_text(RECIPE.format(TRAINED, (folder / "vit").as_posix()))


def their_training(folder: str, threads: int) -> Work:
    """The same batches in the usual loop."""
    torch.set_num_threads(threads)
    recipe, _, task = prepared(folder)
    kind, _ = _model("ViT 6×192")
    model = kind.from_pretrained(Path(folder) / "vit").train()
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    rest = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": recipe.train.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.train.learning_rate, betas=recipe.train.betas)
    stream = list(islice(task.batches(0, 0, 1), STEPS))

    def work() -> float:
        loss = torch.zeros(())
        for batch in stream:
            loss = F.cross_entropy(model(batch.inputs.pixels).logits, batch.labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return work


def agreement(ours: Any, expected: Any) -> str:
    apart = abs(ours - expected).max() / abs(expected).max()
    assert apart <= 1e-5, apart
    return f"logits apart by {apart:.0e} of the largest"


def losses(ours: float, theirs: float) -> str:
    return f"loss after the first round {ours:.3f} and {theirs:.3f}"
