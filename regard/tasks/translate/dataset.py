"""Pairs of texts: read from files or generated, divided into splits, prepared once, and batched."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from regard.config.recipe import Recipe
from regard.data.cache import Report, options_key
from regard.data.files import COLUMNS, Record, expand, hash_files, rows
from regard.data.pairs import PairDataset, Sample, prepare_pairs, reason_to_skip
from regard.data.splits.hashed import file_of, held
from regard.data.synthetic.pairs import GENERATORS
from regard.errors import UserError, listed, nearest
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.tasks.seq2seq import Seq2SeqBatch, collate_targets, required_token
from regard.tasks.translate.options import TranslateData
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

HEADER_WORDS = {
    "source", "target", "src", "tgt", "trg", "input", "output", "text", "translation", "question", "query", "label",
    "english", "german", "french", "spanish", "italian", "portuguese", "dutch", "russian", "chinese", "japanese",
}  # fmt: skip

VARIANT = re.compile(r"\(\d+\)$")  # "tomato(2)"
STRESS = re.compile(r"(?<=[A-Z])[012]\b")  # AH0

# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _named_columns(data: TranslateData) -> dict[str, str]:
    """The columns that the options name: source, target, prefix, and the one by which samples are split."""
    named = {"data.source": data.source, "data.target": data.target, "data.prefix": data.prefix}
    group = "" if data.split_by in ("source", "target") else data.split_by
    return {option: name for option, name in (named | {"data.split_by": group}).items() if name}


def records(path: Path, data: TranslateData) -> Iterator[Record]:
    """A file's rows in the roles that the options give the columns; of two, the first is source, the next target."""
    default = {}
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        default = {"data.source": "source", "data.target": "target"}
    named = default | _named_columns(data)
    source = named.get("data.source", "")
    target = named.get("data.target", "")
    for fields, location in rows(path, data.columns, named):
        if not (source and target):
            free = [name for name in fields if name not in (source, target, data.prefix)]
            needed = [role for role, name in (("source", source), ("target", target)) if not name]
            if len(free) < len(needed):
                raise UserError(f"{location}: needs a source and a target, but has only: {', '.join(fields)}")
            others = {*free} - {data.split_by}
            if len(others) > len(needed) and not data.columns:
                raise _ambiguous(fields, location, needed)
            source = source or free.pop(0)
            target = target or free.pop(0)
        if data.pronunciations:
            fields |= _pronunciation(fields[source], fields[target], data.stress, (source, target))
        group = {"source": source, "target": target}.get(data.split_by, data.split_by)
        prefix = fields[data.prefix] if data.prefix else ""
        yield Record(fields[source], fields[target], prefix, fields[group], location)


def _pronunciation(word: str, phonemes: str, stress: bool, names: tuple[str, str]) -> dict[str, str]:
    """An entry of a pronouncing dictionary without the number of the variant, and without stress unless it is kept."""
    values = VARIANT.sub("", word), phonemes if stress else STRESS.sub("", phonemes)
    return dict(zip(names, values, strict=True))


def group_references(samples: Iterable[Sample]) -> dict[str, list[str]]:
    """The targets of each source, such as the pronunciations of a word, in order and without repetitions."""
    references: dict[str, dict[str, None]] = {}
    for sample in samples:
        references.setdefault(sample.source, {})[sample.target] = None
    return {source: list(targets) for source, targets in references.items()}


def _ambiguous(fields: Mapping[str, str], location: str, roles: Sequence[str]) -> UserError:
    """The error about a table with more columns than a source and a target."""
    numbered = all(map(str.isdecimal, fields))  # without a header, or with one of which no name is given
    names = listed(f"{name}: {text:.30}" if numbered else name for name, text in fields.items())
    keys = " and ".join(f"data.{role}={'NAME or NUMBER' if numbered else 'NAME'}" for role in roles)
    return UserError(f"{location}: which columns are source and target? It has {names}; choose with {keys}")


def _looks_like_header(path: Path) -> bool:
    """Whether both cells of line 1 are names such as source and target, de and en."""
    cells = [cell.strip().lower() for cell in next(rows(path)).fields.values()]
    return all(cell in HEADER_WORDS or re.fullmatch(r"[a-z]{2}([-_][a-z]{2})?", cell) for cell in cells)


def read(data: TranslateData, split: str, base_dir: Path | None = None) -> Iterator[Record]:
    """Every sample of a split in the order of its file, including those that `prepare` will skip."""
    yield from held(records(file_of(data, split, base_dir), data), data, split)


