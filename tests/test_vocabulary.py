"""Identifiers are terms of the field: the package defines no name from the former private vocabulary."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "regard"

LIMITS = {
    "told": 2, "tell": 0, "tells": 0, "wanted": 0, "bend": 0, "bent": 0, "bends": 0, "abreast": 0, "beside": 0,
    "chance": 0, "chances": 0, "thought": 0, "think": 0, "thinks": 0, "hasten": 0, "swift": 0, "turned": 0,
    "asked": 0, "likely": 0, "likeliest": 0, "hidden_words": 0, "found": 0, "place": 0, "places": 0, "part": 7,
    "parts": 5, "number": 0, "numbers": 0, "room": 0, "figures": 0, "given": 0, "said": 0, "look": 0,
    "looks": 0, "looked": 0, "looking": 0, "whole": 0, "some": 0, "longest": 0, "ends": 2, "own": 0, "anew": 0,
    "gone": 0, "told_from": 0, "cut": 0,
}  # fmt: skip
"""Word → at most so many definitions of it. No limit may be raised."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "number": ("data/synthetic/pairs.py",),
    "numbers": ("data/synthetic/pairs.py",),
}
"""Word → files in which it is the right term, such as the numbers of a sequence to reverse."""


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module defines, with its line: functions, classes, arguments, variables, imports as."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


@cache
def offenders() -> dict[str, list[str]]:
    """The definitions of each listed word, as file:line."""
    lines: dict[str, list[str]] = {word: [] for word in LIMITS}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for name, line in definitions(ast.parse(path.read_text(encoding="utf-8"))):
            word = name.strip("_").lower()
            if word in lines and file not in ALLOWED.get(word, ()):
                lines[word].append(f"regard/{file}:{line}")
    return lines


@pytest.mark.parametrize("word", LIMITS)
def test_a_word_of_the_private_vocabulary_is_not_defined(word: str) -> None:
    lines = offenders()[word]
    assert len(lines) <= LIMITS[word], f"'{word}' is defined {len(lines)} times:\n" + "\n".join(lines)


def test_an_allowed_file_still_defines_the_word() -> None:
    for word, files in ALLOWED.items():
        for file in files:
            names = {name.strip("_").lower() for name, _ in definitions(ast.parse((PACKAGE / file).read_text()))}
            assert word in names, f"remove {file} from ALLOWED[{word!r}]"


def test_every_kind_of_definition_is_seen() -> None:
    source = "import a as b\nclass C:\n    def d(self, e, *f, **g):\n        self.h = [i for i in e]\n"
    source += "j, k = 1, 2\nl: int = 3\n"
    assert {name for name, _ in definitions(ast.parse(source))} == {*"bCdefghijkl", "self"}
