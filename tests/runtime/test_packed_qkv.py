"""Three projections in one product: the same numbers, and parameters that stay what they were."""

from typing import Any

import pytest
import torch

from regard.attention.core import Attention
from regard.models.registry import build
from regard.runtime.linear import PackedQKV
from regard.runtime.optimize import pack_qkv, small_batch_int8

MODELS = {
    "gpt": {"family": "gpt", "width": 16, "heads": 2, "depth": 2, "max_positions": 8, "dropout": 0.0},
    "gpt without biases": {
        "family": "gpt", "width": 16, "heads": 2, "depth": 2, "max_positions": 8, "dropout": 0.0, "bias": False,
    },
    "llama, grouped": {"family": "llama", "width": 16, "heads": 4, "key_heads": 2, "depth": 2, "max_positions": 8},
}  # fmt: skip
TOKENS = torch.arange(21).view(3, 7) % 11


def made(model: dict) -> Any:
    """In double precision: which order a machine sums in does not show."""
    torch.manual_seed(1)
    return build(model, vocabulary=11).double()


def packed(model: dict) -> Any:
    network = made(model)
    for attention in [each for each in network.modules() if isinstance(each, Attention)]:
        pack_qkv(attention, "float32", small_batch_int8())
        assert isinstance(attention.qkv, PackedQKV) and attention.qkv.is_current
    return network


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_packed_outputs_are_equal(name: str) -> None:
    plain, joint = made(MODELS[name]), packed(MODELS[name])
    assert torch.allclose(plain(TOKENS), joint(TOKENS), atol=1e-12)
    assert plain.state_dict().keys() == joint.state_dict().keys()


@torch.no_grad()
def test_an_update_of_the_projections_updates_the_packed_weight() -> None:
    network = packed(MODELS["gpt"])
    before = network(TOKENS)
    for parameter in network.parameters():
        parameter.mul_(1.5)
    plain = made(MODELS["gpt"])
    plain.load_state_dict(network.state_dict())
    after = network(TOKENS)
    assert torch.allclose(after, plain(TOKENS), atol=1e-12)
    assert not torch.allclose(after, before)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_replaced_projections_take_effect(kind: str) -> None:
    network, other = packed(MODELS["gpt"]), made(MODELS["gpt"])
    for each in (network, other):
        own = getattr(each.decoder.blocks[0].self_attention.query, kind)
        own.data = torch.full_like(own, 0.7)  # as an average of the weights does
    assert torch.allclose(network(TOKENS), other(TOKENS), atol=1e-12)
