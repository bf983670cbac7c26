"""Laws of models that listen to recordings, whatever their weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.joint import JointDecoder
from regard.decoding.search import search
from regard.errors import UserError
from regard.layers.audio_encoder import reduced
from regard.layers.inputs import AudioBatch
from regard.models.heads.ctc import CTC
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, build, configure
from tests.search_laws import OPTIONS, batch_mates_do_not_matter, greedy_takes_the_best_token

TOKENS, BINS = 17, 11
ENCODERS: dict[str, dict[str, Any]] = {
    "recurrent": dict(family="speech_recurrent", bins=BINS, width=22, depth=3, halvings=2),
    "recurrent, one direction": dict(
        family="speech_recurrent", bins=BINS, width=13, depth=2, halvings=0, bidirectional=False, cell="gru"
    ),
    "transformer": dict(family="speech_transformer", bins=BINS, width=24, heads=3, depth=2, feedforward=37, channels=5),
    "transformer without convolutions": dict(
        family="speech_transformer", bins=BINS, width=24, heads=3, depth=1, feedforward=37, halvings=0
    ),
    "transformer, three convolutions": dict(
        family="speech_transformer", bins=BINS, width=24, heads=3, depth=1, feedforward=37, channels=3, halvings=3
    ),
}
LAS = dict(family="las", bins=BINS, encoder_width=7, depth=3, halvings=2, embedding_width=13, width=19, score_width=5)
DECODERS: dict[str, dict[str, Any]] = {
    "location": LAS | dict(filters=3, kernel=5),
    "location, two layers, joint": LAS | dict(filters=3, kernel=3, decoder_depth=2, ctc_weight=0.4),
    "mlp": LAS | dict(score="mlp", cell="gru", halvings=1),
    "additive": LAS | dict(score="additive", depth=1, halvings=0),
    "dot": LAS | dict(score="dot", width=14),
}


def randomised(network: nn.Module) -> Any:
    for parameter in network.parameters():  # biases too: zeros would hide what they do
        nn.init.normal_(parameter, std=0.3)
    return network.eval()


@pytest.fixture(params=ENCODERS)
def encoder(request) -> Any:
    torch.manual_seed(0)
    body: Any = build(ENCODERS[request.param])
    return randomised(CTC(body, TOKENS))


@pytest.fixture(params=DECODERS)
def network(request) -> Any:
    torch.manual_seed(0)
    return randomised(build(DECODERS[request.param], vocabulary=TOKENS))


def recordings(*lengths: int, seed: int = 1) -> AudioBatch:
    """With noise where they are padded."""
    frames = torch.randn(len(lengths), max(lengths), BINS, generator=torch.Generator().manual_seed(seed))
    return AudioBatch(frames, torch.tensor(lengths))


def alone(audio: AudioBatch, row: int) -> AudioBatch:
    return AudioBatch(audio.frames[row, None, : audio.lengths[row]], audio.lengths[row, None])


def targets(rows: int, length: int, seed: int = 2) -> Tensor:
    return torch.randint(4, TOKENS, (rows, length), generator=torch.Generator().manual_seed(seed))


def alike(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=0)


@torch.no_grad()
def test_padding_and_batch_mates_change_no_emission(encoder):
    audio = recordings(23, 9, 1)
    together = encoder(audio)
    assert together.lengths.tolist() == reduced(audio.lengths, encoder.config.halvings).tolist()
    for row, length in enumerate(together.lengths.tolist()):
        single = encoder(alone(audio, row))
        assert single.lengths.tolist() == [length] == [single.logits.size(1)]
        alike(together.logits[row, None, :length], single.logits)


@torch.no_grad()
def test_padding_and_batch_mates_change_no_class(encoder):
    torch.manual_seed(0)
    network = randomised(Classifier(encoder.body, ("yes", "no", "stop")))
    audio = recordings(23, 9, 1)
    together = network(audio)
    for row in range(3):
        alike(together[row, None], network(alone(audio, row)))


@torch.no_grad()
def test_the_recording_matters(encoder):
    difference = encoder(recordings(9)).logits - encoder(recordings(9, seed=5)).logits
    assert difference.abs().max() > 1e-3


@torch.no_grad()
def test_one_direction_reads_no_future():
    torch.manual_seed(0)
    encoder: Any = randomised(build(ENCODERS["recurrent, one direction"]))
    audio = recordings(12)
    states = encoder.encode(audio)
    torch.testing.assert_close(encoder.encode(AudioBatch(audio.frames[:, :7], torch.tensor([7]))), states[:, :7])


@torch.no_grad()
def test_padding_and_batch_mates_change_no_logits(network):
    audio, target = recordings(23, 9, 1), targets(3, 6)
    together = network(audio, target)
    for row in range(3):
        alike(together[row, None], network(alone(audio, row), target[row, None]))


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 6, [3, 1, 2]])
def test_step_by_step_is_all_at_once(network, chunks):
    audio, target = recordings(23, 9, 5), targets(3, 6)
    state, pieces = network.start(audio), []
    for chunk in target.split(chunks, 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(audio, target))


@torch.no_grad()
def test_the_future_does_not_change_the_past(network):
    audio, target = recordings(23, 9), targets(2, 6)
    changed = target.clone()
    changed[:, 4:] = targets(2, 2, seed=9)
    alike(network(audio, target)[:, :4], network(audio, changed)[:, :4])


def proven(network: Any, *inputs: Any) -> Trace:
    """Tracing changes nothing, weights sum to one, and weights times values are the context."""
    with record(prove=True) as recorder:
        traced = network(*inputs)
    untraced = network(*inputs)
    for one, other in zip(
        *((each if isinstance(each, tuple) else (each,)) for each in (traced, untraced)), strict=True
    ):
        assert torch.equal(one, other)
    trace = Trace(recorder)
    for site in trace.sites:
        mixed, used = trace.proof(site)
        alike(mixed, used)
        torch.testing.assert_close(trace.weights(site).sum(-1), torch.ones(mixed.shape[:2]))
    return trace


@torch.no_grad()
def test_traces_of_decoders(network):
    trace = proven(network, recordings(21), targets(1, 6))
    assert trace.sites == ["decoder.cross"]
    assert trace.weights("decoder.cross").shape == (1, 6, -(-21 // network.stride))


@torch.no_grad()
def test_traces_of_encoders(encoder):
    depth = encoder.config.depth if encoder.config.__class__.__name__.startswith("SpeechTransformer") else 0
    assert proven(encoder, recordings(21)).sites == [f"encoder.blocks.{index}.self" for index in range(depth)]


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS)
def test_searches(network, options):
    batch_mates_do_not_matter(network, recordings(23, 9, 5), 1, 2, options, 6)


@torch.no_grad()
def test_greedy_search(network):
    greedy_takes_the_best_token(network, recordings(23, 9, 5), 1, 2, 6)


@torch.no_grad()
def test_joint_decoding_does_not_depend_on_the_batch():
    torch.manual_seed(0)
    network = randomised(build(DECODERS["location, two layers, joint"], vocabulary=TOKENS))
    options = DecodeOptions(num_beams=4, num_return_sequences=3, suppress_tokens=(0,))
    batch_mates_do_not_matter(JointDecoder(network, 0, 2, 0.4), recordings(43, 29, 15), 1, 2, options, 9)


@torch.no_grad()
def test_the_joint_score_is_the_weighted_sum():
    """Of the attention's log probability, teacher-forced, and torch's CTC loss."""
    torch.manual_seed(0)
    network = randomised(build(DECODERS["location, two layers, joint"], vocabulary=TOKENS))
    audio = recordings(43, 29)
    options = DecodeOptions(num_beams=5, suppress_tokens=(0,))
    hypotheses = search(JointDecoder(network, 0, 2, 0.4), audio, 1, 2, options, 9)
    compared = 0
    for row, (best, *_) in enumerate(hypotheses):
        if not best.finished or not best.tokens:
            continue
        source = alone(audio, row)
        logits = network(source, torch.tensor([[1, *best.tokens]])).log_softmax(-1)[0]
        attention = float(logits.gather(1, torch.tensor([*best.tokens, 2])[:, None]).sum())
        emitted, lengths = network.start_with_emissions(source)[1]
        labels = torch.tensor([best.tokens])
        log_probs = emitted.log_softmax(-1).transpose(0, 1)
        loss = nn.functional.ctc_loss(log_probs, labels, lengths, torch.tensor([len(best.tokens)]), 0, "sum")
        assert best.log_probability == pytest.approx(0.6 * attention - 0.4 * float(loss), abs=1e-3)
        compared += 1
    assert compared


def test_every_parameter_gets_a_gradient(encoder):
    encoder(recordings(23, 9)).logits.square().mean().backward()
    assert not [name for name, parameter in encoder.named_parameters() if parameter.grad is None]


def test_every_parameter_of_a_decoder_gets_a_gradient(network):
    loss = network(recordings(23, 9), targets(2, 6)).square().mean()
    if network.config.ctc_weight:
        loss = loss + network.start_with_emissions(recordings(23, 9))[1].logits.square().mean()
    loss.backward()
    assert not [name for name, parameter in network.named_parameters() if parameter.grad is None]


def test_every_family_of_recordings_is_tested_here_or_with_its_checkpoints():
    tested = {model["family"] for model in (*ENCODERS.values(), *DECODERS.values())}
    assert tested == {name for name, family in FAMILIES.items() if family.input_type is AudioBatch} - {"whisper"}


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (ENCODERS["recurrent"], {"width": 21}, r"width 21 should be even"),
        (ENCODERS["recurrent"], {"halvings": 3}, r"halvings 3 need a depth of at least 4"),
        (ENCODERS["transformer"], {"halvings": 9}, r"halvings 9: at most 5"),
        (ENCODERS["transformer"], {"heads": 5}, r"width 24 is not a multiple of heads 5"),
        (LAS, {"ctc_weight": 1.0}, r"ctc_weight 1.0 should be below 1"),
        (LAS, {"kernel": 4}, r"kernel 4 should be odd"),
        (LAS, {"score": "dot"}, r"set width to 14"),
        (LAS, {"score": "loction"}, r"did you mean 'location'"),
    ],
)
def test_errors_name_the_field(model, changes, message):
    vocabulary = {"vocabulary": TOKENS} if model["family"] == "las" else {}
    with pytest.raises(UserError, match=message):
        configure(model | changes, **vocabulary)
