"""Laws of models that describe images, whatever their weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.errors import UserError
from regard.layers.inputs import ImageBatch
from regard.models.registry import FAMILIES, build, configure
from regard.tasks.caption.penalty import doubly_stochastic_penalty

WORDS = 31
HEIGHT, WIDTH = 15, 21
VIT = dict(family="vit", image_size=HEIGHT, image_width=WIDTH, patch=3, width=30, heads=3, depth=2, feedforward=37)
CNN = dict(family="cnn", image_size=HEIGHT, image_width=WIDTH, base_width=8, depths=(1, 1))
GPT = dict(family="gpt", width=22, heads=2, depth=2, feedforward=29, max_positions=17)
BERT = dict(family="bert", width=22, heads=2, depth=2, feedforward=29, max_positions=17, pooler=False)
MODELS: dict[str, dict[str, Any]] = {
    "vit, gpt": dict(family="captioner", encoder=VIT, decoder=GPT),
    "cnn, bert": dict(family="captioner", encoder=CNN, decoder=BERT),
    "vit, roberta of the same width": dict(
        family="captioner", encoder=VIT | dict(width=22, heads=2), decoder=BERT | dict(position_offset=2, token_types=1)
    ),
    "show, attend and tell": dict(
        family="show_attend_tell", encoder=CNN, embedding_width=14, width=22, score_width=13, max_positions=17
    ),
    "lstm over patches": dict(family="show_attend_tell", encoder=VIT, embedding_width=14, width=22, max_positions=17),
}


@pytest.fixture(params=MODELS)
def network(request) -> Any:
    torch.manual_seed(0)
    network = build(MODELS[request.param], vocabulary=WORDS).eval()
    for parameter in network.parameters():  # biases too: zeros would hide what they do
        nn.init.normal_(parameter, std=0.3)
    return network


def images(count: int, seed: int = 1) -> ImageBatch:
    return ImageBatch(torch.randn(count, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed)))


def targets(rows: int, length: int, seed: int = 2) -> Tensor:
    return torch.randint(4, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))


def alike(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=0)


@torch.no_grad()
def test_other_images_in_the_batch_change_nothing(network):
    source, target = images(3), targets(3, 7)
    together = network(source, target)
    for row in range(3):
        alike(together[row, None], network(ImageBatch(source.pixels[row, None]), target[row, None]))


@torch.no_grad()
def test_the_future_does_not_change_the_past(network):
    source, target = images(2), targets(2, 7)
    changed = target.clone()
    changed[:, 4:] = targets(2, 3, seed=9)
    alike(network(source, target)[:, :4], network(source, changed)[:, :4])


@torch.no_grad()
def test_the_image_matters(network):
    target = targets(1, 5)
    difference = network(images(1), target) - network(images(1, seed=5), target)
    assert difference.abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 2, 1]])
def test_step_by_step_is_all_at_once(network, chunks):
    source, target = images(3), targets(3, 7)
    state, pieces = network.start(source), []
    for chunk in target.split(chunks, 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(source, target))


@torch.no_grad()
def test_traced_is_untraced_and_weights_times_values_are_the_context(network):
    source, target = images(1), targets(1, 7)
    with record(prove=True) as recorder:
        traced = network(source, target)
    assert torch.equal(traced, network(source, target))
    trace = Trace(recorder)
    cross = [site for site in trace.sites if site.endswith("cross")]
    assert cross
    for site in trace.sites:
        mixed, used = trace.proof(site)
        alike(mixed, used)
        torch.testing.assert_close(trace.weights(site).sum(-1), torch.ones(mixed.shape[:2]))
    geometry = network.encoder.state_geometry(HEIGHT, WIDTH)
    assert all(trace.weights(site).shape[-1] == geometry.length for site in cross)


@torch.no_grad()
def test_beam_search_scores_are_those_of_the_teacher_forced_pass(network):
    source, begin, end = images(3), 1, 2
    found = search(network, source, begin, end, replace(DecodeOptions(), num_beams=4, num_return_sequences=3), 7)
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            answer = [begin, *hypothesis.tokens, *([end] if hypothesis.finished else [])]
            logits = network(ImageBatch(source.pixels[row, None]), torch.tensor([answer[:-1]]))
            chosen = logits.log_softmax(-1)[0].gather(1, torch.tensor(answer[1:])[:, None]).sum()
            assert float(chosen) == pytest.approx(hypothesis.log_probability, abs=1e-3)


def test_every_parameter_gets_a_gradient(network):
    network(images(2), targets(2, 7)).square().mean().backward()
    assert not [name for name, parameter in network.named_parameters() if parameter.grad is None]


def test_the_doubly_stochastic_penalty_is_the_paper_s_sum_and_has_a_gradient(network):
    """Equation 14 written out with loops; tokens after the end of a caption are not counted."""
    source, target = images(2), targets(2, 6)
    real = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    with record() as recorder:
        network(source, target)
    penalty = doubly_stochastic_penalty(recorder, real)
    expected = 0.0
    cross = [site for site in recorder.records if site.endswith("cross")]
    for site in cross:
        for row, length in enumerate((6, 2)):
            weights = Trace(recorder, batch_index=row).weights(site).detach()
            for head in weights:
                for cell in range(head.size(1)):
                    expected += float((1 - head[:length, cell].sum()) ** 2) / len(weights) / len(cross)
    assert penalty.item() == pytest.approx(expected, rel=1e-4)
    penalty.backward()
    attention = [parameter.grad for name, parameter in network.named_parameters() if "query" in name]
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in attention)


def test_every_family_of_images_and_text_is_tested_here():
    assert {model["family"] for model in MODELS.values()} == {
        name for name, family in FAMILIES.items() if family.is_encoder_decoder and family.input_type is ImageBatch
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": 3}, r"model.encoder = 3 should be a table with the family"),
        ({"encoder": {"family": "gpt"}}, r"model.encoder.family = \"vit\""),
        ({"encoder": VIT | {"width": "wide"}}, r"model.encoder.width = 'wide' should be of type int"),
        ({"encoder": VIT | {"patch": 0}}, r"model.encoder.patch = 0 should be at least 1"),
        ({"encoder": VIT | {"hight": 3}}, r"model.encoder.hight is unknown for family 'vit'"),
        ({"decoder": BERT | {"pooler": True}}, r"set decoder.pooler = false"),
        ({"decoder": GPT | {"width": 23}}, r"\[model.decoder\] width 23 is not a multiple of heads 2"),
    ],
)
def test_errors_name_the_component(changes, message):
    with pytest.raises(UserError, match=message):
        configure(MODELS["vit, gpt"] | changes, vocabulary=WORDS)
