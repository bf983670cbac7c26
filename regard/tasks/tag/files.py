"""Sentences whose words have tags, as files have them; an error names file and line.

ner.conll .iob .bio .txt .tsv    a word a line, its tag in the last column, a blank line between sentences,
                                 -DOCSTART- lines left out; columns with a tab between where a line has one, else spaces
ner.jsonl                        {"tokens": ["Ada", "wrote"], "tags": ["B-PER", "O"]}
each also as .gz
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.data.files import each_of, is_text, json_lines, lines, several
from regard.data.splits.hashed import file_of, held
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions

BEGINNING = "-DOCSTART-"

MOST = 10_000  # tags; more are surely another column

SUFFIXES = (".conll", ".iob", ".bio", ".txt", ".tsv")


class Sentence(NamedTuple):
    """Words, a tag each, and where the first of them stands."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    location: str

    @property
    def group(self) -> str:
        """What decides the part: equal sentences lie in the same."""
        return " ".join(self.words)


def read(data: "DataOptions", split: str, base_dir: Path | None = None, seed: int = 1) -> Iterator[Sentence]:
    """Every sentence of a part in the order of its file, or made on the spot."""
    if data.generate:
        from regard.data.synthetic.entities import made  # which makes sentences of this file's kind

        yield from made(data.generate, seed, split, int(getattr(data, split)))
        return
    yield from held(sentences(file_of(data, split, base_dir), data), data, split)


def sentences(path: Path, data: "DataOptions") -> Iterator[Sentence]:
    """Every sentence of a file, or of all that a pattern means."""
    if several(path):
        return each_of(path, lambda file: sentences(file, data))
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _of_objects(path, data.text or "tokens", data.label or "tags")
    if name.endswith(SUFFIXES):
        return _of_lines(path)
    raise UserError(f"{path}: cannot tell what kind of file this is; possible: .jsonl, {', '.join(SUFFIXES)}")


def _of_lines(path: Path) -> Iterator[Sentence]:
    words, tags, begun, width = [], [], 0, 0
    for number, line in enumerate(lines(path), 1):
        if not line.strip() or line.startswith(BEGINNING):
            if words:
                yield Sentence(tuple(words), tuple(tags), f"{path}:{begun}")
            words, tags = [], []
            continue
        fields = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
        width = width or len(fields)
        if len(fields) < 2 or len(fields) != width or not fields[0] or not fields[-1]:
            raise UserError(
                f"{path}:{number}: {line!r:.60} has {len(fields)} columns; expected {max(2, width)}, the word first "
                "and its tag last, and a blank line between sentences"
            )
        begun = begun if words else number
        words.append(fields[0])
        tags.append(fields[-1])
    if words:
        yield Sentence(tuple(words), tuple(tags), f"{path}:{begun}")


def _of_objects(path: Path, words: str, tags: str) -> Iterator[Sentence]:
    for number, value in enumerate(json_lines(path), 1):
        if value is None:
            continue
        location = f"{path}:{number}"
        found, called = _texts(value, words, location), _texts(value, tags, location)
        if len(found) != len(called):
            raise UserError(f"{location}: {len(found)} {words}, but {len(called)} {tags}: each word has one")
        if found:
            yield Sentence(found, called, location)


def _texts(value: dict[str, Any], key: str, location: str) -> tuple[str, ...]:
    given = value.get(key)
    if not isinstance(given, list) or not all(is_text(each) and each.strip() for each in given):
        raise UserError(f'{location}: "{key}" should be a list of words, such as ["Ada", "wrote"]; it is {given!r:.60}')
    return tuple(given)


def learn_tags(data: "DataOptions", base_dir: Path | None = None, seed: int = 1) -> tuple[str, ...]:
    """Every tag of the training file, also of what is held out of it: O first, the others in the order of letters."""
    found: set[str] = set()
    whole = replace(data, validation="", test="") if not data.generate else data
    for sentence in read(whole, "train", base_dir, seed):
        found.update(sentence.tags)
        if len(found) > MOST:
            raise UserError(
                f"{sentence.location}: over {MOST:,} different tags so far; does the last column have them?"
            )
    if len(found) < 2:
        only = f"the one tag {found.pop()!r}" if found else "no tag"
        location = data.generate or file_of(data, "train", base_dir)
        raise UserError(f"{location}: has {only}; to tell words apart takes two")
    return tuple(sorted(found, key=lambda tag: (tag != "O", tag)))
