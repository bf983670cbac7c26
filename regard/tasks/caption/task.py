"""Image captioning as a training task."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torch import Tensor, nn

from regard.attention.recording import record
from regard.config.recipe import DecodeOptions, Recipe
from regard.data.splits.hashed import digests
from regard.errors import UserError
from regard.image.augment import Augmentation
from regard.image.dataset import collate_images
from regard.image.processor import ImageProcessor
from regard.interop.processors import FeatureProcessor
from regard.layers.inputs import ImageBatch
from regard.metrics import captions
from regard.models.registry import Family, outline
from regard.tasks.base import Preview
from regard.tasks.caption.dataset import CaptionDataset, collate_captions, prepare_captions, records
from regard.tasks.caption.evaluate import evaluate_task
from regard.tasks.caption.options import CaptionData, CaptionTrain
from regard.tasks.caption.penalty import doubly_stochastic_penalty
from regard.tasks.caption.predict import Caption, CaptionPredictor, caption_images
from regard.tasks.inspection import Findings, inspect_samples, warn_overlaps
from regard.tasks.seq2seq import Seq2SeqBatch, Seq2SeqTask
from regard.text.train_tokenizer import train_tokenizer

BATCH = 64  # images that are captioned at once


class CaptionTask(Seq2SeqTask[CaptionDataset]):
    """Image captioning: training on images with captions, validation by CIDEr, BLEU and exact match."""

    data: CaptionData
    options: CaptionTrain

    predictor = CaptionPredictor
    evaluate = staticmethod(evaluate_task)
    name = "caption"
    scores = ("cider", "bleu1", "bleu2", "bleu3", "bleu4", "chrf", "exact", "loss")

    @staticmethod
    def supports(family: Family) -> bool:
        return family.is_encoder_decoder and family.input_type is ImageBatch

    @staticmethod
    def create_processor(recipe: Recipe) -> FeatureProcessor:
        """An image processor for the encoder's images, and a tokenizer trained on the captions."""
        encoder: Any = outline(recipe.model).encoder
        texts = chain.from_iterable(record.captions for record in records(recipe, "train"))
        tokenizer = train_tokenizer(texts, recipe.tokenizer)
        height, width = encoder.image_shape
        return FeatureProcessor(ImageProcessor.default(height, width, encoder.channels), tokenizer)

    def bind(self, network: Any) -> None:
        """In RoBERTa, the row before `position_offset` is that of the padding token, which cannot begin a caption."""
        offset = getattr(getattr(network.config, "decoder", None), "position_offset", 0)
        if offset and offset == self.tokenizer.begin + 1:
            raise UserError(
                f"model.decoder.position_offset = {offset}: position {offset - 1} is that of padding, but the "
                f"tokenizer's first token has the id {offset - 1}: set position_offset = {self.tokenizer.begin}"
            )

    def dataset(self, split: str) -> CaptionDataset | None:
        return prepare_captions(self.recipe, split, self.processor, self.cache)

    def training_batch(self, indices: Sequence[int], epoch: int) -> Seq2SeqBatch:
        augment = Augmentation(self.recipe.augment, self.recipe.seed)  # type: ignore[arg-type]
        return collate_captions(self.training, indices, self.processor, augment, epoch)

    def collate(self, split: CaptionDataset, indices: Sequence[int]) -> Seq2SeqBatch:
        return collate_captions(split, indices, self.processor)

    def loss(self, network: nn.Module, batch: Seq2SeqBatch) -> Tensor:
        """−log p(caption), and `attention_penalty` times the penalty of doubly stochastic attention."""
        weight = self.options.attention_penalty
        if not weight:
            return super().loss(network, batch)
        with record() as recorder:
            loss = super().loss(network, batch)
        return loss + weight * doubly_stochastic_penalty(recorder, batch.target.real[:, 1:])

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss and metrics over the first `eval_samples` images of the validation split."""
        if self.validation is None:
            return {}
        images = range(min(self.options.eval_samples, self.validation.num_images))
        loss = self.mean_loss(network, self.validation, min(self.options.eval_samples, len(self.validation)))
        texts = [caption.text for caption in self._caption(network, images)]
        return {"loss": loss, **captions.quick(texts, [self.validation.references(image) for image in images])}

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        images = range(min(count, self.validation.num_images))
        predicted = self._caption(network, images)
        return [
            Preview(self.validation.name(image), " | ".join(self.validation.references(image)), caption.text)
            for image, caption in zip(images, predicted, strict=True)
        ]

    def _caption(self, network: Any, images: range) -> list[Caption]:
        predicted: list[Caption] = []
        assert self.validation is not None
        for start in range(0, len(images), BATCH):
            batch = collate_images(self.validation, images[start : start + BATCH], self.processor.source)
            predicted += caption_images(network, batch, self.tokenizer, DecodeOptions())
        return predicted

    def inspect(self, splits: Mapping[str, CaptionDataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        table = {}
        for name, split in splits.items():
            counts = [len(split.references(image)) for image in range(split.num_images)]
            table[name] = {
                "images": len(counts),
                "captions": len(split),
                "per image": round(len(split) / len(counts), 2),
            }
        findings.facts["captions"] = table
        hashes = {
            name: digests(split.image(image).tobytes() for image in range(split.num_images))
            for name, split in splits.items()
        }
        warn_overlaps("same_image", hashes, findings, "images are in train too, so its scores are too high")
        for name, split in splits.items():
            texts = (text for image in range(min(2000, split.num_images)) for text in split.references(image))
            coverage = self.tokenizer.coverage(texts)
            if coverage.unknown_rate > 0.01:
                findings.warnings.append(
                    f"{name}: {coverage.unknown_rate:.1%} of the tokens are unknown; use subwords "
                    '(tokenizer.kind = "bpe") or a smaller tokenizer.min_frequency'
                )
