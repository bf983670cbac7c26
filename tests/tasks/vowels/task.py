"""Vowels: an encoder predicts for each token whether it begins with a vowel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import Recipe
from regard.data.cache import Report, hash_file
from regard.data.files import lines
from regard.data.splits.hashed import file_of
from regard.interop.folder import Loaded
from regard.layers.inputs import TokenBatch
from regard.models.heads.token import TokenClassifier
from regard.tasks.base import SampleTask, train_shared_tokenizer
from regard.tasks.batching import EncodedText
from regard.tasks.encoding import EncoderPredictor, collate, encode_texts
from regard.tasks.inspection import Findings, inspect_samples
from regard.tasks.predictor import Inference, Options
from regard.tasks.scoring import Evaluation, EvaluationRequest, resolve_split
from regard.text.vocabulary import Vocabulary


@dataclass(eq=False)
class Dataset:
    rows: list[EncodedText]
    report: Report
    hashes: dict[str, str]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def source_lengths(self) -> np.ndarray:
        return np.array([len(row.tokens) for row in self.rows])

    target_lengths = source_lengths


class Batch(NamedTuple):
    text: TokenBatch
    targets: Tensor  # (batch, length): 1 where the token begins with a vowel
    indices: Tensor


@dataclass(frozen=True)
class Vowels:
    text: str  # with the tokens that were predicted in capitals
    truncated: bool = False
    alternatives: tuple["Vowels", ...] = ()


class VowelPredictor(EncoderPredictor):
    task = "vowels"
    description = "a vowel model"

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Vowels]:
        predictions = []
        for row in self.encode_inputs(inputs, inference.truncate):
            marks = self.network(collate([row])).argmax(-1)[0]
            pieces = self.tokenizer.pieces(row.tokens)
            text = "".join(piece.upper() if mark else piece for piece, mark in zip(pieces, marks, strict=True))
            predictions.append(Vowels(text, row.truncated))
        return predictions


class VowelTask(SampleTask[Dataset]):
    name = "vowels"
    scores = ("accuracy", "loss")
    predictor = VowelPredictor

    @staticmethod
    def create_processor(recipe: Recipe) -> Vocabulary:
        return train_shared_tokenizer(lines(file_of(recipe.data, "train", Path(recipe.origin))), recipe)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        body: Any = loaded.network
        return loaded._replace(network=TokenClassifier(body.unpooled(), ("other", "vowel")))

    def dataset(self, split: str) -> Dataset | None:
        if not getattr(self.data, split):
            return None
        path = file_of(self.data, split, Path(self.recipe.origin))
        texts = [text for text in lines(path) if text.strip()]
        rows = encode_texts(self.tokenizer, texts, self.length, truncate=True)
        return Dataset(rows, Report(read=len(texts), kept=len(texts)), {path.name: hash_file(path)})

    def collate(self, split: Dataset, indices: Sequence[int]) -> Batch:
        text = collate([split.rows[index] for index in indices])
        pieces = [self.tokenizer.pieces(row) for row in text.tokens.tolist()]
        targets = [[int(piece.strip("▁␣ ")[:1] in set("aeiou")) for piece in row] for row in pieces]
        return Batch(text, torch.tensor(targets), torch.tensor(indices))

    def num_targets(self, batch: Batch) -> int:
        return int(batch.text.lengths.sum())

    def loss(self, network: Any, batch: Batch) -> Tensor:
        real = batch.text.real
        return F.cross_entropy(network(batch.text)[real].float(), batch.targets[real], reduction="sum")

    @torch.no_grad()
    def validate(self, network: Any) -> dict[str, float]:
        assert self.validation is not None
        batch = self.collate(self.validation, range(len(self.validation)))
        right = network(batch.text).argmax(-1)[batch.text.real] == batch.targets[batch.text.real]
        loss = float(self.loss(network, batch)) / self.num_targets(batch)
        return {"loss": loss, "accuracy": 100 * float(right.float().mean())}

    @staticmethod
    def evaluate(models: list[Any], request: EvaluationRequest) -> Evaluation:
        request.allow("a vowel model")
        recipe, split = resolve_split(models[0].recipe, "vowels", request.file, " of text")
        task = VowelTask(recipe, models[0].processor, models[0].network, Path())
        task.validation = task.dataset(split)
        return Evaluation({"split": request.file or split, **task.validate(models[0].network)})

    def inspect(self, splits: Mapping[str, Dataset], findings: Findings) -> None:
        inspect_samples(splits, findings, self.data.max_length)
