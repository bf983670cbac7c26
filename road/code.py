"""Where a name stands in the source, found by reading it: nothing is imported."""

import ast
from functools import cache
from pathlib import Path

from regard.errors import UserError

HOME = Path(__file__).resolve().parents[1]


def link(symbol: str) -> str:
    """A link from a page in docs/ to the lines of `module:Class.method`."""
    path, (first, last) = path_of(symbol), lines(symbol)
    return f"[`{symbol.partition(':')[2]}`](../{path.as_posix()}#L{first}-L{last})"


def path_of(symbol: str) -> Path:
    return Path(*symbol.partition(":")[0].split(".")).with_suffix(".py")


def lines(symbol: str) -> tuple[int, int]:
    """The first and the last line of a class, a function, a method or an assignment."""
    nodes, node = _body(path_of(symbol)), None
    for name in symbol.partition(":")[2].split("."):
        node = next((each for each in nodes if name in _names(each)), None)
        if node is None:
            raise UserError(f"{symbol}: {path_of(symbol)} has no '{name}'; correct road/experiments.py")
        nodes = getattr(node, "body", [])
    assert node is not None
    above = [each.lineno for each in getattr(node, "decorator_list", [])]
    return min([node.lineno, *above]), node.end_lineno or node.lineno


@cache
def _body(path: Path) -> list[ast.stmt]:
    return ast.parse((HOME / path).read_text(encoding="utf-8")).body


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
