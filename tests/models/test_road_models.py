"""The rungs between Bahdanau and the Transformer, each against its paper's equations written out a second time."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.local import Monotonic, Predictive
from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, Trace
from regard.attention.variants import bilinear
from regard.errors import UserError
from regard.layers.convolution import Convolution
from regard.layers.inputs import TokenBatch
from regard.layers.pytree import tensors
from regard.layers.recurrent import LSTMN
from regard.models.registry import build

SIZES = dict(source_vocabulary=19, target_vocabulary=23)


def scattered(network: nn.Module) -> Any:
    """Every parameter random, biases too: zeros would hide what they do."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network.eval()


def source_of(*lengths: int) -> TokenBatch:
    tokens = torch.randint(4, 19, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    return TokenBatch(tokens, torch.tensor(lengths))


def as_conv1d(layer: Convolution, x: Tensor, left: int, right: int) -> Tensor:
    """The same weights through torch's own convolution, zeros put before and behind."""
    weight = layer.linear.weight.unflatten(1, (layer.kernel, -1)).transpose(1, 2)
    x = F.pad(x.transpose(1, 2), (left, right))
    return F.conv1d(x, weight, layer.linear.bias, dilation=layer.dilation).transpose(1, 2)


@torch.no_grad()
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 4), (5, 2)])
def test_a_convolution_is_torchs(kernel: int, dilation: int) -> None:
    layer, x = Convolution(7, 5, kernel, dilation), torch.randn(3, 11, 7)
    half = layer.reach // 2
    torch.testing.assert_close(layer(x), as_conv1d(layer, x, half, half))
    found, past = layer.after(torch.zeros(3, layer.reach, 7), x)
    torch.testing.assert_close(found, as_conv1d(layer, x, layer.reach, 0))
    assert past.shape == (3, layer.reach, 7)
    assert torch.equal(past, torch.cat([torch.zeros(3, layer.reach, 7), x], 1)[:, 11:])


@torch.no_grad()
def test_convs2s_is_the_papers() -> None:
    """Gehring et al. 2017, equations 1 and 2, with torch's convolutions and weights spelled out."""
    half = 0.5**0.5
    network = scattered(build(dict(family="convs2s", embedding_width=6, width=10, depth=2), **SIZES))
    source, target = source_of(7), torch.randint(4, 23, (1, 5))
    embedded = network.source.table(source.tokens) + network.source.positions.table.weight[:7]
    x = network.encoder_in(embedded)
    for layer in network.encoder:
        x = (x + F.glu(as_conv1d(layer.convolution, x, 1, 1), -1)) * half
    z = network.encoder_out(x)
    g = network.target.table(target) + network.target.positions.table.weight[:5]
    h = network.decoder_in(g)
    for layer in network.decoder:
        v = F.glu(as_conv1d(layer.convolution, h, 2, 0), -1)
        d = (v @ layer.query.weight.T + layer.query.bias + g) * half
        a = torch.einsum("bie,bje->bij", d, z).softmax(-1)
        c = torch.einsum("bij,bje->bie", a, (z + embedded) * half) * 7**0.5
        h = (h + (v + layer.attend.output(c)) * half) * half
    torch.testing.assert_close(network(source, target), network.output(network.decoder_out(h)), atol=1e-5, rtol=0)


def seen_by(network: Any, source: TokenBatch, target: Tensor, place: int) -> tuple[set[int], set[int]]:
    """Positions of source and target that the logits at one position depend on, by gradient."""
    kept = {}

    def keep(name: str):
        def hook(module: nn.Module, given: tuple, embedded: Tensor) -> None:
            embedded.retain_grad()
            kept[name] = embedded

        return hook

    hooks = [network.source.register_forward_hook(keep("source")), network.target.register_forward_hook(keep("target"))]
    network(source, target)[0, place].sum().backward()
    for hook in hooks:
        hook.remove()
    read, written = (set(kept[side].grad[0].any(-1).nonzero().flatten().tolist()) for side in ("source", "target"))
    return read, written


