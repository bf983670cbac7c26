"""Encoders of images that are rewritten for speed compute what they computed before; in int8, nearly."""

from copy import deepcopy

import pytest
import torch

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.layers.inputs import ImageBatch
from regard.models.registry import build
from regard.runtime.optimize import optimize_for_inference
from regard.runtime.unpadded import Unpadded

SMALL = dict(image_size=33, patch=5, width=96, heads=4, depth=3)
MODELS = {
    "vit": dict(family="vit", drop_path=0.3, **SMALL),
    "vit without bias": dict(family="vit", qkv_bias=False, **SMALL),
    "deit": dict(family="deit", **SMALL),
    "swin": dict(family="swin", preset="tiny"),
    "hybrid": dict(family="hybrid", preset="tiny"),
    "cnn": dict(family="cnn", preset="tiny"),
}


@torch.inference_mode()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-5), ("int8", 0.05)])
def test_states_are_the_same(model: dict, precision: str, most: float, kernels: str) -> None:
    torch.manual_seed(1)
    plain = build(model).eval()
    images = ImageBatch(torch.randn(3, plain.config.channels, *plain.config.image_shape))  # type: ignore[union-attr]
    expected = plain(images)
    fast = optimize_for_inference(deepcopy(plain), precision)
    assert (fast(images) - expected).abs().max() <= most * expected.abs().max()
    assert isinstance(getattr(fast, "encoder", None), Unpadded) is (model["family"] not in ("swin", "cnn"))


@torch.inference_mode()
def test_a_trace_of_a_rewritten_encoder_is_that_of_its_blocks() -> None:
    plain = build(MODELS["vit"]).eval()
    fast = optimize_for_inference(deepcopy(plain))
    images = ImageBatch(torch.randn(1, 3, 33, 33))
    traces = []
    for network in (plain, fast):
        with record() as recorder:
            network(images)
        traces.append(Trace(recorder))
    assert traces[0].sites == traces[1].sites != []
    for site in traces[0].sites:
        torch.testing.assert_close(traces[0].weights(site), traces[1].weights(site), atol=1e-6, rtol=1e-5)
