"""The location-aware score against its equation, and weights that attention returns."""

from typing import Any

import torch
import torch.nn.functional as F

from regard.attention.recording import record
from regard.attention.variants import location_aware


@torch.no_grad()
def test_location_aware_attention_is_its_equation():
    """e = v · tanh(W s + V h + U f), f = F ∗ α: Chorowski et al. 2015, equations 8 and 9."""
    torch.manual_seed(0)
    length, width, source, hidden = 7, 5, 3, 4
    attention: Any = location_aware(width, source, hidden, filters=2, kernel=3)
    states, query = torch.randn(2, length, source), torch.randn(2, 1, width)
    previous = torch.rand(2, 1, length)
    context, weights = attention.forward_with_weights(torch.cat([query, previous], -1), attention.remember(states))
    score = attention.score
    for row in range(2):
        padded = F.pad(previous[row, 0], (1, 1))
        energies = []
        for position in range(length):
            window = padded[position : position + 3]
            features = torch.stack([(score.filters.weight[index, 0] * window).sum() for index in range(2)])
            inside = attention.query.weight @ query[row, 0] + attention.key.weight @ states[row, position]
            energies.append(score.energy.weight[0] @ torch.tanh(inside + score.location.weight @ features))
        expected = torch.stack(energies).softmax(0)
        torch.testing.assert_close(weights[row, 0, 0], expected)
        torch.testing.assert_close(context[row, 0], expected @ states[row])


@torch.no_grad()
def test_hypotheses_of_one_source_have_their_own_weights():
    torch.manual_seed(0)
    attention: Any = location_aware(5, 3, 4)
    states = torch.randn(2, 7, 3)
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    queries = torch.cat([torch.randn(6, 1, 5), torch.rand(6, 1, 7) * real.repeat_interleave(3, 0)[:, None]], -1)
    context, weights = attention.forward_with_weights(queries, attention.remember(states, real))
    for row in range(6):
        memory = attention.remember(states[row // 3, None], real[row // 3, None])
        with record() as recorder:
            alone, its_weights = attention.forward_with_weights(queries[row, None], memory)
        torch.testing.assert_close(context[row, None], alone)
        torch.testing.assert_close(weights[row, None], its_weights)
        ((kept,),) = recorder.records.values()
        assert torch.equal(kept.weights(), its_weights)
    assert not weights[3:, :, :, 4:].any()
