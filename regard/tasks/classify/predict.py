"""Classification and regression of texts or pairs of texts. Radford et al. 2018, section 3.2."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, SegmentedTrace, Trace
from regard.errors import UserError
from regard.models.heads.hierarchical import Documents
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, family_of
from regard.tasks.batching import EncodedText, check_texts, encode_batches, too_long
from regard.tasks.classify.dataset import PairEncoder
from regard.tasks.classify.predictions import DEFAULT_THRESHOLD, Prediction
from regard.tasks.classify.problem_type import problem_type_of
from regard.tasks.encoding import EncoderPredictor, collate, split_pair
from regard.tasks.predictor import DEFAULT_INFERENCE, Inference, Options, RunInput
from regard.text.tokenizer import Tokenizer

BATCH = 64  # default number of texts per batch

Text = str | tuple[str, ...]


class ClassifyPredictor(EncoderPredictor):
    """`run` and `trace` of classifiers."""

    task = "classify"
    description = "a classifier"
    options = ("threshold",)

    @property
    def texts(self) -> PairEncoder:
        """The encoder of texts or pairs."""
        return PairEncoder(self.tokenizer, bool(self.network.paired))

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Prediction]:
        if "threshold" in options and "threshold" not in problem_type_of(self.network).run_options:
            raise UserError(f"'threshold' is for multi-label classifiers; this one is {self.network.problem_type}")
        threshold = options.get("threshold", DEFAULT_THRESHOLD)
        if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
            raise UserError(f"threshold = {threshold!r} should be between 0 and 1: the minimum probability of a label")
        texts = [split_pair(each, self.network.paired) for each in inputs]
        return classify(self.network, self.texts, texts, inference, threshold)

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        if FAMILIES[family_of(self.network)].is_encoder:
            return super().encode_inputs(texts, truncate)
        return read_rows(self.network, self.texts, texts, truncate)

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        (row,) = self.encode_inputs([value], truncate)
        return trace_classifier(self.network, self.tokenizer, row, prove)

    def second_column(self, requested: str, has_context: bool) -> str:
        if requested and self.network.paired is False:
            return super().second_column(requested, has_context)
        return requested or (self.data.text_pair or "text_pair" if self.network.paired else "")

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        if second is None and self.network.paired is None:
            text = text.replace("\t", " ")  # a tab would separate two texts
        return super().parse_row(text, second, extra, location)


@torch.inference_mode()
def classify(
    network: Classifier,
    texts: PairEncoder,
    inputs: Sequence[Text],
    inference: Inference = DEFAULT_INFERENCE,
    threshold: float = DEFAULT_THRESHOLD,
) -> list[Prediction]:
    """A prediction for each text or pair of texts, computed in batches of similar length."""
    rows = read_rows(network, texts, inputs, inference.truncate)
    texts = replace(texts, paired=texts.paired or any(not isinstance(each, str) for each in inputs))
    problem_type = problem_type_of(network)
    predictions: dict[int, Prediction] = {}

    def encode(indices: list[int]) -> list[list[float]]:
        batch = texts.sequences([rows[index].tokens for index in indices]).to(next(network.parameters()).device)
        return network.probabilities(network(batch).float()).tolist()

    for indices, batch in encode_batches(network, [len(row.tokens) for row in rows], inference.batch_size, encode):
        for index, probabilities in zip(indices, batch, strict=True):
            predictions[index] = problem_type.prediction(probabilities, rows[index].truncated, threshold)
        inference.progress(len(indices))
    return [predictions[index] for index in range(len(rows))]


def read_rows(
    network: Classifier, texts: PairEncoder, inputs: Sequence[Text], truncate: bool = False
) -> list[EncodedText]:
    """Texts or pairs as tokens; a longer one than the network reads is an error, or truncated before its end token."""
    pairs = [split_pair(each, texts.paired) for each in inputs]
    for index, text in enumerate(pairs):
        if texts.paired and (not isinstance(text, tuple) or len(text) != 2):
            raise UserError("should be two texts, separated by a tab: this model was trained on pairs", index)
        if network.paired is False and isinstance(text, tuple):
            raise UserError("is two texts: this model was trained on single ones", index)
    check_texts(pairs, pairs=True)
    for index, text in enumerate(pairs):
        if not "".join(text).strip():
            raise UserError("is empty: there is nothing to classify", index)
    rows = texts.rows(pairs)
    limit = network.max_positions
    for index, (text, row) in enumerate(zip(pairs, rows, strict=True)):
        if len(row) > limit and not truncate:
            raise too_long(text, len(row), limit, index)
    return [EncodedText(texts.truncate(row, limit), truncated=len(row) > limit) for row in rows]


@torch.no_grad()
def trace_classifier(network: Classifier, tokenizer: Tokenizer, row: EncodedText, prove: bool = False) -> Trace:
    """The attention while a text is classified, of an encoder also that of its pooling."""
    batch = collate([row]).to(next(network.parameters()).device)
    with record(prove) as recorder:
        logits = network(batch)
    probabilities = network.probabilities(logits.float())[0].tolist()
    answer = problem_type_of(network).prediction(probabilities, row.truncated, DEFAULT_THRESHOLD).text
    source = Axis(tokenizer.pieces(row.tokens))
    if not FAMILIES[family_of(network)].is_encoder:
        return Trace(recorder, Axes.causal(source, source), answer)
    if isinstance(network, Documents):
        segments = network.split_into_segments(batch).text
        rows = [
            tokens[:length] for tokens, length in zip(segments.tokens.tolist(), segments.lengths.tolist(), strict=True)
        ]
        return SegmentedTrace(recorder, [Axis(tokenizer.pieces(tokens)) for tokens in rows], source, answer)
    return Trace(recorder, Axes.encoder(source, answer), answer)
