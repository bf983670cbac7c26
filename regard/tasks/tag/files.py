"""Files of sentences whose words have tags. Errors name file and line.

ner.conll .iob .bio .txt .tsv    one word per line, its tag in the last column, a blank line between sentences,
                                 -DOCSTART- lines are skipped; tabs separate columns if a line has one, else spaces
ner.jsonl                        {"tokens": ["Ada", "wrote"], "tags": ["B-PER", "O"]}
All of them also as .gz.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.files import each_of, is_text, json_lines, lines, several
from regard.data.splits.hashed import file_of, held
from regard.data.synthetic.entities import generate
from regard.errors import UserError
from regard.tasks.tag.options import TagData

DOCUMENT_START = "-DOCSTART-"

MAX_TAGS = 10_000  # more must be another column

MAX_WORDS = 100_000  # of a sentence

SUFFIXES = (".conll", ".iob", ".bio", ".txt", ".tsv")


class Sentence(NamedTuple):
    """Words, their tags, and the location of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    location: str

    @property
    def group(self) -> str:
        """Equal sentences are in the same split."""
        return " ".join(self.words)


def read(data: TagData, split: str, base_dir: Path | None = None, seed: int = 1) -> Iterator[Sentence]:
    """Every sentence of a split in the order of its file, or generated."""
    if data.synthetic:
        generated = generate(data.synthetic, seed, split, int(getattr(data, split)))
        for index, sentence in enumerate(generated, 1):
            yield Sentence(*sentence, f"{data.synthetic} {split}:{index}")
        return
    yield from held(sentences(file_of(data, split, base_dir), data), data, split)


def sentences(path: Path, data: TagData) -> Iterator[Sentence]:
    """Every sentence of a file, or of all that match a pattern."""
    if several(path):
        return each_of(path, lambda file: sentences(file, data))
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _of_objects(path, data.text or "tokens", data.label or "tags")
    if name.endswith(SUFFIXES):
        return _of_lines(path)
    raise UserError(f"{path}: unknown file type; expected one of: .jsonl, {', '.join(SUFFIXES)}")


def _of_lines(path: Path) -> Iterator[Sentence]:
    words: list[str] = []
    tags: list[str] = []
    first_line = width = 0
    for line_number, line in enumerate(lines(path), 1):
        if not line.strip() or line.startswith(DOCUMENT_START):
            if words:
                yield Sentence(tuple(words), tuple(tags), f"{path}:{first_line}")
            words = []
            tags = []
            continue
        fields = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
        width = width or len(fields)
        if len(fields) < 2 or len(fields) != width or not fields[0] or not fields[-1]:
            raise UserError(
                f"{path}:{line_number}: {line!r:.60} has {len(fields)} columns; expected {max(2, width)}, the word "
                "first and its tag last, and a blank line between sentences"
            )
        first_line = first_line if words else line_number
        if len(words) == MAX_WORDS:
            raise UserError(
                f"{path}:{first_line}: over {MAX_WORDS:,} words without a blank line, which ends a sentence"
            )
        words.append(fields[0])
        tags.append(fields[-1])
    if words:
        yield Sentence(tuple(words), tuple(tags), f"{path}:{first_line}")


def _of_objects(path: Path, words_key: str, tags_key: str) -> Iterator[Sentence]:
    for line_number, value in enumerate(json_lines(path), 1):
        if value is None:
            continue
        location = f"{path}:{line_number}"
        words = _texts(value, words_key, location)
        tags = _texts(value, tags_key, location)
        if len(words) != len(tags):
            raise UserError(f"{location}: {len(words)} {words_key}, but {len(tags)} {tags_key}: each word has one")
        if words:
            yield Sentence(words, tags, location)


def _texts(value: dict[str, Any], key: str, location: str) -> tuple[str, ...]:
    texts = value.get(key)
    if not isinstance(texts, list) or not all(is_text(text) and text.strip() for text in texts):
        raise UserError(f'{location}: "{key}" should be a list of words, such as ["Ada", "wrote"]; it is {texts!r:.60}')
    return tuple(texts)


def learn_tags(data: TagData, base_dir: Path | None = None, seed: int = 1) -> tuple[str, ...]:
    """Every tag of the training file, also of held-out splits: O first, the others in alphabetical order."""
    tags: set[str] = set()
    undivided = replace(data, validation="", test="") if not data.synthetic else data
    for sentence in read(undivided, "train", base_dir, seed):
        tags.update(sentence.tags)
        if len(tags) > MAX_TAGS:
            raise UserError(
                f"{sentence.location}: over {MAX_TAGS:,} different tags so far; does the last column have them?"
            )
    if len(tags) < 2:
        only = f"the one tag {tags.pop()!r}" if tags else "no tag"
        location = data.synthetic or file_of(data, "train", base_dir)
        raise UserError(f"{location}: has {only}; tagging needs two")
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag)))
