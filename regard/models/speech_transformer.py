"""A Transformer encoder of recordings, with convolutions in front. Dong et al. 2018.

frames ─▶ [ convolution, stride 2 ] × halvings ─▶ + positions ─▶ [ self-attention ─▶ feed-forward ] × depth ─▶ states
"""

from dataclasses import dataclass

from torch import nn

from regard.attention.positions import Sinusoid
from regard.attention.recording import scope
from regard.attention.variants import multihead
from regard.layers.audio_encoder import AudioConfig, AudioEncoder, ConvolutionalSubsampling, Encoded, check_audio
from regard.layers.blocks import ACTIVATIONS, Block, FeedForward, PreNorm, Stack
from regard.layers.dropout import Dropout
from regard.layers.inputs import AudioBatch


@dataclass(frozen=True)
class SpeechTransformerConfig(AudioConfig):
    width: int = 144
    heads: int = 4
    depth: int = 6
    feedforward: int = 576
    halvings: int = 2  # convolutions with stride 2
    channels: int = 32  # of these convolutions
    activation: str = "swish"
    dropout: float = 0.1

    CHOICES = {"activation": tuple(ACTIVATIONS)}
    MAY_BE_ZERO = ("halvings",)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.width % self.heads:
            return f"width {self.width} is not a multiple of heads {self.heads}"
        return check_audio(self.halvings)


PRESETS: dict[str, dict] = {
    "tiny": dict(width=96, heads=4, depth=3, feedforward=256),
    "small": dict(width=144, heads=4, depth=6, feedforward=576),
    "medium": dict(width=256, heads=4, depth=12, feedforward=1024),
}


class SpeechTransformer(AudioEncoder):
    def __init__(self, config: SpeechTransformerConfig):
        super().__init__()
        self.config = config
        self.subsample = ConvolutionalSubsampling(config.bins, config.channels, config.halvings, config.width)
        self.positions = Sinusoid(config.width)
        self.dropout = Dropout(config.dropout)

        def block() -> Block:
            return Block(
                lambda: PreNorm(nn.LayerNorm(config.width), config.dropout),
                multihead(config.width, config.heads),
                FeedForward(config.width, config.feedforward, config.activation),
            )

        self.encoder = Stack([block() for _ in range(config.depth)], nn.LayerNorm(config.width))

    def listen(self, audio: AudioBatch) -> Encoded:
        subsampled = self.subsample(audio.frames, audio.lengths)
        states, lengths = subsampled
        padded = int(lengths.min()) < states.size(1)
        with scope("encoder"):
            x = self.dropout(states + self.positions(0, states.size(1)))
            return Encoded(self.encoder(x, subsampled.real if padded else None)[0], lengths)
