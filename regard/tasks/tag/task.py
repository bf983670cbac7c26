"""Token classification as a training task. Devlin et al. 2019, section 5.3."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import Recipe
from regard.data.targets import SingleLabelTargets
from regard.interop.folder import Loaded
from regard.metrics.iob import is_span_tag
from regard.models.heads.token import TokenClassifier
from regard.tasks.base import Preview, Task
from regard.tasks.inspection import Findings, inspect_lengths, inspect_samples
from regard.tasks.tag.dataset import TagDataset, TaggedBatch, prepare, stream
from regard.tasks.tag.evaluate import evaluate_task
from regard.tasks.tag.files import learn_tags, read
from regard.tasks.tag.options import TagData
from regard.tasks.tag.predict import TagPredictor, metrics, tag, word_probabilities
from regard.tasks.tag.predictions import tags_of
from regard.text.special_tokens import with_mask_token
from regard.text.train_tokenizer import train_tokenizer as learn_tokenizer
from regard.text.vocabulary import Vocabulary


class Tag(Task[TagDataset]):
    """Token classification, such as NER."""

    data: TagData

    predictor = TagPredictor
    evaluate = staticmethod(evaluate_task)
    name = "tag"
    unit = "words"

    @staticmethod
    def train_tokenizer(recipe: Recipe) -> Vocabulary:
        """A tokenizer trained on the sentences of the training split."""
        sentences = read(TagData.of(recipe), "train", Path(recipe.origin), recipe.seed)
        texts = (" ".join(sentence.words) for sentence in sentences)
        tokenizer = with_mask_token(learn_tokenizer(texts, recipe.tokenizer, ends=False))
        return Vocabulary(tokenizer, tokenizer)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """An encoder with a new head for the tags of the training split; one that has such a head keeps it."""
        network: Any = loaded.network
        if type(network) is TokenClassifier:
            return loaded
        tags = learn_tags(TagData.of(recipe), Path(recipe.origin), recipe.seed)
        return loaded._replace(network=TokenClassifier(getattr(network, "body", network).unpooled(), tags))

    def bind(self, network: Any) -> None:
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

    def batches(self, start: int, rank: int, world: int) -> Iterator[TaggedBatch]:
        return stream(self.training, self.batching, start, rank, world)

    def num_targets(self, batch: TaggedBatch) -> int:
        return len(batch.tags)

    def loss(self, network: Any, batch: TaggedBatch) -> Tensor:
        """Cross-entropy of each word's tag, summed."""
        logits = network.logits_from_states(network.encode(batch.text)[batch.at]).float()
        return F.cross_entropy(logits, batch.tags, label_smoothing=self.options.label_smoothing, reduction="sum")

    def validate(self, network: Any) -> dict[str, float]:
        """Loss and accuracy of the words, and F1 of the entities, of the first `eval_samples` sentences."""
        if self.validation is None:
            return {}
        indices = range(min(self.options.eval_samples, self.validation.sentences))
        sentences = [self.validation.words(index) for index in indices]
        targets = [self.validation.tags(index).tolist() for index in indices]
        return metrics(word_probabilities(network, self.tokenizer, sentences), targets, network.labels)

    def preview(self, network: Any, count: int) -> list[Preview]:
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

    def inspect(self, splits: Mapping[str, Any], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
        inspect_lengths(splits, findings)
