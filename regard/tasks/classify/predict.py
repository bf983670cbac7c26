"""Classification and regression of texts or pairs of texts. Radford et al. 2018, section 3.2."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from regard.attention.trace import Axes, Axis, SegmentedTrace, Trace, record
from regard.errors import UserError
from regard.layers.inputs import pad
from regard.models.heads.hierarchical import Documents
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, family_of
from regard.tasks.batching import Row, check_texts, encode_batches, too_long
from regard.tasks.classify.dataset import PairEncoder
from regard.tasks.classify.predictions import DEFAULT_THRESHOLD
from regard.tasks.classify.problem_type import problem_type_of
from regard.tasks.encoding import EncodedText, collate, encode_texts, split_pair
from regard.tasks.predictor import Predictor, Progress, RunInput
from regard.text.tokenizer import Tokenizer

BATCH = 64  # default number of texts per batch

Text = str | tuple[str, ...]


class ClassifyPredictor(Predictor):
    """`run` and `trace` of classifiers."""

    task = "classify"
    description = "a classifier"
    options = ("threshold",)

    @property
    def texts(self) -> PairEncoder:
        """The encoder of texts or pairs."""
        return PairEncoder(self.tokenizer, bool(self.network.paired))

    @property
    def is_encoder(self) -> bool:
        return FAMILIES[family_of(self.network)].is_encoder

    def predict(
        self, inputs: list[Any], options: dict[str, Any], *, batch_size: int, truncate: bool, progress: Progress
    ) -> list[Any]:
        if "threshold" in options and "threshold" not in problem_type_of(self.network).run_options:
            raise UserError(f"'threshold' is for multi-label classifiers; this one is {self.network.problem_type}")
        threshold = options.get("threshold", DEFAULT_THRESHOLD)
        if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
            raise UserError(f"threshold = {threshold!r} should lie within 0 … 1: the least probability of a label")
        texts = [split_pair(each, self.network.paired) for each in inputs]
        return classify(self.network, self.texts, texts, batch_size, truncate, progress, threshold)

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        if self.is_encoder:
            texts = [split_pair(text, self.network.paired) for text in texts]
            return encode_texts(self.tokenizer, texts, self.network.max_positions, truncate)
        rows = read_rows(self.network, self.texts, texts, truncate)
        return [EncodedText(row.tokens, [], row.truncated) for row in rows]

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
        (row,) = self.encode_inputs([value], truncate)
        if self.is_encoder:
            return trace_classifier(self.network, self.tokenizer, row, prove)
        return trace_causal_classifier(self.network, self.tokenizer, row.tokens, prove)

    def second_column(self, requested: str, has_context: bool) -> str:
        if requested and self.network.paired is False:
            return super().second_column(requested, has_context)
        return requested or (self.data.text_pair or "text_pair" if self.network.paired else "")

    def parse_row(self, text: str, second: str | None, extra: Any, location: str) -> RunInput:
        if second is None and self.network.paired is None:
            text = text.replace("\t", " ")  # a tab would separate two texts
        return super().parse_row(text, second, extra, location)


@torch.inference_mode()
def classify(
    network: Classifier,
    texts: PairEncoder,
    inputs: Sequence[Text],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    threshold: float = DEFAULT_THRESHOLD,
) -> list[Any]:
    """A prediction for each text or pair of texts, computed in batches of similar length."""
    rows = read_rows(network, texts, inputs, truncate)
    texts = replace(texts, paired=texts.paired or any(not isinstance(each, str) for each in inputs))
    problem_type = problem_type_of(network)
    predictions: dict[int, Any] = {}

    def encode(indices: list[int]) -> list[Any]:
        batch = texts.sequences([rows[index].tokens for index in indices]).to(next(network.parameters()).device)
        return network.probabilities(network(batch).float()).tolist()

    for indices, batch in encode_batches(network, [len(row.tokens) for row in rows], batch_size, encode):
        for index, probabilities in zip(indices, batch, strict=True):
            predictions[index] = problem_type.prediction(probabilities, rows[index].truncated, threshold)
        progress(len(indices))
    return [predictions[index] for index in range(len(rows))]


def read_rows(network: Any, texts: PairEncoder, inputs: Sequence[Text], truncate: bool = False) -> list[Row]:
    """PairEncoder as tokens; a longer one than the network reads is an error, or truncated before its end token."""
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
    end = texts.tokenizer.end
    suffix = [end] if texts.rows(["a"])[0][-1:] == [end] else []  # what the tokenizer puts after a text
    limit = network.max_positions
    for index, (text, row) in enumerate(zip(pairs, rows, strict=True)):
        if len(row) > limit and not truncate:
            raise too_long(text, len(row), limit, index)
    return [Row(row if len(row) <= limit else row[: limit - len(suffix)] + suffix, len(row)) for row in rows]


@torch.no_grad()
def trace_classifier(network: Classifier, tokenizer: Tokenizer, row: EncodedText, prove: bool = False) -> Trace:
    """The attention of an encoder and its pooling while a text is classified."""
    batch = collate([row]).to(next(network.parameters()).device)
    with record(prove) as recorder:
        logits = network(batch)
    answer = _predicted_text(network, logits, row.truncated)
    source = Axis(tokenizer.pieces(row.tokens))
    if isinstance(network, Documents):
        segments = network.split_into_segments(batch).text
        rows = [
            tokens[:length] for tokens, length in zip(segments.tokens.tolist(), segments.lengths.tolist(), strict=True)
        ]
        return SegmentedTrace(recorder, [Axis(tokenizer.pieces(tokens)) for tokens in rows], source, answer)
    return Trace(recorder, Axes.encoder(source, answer), answer)


@torch.no_grad()
def trace_causal_classifier(network: Classifier, tokenizer: Tokenizer, row: list[int], prove: bool = False) -> Trace:
    """The attention of a causal model while a text is classified."""
    batch = pad([row], 0).to(next(network.parameters()).device)
    with record(prove) as recorder:
        logits = network(batch)
    axis = Axis(tokenizer.pieces(row))
    return Trace(recorder, Axes.causal(axis, axis), _predicted_text(network, logits))


def _predicted_text(network: Classifier, logits: torch.Tensor, truncated: bool = False) -> str:
    probabilities = network.probabilities(logits.float())[0].tolist()
    return problem_type_of(network).prediction(probabilities, truncated, DEFAULT_THRESHOLD).text
