"""DeiT: ViT with a second token, through which it learns from a teacher. Touvron et al. 2021, section 4.

    [CLS], [DISTILLATION], patches ─▶ ViT ─┬─▶ state of [CLS] ─▶ head                      learns the labels
                                           └─▶ state of [DISTILLATION] ─▶ second head      learns the teacher's labels

A prediction is the mean of both heads. Without distillation DeiT is a ViT: its sizes are presets of that family.

Shapes: states (batch, 2 + patches, width), logits (batch, labels).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.models.heads.sequence import Classifier, ClassifierOutput
from regard.models.vit import PRESETS as VIT_PRESETS
from regard.models.vit import ViT, ViTConfig


@dataclass(frozen=True)
class DeiTConfig(ViTConfig):
    """The fields of ViT."""


PRESETS: dict[str, dict] = {
    "tiny": VIT_PRESETS["tiny"],  # 1.8M: for small images, from scratch
    "tiny-16": VIT_PRESETS["deit-tiny-16"],  # 5.9M with 1,000 classes and both heads, as all below
    "small-16": VIT_PRESETS["deit-small-16"],  # 22.4M
    "base-16": VIT_PRESETS["deit-base-16"],  # 87.3M
}


class DeiT(ViT):
    tokens = ("cls", "distillation")


class DistilledClassifier(Classifier):
    """DeiT with both heads. In training they are separate outputs; otherwise logits are their mean."""

    def __init__(self, body: DeiT, labels: Any, **options: Any):
        super().__init__(body, labels, **options)
        self.distillation_head = nn.Linear(body.config.width, len(self.labels))
        nn.init.normal_(self.distillation_head.weight, std=0.02)
        nn.init.zeros_(self.distillation_head.bias)

    @property
    def trainable_modules(self) -> list[nn.Module]:
        return [self.head, self.distillation_head]

    def label(self, text: Any) -> ClassifierOutput:
        states = self.encode(text)
        logits, distilled = self.both_logits(states)
        if self.training:
            return ClassifierOutput(states, logits, distilled)
        return ClassifierOutput(states, (logits + distilled) / 2)

    def both_logits(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the class head and of the distillation head."""
        distilled = self.distillation_head(self.dropout(states[:, 1])) * self.scale
        return self.logits_from_pooled(states[:, 0]), distilled
