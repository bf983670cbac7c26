"""Encoders of images: regard beside transformers, ViT-B/16 and Swin-T with random weights; training of a small ViT."""

import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.sides import Result, Work, compare

BATCHES = (1, 8)
LABELS = 10
SMALL: dict[str, Any] = dict(
    image_size=32, patch_size=4, hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=384,
    num_labels=LABELS,
)  # fmt: skip
TRAINED, STEPS = 64, 5  # images of a batch, batches of a round


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
        write(Path(folder), "ViT 6×192")
        sides = {"regard": (our_training, folder, threads), "peer": (their_training, folder, threads)}
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


def our_training(folder: str, threads: int) -> Work:
    from regard.interop.folder import load
    from regard.layers.inputs import ImageBatch

    torch.set_num_threads(threads)
    network: Any = load(Path(folder)).network
    return _steps(network, lambda pixels: network(ImageBatch(pixels)))


def their_training(folder: str, threads: int) -> Work:
    torch.set_num_threads(threads)
    kind, _ = _model("ViT 6×192")
    model = kind.from_pretrained(folder)
    return _steps(model, lambda pixels: model(pixels).logits)


def _steps(model: Any, logits: Callable[[torch.Tensor], torch.Tensor]) -> Work:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pixels = images(TRAINED, 32)
    labels = torch.randint(0, LABELS, (TRAINED,), generator=torch.Generator().manual_seed(2))

    def work() -> float:
        loss = torch.zeros(())
        for _ in range(STEPS):
            loss = F.cross_entropy(logits(pixels), labels)
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


def losses(ours: float, expected: float) -> str:
    assert abs(ours - expected) <= 1e-3, (ours, expected)
    return f"losses after {STEPS} steps {ours:.4f} and {expected:.4f}"
