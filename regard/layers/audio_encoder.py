"""Encoders of recordings: networks with a state for every few feature frames.

    frames ─▶ layers that reduce the rate ─▶ … ─▶ states ─▶ pool ─▶ one vector for the recording
                                                      └───▶ CTC head ─▶ logits of the tokens and blank

Shapes: frames (batch, length, bins), states (batch, ⌈length / stride⌉, width).
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.trace import Axis
from regard.layers.encoder import Encoder, Pool
from regard.layers.inputs import AudioBatch

MAX_HALVINGS = 5


@dataclass(frozen=True)
class AudioConfig:
    """The feature frames that a network takes; each family adds its own fields."""

    bins: int = 40  # features of a frame
    max_frames: int = 6000  # the longest recording: a minute at 10 ms per frame


class Encoded(NamedTuple):
    """The states of recordings, and how many each has."""

    states: Tensor  # (batch, length, width)
    lengths: Tensor  # (batch)

    @property
    def real(self) -> Tensor:
        """False where padded."""
        return torch.arange(self.states.size(1), device=self.states.device) < self.lengths[:, None]


class Emissions(NamedTuple):
    """Logits of CTC: of the tokens and blank at each state; and how many states each recording has."""

    logits: Tensor  # (batch, length, vocabulary)
    lengths: Tensor  # (batch)


class AudioEncoder(Encoder):
    """An encoder of recordings. Its config has `bins`, `max_frames` and `width`."""

    input_type = AudioBatch

    @property
    def dummy_inputs(self) -> tuple:
        return (AudioBatch.minimal(self.config.bins, self.stride, next(self.parameters()).device),)

    @property
    def max_positions(self) -> int:
        """The longest input, in frames."""
        return self.config.max_frames

    @property
    def stride(self) -> int:
        """Frames per state."""
        return 2**self.config.halvings

    @abstractmethod
    def listen(self, audio: AudioBatch) -> Encoded:
        """The states, and how many each recording has."""

    def encode(self, audio: AudioBatch) -> Tensor:
        return self.listen(audio).states

    def sites(self, states: Axis) -> Mapping[str, tuple[Axis, Axis]]:
        """The queries and keys of its attention sites, for a trace whose states are on this axis."""
        return {"encoder.*": (states, states)}

    def classification_pool(self) -> Pool:
        return self.mean_state

    def mean_state(self, states: Tensor, audio: AudioBatch) -> Tensor:
        """The mean of the states of each recording."""
        encoded = Encoded(states, reduced(audio.lengths, self.config.halvings))
        return states.masked_fill(~encoded.real[:, :, None], 0.0).sum(1) / encoded.lengths[:, None]


def reduced(lengths: Tensor, halvings: int) -> Tensor:
    """Numbers of frames after layers that halve the rate, rounded up."""
    return -(-lengths // 2**halvings)


class ConvolutionalSubsampling(nn.Module):
    """Convolutions over frames and bins, each with stride 2, and a projection. Dong et al. 2018, section 3.2."""

    def __init__(self, bins: int, channels: int, halvings: int, width: int):
        super().__init__()
        sizes = [1] + [channels] * halvings
        self.convolutions = nn.ModuleList(
            nn.Conv2d(size, channels, 3, stride=2, padding=1) for size in sizes[:halvings]
        )
        self.project = nn.Linear(sizes[-1] * -(-bins // 2**halvings), width)

    def forward(self, frames: Tensor, lengths: Tensor) -> Encoded:
        x = frames[:, None]
        for convolution in self.convolutions:
            real = torch.arange(x.size(2), device=x.device) < lengths[:, None]
            x = F.relu(convolution(x.masked_fill(~real[:, None, :, None], 0.0)))
            lengths = (lengths + 1) // 2
        return Encoded(self.project(x.transpose(1, 2).flatten(2)), lengths)


def check_audio(halvings: int, depth: int = MAX_HALVINGS + 1) -> str | None:
    """The problem of too many layers that halve the rate, as a message."""
    if halvings > MAX_HALVINGS:
        return f"halvings {halvings}: at most {MAX_HALVINGS}, which leave one state of {2**MAX_HALVINGS} frames"
    if halvings >= depth:
        return f"halvings {halvings} need a depth of at least {halvings + 1}: the first layer reads all frames"
    return None
