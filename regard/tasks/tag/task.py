"""Token classification as a training task. Devlin et al. 2019, section 5.3."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from regard.config.options import FineTuneOptions
from regard.config.recipe import Recipe
from regard.data.targets import SingleLabelTargets
from regard.interop.folder import Loaded
from regard.metrics.entities import is_span_tag
from regard.models.heads.token import TokenClassifier
from regard.tasks.base import Preview, SampleTask, train_shared_tokenizer
from regard.tasks.inspection import Findings, inspect_lengths, inspect_samples
from regard.tasks.tag.dataset import TagDataset, TaggedBatch, collate, prepare
from regard.tasks.tag.evaluate import evaluate_task
from regard.tasks.tag.files import learn_tags, read
from regard.tasks.tag.options import TagData
from regard.tasks.tag.predict import MAJORITY, TagPredictor, baseline, metrics, tag, word_probabilities
from regard.tasks.tag.predictions import tags_of
from regard.text.vocabulary import Vocabulary


class Tag(SampleTask[TagDataset]):
    """Token classification, such as NER."""

    data: TagData
    options: FineTuneOptions

    predictor = TagPredictor
    evaluate = staticmethod(evaluate_task)
    name = "tag"
    unit = "words"
    constant = MAJORITY

    @staticmethod
    def create_processor(recipe: Recipe) -> Vocabulary:
        sentences = read(TagData.of(recipe), "train", Path(recipe.origin), recipe.seed)
        return train_shared_tokenizer((" ".join(sentence.words) for sentence in sentences), recipe)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """An encoder with a new head for the tags of the training split; one that has such a head keeps it."""
        network: Any = loaded.network
        if type(network) is TokenClassifier:
            return loaded
        tags = learn_tags(TagData.of(recipe), Path(recipe.origin), recipe.seed)
        return loaded._replace(network=TokenClassifier(getattr(network, "body", network).unpooled(), tags))

    def bind(self, network: TokenClassifier) -> None:
        self.tags = SingleLabelTargets(network.labels)
        has_spans = all(map(is_span_tag, network.labels))
        self.scores = ("f1", "accuracy", "loss") if has_spans else ("accuracy", "loss")

    @property
    def reports(self) -> dict[str, str]:
        """What was kept and skipped of each split, and the tags."""
        return super().reports | {"tags": ", ".join(self.tags.table)}

    def dataset(self, split: str) -> TagDataset | None:
        if not getattr(self.data, split):
            return None
        base_dir = Path(self.recipe.origin)
        return prepare(self.data, split, self.tokenizer, self.tags, self.cache, self.length, base_dir, self.recipe.seed)

    def collate(self, split: TagDataset, indices: Sequence[int]) -> TaggedBatch:
        return collate(split, indices)

    def num_targets(self, batch: TaggedBatch) -> int:
        return len(batch.tags)

    def loss(self, network: TokenClassifier, batch: TaggedBatch) -> Tensor:
        """Cross-entropy of each word's tag, summed."""
        logits = network.logits_from_states(network.encode(batch.text)[batch.at]).float()
        return F.cross_entropy(logits, batch.tags, label_smoothing=self.options.label_smoothing, reduction="sum")

    def validate(self, network: TokenClassifier) -> dict[str, float]:
        """Loss and accuracy of the words, and F1 of the entities, of the first `eval_samples` sentences."""
        if self.validation is None:
            return {}
        targets = self._targets(self.validation)
        sentences = [self.validation.words(index) for index in range(len(targets))]
        return metrics(word_probabilities(network, self.tokenizer, sentences), targets, network.labels)

    def baseline(self) -> dict[str, float]:
        return {} if self.validation is None else baseline(self._targets(self.validation), list(self.tags.table))

    def _targets(self, split: TagDataset) -> list[list[int]]:
        """The tags of the first `eval_samples` sentences."""
        return [split.tags(index).tolist() for index in range(min(self.options.eval_samples, split.sentences))]

    def preview(self, network: TokenClassifier, count: int) -> list[Preview]:
        if self.validation is None:
            return []
        names = list(self.tags.table)
        previews = []
        for index in range(min(count, self.validation.sentences)):
            words = self.validation.words(index)
            reference = tags_of(words, [names[target] for target in self.validation.tags(index)])
            (prediction,) = tag(network, self.tokenizer, [words])
            previews.append(Preview(" ".join(words), reference.text, prediction.text))
        return previews

    def inspect(self, splits: Mapping[str, TagDataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        inspect_lengths(splits, findings)
