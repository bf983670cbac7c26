"""Token classification, such as NER. Devlin et al. 2019, section 5.3.

    [CLS] Ada love ##lace wrote [SEP] ─▶ encoder ─▶ logits of the tags, at the first token of each word
           B    I            O

A long text is split into overlapping windows; each word is predicted where it has most context.

Shapes: logits (batch, length, tags), then (words, tags).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.errors import UserError
from regard.metrics import entities
from regard.metrics.entities import is_span_tag
from regard.models.heads.token import TokenClassifier
from regard.progress import Progress
from regard.tasks.batching import check_texts, encode_batches
from regard.tasks.encoding import EncoderPredictor
from regard.tasks.predictor import DEFAULT_INFERENCE, Inference, Options, RunInput, Segment
from regard.tasks.tag.dataset import Window, mark_positions, split_into_windows, tokenize_words
from regard.tasks.tag.files import sentences
from regard.tasks.tag.predictions import Tags, tags_of, word_positions
from regard.text.special_tokens import padded, special_tokens_of
from regard.text.tokenizer import MISSING, Tokenizer

BATCH = 64  # default number of windows per batch
CONLL = (".conll", ".iob", ".bio")
MAJORITY = "always predicting the most frequent tag (majority baseline)"
WORD = re.compile(r"\w+(?:[-'’.,:/]\w+)*|[^\w\s]")  # "U.S" and "1,000" are one word; other punctuation is its own


class TagPredictor(EncoderPredictor):
    """`run` and `trace` of token classifiers."""

    task = "tag"
    description = "a token-classification model"
    text_columns = ("text", "tokens")

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Tags]:
        return tag(self.network, self.tokenizer, inputs, inference)

    def read_special(self, path: Path, paired: bool) -> Iterator[RunInput] | None:
        if not path.name.removesuffix(".gz").endswith(CONLL):
            return None
        return (RunInput(list(sentence.words), sentence.location) for sentence in sentences(path, self.data))

    def column_types(self, column: str) -> dict[str, tuple[type, ...]]:
        return {column: (list,)}

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        """A text, or the list of words that a file has."""
        try:
            words = json.loads(text) if text.startswith("[") else None
        except (ValueError, RecursionError):
            words = None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return RunInput(words, location)
        return super().parse_row(text, second, extra, location)

    def segments(self, prediction: Tags, value: Any, options: Mapping[str, Any]) -> list[Segment]:
        return prediction.segments()


def metrics(
    probabilities: Sequence[np.ndarray], targets: Sequence[Sequence[int]], tags: Sequence[str]
) -> dict[str, float]:
    """Loss and accuracy of the words; for IOB tags also the F1 of the entities."""
    flat = np.concatenate(probabilities)
    expected = np.concatenate(targets)
    loss = float(-np.log(np.maximum(flat[np.arange(len(expected)), expected], 1e-30)).mean())
    scores = {"loss": loss, "accuracy": 100.0 * float((flat.argmax(1) == expected).mean())}
    if not all(map(is_span_tag, tags)):
        return scores
    predicted = [[tags[int(index)] for index in row.argmax(1)] for row in probabilities]
    return scores | {"f1": entities.f1(predicted, [[tags[index] for index in row] for row in targets])}


def baseline(targets: Sequence[Sequence[int]], tags: Sequence[str]) -> dict[str, float]:
    """The metrics of predicting the most frequent tag for every word."""
    counts = np.bincount(np.concatenate(targets), minlength=len(tags))
    return metrics([np.tile(counts / counts.sum(), (len(row), 1)) for row in targets], targets, tags)


@torch.inference_mode()
def word_probabilities(
    network: TokenClassifier,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    batch_size: int = BATCH,
    progress: Progress = lambda done: None,
) -> list[np.ndarray]:
    """The probability of each tag of each word, (words, tags) per sentence."""
    frame = special_tokens_of(tokenizer, 1)
    capacity = network.max_positions - frame.size
    results = [np.zeros((len(words), len(network.labels)), np.float32) for words in sentences]
    rows = []
    for index, tokenized in enumerate(tokenize_words(tokenizer, sentences)):
        if MISSING in tokenized.tokens:
            word = sentences[index][tokenized.firsts.index(tokenized.tokens.index(MISSING))]
            raise UserError(f"has a word of which the tokenizer leaves nothing, {word!r}, and no unknown token", index)
        if not tokenized.firsts:
            continue
        for span in split_into_windows(tokenized.firsts, len(tokenized.tokens), capacity):
            window = Window(index, *span)
            rows.append((window, *window.row(frame, tokenized.tokens, tokenized.firsts)))

    def encode(indices: list[int]) -> np.ndarray:
        text = padded([rows[index][1] for index in indices], max(tokenizer.pad, 0))
        at = mark_positions(text, [rows[index][2] for index in indices])
        device = next(network.parameters()).device
        logits = network.logits_from_states(network.encode(text.to(device))[at.to(device)]).float()
        return logits.softmax(-1).cpu().numpy()

    lengths = [len(framed.tokens) for _, framed, _ in rows]
    for indices, probabilities in encode_batches(network, lengths, batch_size, encode):
        for index in indices:
            window = rows[index][0]
            count = window.until - window.word
            results[window.sentence][window.word : window.until] = probabilities[:count]
            probabilities = probabilities[count:]
        progress(len({rows[index][0].sentence for index in indices if not rows[index][0].word}))
    return results


def tag(
    network: TokenClassifier,
    tokenizer: Tokenizer,
    inputs: Sequence[Any],
    inference: Inference = DEFAULT_INFERENCE,
) -> list[Tags]:
    """The entities of each text, or of each list of words. Nothing is truncated: a long text has several windows."""
    for index, value in enumerate(inputs):
        words = isinstance(value, list | tuple) and all(isinstance(word, str) and word.strip() for word in value)
        if not isinstance(value, str) and not words:
            raise UserError(f"should be a text, or a list of its words, not {value!r:.60}", index)
    texts = [value if isinstance(value, str) else " ".join(value) for value in inputs]
    check_texts(texts)
    positions = [
        [match.span() for match in WORD.finditer(value)] if isinstance(value, str) else word_positions(value)
        for value in inputs
    ]
    tokenized = [[text[start:end] for start, end in spans] for text, spans in zip(texts, positions, strict=True)]
    results = word_probabilities(network, tokenizer, tokenized, inference.batch_size, inference.progress)
    return [
        tags_of(words, [network.labels[i] for i in rows.argmax(1)], rows.max(1).tolist(), text, spans)
        for words, rows, text, spans in zip(tokenized, results, texts, positions, strict=True)
    ]
