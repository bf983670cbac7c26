"""Whisper: speech recognition by an encoder–decoder Transformer. Radford et al. 2022, figure 1.

    log-mel frames ─▶ 2 × (convolution, GELU) + sinusoids ─▶ encoder blocks ─▶ memory
                                                                                 │ cross
    tokens so far ─▶ embed + learned positions ────────────▶ decoder blocks ◀────┘ ─▶ logits

Shapes: frames (batch, length, bins), states (batch, length / 2, width). A recording is 30 s: 3,000 frames.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.attention.masks import causal
from regard.attention.positions import Learned
from regard.attention.recording import scope
from regard.attention.variants import multihead
from regard.layers.audio_encoder import Encoded, reduced
from regard.layers.autoregressive import AutoregressiveModel
from regard.layers.blocks import ACTIVATIONS, Block, FeedForward, PreNorm, Stack, init_weights
from regard.layers.dropout import Dropout
from regard.layers.embedding import Embedding
from regard.layers.inputs import AudioBatch
from regard.layers.pytree import State


@dataclass(frozen=True)
class WhisperConfig:
    vocabulary: int
    bins: int = 80  # of the mel spectrogram
    width: int = 384
    heads: int = 6
    depth: int = 4
    feedforward: int = 0  # 0: four times the width
    decoder_heads: int = 0  # 0: as the encoder's
    decoder_depth: int = 0
    decoder_feedforward: int = 0
    activation: str = "gelu"  # of the blocks
    tied: bool = True  # one table for target and output
    dropout: float = 0.0
    source_positions: int = 1500  # the longest recording, in states of the encoder: half as many as frames
    max_positions: int = 448  # the longest text

    CHOICES = {"activation": tuple(ACTIVATIONS)}

    @property
    def max_frames(self) -> int:
        """The longest recording, in frames."""
        return 2 * self.source_positions

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        for side, heads in (("heads", self.heads), ("decoder_heads", self.decoder_heads or self.heads)):
            if self.width % heads:
                return f"width {self.width} is not a multiple of {side} {heads}"
        return f"width {self.width} is odd, but each sine has a cosine" if self.width % 2 else None


_SIZES: dict[str, dict] = {  # table 1; parameters with 51,865 tokens, the encoder's sinusoids included
    "tiny": dict(width=384, heads=6, depth=4),  # 37.8M
    "base": dict(width=512, heads=8, depth=6),  # 72.6M
    "small": dict(width=768, heads=12, depth=12),  # 241.7M
    "medium": dict(width=1024, heads=16, depth=24),  # 763.9M
}
_LARGE = dict(width=1280, heads=20, depth=32)

PRESETS: dict[str, dict] = {
    **_SIZES,
    **{f"{name}.en": size for name, size in _SIZES.items()},  # English only: 51,864 tokens
    "large": _LARGE,  # 1,543.3M; large-v2 was trained for longer
    "large-v2": _LARGE,
    "large-v3": dict(bins=128, **_LARGE),  # 1,543.5M with 51,866 tokens
    "large-v3-turbo": dict(bins=128, decoder_depth=4, **_LARGE),  # 808.9M with 51,866 tokens
}


def sinusoids(length: int, width: int) -> Tensor:
    """All sines, then all cosines, whose wavelengths grow geometrically from 2π to 10,000 · 2π, both included."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10000) / max(width // 2 - 1, 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class FrameEmbedding(nn.Module):
    """Two convolutions over three frames, the second with stride 2, plus positions. Section 2.2."""

    def __init__(self, bins: int, width: int, positions: int, dropout: float):
        super().__init__()
        self.first = nn.Conv1d(bins, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positions = Learned(width, positions)
        self.positions.table.weight.data.copy_(sinusoids(positions, width))
        self.positions.requires_grad_(False)  # stored in published files, perhaps rounded, but never trained
        self.dropout = Dropout(dropout)

    def forward(self, frames: Tensor, real: Tensor | None) -> Tensor:
        """Frames that are not `real` are zeros, as those beyond the ends are."""
        x = frames.mT
        if real is not None:
            x = x * real[:, None]
        x = F.gelu(self.first(x))
        if real is not None:
            x = x * real[:, None]
        x = F.gelu(self.second(x)).mT
        return self.dropout(x + self.positions(0, x.size(1)))


def stack(config: WhisperConfig, depth: int, heads: int, feedforward: int, cross: bool) -> Stack:
    """The pre-norm blocks of the encoder, or with `cross` of the decoder: causal, with cross-attention."""
    attention = partial(_attention, config.width, heads)
    blocks = [
        Block(
            lambda: PreNorm(nn.LayerNorm(config.width), config.dropout),
            attention(),
            FeedForward(config.width, feedforward or 4 * config.width, config.activation),
            attention() if cross else None,
            causal if cross else None,
        )
        for _ in range(depth)
    ]
    return Stack(blocks, nn.LayerNorm(config.width))


def _attention(width: int, heads: int) -> Attention:
    """Without a bias of the keys, which no softmax would see."""
    attention = multihead(width, heads)
    attention.key = nn.Linear(width, width, bias=False)
    return attention


class Whisper(AutoregressiveModel):
    task = "transcribe"
    input_type = AudioBatch

    def __init__(self, config: WhisperConfig):
        super().__init__()
        self.config = config
        self.source = FrameEmbedding(config.bins, config.width, config.source_positions, config.dropout)
        self.encoder = stack(config, config.depth, config.heads, config.feedforward, cross=False)
        table = nn.Embedding(config.vocabulary, config.width)
        self.target = Embedding(table, Learned(config.width, config.max_positions), False, config.dropout)
        self.decoder = stack(
            config,
            config.decoder_depth or config.depth,
            config.decoder_heads or config.heads,
            config.decoder_feedforward or config.feedforward,
            cross=True,
        )
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        for module in (self.encoder, self.target, self.decoder, self.output):
            module.apply(init_weights)
        if config.tied:
            self.output.weight = table.weight

    @property
    def dummy_inputs(self) -> tuple:
        weight = next(self.parameters())
        frames = torch.zeros(1, 2, self.config.bins, dtype=weight.dtype, device=weight.device)
        lengths = torch.full((1,), 2, device=weight.device)
        return AudioBatch(frames, lengths), torch.zeros(1, 1, dtype=torch.long, device=weight.device)

    @property
    def stride(self) -> int:
        """Frames per state of the encoder."""
        return 2

    def listen(self, audio: AudioBatch) -> Encoded:
        """The state of every two frames. A window of 30 s is padded with silence, which counts as sound."""
        lengths = reduced(audio.lengths, 1)
        is_padded = int(audio.lengths.min()) < audio.frames.size(1)
        real = audio.real if is_padded else None
        with scope("encoder"):
            x = self.source(audio.frames, real)
            states, _ = self.encoder(x, real=None if real is None else real[:, ::2])
        return Encoded(states, lengths)

    def encode(self, source: AudioBatch) -> Tensor:
        return self.listen(source).states

    def start(self, source: AudioBatch) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.start_from(self.listen(source))

    def start_from(self, encoded: Encoded) -> State:
        """The state before the first token, of recordings that are encoded."""
        is_padded = int(encoded.lengths.min()) < encoded.states.size(1)
        return State(self.decoder.remember(encoded.states, encoded.real if is_padded else None), ())

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        past = state.hypothesis
        with scope("decoder"):
            x = self.target(tokens, past[0].end if past else 0)
            x, past = self.decoder(x, past=past, source=state.source)
        return x, State(state.source, past)
