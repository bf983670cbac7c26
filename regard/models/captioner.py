"""An image encoder and a Transformer decoder with cross-attention: captions, or the text in an image.

    image ─▶ vision encoder ─▶ states ─▶ bridge ─▶ memory
                                                     │ cross
    caption ─▶ embed + positions ─▶ decoder blocks ◀─┘ ─▶ logits

Encoder and decoder are those of published models: ViT with GPT-2 (as in image captioning), DeiT or Swin with RoBERTa or
BERT (as in TrOCR: Li et al. 2023). The cross-attention is new: Rothe et al. 2020.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.attention.recording import scope
from regard.layers.blocks import Stack, init_weights
from regard.layers.inputs import ImageBatch
from regard.layers.pytree import State
from regard.models import bert, gpt
from regard.models.vision import ENCODERS, VISION_FAMILIES, ImageToText

DECODERS: dict[type, Callable[[Any], tuple[nn.Module, Stack, nn.Module]]] = {
    gpt.GPTConfig: lambda config: gpt.decoder(config, cross=True),
    bert.BertConfig: bert.decoder,
}
"""Embedding, blocks and output layer of a decoder, by its config."""


@dataclass(frozen=True)
class CaptionerConfig:
    vocabulary: int
    encoder: Any  # the config of a vision encoder
    decoder: Any  # a GPTConfig or BertConfig

    CHOICES = {}
    COMPONENTS = {"encoder": VISION_FAMILIES, "decoder": ("gpt", "bert")}

    @property
    def max_positions(self) -> int:
        """The longest caption."""
        return self.decoder.max_positions

    @property
    def width(self) -> int:
        return self.decoder.width

    def problem(self) -> str | None:
        if isinstance(self.decoder, bert.BertConfig):
            if self.decoder.embedding_width or self.decoder.hidden_groups:
                return "decoder: embedding_width and hidden_groups are for encoders: remove them"
            if self.decoder.pooler:
                return "decoder: the pooler is for encoders: set decoder.pooler = false"
        return None


PRESETS: dict[str, dict] = {
    "tiny": dict(
        encoder=dict(family="vit", preset="tiny"),
        decoder=dict(family="gpt", width=128, heads=4, depth=2, max_positions=64),
    ),
}


class Captioner(ImageToText):
    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = config
        self.encoder = ENCODERS[type(config.encoder)](config.encoder)
        widths = config.encoder.width, config.decoder.width
        self.bridge = nn.Linear(*widths) if widths[0] != widths[1] else nn.Identity()
        self.bridge.apply(init_weights)
        self.embed, self.decoder, self.output = DECODERS[type(config.decoder)](config.decoder)

    def start(self, source: ImageBatch) -> State:  # pyright: ignore[reportIncompatibleMethodOverride]
        return State(self.decoder.remember(self.bridge(self.encode(source)), None), ())

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        past = state.hypothesis
        with scope("decoder"):
            x = self.embed(tokens, start=past[0].end if past else 0)
            x, past = self.decoder(x, past=past, source=state.source)
        return x, State(state.source, past)
