"""Layers between attention."""

import pytest
import torch

from regard.layers.dropout import Dropout, set_dropout
from regard.layers.recurrent import RNNEncoder, recurrence, reverse


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.97])
def test_dropout_zeros_at_its_rate_and_keeps_the_mean(rate: float):
    torch.manual_seed(0)
    x = torch.ones(1009, 997)
    dropped = Dropout(rate)(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / x.numel()) ** 0.5)
    assert dropped.mean().item() == pytest.approx(1.0, rel=0.03)
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-3, atol=0)


def test_dropout_is_repeatable_passes_gradients_and_is_off_in_evaluation():
    dropout, x = Dropout(0.3), torch.randn(7, 11, requires_grad=True)
    torch.manual_seed(3)
    once = dropout(x)
    torch.manual_seed(3)
    assert torch.equal(once, dropout(x))
    once.sum().backward()
    assert x.grad is not None and torch.equal(x.grad == 0, once == 0)
    assert dropout.eval()(x) is x


def test_another_dropout_rate_reaches_every_dropout():
    """Also torch's own layers, which drop between two of them."""
    decoder, reader = recurrence("lstm", 5, 7, depth=2, dropout=0.3), RNNEncoder("gru", 5, 7, 2, True, 0.3)
    for network in (decoder, reader):
        set_dropout(network, 0.0)
    x, lengths = torch.randn(3, 11, 5), torch.tensor([11, 4, 9])
    assert torch.equal(decoder(x)[0], decoder(x)[0])
    assert torch.equal(reader(x, lengths).states, reader(x, lengths).states)
    set_dropout(decoder, 0.5)
    assert not torch.equal(decoder(x)[0], decoder(x)[0])


def test_neighbours_drop_independently():
    """Four decisions come from one draw: they must not know of each other."""
    torch.manual_seed(0)
    zeros = (Dropout(0.5)(torch.ones(400_000)) == 0).view(-1, 4).float()
    correlation = torch.corrcoef(zeros.T) - torch.eye(4)
    assert correlation.abs().max() < 0.015


def test_reverse_leaves_padding_where_it_is():
    x = torch.arange(10.0).view(2, 5, 1)
    assert reverse(x, torch.tensor([5, 3])).squeeze(-1).tolist() == [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_bidirectional_encoder_equals_torchs(cell: str):
    """Against torch's own stacked bidirectional module with packed rows, on the same weights."""
    torch.manual_seed(0)
    reader = RNNEncoder(cell, 5, 7, 2, bidirectional=True, dropout=0.0)
    reference = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](
        5, 7, 2, batch_first=True, bidirectional=True
    )
    for layer in range(2):
        for side, suffix in ((reader.forwards, ""), (reader.backwards, "_reverse")):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                weights = getattr(side[layer].layers, f"{name}_l0")
                getattr(reference, f"{name}_l{layer}{suffix}").data.copy_(weights)
    x, lengths = torch.randn(3, 11, 5), torch.tensor([11, 4, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    expected, last = reference(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    last = last[0] if cell == "lstm" else last
    states, ends = reader(x, lengths)
    real = (torch.arange(11) < lengths[:, None])[:, :, None]
    torch.testing.assert_close(states * real, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ends, torch.cat([last[2], last[3]], -1), atol=1e-6, rtol=0)
