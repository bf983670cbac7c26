"""Tagging words, as for the names in a text: its data, loss, score and answer. Devlin et al. 2019, section 5.3.

    [CLS] Ada love ##lace wrote [SEP] ─▶ encoder ─▶ logits of the tags, at the first piece of each word
           B    I            O

A text that is too long is read in windows that overlap; each word is told from where it has most context.

Shapes: logits (batch, length, tags), then (words, tags).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.inputs.frames import frame_of, padded
from regard.inputs.iob import is_span_tag
from regard.inputs.masking import maskable
from regard.inputs.tagged import read
from regard.inputs.tagging import cut, pieces, prepare
from regard.inputs.tags import Tagged, TaggedCorpus, Window, marked, stream
from regard.inputs.targets import Labels
from regard.inputs.text import MISSING, Tokenizer, Vocabulary, train_tokenizer
from regard.models.heads import TokenLabels
from regard.recipe import Recipe
from regard.tasks import entities
from regard.tasks.fitting import tagging
from regard.tasks.named import Tags, found_in, spaced
from regard.tasks.parted import Parted
from regard.tasks.rows import check_texts, each_room

BATCH = 64  # windows that are read at once where nobody says how many
WORD = re.compile(r"\w+(?:[-'’.,:/]\w+)*|[^\w\s]")  # "U.S" and "1,000" are one; other marks are words of their own


class Tag(Parted[TaggedCorpus]):
    """What the training loop asks of tagging words."""

    name, unit = "tag", "words"
    learn = staticmethod(lambda recipe: learn_vocabulary(recipe))
    fit = staticmethod(tagging)

    def know(self, network: Any) -> None:
        self.spans, self.tags = all(map(is_span_tag, network.labels)), Labels(network.labels)
        self.scores = ("f1", "accuracy", "loss") if self.spans else ("accuracy", "loss")

    @property
    def reports(self) -> dict[str, str]:
        """What became of each part's sentences, in words; of train also its tags."""
        return super().reports | {"tags": ", ".join(self.tags.table)}

    def corpus(self, part: str) -> TaggedCorpus | None:
        data, beside = self.recipe.data, Path(self.recipe.origin)
        if not getattr(data, part):
            return None
        return prepare(data, part, self.tokenizer, self.tags, self.cache, self.length, beside, self.recipe.seed)

    def batches(self, start: int, rank: int, world: int) -> Iterator[Tagged]:
        return stream(self.training, self.batching, start, rank, world)

    def count(self, batch: Tagged) -> int:
        return len(batch.tags)

    def loss(self, network: Any, batch: Tagged) -> Tensor:
        """Cross-entropy of each word's tag, summed."""
        logits = network.told(network.encode(batch.text)[batch.at]).float()
        return F.cross_entropy(logits, batch.tags, label_smoothing=self.options.label_smoothing, reduction="sum")

    def validate(self, network: Any) -> dict[str, float]:
        """Loss, accuracy of the words and F1 of the spans, of the first `eval_samples` sentences."""
        if self.validation is None:
            return {}
        numbers = range(min(self.options.eval_samples, self.validation.sentences))
        sentences = [self.validation.words(number) for number in numbers]
        wanted = [self.validation.tags(number) for number in numbers]
        chances = read_words(network, self.tokenizer, sentences)
        return figures(chances, [each.tolist() for each in wanted], network.labels)

    def samples(self, network: Any, count: int) -> list[tuple[str, str, str]]:
        if self.validation is None:
            return []
        names, shown = list(self.tags.table), []
        for number in range(min(count, self.validation.sentences)):
            words = self.validation.words(number)
            wanted = found_in(words, [names[each] for each in self.validation.tags(number)])
            shown.append((" ".join(words), wanted.text, tag(network, self.tokenizer, [words])[0].text))
        return shown


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """A tokenizer trained on the sentences of the training part."""
    sentences = read(recipe.data, "train", Path(recipe.origin), recipe.seed)
    texts = (" ".join(sentence.words) for sentence in sentences)
    tokenizer = maskable(train_tokenizer(texts, recipe.tokenizer, ends=False))
    return Vocabulary(tokenizer, tokenizer)


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
    network: TokenLabels,
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    batch_size: int = BATCH,
    progress: Callable[[int], None] = lambda done: None,
) -> list[np.ndarray]:
    """How likely each tag is of each word, (words, tags) a sentence; windows are read in batches of like length."""
    frame = frame_of(tokenizer, 1)
    rows, found = [], [np.zeros((len(words), len(network.labels)), np.float32) for words in sentences]
    for number, each in enumerate(pieces(tokenizer, sentences)):
        if MISSING in each.tokens:
            word = sentences[number][each.firsts.index(each.tokens.index(MISSING))]
            raise UserError(f"input {number + 1}: the tokenizer leaves nothing of {word!r}, and has no unknown token")
        for span in cut(each.firsts, len(each.tokens), network.limit - frame.size) if each.firsts else ():
            window = Window(number, *span)
            rows.append((window, *window.row(frame, each.tokens, each.firsts)))

    def read(some: list[int]) -> np.ndarray:
        text = padded([rows[number][1] for number in some], max(tokenizer.pad, 0))
        at = marked(text, [rows[number][2] for number in some])
        device = next(network.parameters()).device
        logits = network.told(network.encode(text.to(device))[at.to(device)]).float()
        return logits.softmax(-1).cpu().numpy()

    for some, chances in each_room(network, [len(placed.tokens) for _, placed, _ in rows], batch_size, read):
        for number in some:
            window = rows[number][0]
            count = window.until - window.word
            found[window.sentence][window.word : window.until], chances = chances[:count], chances[count:]
        progress(len({rows[number][0].sentence for number in some if not rows[number][0].word}))
    return found


def tag(
    network: TokenLabels,
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
