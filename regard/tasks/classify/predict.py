"""Classification and regression of inputs of any modality. Radford et al. 2018, section 3.2."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.errors import UserError
from regard.layers.inputs import TokenBatch
from regard.models.registry import FAMILIES, family_of
from regard.tasks.batching import EncodedText, encode_batches
from regard.tasks.classify.modality import Modality, modality_for
from regard.tasks.classify.predictions import DEFAULT_THRESHOLD, Prediction
from regard.tasks.classify.problem_type import problem_type_of
from regard.tasks.encoding import encode_texts, split_pair
from regard.tasks.predictor import DEFAULT_INFERENCE, Inference, LoadedModel, Options, Predictor, RunInput

BATCH = 64  # default number of inputs per batch


class ClassifyPredictor(Predictor):
    """`run` and `trace` of classifiers."""

    task = "classify"
    description = "a classifier"
    options = ("threshold",)

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self.modality = modality_for(model)
        self.text_columns = self.modality.columns

    def is_single(self, inputs: Any) -> bool:
        return self.modality.is_single(inputs)

    def is_empty(self, value: Any) -> bool:
        return self.modality.is_empty(value)

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput] | None:
        return self.modality.from_arguments(arguments)

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Prediction]:
        if "threshold" in options and "threshold" not in problem_type_of(self.network).run_options:
            raise UserError(f"'threshold' is for multi-label classifiers; this one is {self.network.problem_type}")
        threshold = options.get("threshold", DEFAULT_THRESHOLD)
        if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
            raise UserError(f"threshold = {threshold!r} should be between 0 and 1: the minimum probability of a label")
        return classify(self.modality, inputs, inference, threshold)

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        family = FAMILIES[family_of(self.network)]
        if family.input_type is not TokenBatch:
            return super().encode_inputs(texts, truncate)
        if not family.is_encoder:
            return self.modality.encode(texts, truncate)
        texts = [split_pair(text, self.network.paired) for text in texts]
        return encode_texts(self.tokenizer, texts, self.network.max_positions, truncate)

    @torch.no_grad()
    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        (row,) = self.modality.encode([value], truncate)
        with record(prove) as recorder:
            logits = self.network(self.modality.batch([row]).to(self.model.device))
        probabilities = self.network.probabilities(logits.float())[0].tolist()
        answer = problem_type_of(self.network).prediction(probabilities, row.truncated, DEFAULT_THRESHOLD).text
        return self.modality.trace(recorder, row, answer)

    def second_column(self, requested: str, has_context: bool) -> str:
        column = self.modality.second_column(requested)
        return super().second_column(requested, has_context) if column is None else column

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        return self.modality.parse_row(text, second, location)


@torch.inference_mode()
def classify(
    modality: Modality,
    inputs: Sequence[Any],
    inference: Inference = DEFAULT_INFERENCE,
    threshold: float = DEFAULT_THRESHOLD,
) -> list[Prediction]:
    """A prediction for each input, computed in batches of similar length."""
    network = modality.network
    rows = modality.encode(inputs, inference.truncate)
    problem_type = problem_type_of(network)
    predictions: dict[int, Prediction] = {}

    def encode(indices: list[int]) -> list[list[float]]:
        batch = modality.batch([rows[index] for index in indices]).to(next(network.parameters()).device)
        return network.probabilities(network(batch).float()).tolist()

    for indices, batch in encode_batches(network, modality.lengths(rows), inference.batch_size, encode):
        for index, probabilities in zip(indices, batch, strict=True):
            predictions[index] = problem_type.prediction(probabilities, rows[index].truncated, threshold)
        inference.progress(len(indices))
    return [predictions[index] for index in range(len(rows))]
