"""Self-attention with quadratic relative positions equals a convolution. Sizes are odd and prime."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import core
from regard.attention.convolution import Quadratic, QuadraticAttention, attention_from_convolution
from regard.attention.core import Attention
from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.errors import UserError

BATCH, INPUTS, OUTPUTS, ROWS, COLUMNS = 2, 3, 7, 11, 5

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "kernel 1": dict(kernel_size=1),
    "kernel 3": dict(kernel_size=3, padding=1),
    "kernel 5": dict(kernel_size=5, padding="same"),
    "wider than the image": dict(kernel_size=7, padding=3),
    "no padding": dict(kernel_size=3),
    "more padding than the kernel needs": dict(kernel_size=3, padding=(2, 3)),
    "not square": dict(kernel_size=(5, 3), padding=(2, 1)),
    "no bias": dict(kernel_size=3, padding=1, bias=False),
    "dilation": dict(kernel_size=3, padding="same", dilation=(3, 2)),
}


def made(options: dict[str, Any]) -> tuple[nn.Conv2d, nn.Sequential]:
    convolution = nn.Conv2d(INPUTS, OUTPUTS, **options)
    return convolution, attention_from_convolution(convolution)


def assert_close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, atol=1e-5 * float(expected.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("band", [1 << 22, 3000], ids=["one band", "many bands"])
@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_it_equals_the_convolution(options: dict[str, Any], band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "BAND", band)
    convolution, attention = made(options)
    image = torch.randn(BATCH, INPUTS, ROWS, COLUMNS)
    assert_close(attention(image), convolution(image))
    with torch.no_grad():
        assert_close(attention(image), convolution(image))


@pytest.mark.parametrize("size", [(1, 1), (1, 13), (13, 1), (23, 17)])
def test_images_of_any_size(size: tuple[int, int]) -> None:
    convolution, attention = made(dict(kernel_size=5, padding=2))
    image = torch.randn(1, INPUTS, *size)
    assert_close(attention(image), convolution(image))


@pytest.mark.parametrize("groups", [3, 5, 15])
def test_groups(groups: int) -> None:
    convolution = nn.Conv2d(15, 15 * 2, 3, padding=1, groups=groups)
    image = torch.randn(BATCH, 15, ROWS, COLUMNS)
    assert_close(attention_from_convolution(convolution)(image), convolution(image))


def test_values_far_from_zero_do_not_leak_between_pixels() -> None:
    """The weights are exactly one-hot: a pixel of 1e30 does not change the outputs of other windows."""
    convolution, attention = made(dict(kernel_size=3, padding=1))
    image = torch.randn(1, INPUTS, ROWS, COLUMNS)
    expected = convolution(image)
    image[..., 0, 0] = 1e30
    with torch.no_grad():
        assert_close(attention(image)[..., 2:, :], expected[..., 2:, :])


@pytest.mark.parametrize("size", [1, 3, 5])
@torch.no_grad()
def test_the_traced_weights_of_each_head_are_shifted_one_hot_maps(size: int) -> None:
    reach = size // 2
    _, attention = made(dict(kernel_size=size, padding=reach))
    with record(prove=True) as recorder:
        attention(torch.randn(BATCH, INPUTS, ROWS, COLUMNS))
    trace = Trace(recorder)
    rows = ROWS + 2 * reach  # of the padded image
    columns = COLUMNS + 2 * reach
    weights = trace.weights("").view(size**2, rows, columns, rows, columns)
    for head in range(size**2):
        down = head // size - reach
        right = head % size - reach
        for row in range(reach, reach + ROWS):
            for column in range(reach, reach + COLUMNS):
                expected = torch.zeros(rows, columns)
                expected[row + down, column + right] = 1.0
                assert torch.equal(weights[head, row, column], expected)
        one_head = trace.weights("", head=head, rows=slice(3, 20))
        assert torch.equal(one_head, weights.flatten(3).flatten(1, 2)[head, 3:20])
    torch.testing.assert_close(*trace.proof(""), atol=1e-5, rtol=0)


def test_gradients_are_those_of_the_convolution() -> None:
    """Of the image, of the kernel and of the bias, in float64."""
    convolution = nn.Conv2d(INPUTS, OUTPUTS, 3, padding=1).double()
    attention = attention_from_convolution(convolution, sharpness=1024.0)
    image = torch.randn(BATCH, INPUTS, ROWS, COLUMNS, dtype=torch.float64, requires_grad=True)
    goal = torch.randn(BATCH, OUTPUTS, ROWS, COLUMNS, dtype=torch.float64)
    assert convolution.bias is not None
    expected = torch.autograd.grad((convolution(image) * goal).sum(), [image, convolution.weight, convolution.bias])
    output: Any = attention[1].attention.output  # type: ignore[union-attr]
    image_gradient, weight, bias = torch.autograd.grad(
        (attention(image) * goal).sum(), [image, output.weight, output.bias]
    )
    torch.testing.assert_close(image_gradient, expected[0])
    torch.testing.assert_close(weight.view(OUTPUTS, 3, 3, INPUTS).permute(0, 3, 1, 2), expected[1])
    torch.testing.assert_close(bias, expected[2])


def test_centre_and_sharpness_are_trained() -> None:
    """A small sharpness gives a Gaussian over pixels, with gradients of its centre and width."""
    centre = torch.tensor([[0.3, -0.7], [1.1, 0.2]], dtype=torch.float64, requires_grad=True)
    sharpness = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    identity = nn.Identity()
    attention = Attention(identity, identity, identity, identity, heads=2)
    layer = QuadraticAttention(attention, centre.detach(), sharpness.detach())
    image = torch.randn(1, 2, 5, 3, dtype=torch.float64)

    def attend(centre: Tensor, sharpness: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"centre": centre, "sharpness": sharpness}, (image,))

    assert torch.autograd.gradcheck(attend, (centre, sharpness))


def test_the_bias_is_the_definition() -> None:
    centre = torch.tensor([[0.5, -1.0], [2.0, 0.0], [0.0, 0.25]])
    sharpness = torch.tensor([0.1, 3.0, 0.7])
    bias = Quadratic(centre, sharpness, columns=5)
    rows = bias.rows(torch.arange(4, 9), torch.arange(2, 13))
    for head in range(3):
        for i, query in enumerate(range(4, 9)):
            for j, key in enumerate(range(2, 13)):
                down = key // 5 - query // 5 - float(centre[head, 0])
                right = key % 5 - query % 5 - float(centre[head, 1])
                expected = -float(sharpness[head]) * (down**2 + right**2)
                assert float(rows[0, head, i, j]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(kernel_size=3, stride=2), "stride must be 1"),
        (dict(kernel_size=2), "kernel_size must be odd"),
        (dict(kernel_size=3, padding=1, padding_mode="reflect"), "padding_mode must be 'zeros'"),
    ],
)
def test_other_convolutions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(options)
