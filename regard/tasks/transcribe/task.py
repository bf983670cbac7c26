"""Speech recognition as a training task."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.audio.dataset import AudioDataset
from regard.audio.processor import AudioProcessor
from regard.config.recipe import DecodeOptions, Recipe
from regard.decoding.ctc import ctc_loss
from regard.decoding.search import Hypothesis
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.interop.processors import FeatureProcessor
from regard.layers.audio_encoder import Emissions
from regard.layers.inputs import AudioBatch, TokenBatch
from regard.metrics import error_rate
from regard.models.heads.ctc import CTC
from regard.models.registry import Family, outline
from regard.tasks.base import Preview
from regard.tasks.batching import by_length
from regard.tasks.inspection import Findings
from regard.tasks.seq2seq import Seq2SeqBatch, Seq2SeqTask, cross_entropy
from regard.tasks.transcribe.checks import inspect_recordings
from regard.tasks.transcribe.dataset import Limits, augmentation_of, collate, prepare, records
from regard.tasks.transcribe.evaluate import evaluate_task, metrics_of
from regard.tasks.transcribe.options import TranscribeData, TranscribeTrain
from regard.tasks.transcribe.predict import TranscribePredictor
from regard.tasks.transcribe.recognise import Recognition
from regard.text.train_tokenizer import train_tokenizer

BATCH = 16  # recordings that are transcribed at once


class Transcribe(Seq2SeqTask[AudioDataset]):
    """Speech recognition: training by CTC, by predicting each next token, or by both; validation by error rates."""

    data: TranscribeData
    options: TranscribeTrain

    predictor = TranscribePredictor
    evaluate = staticmethod(evaluate_task)
    name = "transcribe"
    constant = "empty transcripts"
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss", "wer", "cer", "per"})

    @staticmethod
    def supports(family: Family) -> bool:
        return family.input_type is AudioBatch

    @staticmethod
    def create_processor(recipe: Recipe) -> FeatureProcessor:
        """An audio processor for the encoder's frames, and a tokenizer trained on the transcripts."""
        data = TranscribeData.of(recipe)
        tokenizer = train_tokenizer((record.target for record in records(recipe, "train")), recipe.tokenizer)
        audio = AudioProcessor.default(data, outline(recipe.model).bins)
        return FeatureProcessor(audio, tokenizer)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """An encoder with a new CTC head; a model that transcribes is kept."""
        network: Any = loaded.network
        if network.task == "transcribe":
            return loaded
        tokenizer = loaded.processor.target
        if tokenizer is None:
            raise UserError(f"model.from = '{recipe.model['from']}' has no tokenizer: train a new model instead")
        return loaded._replace(network=CTC(getattr(network, "body", network), tokenizer.size))

    def bind(self, network: Any) -> None:
        self.processor.source.check_options(self.data)
        self.is_ctc = isinstance(network, CTC)
        self.stride: int = network.body.stride if self.is_ctc else network.stride
        self.ctc_weight: float = 1.0 if self.is_ctc else getattr(network.config, "ctc_weight", 0.0)
        self.max_frames: int = network.config.max_frames
        self.scores = (*metrics_of(self.data), "loss")

    def max_tokens(self, requested: int, limit: int) -> int:
        return requested if self.is_ctc else super().max_tokens(requested, limit)

    @property
    def limits(self) -> Limits:
        """What samples may have."""
        requested = int(self.data.max_seconds / self.processor.source.frame_seconds)
        return Limits(min(requested, self.max_frames), self.length, self.stride if self.ctc_weight else 0)

    def dataset(self, split: str) -> AudioDataset | None:
        return prepare(self.recipe, split, self.processor, self.cache, self.limits)

    def training_batch(self, indices: Sequence[int], epoch: int) -> Seq2SeqBatch:
        augmentation = augmentation_of(self.recipe)
        frames = [augmentation.frames(self.training, index, epoch) for index in indices]
        return collate(self.training, indices, self.processor, frames)

    def collate(self, split: AudioDataset, indices: Sequence[int]) -> Seq2SeqBatch:
        return collate(split, indices, self.processor)

    def loss(self, network: Any, batch: Seq2SeqBatch) -> Tensor:
        """λ · CTC + (1 − λ) · cross-entropy, summed. Kim et al. 2017, equation 5."""
        if self.is_ctc:
            return self._ctc_loss(network(batch.source), batch.target)
        if not self.ctc_weight:
            return cross_entropy(network, batch, self.options.label_smoothing)
        state, emissions = network.start_with_emissions(batch.source)
        tokens = batch.target.tokens
        real = batch.target.real[:, 1:]
        states, _ = network.decode(tokens[:, :-1], state)
        logits = network.output(states[real]).float()
        smoothing = self.options.label_smoothing
        loss = F.cross_entropy(logits, tokens[:, 1:][real], label_smoothing=smoothing, reduction="sum")
        return (1 - self.ctc_weight) * loss + self.ctc_weight * self._ctc_loss(emissions, batch.target)

    def _ctc_loss(self, emissions: Emissions, target: TokenBatch) -> Tensor:
        """Of the tokens between begin and end."""
        inner = TokenBatch(target.tokens[:, 1:], target.lengths - 2)
        return ctc_loss(*emissions, inner, self.tokenizer.pad).sum()

    @torch.no_grad()
    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and error rates over the first `eval_samples` of the validation split."""
        if self.validation is None:
            return {}
        count = min(self.options.eval_samples, len(self.validation))
        total = tokens = 0.0
        for indices in by_length(self.validation.source_lengths[:count].tolist(), BATCH):
            batch = self.collate(self.validation, indices).to(next(network.parameters()).device)
            total += float(self.loss(network, batch))
            tokens += self.num_targets(batch)
        texts = self._transcribe(network, range(count))
        references = [self.validation.text(index).target for index in range(count)]
        return {"loss": total / tokens, **error_rate.quick(metrics_of(self.data), texts, references)}

    def baseline(self) -> dict[str, float]:
        """An empty transcript deletes every unit."""
        return dict.fromkeys(metrics_of(self.data), 100.0)

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        indices = range(min(count, len(self.validation)))
        samples = [self.validation.text(index) for index in indices]
        texts = self._transcribe(network, indices)
        return [Preview(sample.source, sample.target, text) for sample, text in zip(samples, texts, strict=True)]

    def _transcribe(self, network: nn.Module, indices: range) -> list[str]:
        assert self.validation is not None
        recognise = Recognition(network, self.tokenizer, DecodeOptions(), self.ctc_weight)
        hypotheses: list[list[Hypothesis]] = []
        for start in range(0, len(indices), BATCH):
            hypotheses += recognise(self.collate(self.validation, indices[start : start + BATCH]).source)
        return [self.tokenizer.decode(best.tokens).strip() for best, *_ in hypotheses]

    def inspect(self, splits: Mapping[str, AudioDataset], findings: Findings) -> None:
        inspect_recordings(splits, findings, self.tokenizer, self.limits)
