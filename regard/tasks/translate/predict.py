"""Translations and other outputs of encoder–decoder models, with alignments from attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.candidates import key_of
from regard.decoding.search import Hypothesis
from regard.errors import UserError
from regard.layers.protocols import Network, Seq2SeqModel
from regard.tasks.batching import EncodedText, by_length, check_texts, too_long
from regard.tasks.generation import GenerationPredictor
from regard.tasks.predictor import DEFAULT_INFERENCE, Inference, Options, RunInput
from regard.tasks.seq2seq import check_output, decode
from regard.tasks.translate.alignment import align, trace
from regard.tasks.translate.dataset import collate_sources
from regard.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Translation:
    """One output. `score` is the length-normalised log-probability; `alternatives` are the next best, on request."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()  # without the end token
    finished: bool = True  # False: max_new_tokens was reached
    truncated: bool = False  # the input was truncated
    alignment: tuple[tuple[int, int], ...] | None = None  # (source token, target token) pairs, on request
    alternatives: tuple["Translation", ...] = ()


class TranslatePredictor(GenerationPredictor):
    """`run`, `generate` and `trace` of encoder–decoder models."""

    task = "translate"
    description = "an encoder–decoder model"
    options = (*GenerationPredictor.options, "alignments")
    text_columns = ("source", "text")

    @property
    def vocab_size(self) -> int:
        return self.network.config.source_vocabulary

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Translation]:
        alignments = options.pop("alignments", False)
        decode = self.decode_options(**options)
        return translate(self.network, self.processor, inputs, decode, inference, alignments)

    def generate(self, rows: list[list[int]], options: Options) -> list[list[int]]:
        capacity = self.network.max_positions - 1  # one position is for the end token
        sources = []
        for row in map(self.check_ids, rows):
            source = row[:-1] if row and row[-1] == self.processor.source.end else row
            if len(source) > capacity:
                raise UserError(f"{len(source)} ids are more than the {capacity} that the model reads")
            sources.append(source)
        hypotheses = generate(self.network, self.processor, sources, self.decode_options(**options))
        return [best.tokens for best, *_ in hypotheses]

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        end = [self.processor.source.end]
        rows = encode(self.network, self.processor, texts, truncate)
        return [row._replace(tokens=row.tokens + end) for row in rows]

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        (row,) = encode(self.network, self.processor, [value], truncate)
        if target is None:
            hypotheses = generate(self.network, self.processor, [row.tokens], self.decode_options(**options))
            output = hypotheses[0][0].tokens
        else:
            output = self.tokenizer.encode(target)
        check_output(self.network, output)
        return trace(self.network, self.processor, row.tokens, output, prove)

    def extra_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        return (self.data.prefix,) if self.data.prefix in names else ()

    def takes_first_column(self) -> bool:
        return bool(self.data.train) and not self.data.source

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        prefix = next(iter(extra.values()), "")
        return RunInput(f"<{prefix}> {text}" if prefix and text.strip() else text, location)

    def lines(self, prediction: Translation, options: Mapping[str, Any]) -> list[str]:
        lines = super().lines(prediction, options)
        if prediction.alignment is not None:
            lines[0] += "\t" + " ".join(f"{source}-{target}" for source, target in prediction.alignment)
        return lines


def translate(
    network: Seq2SeqModel,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    options: DecodeOptions,
    inference: Inference = DEFAULT_INFERENCE,
    alignments: bool = False,
) -> list[Translation]:
    """An output for each text, decoded in batches of similar length. An empty text has an empty output."""
    rows = encode(network, vocabulary, texts, inference.truncate)
    empty = Translation("", 0.0, alignment=() if alignments else None)
    outputs: list[Translation | None] = [None if row.tokens else empty for row in rows]
    for indices in by_length([len(row.tokens) for row in rows], inference.batch_size):
        full = [index for index in indices if rows[index].tokens]
        batch = generate(network, vocabulary, [rows[index].tokens for index in full], options) if full else []
        for index, hypotheses in zip(full, batch, strict=True):
            best, *rest = (
                Translation(vocabulary.target.decode(each.tokens), each.score, tuple(each.tokens), each.finished)
                for each in hypotheses
            )
            alignment = None
            if alignments:
                alignment = align(trace(network, vocabulary, rows[index].tokens, list(best.tokens)))
            outputs[index] = replace(
                best, truncated=rows[index].truncated, alignment=alignment, alternatives=tuple(rest)
            )
        inference.progress(len(indices))
    return [output for output in outputs if output is not None]


def encode(network: Network, vocabulary: Vocabulary, texts: Sequence[str], truncate: bool = False) -> list[EncodedText]:
    """Source tokens of each text; a longer one is an error, or truncated."""
    check_texts(texts)
    capacity = network.max_positions - 1  # one position is for the end token
    rows = vocabulary.source.encode_many(list(texts))
    for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if len(row) > capacity and not truncate:
            raise too_long(text, len(row), capacity, index)
    return [EncodedText(row[:capacity], truncated=len(row) > capacity) for row in rows]


def generate(
    network: Seq2SeqModel, vocabulary: Vocabulary, rows: list[list[int]], options: DecodeOptions
) -> list[list[Hypothesis]]:
    """Hypotheses for each row of source ids, best first. By default at most twice the source's length and 20 more."""
    source = collate_sources(rows, vocabulary).to(next(network.parameters()).device)
    lengths = torch.tensor([options.max_new_tokens or 2 * len(row) + 20 for row in rows])
    limit = lengths.clamp(max=network.max_positions - 1)
    keys = [key_of(row) for row in rows] if options.temperature else ()
    return decode(network, source, vocabulary.target, options, limit, keys)
