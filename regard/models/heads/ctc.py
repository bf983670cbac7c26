"""A CTC head: logits of the tokens and of blank at each state of an encoder of recordings. Graves et al. 2006."""

from torch import nn

from regard.layers.audio_encoder import AudioEncoder, Emissions
from regard.layers.blocks import init_weights
from regard.layers.dropout import Dropout
from regard.layers.inputs import AudioBatch
from regard.models.heads.base import Head


class CTC(Head):
    """An encoder of recordings that transcribes them. The blank is the tokenizer's padding token, which no text has."""

    task = "transcribe"

    def __init__(self, body: AudioEncoder, vocabulary: int):
        super().__init__(body)
        self.vocabulary = vocabulary
        self.dropout = Dropout(body.config.dropout)
        self.head = nn.Linear(body.config.width, vocabulary)
        init_weights(self.head)

    @property
    def trainable_modules(self) -> list[nn.Module]:
        """What is trained in full even where the backbone has adapters."""
        return [self.head]

    def forward(self, audio: AudioBatch) -> Emissions:
        states, lengths = self.body.listen(audio)
        return Emissions(self.head(self.dropout(states)), lengths)
