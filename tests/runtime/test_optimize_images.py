"""Image encoders rewritten for speed compute what they computed before; in int8, nearly."""

from typing import Any

import pytest
import torch
from torch import nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.kernels import onednn
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from regard.runtime.optimize import optimize_for_inference
from regard.runtime.unpadded import Unpadded
from tests.models.test_vision import MODELS as SMALL
from tests.models.test_vision import alike, images

WIDE = {
    "vit": dict(width=96),
    "deit": dict(width=96),
    "hybrid": dict(width=96),
    "swin": dict(embedding_width=48),
    "cnn": {},
}
MODELS = {name: model | WIDE[model["family"]] for name, model in SMALL.items()}


@pytest.fixture(autouse=True)
def _by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rewriting on every CPU; tests/kernels/test_onednn.py has the other."""
    monkeypatch.setattr(onednn, "is_faster", lambda: False)


def made(model: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    network = Classifier(build(model), ["a", "b", "c"]).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    return network


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_optimized_equals_original(model: dict[str, Any], kernels: str) -> None:
    plain, optimized = made(model), optimize_for_inference(made(model))
    assert isinstance(getattr(optimized.body, "encoder", None), Unpadded) is (model["family"] not in ("swin", "cnn"))
    for size in (plain.config.image_shape, (17, 26)):
        batch = images(plain, 3, *size)
        alike(optimized(batch), plain(batch))
    ours, theirs = dict(optimized.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_int8_is_near(model: dict[str, Any], kernels: str) -> None:
    plain, quantised = made(model), optimize_for_inference(made(model), "int8")
    batch = images(plain, 3)
    expected = plain(batch)
    assert (quantised(batch) - expected).abs().max() <= 0.06 * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_optimized_networks_are_traced(name: str) -> None:
    plain, optimized = made(MODELS[name]), optimize_for_inference(made(MODELS[name]))
    traces = []
    for network in (plain, optimized):
        with record(prove=True) as recorder:
            network(images(plain, 1))
        traces.append(Trace(recorder))
    assert traces[0].sites == traces[1].sites
    for site in traces[0].sites:
        alike(traces[1].weights(site), traces[0].weights(site))
        alike(*traces[1].proof(site))
