"""Draw the figures of docs/attention-and-convolution.md: `python docs/tools/convolution_figures.py`. Takes a minute."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.convolution import attention_from_convolution
from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.explorer.charts import Panel, panel_chart
from regard.layers.deformable import DeformableConvolution, deformable_convolution

FOLDER = Path(__file__).resolve().parents[1] / "figures" / "attention-and-convolution"
ROWS, COLUMNS = 7, 9
QUERY = (3, 4)
SIGNS = {-1: "−1", 0: "0", 1: "+1"}


def weights_of(layer: nn.Sequential) -> Tensor:
    """The weights (heads, rows, columns) of one query over the image, from a trace; zero padding is cropped."""
    with torch.no_grad(), record() as recorder:
        layer(torch.randn(1, 1, ROWS, COLUMNS))
    query = (QUERY[0] + 1) * (COLUMNS + 2) + QUERY[1] + 1
    weights = Trace(recorder).weights("", rows=slice(query, query + 1))
    return weights.view(-1, ROWS + 2, COLUMNS + 2)[:, 1:-1, 1:-1]


def heads() -> Path:
    """The nine heads that are a 3 × 3 convolution."""
    weights = weights_of(attention_from_convolution(nn.Conv2d(1, 1, 3, padding=1)))
    panels = []
    for head, each in enumerate(weights):
        down, right = head // 3 - 1, head % 3 - 1
        panels.append(Panel(f"head {head}: Δ = ({SIGNS[down]}, {SIGNS[right]})", each.tolist(), QUERY))
    title = "Attention weights of one pixel (outlined) in nine heads"
    return panel_chart(FOLDER / "heads.svg", title, panels, columns=3)


def sharpness() -> Path:
    """One head, from nearly uniform to one-hot."""
    panels = []
    for alpha in (0.02, 0.2, 1.0, 128.0):
        weights = weights_of(attention_from_convolution(nn.Conv2d(1, 1, 3, padding=1), alpha))[8]
        panels.append(Panel(f"α = {alpha:g}: at most {weights.max():.2f}", (weights / weights.max()).tolist(), QUERY))
    title = "The head with Δ = (+1, +1) by sharpness; shades relative to the largest weight"
    return panel_chart(FOLDER / "sharpness.svg", title, panels, columns=4)


def smooth_images() -> Tensor:
    images = F.avg_pool2d(F.avg_pool2d(torch.randn(8, 1, 36, 36), 5, 1), 5, 1)
    return images / images.std()


def turned(angle: float, scale: float) -> Tensor:
    """Offsets that turn and scale the sampling positions of a 3 × 3 kernel: (18,)."""
    kernel = torch.cartesian_prod(torch.arange(-1.0, 2.0), torch.arange(-1.0, 2.0))
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    return (kernel @ torch.tensor([[cos, sin], [-sin, cos]]) - kernel).flatten()


def offsets() -> Path:
    """A deformable convolution that is trained to compute what one with other sampling positions does."""
    torch.manual_seed(1)
    layer = DeformableConvolution(1, 4, 3, padding=1)
    for parameter in (*layer.convolution.parameters(), layer.offsets.weight):
        parameter.requires_grad_(False)  # only constant offsets are trained
    assert layer.offsets.bias is not None
    optimizer = torch.optim.Adam([layer.offsets.bias], lr=0.05)
    expected = turned(math.pi / 6, 2.0)
    panels = []
    for step in range(301):
        if step in (0, 20, 300):
            panels.append(sampling(f"after {step} steps", layer.offsets.bias.detach()))
        images = smooth_images()
        maps = expected[:, None, None].expand(len(images), -1, *images.shape[2:])
        target = deformable_convolution(images, maps, layer.convolution.weight, layer.convolution.bias, padding=1)
        loss = F.mse_loss(layer(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    panels.append(sampling("reference", expected))
    title = "Sampling positions of one output pixel (outlined), learned from outputs of the reference"
    return panel_chart(FOLDER / "offsets.svg", title, panels, columns=4)


def sampling(name: str, bias: Tensor) -> Panel:
    kernel = torch.cartesian_prod(torch.arange(-1.0, 2.0), torch.arange(-1.0, 2.0))
    positions = torch.tensor(QUERY) + kernel + bias.view(9, 2)
    points = [(float(row), float(column)) for row, column in positions.tolist()]
    return Panel(name, [[0.0] * COLUMNS] * ROWS, QUERY, points)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in (heads, sharpness, offsets):
        print(draw().relative_to(FOLDER.parents[2]))
