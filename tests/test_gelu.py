"""GELU by way of tanh: torch's numbers and slopes, where gradients are wanted and where they are not."""

import pytest
import torch
import torch.nn.functional as F

from regard.layers.gelu import PART, TanhGELU


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 7, 11), (PART + 3,), (2, PART)])
def test_as_torch_has_it(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    ours = (3 * torch.randn(shape)).requires_grad_()
    theirs, goal = ours.detach().clone().requires_grad_(), torch.randn(shape)
    found, expected = TanhGELU()(ours), F.gelu(theirs, approximate="tanh")
    assert torch.allclose(found, expected, atol=1e-6)
    (found * goal).sum().backward()
    (expected * goal).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=5e-6)


def test_far_out_it_is_straight() -> None:
    x = torch.tensor([-1e12, -200.0, -20.0, 20.0, 200.0, 1e12]).requires_grad_()
    y = TanhGELU()(x)
    y.sum().backward()
    assert x.grad is not None and y.isfinite().all()
    assert torch.equal(x.grad, torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))
    assert torch.equal(y.detach(), x.detach().clamp(min=0))


def test_any_strides_and_other_types_and_nothing_at_all() -> None:
    x = torch.randn(4, 6).t().requires_grad_()
    assert torch.allclose(TanhGELU()(x), F.gelu(x, approximate="tanh"), atol=1e-6)
    double = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TanhGELU(), double)
    assert TanhGELU()(torch.empty(0, 3, requires_grad=True)).shape == (0, 3)
    plain = torch.randn(5)
    assert torch.equal(TanhGELU()(plain), F.gelu(plain, approximate="tanh"))