@torch.no_grad()
def test_bytenet_is_the_papers() -> None:
    """Kalchbrenner et al. 2016, figures 1 and 3, by torch's convolutions; the decoder is stacked on the encoder."""
    network = scattered(build(dict(family="bytenet", width=8, sets=2, dilations=2), **SIZES))
    source, target = source_of(10), torch.randint(4, 23, (1, 14))

    def bent(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias).clamp(min=0)

    def blocks(layers: Any, x: Tensor, left: int, right: int) -> Tensor:
        for layer, rate in zip(layers, (1, 2, 1, 2), strict=True):
            assert layer.convolution.dilation == rate
            inner = bent(layer.norms[1], layer.down(bent(layer.norms[0], x)))
            found = as_conv1d(layer.convolution, inner, left * rate, right * rate)
            x = x + layer.up(bent(layer.norms[2], found))
        return x

    read = blocks(network.encoder, F.pad(network.source(source.tokens), (0, 0, 0, 2)), 1, 1)  # 10 · 1.2 positions
    torch.testing.assert_close(network.start(source).source, read)
    assert (read[0, 10:] != 0).any(-1).all()
    standing = torch.cat([network.target(target), F.pad(read, (0, 0, 0, 2))], -1)  # beyond these, on zeros
    x = blocks(network.decoder, network.join(standing), 2, 0)
    norm, _, last, _ = network.final
    expected = network.output(last(bent(norm, x)).clamp(min=0))
    torch.testing.assert_close(network(source, target), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_short_row_of_bytenet_ends_where_it_would_alone() -> None:
    network = scattered(build(dict(family="bytenet", width=8, sets=1, dilations=2), **SIZES))
    states = network.start(source_of(20, 5)).source
    assert states.shape[1] == 24 and (states[1, :6] != 0).any(-1).all() and not states[1, 6:].any()


def test_the_receptive_field_of_bytenet_doubles_with_each_block() -> None:
    """Dilations 1, 2 and 4 with windows of 3: 7 source positions on each side, 14 past target positions."""
    network = scattered(build(dict(family="bytenet", width=64, sets=1, dilations=3, dropout=0.0), **SIZES))
    source, target = source_of(40), torch.randint(4, 23, (1, 30))
    read, written = seen_by(network, source, target, 22)
    assert written == set(range(22 - 14, 23))
    assert read == set(range(22 - 14 - 7, 22 + 7 + 1))  # through the target's windows, and around each


@torch.no_grad()
@pytest.mark.parametrize("family", ["convs2s", "bytenet"])
def test_a_step_knows_no_more_at_the_end_than_at_the_beginning(family: str) -> None:
    """Windows are as wide as ever: writing is linear in the output, in time and in memory."""
    network = scattered(build(dict(family=family, width=8), **SIZES))
    state = network.start(source_of(9))
    sizes = [sum(each.numel() for each in tensors(state.hypothesis))]
    for _ in range(12):
        _, state = network.step(torch.tensor([[5]]), state)
        sizes.append(sum(each.numel() for each in tensors(state.hypothesis)))
    assert len(set(sizes)) == 1


@torch.no_grad()
def test_lstmn_is_the_papers() -> None:
    """Cheng et al. 2016, equations 4–9, with lists of all past states; it begins with one of zeros."""
    layers = scattered(LSTMN(5, 7))
    (layer,), x = layers.layers, torch.randn(3, 6, 5)
    hs, cs, summary, outputs = [torch.zeros(3, 7)], [torch.zeros(3, 7)], torch.zeros(3, 7), []
    ask, key, energy = (layer.attend.query.weight, layer.attend.key.weight, layer.attend.score.energy.weight)
    for t in range(6):
        scores = [torch.tanh(h @ key.T + x[:, t] @ ask[:, :5].T + summary @ ask[:, 5:].T) @ energy.T for h in hs]
        weights = torch.cat(scores, 1).softmax(1)
        summary = sum(weights[:, i, None] * h for i, h in enumerate(hs))
        adapted = sum(weights[:, i, None] * c for i, c in enumerate(cs))
        gates = x[:, t] @ layer.input_gates.weight.T + layer.input_gates.bias + summary @ layer.hidden_gates.weight.T
        i, f, o, new = gates.chunk(4, 1)
        cs.append(f.sigmoid() * adapted + i.sigmoid() * new.tanh())
        hs.append(o.sigmoid() * cs[-1].tanh())
        outputs.append(hs[-1])
    torch.testing.assert_close(layers(x)[0], torch.stack(outputs, 1), atol=1e-6, rtol=0)


@torch.no_grad()
def test_lstmn_traces_attention_to_its_past() -> None:
    model = dict(family="seq2seq", cell="lstmn", bidirectional=False, embedding_width=6, width=8, order="luong")
    network = scattered(build(model, **SIZES))
    with record() as recorder:
        network(source_of(6), torch.randint(4, 23, (1, 5)))
    trace = Trace(recorder, Axes.encoder_decoder(Axis("abcdef"), Axis(["<", *"vwxy"]), Axis([*"vwxy", ">"])))
    assert {"encoder.forwards.0.layers.0.past", "decoder.layers.0.past", "decoder.cross"} == set(trace.sites)
    weights = trace.weights("decoder.layers.0.past", head=0)
    assert weights.shape == (5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))
    assert torch.equal(weights, weights.tril())  # at the first step there is only the first state
    assert trace.labels("decoder.layers.0.past") == (["<", *"vwxy"], ["·", "<", *"vwx"])
    assert trace.labels("encoder.forwards.0.layers.0.past") == (list("abcdef"), ["·", *"abcde"])


