"""Tagging words, as for the names in a text: its data, loss, score and answer. Devlin et al. 2019, section 5.3.

    [CLS] Ada love ##lace wrote [SEP] ─▶ encoder ─▶ logits of the tags, at the first piece of each word
           B    I            O

A text that is too long is read in windows that overlap; each word is told from where it has most context.

Shapes: logits (batch, length, tags), then (words, tags).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from regard.errors import UserError
from regard.metrics import entities
from regard.metrics.iob import is_span_tag
from regard.models.heads.token import TokenClassifier
from regard.tasks.batching import check_texts, encode_batches
from regard.tasks.tag.answers import Tags, found_in, spaced
from regard.tasks.tag.dataset import mark_positions
from regard.tasks.tag.windows import Window, split_into_windows, tokenize_words
from regard.text.special_tokens import padded, special_tokens_of
from regard.text.vocabulary import MISSING, Tokenizer

BATCH = 64  # windows that are read at once where nobody says how many

WORD = re.compile(r"\w+(?:[-'’.,:/]\w+)*|[^\w\s]")  # "U.S" and "1,000" are one; other marks are words of their own


def figures(chances: Sequence[np.ndarray], wanted: Sequence[Sequence[int]], tags: Sequence[str]) -> dict[str, float]:
    """Loss and accuracy of words; where tags are of spans, also the F1 of those."""
    sure, flat = np.concatenate(chances), np.concatenate(wanted)
    loss = float(-np.log(np.maximum(sure[np.arange(len(flat)), flat], 1e-30)).mean())
    found = {"loss": loss, "accuracy": 100.0 * float((sure.argmax(1) == flat).mean())}
    if not all(map(is_span_tag, tags)):
        return found
    ours = [[tags[int(each)] for each in row.argmax(1)] for row in chances]
    return found | {"f1": entities.f1(ours, [[tags[each] for each in row] for row in wanted])}


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def read_words(
    network: TokenClassifier,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    batch_size: int = BATCH,
    progress: Callable[[int], None] = lambda done: None,
) -> list[np.ndarray]:
    """How likely each tag is of each word, (words, tags) a sentence; windows are read in batches of like length."""
    frame = special_tokens_of(tokenizer, 1)
    rows, found = [], [np.zeros((len(words), len(network.labels)), np.float32) for words in sentences]
    for number, each in enumerate(tokenize_words(tokenizer, sentences)):
        if MISSING in each.tokens:
            word = sentences[number][each.firsts.index(each.tokens.index(MISSING))]
            raise UserError(f"input {number + 1}: the tokenizer leaves nothing of {word!r}, and has no unknown token")
        for span in (
            split_into_windows(each.firsts, len(each.tokens), network.max_positions - frame.size) if each.firsts else ()
        ):
            window = Window(number, *span)
            rows.append((window, *window.row(frame, each.tokens, each.firsts)))

    def read(some: list[int]) -> np.ndarray:
        text = padded([rows[number][1] for number in some], max(tokenizer.pad, 0))
        at = mark_positions(text, [rows[number][2] for number in some])
        device = next(network.parameters()).device
        logits = network.told(network.encode(text.to(device))[at.to(device)]).float()
        return logits.softmax(-1).cpu().numpy()

    for some, chances in encode_batches(network, [len(placed.tokens) for _, placed, _ in rows], batch_size, read):
        for number in some:
            window = rows[number][0]
            count = window.until - window.word
            found[window.sentence][window.word : window.until], chances = chances[:count], chances[count:]
        progress(len({rows[number][0].sentence for number in some if not rows[number][0].word}))
    return found


def tag(
    network: TokenClassifier,
    tokenizer: Tokenizer,
    inputs: Sequence[Any],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Tags]:
    """What is named in each text, or in each list of words; nothing is ever cut, so that `truncate` changes nothing."""
    texts = [each if isinstance(each, str) else " ".join(_words(each, number)) for number, each in enumerate(inputs, 1)]
    check_texts(texts)
    spans = [
        [match.span() for match in WORD.finditer(each)] if isinstance(each, str) else spaced(each) for each in inputs
    ]
    sentences = [[text[begin:end] for begin, end in each] for text, each in zip(texts, spans, strict=True)]
    found = read_words(network, tokenizer, sentences, batch_size, progress)
    return [
        found_in(words, [network.labels[each] for each in chances.argmax(1)], chances.max(1).tolist(), text, places)
        for words, chances, text, places in zip(sentences, found, texts, spans, strict=True)
    ]


def _words(given: Any, number: int) -> list[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) and word.strip() for word in given):
        raise UserError(f"input {number} should be a text, or a list of its words, not {given!r:.60}")
    return list(given)
