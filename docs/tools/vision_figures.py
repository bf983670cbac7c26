"""Draw the figures of docs/vision.md from the runs of its recipes, and print the attention distances:
`python docs/tools/vision_figures.py [RUNS]`. The images are those of the test split of Fashion-MNIST and CIFAR-10."""

import sys
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

import regard
from regard.attention.rollout import SITES
from regard.attention.trace import Axis, Trace
from regard.explorer.charts import Bar, bar_chart
from regard.model import Model
from regard.tasks.registry import task_of
from regard.tasks.scoring import EvaluationRequest

FOLDER = Path(__file__).resolve().parents[1] / "figures" / "vision"
IMAGES = 100  # over which distances are averaged
SHOWN = 7  # index, in the test split, of the image of the overlays
MODELS = {
    "Fashion-MNIST": ("fashion-mnist-vit", "fashion-mnist-deit", "fashion-mnist-hybrid"),
    "CIFAR-10": ("cifar10-vit", "cifar10-swin", "cifar10-hybrid"),
}


def test_images(model: Model) -> list[str]:
    """The first images of the test split, as inputs of `run` and `trace`."""
    evaluation = task_of("classify").evaluate([model], EvaluationRequest())
    rows = evaluation.predictions
    assert rows is not None
    return [row["input"] for _, row in zip(range(IMAGES), rows, strict=False)]


def centres(axis: Axis, size: tuple[int, int]) -> Tensor:
    """The centres (patches, 2) of an axis's patches in pixels of an image of this size."""
    assert axis.grid is not None
    edges = [extent * pixels for extent, pixels in zip(axis.extent, size, strict=True)]
    each = [(torch.arange(count) + 0.5) * edge / count for count, edge in zip(axis.grid, edges, strict=True)]
    return torch.cartesian_prod(*each)


def distances(trace: Trace) -> dict[str, tuple[Tensor, float]]:
    """At each self-attention site the mean distance in pixels between query and attended patch by head, and that of
    uniform attention: Dosovitskiy et al. 2021, figure 7. Learned tokens such as [CLS] are left out."""
    assert trace.picture is not None
    size = (int(trace.picture.pixels.shape[0]), int(trace.picture.pixels.shape[1]))
    result = {}
    for site in trace.sites:
        axes = trace.axes.at(site)
        if axes is None or axes[1].grid is None or not fnmatchcase(site, SITES):
            continue
        first = axes[1].first_patch
        weights = trace.weights(site)[:, first:, first:].float()
        weights = weights / weights.sum(-1, keepdim=True)
        patches = centres(axes[1], size)
        apart = torch.cdist(patches, patches)
        result[site] = ((weights * apart).sum(-1).mean(-1), float(apart.mean()))
    return result


def distance_chart(dataset: str, names: tuple[str, ...], runs: Path) -> Path:
    """The mean attention distance of every layer, over test images."""
    bars = []
    for name in names:
        model = regard.load(runs / name)
        measured = [distances(model.trace(image)) for image in test_images(model)]
        for index, (site, (_, uniform)) in enumerate(measured[0].items()):
            heads = torch.stack([each[site][0] for each in measured]).mean(0)
            bars.append(Bar(f"{name.rpartition('-')[2]}, layer {index}", float(heads.mean())))
            values = f"mean {heads.mean():.1f}  most local head {heads.min():.1f}  uniform {uniform:.1f}"
            print(f"{dataset}  {name}  {site}  {values}")
    title = f"Mean attention distance, {IMAGES} test images of {dataset}"
    return bar_chart(FOLDER / f"distance-{dataset.lower()}.svg", title, "pixels", bars)


def overlays(runs: Path) -> list[Path]:
    """One test image of Fashion-MNIST: what the learned tokens attend to, and the rollout."""
    paths = []
    for name, options in {
        "fashion-mnist-vit": {"queries": ["[CLS]"]},
        "fashion-mnist-deit": {"queries": ["[CLS]", "[DISTILLATION]"]},
        "fashion-mnist-hybrid": {"rollout": True},
    }.items():
        model = regard.load(runs / name)
        trace = model.trace(test_images(model)[SHOWN])
        path = FOLDER / f"{name.rpartition('-')[2]}.png"
        trace.overlay(path, **options)
        paths.append(path)
    return paths


if __name__ == "__main__":
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in [*overlays(runs), *(distance_chart(*each, runs) for each in MODELS.items())]:
        print(path.relative_to(FOLDER.parents[2]))
