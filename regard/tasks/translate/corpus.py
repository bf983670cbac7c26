"""The data of a task on pairs of texts: a vocabulary learnt from its training part, and each part as a corpus."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from regard.config.recipe import Recipe
from regard.data.synthetic.pairs import GENERATORS
from regard.errors import UserError, nearest
from regard.tasks.translate.dataset import Corpus, Record, Sample, prefixes, prepare, prepare_samples, read, unfit
from regard.text.vocabulary import Vocabulary, train_tokenizer


def samples(recipe: Recipe, part: str) -> Iterator[Sample]:
    """A part's pairs as they are written, prefixes in front; nothing is skipped."""
    return map(Sample.of, _records(recipe, part))


def _records(recipe: Recipe, part: str) -> Iterator[Record]:
    data = recipe.data
    if data.generate:
        if data.generate not in GENERATORS:
            raise UserError(f"data.generate = '{data.generate}' is unknown{nearest(data.generate, GENERATORS)}")
        for sample in GENERATORS[data.generate](recipe.seed, part, int(getattr(data, part))):
            yield Record(sample.source, sample.target, "", "", "")
        return
    yield from read(data, part, Path(recipe.origin))


def _lessons(recipe: Recipe) -> Iterator[Sample]:
    """What a vocabulary is learnt from: the training part without what preparing it will skip (and count)."""
    for record in _records(recipe, "train"):
        if not unfit(record, recipe.data.max_length):
            yield Sample.of(record)


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """Tokenizers trained on the training part: one for both sides, or one each."""
    data, options = recipe.data, recipe.tokenizer
    extra = [] if data.generate else prefixes(data, "train", Path(recipe.origin))
    if options.joint:
        both = train_tokenizer((text for sample in _lessons(recipe) for text in sample), options, extra)
        return Vocabulary(both, both)
    sides = ((sample[side] for sample in _lessons(recipe)) for side in (0, 1))
    source, target = (train_tokenizer(texts, options, new) for texts, new in zip(sides, (extra, []), strict=True))
    return Vocabulary(source, target)


def corpus(recipe: Recipe, part: str, vocabulary: Vocabulary, cache: Path) -> Corpus | None:
    """A part prepared into memory-mapped arrays; nothing where the recipe names none."""
    given = getattr(recipe.data, part)
    if not given:
        return None
    if not recipe.data.generate:
        return prepare(recipe.data, part, vocabulary, cache, Path(recipe.origin))
    key = json.dumps([recipe.data.generate, recipe.seed, part, given, asdict(recipe.data)])
    return prepare_samples(samples(recipe, part), key, vocabulary, cache, recipe.data.max_length)
