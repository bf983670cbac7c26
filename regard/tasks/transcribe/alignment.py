"""When Whisper's words are spoken: dynamic time warping over the attention of its alignment heads.

    cross-attention of some heads ─▶ normalised, median filter, mean ─▶ the path of least cost ─▶ times of tokens

Shapes: weights (heads, tokens, states); cost (tokens, states).
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.recording import Recorder, record
from regard.interop.whisper import SECONDS_PER_STATE
from regard.layers.pytree import State
from regard.models.whisper import Whisper

MEDIAN = 7  # states: the width of the filter


@torch.inference_mode()
def token_times(
    network: Whisper,
    state: State,
    prompt: Sequence[int],
    text: Sequence[int],
    heads: Sequence[tuple[int, int]],
    seconds: float,
) -> list[tuple[float, float]]:
    """Beginning and end of each token of a text, in seconds from the beginning of its encoded window.

    The weights are those of one teacher-forced pass; the row of a token is that of the query which predicts it.
    """
    if not text:
        return []
    states = max(1, round(seconds / SECONDS_PER_STATE))
    target = torch.tensor([[*prompt, *text]], device=next(network.parameters()).device)
    with record() as recorder:
        network.decode(target, state)
    cost = -alignment_weights(recorder, heads, len(prompt) - 1, states)
    tokens, positions = dynamic_time_warping(cost.double().cpu().numpy())
    begins = positions[np.flatnonzero(np.diff(tokens, prepend=-1))] * SECONDS_PER_STATE
    return list(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True))  # the last row predicts the end


def alignment_weights(recorder: Recorder, heads: Sequence[tuple[int, int]], first: int, states: int) -> Tensor:
    """The mean over heads of their normalised weights at the first `states`; queries from `first` on."""
    queries = slice(first, None)
    rows = [
        recorder.records[f"decoder.blocks.{layer}.cross"][0].weights(queries, slice(head, head + 1))[0, 0]
        for layer, head in heads
    ]
    weights = torch.stack(rows)[..., :states].float()
    weights = weights / weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, -2, correction=0, keepdim=True)
    weights = (weights - mean) / deviation.clamp(min=torch.finfo(weights.dtype).tiny)
    return median_filter(weights, MEDIAN).mean(0)


def median_filter(x: Tensor, width: int) -> Tensor:
    """The median of each position and its neighbours; x is continued by its reflection."""
    half = width // 2
    if x.size(-1) <= half:
        return x
    return F.pad(x, (half, half), mode="reflect").unfold(-1, width, 1).median(-1).values


def dynamic_time_warping(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The path of least total cost from the first row and column to the last, by steps of at most one in each.

    Computed by anti-diagonals, whose elements do not depend on each other.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)  # of the best path to each cell
    total[0, 0] = 0.0
    step = np.zeros((rows + 1, columns + 1), np.int8)  # 0: diagonal, 1: from the row before, 2: from the column before
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        before = np.stack([total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]])
        step[row, column] = before.argmin(0)
        total[row, column] = cost[row - 1, column - 1] + before.min(0)
    path = []
    row, column = rows, columns
    while row and column:
        path.append((row - 1, column - 1))
        came = step[row, column]
        row -= came != 2
        column -= came != 1
    tokens, positions = np.array(path[::-1]).T
    return tokens, positions
