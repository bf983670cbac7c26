"""Recipe tables of causal language modelling."""

from dataclasses import dataclass

from regard.config.options import DocumentOptions, Schedule, TaskOptions, TokenizerKind, TokenizerOptions, TrainOptions


@dataclass(frozen=True)
class GenerateTrain(TrainOptions):
    schedule: Schedule = "cosine"
    warmup_steps: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class GenerateTokenizer(TokenizerOptions):
    kind: TokenizerKind = "byte_bpe"


OPTIONS = TaskOptions(DocumentOptions, GenerateTrain, GenerateTokenizer)
