"""Laws of image encoders, whatever their weights."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.errors import UserError
from regard.layers.inputs import ImageBatch
from regard.layers.patches import GridPositions
from regard.models.deit import DistilledClassifier
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, build, configure

VIT = dict(family="vit", image_size=15, patch=5, channels=2, width=21, heads=3, depth=2, feedforward=29)
SWIN = dict(family="swin", image_size=15, patch=2, channels=2, embedding_width=6, depths=[2, 2], heads=[1, 3], window=3)
CNN = dict(family="cnn", image_size=13, channels=2, base_width=5, depths=[1, 2])

MODELS: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "vit, not square": VIT | dict(image_width=22, qkv_bias=False, activation="relu"),
    "vit, pooler": VIT | dict(pooler=True, patch=4),
    "deit": VIT | dict(family="deit"),
    "swin": SWIN,
    "swin, other windows": SWIN | dict(window=2, depths=[3], heads=[1], qkv_bias=False, image_width=22),
    "swin, positions": SWIN | dict(window=5, absolute_positions=True, feedforward_ratio=1.7),
    "hybrid": CNN | dict(family="hybrid", width=21, heads=3, depth=2),
    "cnn": CNN,
    "cnn, one stage": CNN | dict(depths=[2], stem_stride=3, image_width=17),
}
SIZES = ((15, 15), (17, 26), (13, 7))


@pytest.fixture(params=MODELS)
def network(request) -> Any:
    torch.manual_seed(0)
    network = build(MODELS[request.param]).eval()
    for parameter in network.parameters():  # biases too: zeros would hide what they do
        nn.init.normal_(parameter, std=0.3)
    return network


def images(network: Any, count: int, height: int = 0, width: int = 0, seed: int = 1) -> ImageBatch:
    height, width = (height, width) if height else network.config.image_shape
    generator = torch.Generator().manual_seed(seed)
    return ImageBatch(torch.randn(count, network.config.channels, height, width, generator=generator))


def alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_other_images_in_the_batch_change_nothing(network, size):
    batch = images(network, 3, *size)
    together = network(batch)
    for row in range(3):
        alike(together[row, None], network(ImageBatch(batch.pixels[row, None])))


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_states_and_attention_are_where_the_geometry_says(network, size):
    with record() as recorder:
        states = network(images(network, 2, *size))
    assert states.size(1) == network.state_geometry(*size).length
    geometry = network.geometry(*size)
    trace = Trace(recorder)
    assert list(geometry) == trace.sites
    for site, expected in geometry.items():
        assert trace.weights(site, head=0).shape == (expected.length, expected.length)
        left, top, right, bottom = expected.box
        assert (left, top) == (0, 0) and right > size[1] - expected.cell and bottom > size[0] - expected.cell


@torch.no_grad()
def test_traced_is_untraced_to_the_bit(network):
    batch = images(network, 2)
    with record(prove=True):
        traced = network(batch)
    assert torch.equal(traced, network(batch))


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES)
def test_weights_times_values_are_the_context_used(network, size):
    with record(prove=True) as recorder:
        network(images(network, 2, *size))
    for row in range(2):
        trace = Trace(recorder, batch_index=row)
        for site in trace.sites:
            mixed, used = trace.proof(site)
            alike(mixed, used)
            torch.testing.assert_close(trace.weights(site).sum(-1), torch.ones(mixed.shape[:2]))


def test_every_parameter_of_a_classifier_gets_a_gradient(network):
    classifier = Classifier(network, ["a", "b", "c"]).train()
    classifier(images(network, 2)).square().mean().backward()
    assert not [name for name, parameter in classifier.named_parameters() if parameter.grad is None]


@torch.no_grad()
def test_bfloat16(network):
    network = network.to(torch.bfloat16)
    states = network(ImageBatch(images(network, 2).pixels.bfloat16()))
    assert states.dtype == torch.bfloat16 and states.isfinite().all()


@torch.no_grad()
def test_pixels_that_fill_no_patch_are_not_read():
    network = build(VIT).eval()
    batch = images(network, 2, 18, 16)
    assert torch.equal(network(batch), network(ImageBatch(batch.pixels[:, :, :15, :15])))


@torch.no_grad()
@pytest.mark.parametrize("size", [(13, 17), (9, 8)])
def test_images_of_odd_sizes_are_as_if_padded_with_zeros(size):
    network = build(SWIN | dict(patch=4)).eval()
    batch = images(network, 2, *size)
    padded = F.pad(batch.pixels, (0, -size[1] % 4, 0, -size[0] % 4))
    assert torch.equal(network(batch), network(ImageBatch(padded)))


@torch.no_grad()
@pytest.mark.parametrize("shift", [0, 1])
def test_pixels_outside_a_window_do_not_affect_its_first_layer(shift):
    network: Any = build(SWIN | dict(window=2, image_size=12)).eval()
    block = network.stages[0].blocks[shift]
    batch = images(network, 1)
    changed = batch.pixels.clone()
    changed[:, :, 2:6, 2:6] += 1.0  # cells 1 and 2 of each axis: a window after the shift, a part of four before it
    before, after = (block(network.embed(pixels)) for pixels in (batch.pixels, changed))
    differs = (before != after).any(-1)[0]
    window = torch.zeros(6, 6, dtype=torch.bool)
    window[slice(1, 3) if shift else slice(0, 4), slice(1, 3) if shift else slice(0, 4)] = True
    assert torch.equal(differs, window)


@torch.no_grad()
def test_both_heads_of_deit_are_averaged_except_in_training():
    torch.manual_seed(0)
    network: Any = DistilledClassifier(build(VIT | dict(family="deit")), ["a", "b", "c"]).eval()  # type: ignore[arg-type]
    batch = images(network, 2)
    states, logits, distilled = network.label(batch)
    first, second = network.head(states[:, 0]), network.distillation_head(states[:, 1])
    assert distilled is None and not torch.equal(first, second)
    torch.testing.assert_close(logits, (first + second) / 2)
    trained = network.train().label(batch)
    torch.testing.assert_close((trained.logits, trained.distilled), (first, second))


@torch.no_grad()
def test_interpolated_positions_keep_a_constant_and_the_tokens():
    positions = GridPositions(7, 3, 5, tokens=2)
    positions.table[2:] = positions.table[2]
    resized = positions(4, 9)
    assert resized.shape == (2 + 36, 7)
    assert torch.equal(resized[:2], positions.table[:2])
    torch.testing.assert_close(resized[2:], positions.table[2].expand(36, 7))


@torch.no_grad()
def test_positions_are_interpolated_as_an_image():
    positions = GridPositions(7, 3, 5)
    expected = F.interpolate(positions.table.view(3, 5, 7).permute(2, 0, 1)[None], (6, 4), mode="bicubic")
    torch.testing.assert_close(positions(6, 4), expected[0].flatten(1).mT)


def test_stochastic_depth_drops_sublayers_in_training_only():
    torch.manual_seed(0)
    network = build(VIT | dict(drop_path=0.5)).eval()
    batch = images(network, 1)
    alone = network(batch)
    assert torch.equal(alone, network(batch))
    outputs = {tuple(network.train()(batch).flatten().tolist()) for _ in range(20)}
    assert len(outputs) in (3, 4)  # the first block has rate 0; the second drops none, one or both of its sublayers


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (VIT | dict(heads=4), "width 21 is not a multiple of heads 4"),
        (VIT | dict(patch=16), "image_size 15 × 15 is smaller than patch 16"),
        (VIT | dict(drop_path=1.0), "model.drop_path = 1.0 should be below 1"),
        (CNN | dict(depths=[]), r"model.depths = \[\] should be a list of 1 to 8, e.g. \[2, 2, 2\]"),
        (CNN | dict(depths=3), "model.depths = 3 should be a list"),
        (CNN | dict(depths=[1, 0]), "model.depths = 0 should be at least 1"),
        (CNN | dict(depths=[1] * 5), "image_size 13 × 13 is smaller than the stride of the last stage, 16"),
    ],
)
def test_fields_that_do_not_fit_are_named(model, message):
    with pytest.raises(UserError, match=message):
        configure(model)


PUBLISHED = {
    ("vit", "base-16"): 86_567_656,  # Dosovitskiy et al. 2021, table 1: 86M, 307M and 632M, with 1,000 classes
    ("vit", "large-16"): 304_326_632,
    ("vit", "huge-14"): 632_045_800,
    ("vit", "deit-tiny-16"): 5_717_416,  # Touvron et al. 2021, table 1: 5M, 22M and 86M
    ("vit", "deit-small-16"): 22_050_664,
    ("vit", "deit-base-16"): 86_567_656,
    ("deit", "tiny-16"): 5_910_800,  # the same with both heads
    ("deit", "small-16"): 22_436_432,
    ("deit", "base-16"): 87_338_192,
    ("swin", "tiny-224"): 28_288_354,  # Liu et al. 2021, table 1: 29M, 50M, 88M and 197M
    ("swin", "small-224"): 49_606_258,
    ("swin", "base-224"): 87_768_224,
    ("swin", "large-224"): 196_532_476,
}


@pytest.mark.parametrize("preset", PUBLISHED, ids=" ".join)
def test_published_parameter_counts(preset):
    family, name = preset
    with torch.device("meta"):
        head = DistilledClassifier if family == "deit" else Classifier
        network = head(build({"family": family, "preset": name}), [str(label) for label in range(1000)])  # type: ignore[arg-type]
    assert sum(parameter.numel() for parameter in network.parameters()) == PUBLISHED[preset]


def test_every_family_of_images_is_tested_here():
    assert {model["family"] for model in MODELS.values()} == {
        name for name, family in FAMILIES.items() if family.is_encoder and family.input_type is ImageBatch
    }