def local_weights(focus: Any, x: Tensor, states: Tensor, real: Tensor, time: int) -> tuple[Tensor, Tensor]:
    """The weights, and the raw scores they come from."""
    attend = scattered(bilinear(4, 6, 0))
    memory = attend.remember(states, real)
    with record() as recorder:
        attend(x, memory, *focus(x, memory, time))
    (look,) = recorder.records[""]
    raw = (x @ attend.key(states).mT).masked_fill(~real[:, None], -torch.inf)
    return look.weights()[:, 0], raw


@torch.no_grad()
def test_local_m_attends_to_a_window_around_the_current_position() -> None:
    x, states = torch.randn(2, 3, 4), torch.randn(2, 9, 6)
    real = torch.arange(9) < torch.tensor([9, 3])[:, None]
    weights, raw = local_weights(Monotonic(4, 2), x, states, real, time=5)
    places = torch.arange(9)
    for row, length in enumerate((9, 3)):
        for query in range(3):
            centre = min(5 + query, length - 1)  # past the end of a short source it stays at the last position
            expected = raw[row, query].masked_fill((places - centre).abs() > 2, -torch.inf).softmax(-1)
            torch.testing.assert_close(weights[row, query], expected)


@torch.no_grad()
def test_local_p_predicts_its_centre_and_fades_around_it() -> None:
    focus = scattered(Predictive(4, 3))
    x, states = torch.randn(2, 5, 4), torch.randn(2, 9, 6)
    real = torch.arange(9) < torch.tensor([9, 5])[:, None]
    weights, raw = local_weights(focus, x, states, real, time=0)
    enter, _, leave = focus.predict
    for row, length in enumerate((9, 5)):
        for query in range(5):
            p = length * torch.sigmoid(torch.tanh(x[row, query] @ enter.weight.T) @ leave.weight.T)
            away = torch.arange(9) - p
            align = raw[row, query].masked_fill(away.abs() > 3, -torch.inf).softmax(-1)
            expected = align * torch.exp(-(away**2) / (2 * 1.5**2))  # σ = D / 2: the paper's equation 10
            torch.testing.assert_close(weights[row, query], expected / expected.sum())


@torch.no_grad()
def test_a_window_beyond_what_bfloat16_can_count_keeps_its_size() -> None:
    focus, attend = Predictive(4, 5).bfloat16(), bilinear(4, 6, 0).bfloat16()
    x, memory = torch.randn(1, 64, 4).bfloat16(), attend.remember(torch.randn(1, 1003, 6).bfloat16())
    rule, bias = focus(x, memory, 0)
    seen = rule.rows(torch.arange(1003 - 64, 1003), torch.arange(1003))[0, 0].sum(-1)
    assert set(seen.tolist()) <= {10, 11}
    assert attend(x, memory, rule, bias).isfinite().all()


def test_the_predicted_position_is_trained() -> None:
    focus, attend = Predictive(4, 2), bilinear(4, 6, 0)
    x, memory = torch.randn(2, 3, 4), attend.remember(torch.randn(2, 9, 6))
    attend(x, memory, *focus(x, memory, 0)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in focus.parameters())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (dict(family="seq2seq", cell="lstmn"), "bidirectional = false"),
        (dict(family="seq2seq", focus="local-p", context="last"), "context = 'attention'"),
        (dict(family="convs2s", kernel=4), "odd"),
        (dict(family="convs2s", tied="all"), "joint"),
        (dict(family="bytenet", width=7), "even"),
        (dict(family="bytenet", kernel=2), "odd"),
        (dict(family="bytenet", dilations=40), "positions"),
        (dict(family="bytenet", stretch=0.9), "at least 1"),
        (dict(family="convs2s", positions="sinusoid"), "possible"),
        (dict(family="transformer", norm="none_"), "possible"),
        (dict(family="transformer", feedforward=-1), "at least 0"),
    ],
)
def test_impossible_configs_are_errors(model: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(model, **SIZES)


def test_a_model_that_does_not_attend_has_nothing_to_show(tmp_path: Path) -> None:
    network = scattered(build(dict(family="bytenet", width=8), **SIZES))
    with record() as recorder:
        network(source_of(6), torch.randint(4, 23, (1, 5)))
    trace = Trace(recorder)
    assert not trace.sites
    with pytest.raises(UserError, match="nothing to show"):
        trace.explore(str(tmp_path / "page.html"))
    with pytest.raises(UserError, match="no attention layers"):
        trace.weights("decoder.cross")