def prefixes(data: TranslateData, split: str = "train", base_dir: Path | None = None) -> list[str]:
    """The tokens "<value>" of the prefix column, which a tokenizer must know as `extra`."""
    if not data.prefix:
        return []
    return sorted({record.token for record in read(data, split, base_dir) if record.prefix})


# ── the samples of a recipe ──────────────────────────────────────────────────────────────────────────────────────────


def _records(recipe: Recipe, split: str) -> Iterator[Record]:
    data = TranslateData.of(recipe)
    if not data.synthetic:
        yield from read(data, split, Path(recipe.origin))
        return
    if data.synthetic not in GENERATORS:
        raise UserError(f"data.synthetic = '{data.synthetic}' is unknown{nearest(data.synthetic, GENERATORS)}")
    generated = GENERATORS[data.synthetic](recipe.seed, split, int(getattr(data, split)))
    for index, (source, target) in enumerate(generated, 1):
        yield Record(source, target, "", "", f"{data.synthetic} {split}:{index}")


def samples(recipe: Recipe, split: str) -> Iterator[Sample]:
    """A split's pairs as they are written, prefixes in front; nothing is skipped."""
    return map(Sample.of, _records(recipe, split))


def train_vocabulary(recipe: Recipe) -> Vocabulary:
    """Tokenizers trained on the samples of the training split that will be used: one for both sides, or one each."""
    data = TranslateData.of(recipe)
    options = recipe.tokenizer
    extra = [] if data.synthetic else prefixes(data, "train", Path(recipe.origin))

    def usable() -> Iterator[Sample]:
        for record in _records(recipe, "train"):
            if not reason_to_skip(record, data.max_length):
                yield Sample.of(record)

    if options.joint:
        both = train_tokenizer((text for sample in usable() for text in sample), options, extra)
        return Vocabulary(both, both)
    source = train_tokenizer((sample.source for sample in usable()), options, extra)
    options = replace(options, kind=options.target_kind or options.kind)
    return Vocabulary(source, train_tokenizer((sample.target for sample in usable()), options))


# ── prepared ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def corpus(recipe: Recipe, split: str, vocabulary: Vocabulary, cache: Path) -> PairDataset | None:
    """A prepared split; None if the recipe has no such split."""
    data = TranslateData.of(recipe)
    if not getattr(data, split):
        return None
    if not data.synthetic:
        return prepare(data, split, vocabulary, cache, Path(recipe.origin))
    key = ["generated", options_key(data, split), str(recipe.seed)]
    return prepare_pairs(_records(recipe, split), key, vocabulary, cache, data.max_length, Report())


def prepare(
    data: TranslateData, split: str, vocabulary: Vocabulary, cache: Path, base_dir: Path | None = None
) -> PairDataset:
    """A split as a PairDataset, from the cache if the same files, options and tokenizers were prepared before."""
    path = file_of(data, split, base_dir)
    hashes = hash_files(path)
    report = Report()
    separated = "" in expand(path) and path.name.removesuffix(".gz").endswith(COLUMNS)
    if separated and not data.columns and not _named_columns(data):
        report.notes.append("line 1 is taken as a sample: no header is named (data.source, data.target)")
        if _looks_like_header(path):
            names = "data.source=NAME data.target=NAME"
            warnings.warn(f"{path}:1: looks like a header, but is taken as a sample: give {names}", stacklevel=2)
    key = [options_key(data, split), json.dumps(hashes)]
    return prepare_pairs(read(data, split, base_dir), key, vocabulary, cache, data.max_length, report, hashes)


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def collate_sources(sources: Sequence[Ids], vocabulary: Vocabulary) -> TokenBatch:
    """Source ids + end."""
    tokenizer = vocabulary.source
    return pad(sources, max(tokenizer.pad, 0), last=[required_token(tokenizer, "end")])


def collate(
    sources: Sequence[Ids], targets: Sequence[Ids], vocabulary: Vocabulary, index: Sequence[int] | None = None
) -> Seq2SeqBatch:
    """Source ids + end; target begin + ids + end."""
    indices = torch.tensor(list(range(len(sources)) if index is None else index), dtype=torch.int64)
    return Seq2SeqBatch(collate_sources(sources, vocabulary), collate_targets(targets, vocabulary.target), indices)


def collate_samples(dataset: PairDataset, indices: Sequence[int], vocabulary: Vocabulary) -> Seq2SeqBatch:
    """These samples of a split as one batch."""
    sources = [dataset.source(index) for index in indices]
    return collate(sources, [dataset.target(index) for index in indices], vocabulary, indices)
