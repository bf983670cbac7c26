"""Laws of Whisper, whatever its weights, and its published sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.errors import UserError
from regard.layers.inputs import AudioBatch
from regard.models.registry import build, configure
from regard.models.whisper import sinusoids
from tests.search_laws import OPTIONS, batch_mates_do_not_matter, greedy_takes_the_best_token

TOKENS, BINS = 29, 7
SMALL = dict(family="whisper", bins=BINS, width=22, heads=2, depth=2, source_positions=19, max_positions=17)
MODELS: dict[str, dict[str, Any]] = {
    "as published": SMALL,
    "other sides": SMALL | dict(decoder_heads=11, decoder_depth=3, feedforward=31, decoder_feedforward=13),
    "untied": SMALL | dict(tied=False, activation="relu"),
}


@pytest.fixture(params=MODELS)
def network(request) -> Any:
    torch.manual_seed(0)
    network: Any = build(MODELS[request.param], vocabulary=TOKENS).eval()
    for parameter in network.parameters():  # biases too: zeros would hide what they do
        nn.init.normal_(parameter, std=0.3)
    return network


def recordings(*lengths: int, seed: int = 1) -> AudioBatch:
    """With noise where they are padded."""
    frames = torch.randn(len(lengths), max(lengths), BINS, generator=torch.Generator().manual_seed(seed))
    return AudioBatch(frames, torch.tensor(lengths))


def alone(audio: AudioBatch, row: int) -> AudioBatch:
    return AudioBatch(audio.frames[row, None, : audio.lengths[row]], audio.lengths[row, None])


def targets(rows: int, length: int, seed: int = 2) -> Tensor:
    return torch.randint(0, TOKENS, (rows, length), generator=torch.Generator().manual_seed(seed))


def alike(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=0)


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing(network):
    """Odd lengths too, whose last state is of one frame and padding."""
    audio, target = recordings(38, 9, 1, 20), targets(4, 6)
    together, encoded = network(audio, target), network.listen(audio)
    assert encoded.lengths.tolist() == [19, 5, 1, 10]
    for row, length in enumerate(encoded.lengths.tolist()):
        alike(together[row, None], network(alone(audio, row), target[row, None]))
        alike(encoded.states[row, None, :length], network.encode(alone(audio, row)))


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 2, 1]])
def test_step_by_step_is_all_at_once(network, chunks):
    audio, target = recordings(38, 9, 5), targets(3, 7)
    state, pieces = network.start(audio), []
    for chunk in target.split(chunks, 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(audio, target))


@torch.no_grad()
def test_the_future_does_not_change_the_past(network):
    audio, target = recordings(38, 9), targets(2, 7)
    changed = target.clone()
    changed[:, 4:] = targets(2, 3, seed=9)
    assert torch.equal(network(audio, target)[:, :4], network(audio, changed)[:, :4])


@torch.no_grad()
def test_traced_is_untraced_to_the_bit(network):
    audio, target = recordings(38, 38), targets(2, 7)
    with record(prove=True) as recorder:
        traced = network(audio, target)
    assert torch.equal(traced, network(audio, target))
    blocks = [f"decoder.blocks.{index}" for index in range(len(network.decoder.blocks))]
    sites = [f"{block}.{side}" for block in blocks for side in ("self", "cross")]
    assert list(recorder.records) == ["encoder.blocks.0.self", "encoder.blocks.1.self", *sites]


@torch.no_grad()
def test_weights_times_values_are_the_context_used(network):
    with record(prove=True) as recorder:
        network(recordings(38), targets(1, 7))
    trace = Trace(recorder)
    for site in trace.sites:
        mixed, used = trace.proof(site)
        alike(mixed, used)
        torch.testing.assert_close(trace.weights(site).sum(-1), torch.ones(mixed.shape[:2]))
        assert trace.weights(site).size(-1) == (7 if site.startswith("decoder") and site.endswith("self") else 19)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS)
def test_searches(network, options):
    batch_mates_do_not_matter(network, recordings(38, 9, 5), 1, 2, options, 6)


@torch.no_grad()
def test_greedy_search(network):
    greedy_takes_the_best_token(network, recordings(38, 9, 5), 1, 2, 6)


@torch.no_grad()
def test_bfloat16_runs_all_at_once_and_step_by_step(network):
    network = network.to(torch.bfloat16)
    audio, target = recordings(38, 9), targets(2, 7)
    audio = audio._replace(frames=audio.frames.bfloat16())
    logits, _ = network.step(target[:, :1], network.start(audio))
    assert network(audio, target).dtype == logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


def test_every_parameter_but_the_sinusoids_gets_a_gradient():
    network = build(SMALL, vocabulary=TOKENS)
    network(recordings(38, 9), targets(2, 7)).square().mean().backward()
    idle = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert idle == ["source.positions.table.weight"]


def test_sinusoids_are_the_real_and_imaginary_parts_of_rotations():
    """Moving by k positions multiplies each pair (sine, cosine) by the same rotation."""
    table = sinusoids(50, 12).double()
    wave = torch.complex(table[:, 6:], table[:, :6])
    torch.testing.assert_close(wave[7:], wave[:-7] * wave[7], atol=1e-5, rtol=0)
    torch.testing.assert_close(wave[1].angle()[[0, -1]], torch.tensor([1.0, 1e-4]).double(), atol=1e-6, rtol=1e-4)


PUBLISHED = {  # Radford et al. 2022, table 1, in millions
    "tiny": 39, "base": 74, "small": 244, "medium": 769, "large": 1550, "large-v2": 1550, "large-v3": 1550,
    "large-v3-turbo": 809, "tiny.en": 39, "base.en": 74, "small.en": 244, "medium.en": 769,
}  # fmt: skip
VOCABULARIES = {".en": 51864, "v3": 51866, "turbo": 51866}


def published(preset: str) -> Any:
    vocabulary = next((size for end, size in VOCABULARIES.items() if preset.endswith(end)), 51865)
    with torch.device("meta"):
        return build({"family": "whisper", "preset": preset}, vocabulary=vocabulary)


def parameters(network: Any) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_sizes(preset: str) -> None:
    assert parameters(published(preset)) / 1e6 == pytest.approx(PUBLISHED[preset], rel=0.05)


@pytest.mark.parametrize("preset", ["tiny.en", "base", "large-v3-turbo"])
def test_parameters_are_as_many_as_in_the_reference(preset: str) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    network = published(preset)
    config = network.config
    feedforward = 4 * config.width
    reference = WhisperConfig(
        vocab_size=config.vocabulary, num_mel_bins=config.bins, d_model=config.width, encoder_layers=config.depth,
        decoder_layers=config.decoder_depth or config.depth, encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads, encoder_ffn_dim=feedforward, decoder_ffn_dim=feedforward,
    )  # fmt: skip
    with torch.device("meta"):
        assert parameters(network) == parameters(WhisperForConditionalGeneration(reference))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "width 22 is not a multiple of heads 3"),
        ({"decoder_heads": 5}, "width 22 is not a multiple of decoder_heads 5"),
        ({"width": 33, "heads": 3}, "width 33 is odd"),
        ({"activation": "gleu"}, "did you mean 'gelu'"),
    ],
)
def test_errors_name_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        configure(SMALL | changes, vocabulary=TOKENS)
