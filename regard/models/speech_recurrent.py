"""A recurrent encoder of recordings, as in recognisers with CTC. Graves et al. 2013.

frames ─▶ [ (join pairs) ─▶ LSTM in both directions ] × depth ─▶ states
"""

from dataclasses import dataclass

from regard.attention.recording import scope
from regard.layers.audio_encoder import AudioConfig, AudioEncoder, Encoded, check_audio
from regard.layers.inputs import AudioBatch
from regard.layers.recurrent import TORCH, PyramidalEncoder


@dataclass(frozen=True)
class SpeechRecurrentConfig(AudioConfig):
    width: int = 256  # of the states: of both directions together
    depth: int = 3
    halvings: int = 1  # layers, after the first, that read pairs of states
    cell: str = "lstm"
    bidirectional: bool = True
    dropout: float = 0.2

    CHOICES = {"cell": tuple(TORCH)}
    MAY_BE_ZERO = ("halvings",)

    def problem(self) -> str | None:
        """Which fields are incompatible, as a message."""
        if self.bidirectional and self.width % 2:
            return f"width {self.width} should be even for two directions; else set bidirectional = false"
        return check_audio(self.halvings, self.depth)


PRESETS: dict[str, dict] = {
    "tiny": dict(width=128, depth=2),
    "small": dict(width=256, depth=3, halvings=2),
    "medium": dict(width=640, depth=4, halvings=2),
}


class SpeechRecurrent(AudioEncoder):
    def __init__(self, config: SpeechRecurrentConfig):
        super().__init__()
        self.config = config
        one_way = config.width // 2 if config.bidirectional else config.width
        self.encoder = PyramidalEncoder(
            config.cell, config.bins, one_way, config.depth, config.halvings, config.bidirectional, config.dropout
        )

    def listen(self, audio: AudioBatch) -> Encoded:
        with scope("encoder"):
            return Encoded(*self.encoder(audio.frames, audio.lengths))
