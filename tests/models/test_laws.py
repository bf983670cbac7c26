"""Laws that every model obeys, whatever its weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import State
from regard.models.bytenet import ByteNet
from regard.models.registry import FAMILIES, build
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer, TransformerConfig

SOURCE, TARGET = 29, 31
TRANSFORMER = dict(family="transformer", width=24, heads=3, depth=2, feedforward=37, tied="output")
SEQ2SEQ = dict(family="seq2seq", embedding_width=14, width=22, depth=2, score_width=13)

MODELS: dict[str, dict[str, Any]] = {
    "transformer post-norm": TRANSFORMER,
    "transformer pre-norm": TRANSFORMER | dict(norm="pre", positions="learned", decoder_depth=3, decoder_heads=2),
    "transformer halves": TRANSFORMER | dict(positions="sinusoid_halves", activation="swish", tied="none"),
    "transformer bare": TRANSFORMER | dict(norm="none", score="dot", feedforward=0, positions="none", heads=1),
    "transformer without residuals": TRANSFORMER | dict(norm="no_residual"),
    "no attention": SEQ2SEQ | dict(context="none", cell="lstm", bidirectional=False),
    "no attention, no bridge": SEQ2SEQ
    | dict(context="none", depth=1, bridge="copy", readout="state", bidirectional=False),
    "context at every step": SEQ2SEQ | dict(context="last", bidirectional=False),
    "mean": SEQ2SEQ | dict(context="mean", cell="rnn"),
    "context, luong": SEQ2SEQ | dict(context="last", order="luong"),
    "bahdanau": SEQ2SEQ | dict(encoder_width=17, depth=1),
    "bahdanau lstm": SEQ2SEQ | dict(cell="lstm", score="mlp"),
    "luong dot": SEQ2SEQ | dict(order="luong", score="dot"),
    "luong scaled dot": SEQ2SEQ | dict(order="luong", score="scaled_dot", cell="lstm"),
    "luong general": SEQ2SEQ | dict(order="luong", score="bilinear", encoder_width=19, bidirectional=False),
    "luong low rank, input feeding": SEQ2SEQ | dict(order="luong", score="low_rank", input_feeding=True),
    "luong additive, input feeding": SEQ2SEQ | dict(order="luong", input_feeding=True, cell="lstm", depth=3),
    "local-m": SEQ2SEQ | dict(order="luong", score="bilinear", focus="local-m", local_window=2),
    "local-p": SEQ2SEQ | dict(order="luong", score="bilinear", focus="local-p", local_window=2, input_feeding=True),
    "local-p, uniform": SEQ2SEQ | dict(focus="local-p", local_window=3, score="uniform"),
    "local-p, bahdanau": SEQ2SEQ | dict(focus="local-p", local_window=3),
    "lstmn": SEQ2SEQ | dict(cell="lstmn", bidirectional=False, order="luong", score="bilinear"),
    "lstmn, bahdanau": SEQ2SEQ | dict(cell="lstmn", bidirectional=False, depth=1, encoder_width=17),
    "convs2s": dict(family="convs2s", embedding_width=14, width=22, depth=2),
    "convs2s, wide windows": dict(
        family="convs2s", embedding_width=12, width=16, decoder_depth=3, kernel=5, tied="output"
    ),
    "bytenet": dict(family="bytenet", width=24, sets=2, dilations=3),
    "bytenet, far stretched": dict(family="bytenet", width=24, sets=1, dilations=2, stretch=1.9),
    "uniform": SEQ2SEQ | dict(score="uniform", cell="rnn"),
}


@pytest.fixture(params=MODELS)
def network(request) -> nn.Module:
    torch.manual_seed(0)
    network = build(MODELS[request.param], source_vocabulary=SOURCE, target_vocabulary=TARGET).eval()
    for parameter in network.parameters():  # biases too: zeros would hide what they do
        nn.init.normal_(parameter, std=0.3)
    return network


def sequences(*lengths: int, seed: int = 1) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, SOURCE, (len(lengths), max(lengths)), generator=generator)
    return TokenBatch(tokens, torch.tensor(lengths))


def targets(rows: int, length: int, seed: int = 2) -> Tensor:
    return torch.randint(4, TARGET, (rows, length), generator=torch.Generator().manual_seed(seed))


def alike(found: Tensor, expected: Tensor) -> None:
    """Within 1e-5 of the largest: a network without norms has logits in the hundreds."""
    torch.testing.assert_close(found, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=0)


@torch.no_grad()
def test_padding_and_other_sequences_in_the_batch_change_nothing(network):
    source, target = sequences(11, 4, 1), targets(3, 7)
    together = network(source, target)  # the padding contains garbage
    for row, length in enumerate(source.lengths.tolist()):
        alone = network(
            TokenBatch(source.tokens[row : row + 1, :length], source.lengths[row : row + 1]), target[row, None]
        )
        alike(together[row, None], alone)


@torch.no_grad()
def test_the_future_does_not_change_the_past(network):
    source, target = sequences(11, 4), targets(2, 7)
    changed = target.clone()
    changed[:, 4:] = targets(2, 3, seed=9)
    assert torch.equal(network(source, target)[:, :4], network(source, changed)[:, :4])


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 2, 1]])
def test_step_by_step_is_all_at_once(network, chunks):
    source, target = sequences(11, 4, 6), targets(3, 7)
    state, pieces = network.start(source), []
    for chunk in target.split(chunks, 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(source, target))


@torch.no_grad()
def test_bfloat16_runs_all_at_once_and_step_by_step(network):
    network = network.to(torch.bfloat16)
    source, target = sequences(11, 4), targets(2, 7)
    logits, _ = network.step(target[:, :1], network.start(source))
    assert network(source, target).dtype == logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


@torch.no_grad()
def test_logits_at_some_positions_equal_those_at_all(network):
    source, target = sequences(11, 4), targets(2, 7)
    at = torch.rand(2, 7) < 0.5
    alike(network(source, target, at), network(source, target)[at])


@torch.no_grad()
def test_traced_is_untraced_to_the_bit(network):
    source, target = sequences(11, 4), targets(2, 7)
    with record(prove=True):
        traced = network(source, target)
    assert torch.equal(traced, network(source, target))


@torch.no_grad()
def test_weights_times_values_are_the_context_used(network):
    with record(prove=True) as recorder:
        network(sequences(11), targets(1, 7))
    trace = Trace(recorder)
    for site in trace.sites:
        mixed, used = trace.proof(site)
        alike(mixed, used)
        torch.testing.assert_close(trace.weights(site).sum(-1), torch.ones(mixed.shape[:2]))


class Watched:
    """A generator that notes, for every prefix it is asked to continue, the weights with which it looked."""

    def __init__(self, network: Any):
        self.network, self.seen = network, {}

    def start(self, source: TokenBatch) -> State:
        state = self.network.start(source)
        numbers = torch.arange(source.tokens.size(0))
        return State((state.source, numbers), (state.hypothesis, numbers[:, None]))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        (source, numbers), (hypothesis, prefix) = state
        with record() as recorder:
            logits, after = self.network.step(tokens, State(source, hypothesis))
        prefix = torch.cat([prefix, tokens], 1)  # the source's number, then the tokens so far
        for site, (look,) in recorder.records.items():
            weights = look.weights()  # hypotheses as queries, where they share a memory
            weights = weights.transpose(1, 2).reshape(tokens.size(0), look.weights().size(1), -1)
            for row, each in enumerate(prefix.tolist()):
                self.seen[site, tuple(each)] = weights[row]
        return logits, State((after.source, numbers), (after.hypothesis, prefix))


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 4])
def test_the_trace_of_an_answer_has_the_weights_of_the_search(network, beams):
    source, begin, end = sequences(9, 5), 1, 2
    watched = Watched(network)
    options = replace(DecodeOptions(), num_beams=beams)
    found = search(watched, source, begin, end, options, 7)
    for number, (best, *_) in enumerate(found):
        answer = [begin, *best.tokens]
        length = int(source.lengths[number])
        with record() as recorder:
            network(
                TokenBatch(source.tokens[number, None, :length], source.lengths[number, None]), torch.tensor([answer])
            )
        trace = Trace(recorder)
        compared = 0
        for site in (site for site in trace.sites if site.startswith("decoder")):
            weights = trace.weights(site)
            for row in range(
                len(answer) if best.finished else len(answer) - 1
            ):  # the last of a cut-off answer led nowhere
                stepwise = watched.seen[site, (number, *answer[: row + 1])]
                keys = weights[:, row, : stepwise.size(-1)]
                torch.testing.assert_close(stepwise[:, : keys.size(-1)], keys, atol=1e-5, rtol=0)
                compared += 1
        attends = network.config.context != "none" if isinstance(network, Seq2Seq) else not isinstance(network, ByteNet)
        assert bool(compared) == attends


@torch.no_grad()
def test_without_positions_permuting_the_input_permutes_the_output():
    torch.manual_seed(0)
    config = TransformerConfig(
        SOURCE, TARGET, width=24, heads=3, depth=2, feedforward=37, tied="none", positions="none"
    )
    network = Transformer(config).eval()
    source, order = sequences(11, 11), torch.randperm(11)
    permuted = TokenBatch(source.tokens[:, order], source.lengths)
    torch.testing.assert_close(network.encode(permuted), network.encode(source)[:, order], atol=1e-5, rtol=0)
    torch.testing.assert_close(network(permuted, targets(2, 7)), network(source, targets(2, 7)), atol=1e-5, rtol=0)


@torch.no_grad()
def test_with_positions_it_does_not():
    torch.manual_seed(0)
    config = TransformerConfig(SOURCE, TARGET, width=24, heads=3, depth=2, feedforward=37, tied="none")
    network = Transformer(config).eval()
    source, order = sequences(11, 11), torch.arange(11).flip(0)
    permuted = TokenBatch(source.tokens[:, order], source.lengths)
    assert not torch.allclose(network.encode(permuted), network.encode(source)[:, order], atol=1e-2)


def test_every_parameter_gets_a_gradient(network):
    network(sequences(11, 4), targets(2, 7)).square().mean().backward()
    idle = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert not idle


def test_every_family_is_tested_here():
    """Those that turn one text into another; test_captioners, test_language_models and test_bert have the others."""
    assert {model["family"] for model in MODELS.values()} == {
        name for name, family in FAMILIES.items() if family.is_encoder_decoder and family.input_type is TokenBatch
    }


def test_published_parameter_counts():
    """Vaswani et al. 2017, table 3, with its 37,000 tokens: 65 and 213 million."""
    for preset, millions in (("base", 65), ("big", 213)):
        with torch.device("meta"):
            network = build(
                {"family": "transformer", "preset": preset}, source_vocabulary=37000, target_vocabulary=37000
            )
        assert sum(parameter.numel() for parameter in network.parameters()) / 1e6 == pytest.approx(millions, rel=0.03)
