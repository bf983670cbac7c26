"""Three projections in one product: the same numbers and gradients, and parameters that stay what they were."""

import copy
from typing import Any

import pytest
import torch

from regard.layers.joint import Joint, join
from regard.models import build

MODELS = {
    "gpt": {"family": "gpt", "width": 16, "heads": 2, "depth": 2, "limit": 8, "dropout": 0.0},
    "gpt without biases": {
        "family": "gpt", "width": 16, "heads": 2, "depth": 2, "limit": 8, "dropout": 0.0, "bias": False,
    },
    "llama, grouped": {"family": "llama", "width": 16, "heads": 4, "key_heads": 2, "depth": 2, "limit": 8},
}  # fmt: skip


def made(model: dict) -> Any:
    torch.manual_seed(1)
    return build(model, vocabulary=11)


def given(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("name", MODELS)
def test_the_same_loss_and_gradients(name: str) -> None:
    plain = made(MODELS[name])
    joint: Any = join(copy.deepcopy(plain))
    assert any(isinstance(getattr(module, "together", None), Joint) for module in joint.modules())
    tokens = torch.randint(0, 11, (3, 7))
    for network in (plain, joint, plain, joint):  # twice, as where gradients are accumulated
        network(tokens).square().mean().backward()
    ours, theirs = dict(joint.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    for key, parameter in theirs.items():
        assert torch.allclose(given(ours[key]), given(parameter), atol=1e-6), key


def test_an_update_of_the_parts_is_one_of_the_whole() -> None:
    network = join(made(MODELS["gpt"]))
    tokens = torch.randint(0, 11, (3, 7))
    before = network(tokens).detach()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    plain = made(MODELS["gpt"])
    plain.load_state_dict(network.state_dict())
    after = network(tokens)
    assert torch.allclose(after, plain(tokens), atol=1e-5)
    assert not torch.allclose(after, before)


def test_weights_put_in_their_place_are_the_ones_that_count() -> None:
    network, other = join(made(MODELS["gpt"])), made(MODELS["gpt"] | {"width": 16})
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    for parameter, better in zip(network.parameters(), other.parameters(), strict=True):
        parameter.data = better.data  # as an average of the weights does
    tokens = torch.randint(0, 11, (3, 7))
    assert torch.allclose(network(tokens), other(tokens), atol=1e-6)


def test_a_bias_put_in_its_place_counts_and_what_is_frozen_later_has_no_gradient() -> None:
    network, plain = made(MODELS["gpt"]), made(MODELS["gpt"])
    join(network)
    tokens = torch.randint(0, 11, (3, 7))
    for each in (network, plain):
        bias = each.decoder.blocks[0].own.query.bias
        bias.data = torch.full_like(bias, 0.7)
    assert torch.allclose(network(tokens), plain(tokens), atol=1e-6)
    network.decoder.blocks[1].own.key.weight.requires_grad_(False)
    network(tokens).sum().backward()
    assert network.decoder.blocks[1].own.key.weight.grad is None
    assert network.decoder.blocks[1].own.query.weight.grad is not None


def test_what_is_not_all_trained_is_left_alone() -> None:
    network = made(MODELS["gpt"])
    for name, parameter in network.named_parameters():
        parameter.requires_grad = ".own.key." not in name
    join(network)
    assert not any(isinstance(getattr(module, "together", None), Joint) for module in network.modules())
