"""Telling texts apart by labels: its data, loss, score and answer. Radford et al. 2018, section 3.2."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from regard.attention.trace import Axes, Axis, Trace, record
from regard.errors import UserError
from regard.layers.inputs import pad
from regard.models.heads.sequence import Classifier
from regard.tasks.batching import Row, check_texts, encode_batches, too_long
from regard.tasks.classify.answers import LIKELY, Told, answer_of, told_by
from regard.tasks.classify.dataset import PairEncoder
from regard.text.vocabulary import Tokenizer

BATCH = 64  # texts that are read at once where nobody says how many

Text = str | tuple[str, ...]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def classify(
    network: Classifier,
    texts: PairEncoder,
    inputs: Sequence[Text],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    threshold: float = LIKELY,
) -> list[Any]:
    """What each text, or pair of texts, is called: a Label, Several or a Number; read in batches of like length."""
    rows = read_rows(network, texts, inputs, truncate)
    texts = replace(texts, paired=texts.paired or any(not isinstance(each, str) for each in inputs))
    answers: dict[int, Told] = {}

    def read(numbers: list[int]) -> list[Any]:
        text = texts.sequences([rows[number].tokens for number in numbers]).to(next(network.parameters()).device)
        return network.chances(network(text).float()).tolist()

    for numbers, chances in encode_batches(network, [len(row.tokens) for row in rows], batch_size, read):
        for number, each in zip(numbers, chances, strict=True):
            answers[number] = answer_of(network, each, rows[number].truncated, threshold)
        progress(len(numbers))
    return [answers[number] for number in range(len(rows))]


def read_rows(network: Any, texts: PairEncoder, inputs: Sequence[Text], truncate: bool = False) -> list[Row]:
    """Texts as tokens that the network has room for: a longer one is refused, or loses its end."""
    given = [apart(each, texts.paired) for each in inputs]
    for number, each in enumerate(given, 1):
        if texts.paired and (not isinstance(each, tuple) or len(each) != 2):
            raise UserError(f"input {number} should be two texts, a tab between: this model was trained on pairs")
        if network.paired is False and isinstance(each, tuple):
            raise UserError(f"input {number} is two texts: this model was trained on single ones")
    check_texts(given, pairs=True)
    for number, each in enumerate(given, 1):
        if not "".join(each).strip():
            raise UserError(f"input {number} is empty: there is nothing to label")
    rows, tail = texts.rows(given), _tail(texts)
    for each, row in zip(given, rows, strict=True):
        if len(row) > network.max_positions and not truncate:
            raise too_long(each, len(row), network.max_positions)
    room = network.max_positions - len(tail)
    return [Row(row if len(row) <= network.max_positions else row[:room] + tail, len(row)) for row in rows]


@torch.no_grad()
def look_over(network: Classifier, tokenizer: Tokenizer, row: list[int], prove: bool = False) -> Trace:
    """What is attended to while a text is read to tell its label."""
    text, pieces = pad([row], 0).to(next(network.parameters()).device), tokenizer.pieces(row)
    with record(prove) as recorder:
        found = network(text)
    axis = Axis(pieces)
    return Trace(recorder, Axes.causal(axis, axis), told_by(network, found).text)


def _tail(texts: PairEncoder) -> list[int]:
    """What the tokenizer puts behind a text, which a cut leaves there."""
    end = texts.tokenizer.end
    return [end] if texts.rows(["a"])[0][-1:] == [end] else []


def apart(text: Any, paired: bool | None) -> Any:
    """One text, or two: a pair as it is given, or a line with a tab between where pairs are, or may be (None), read."""
    if isinstance(text, str):
        return tuple(text.split("\t", 1)) if paired or (paired is None and "\t" in text) else text
    return tuple(text) if isinstance(text, list | tuple) else text
