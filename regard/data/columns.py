"""A column that is asked for and is not there: the error, and how another one is named where it is shown."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from regard.errors import UserError, nearest

if TYPE_CHECKING:
    from regard.config.recipe import DataOptions, Recipe

SHOWN = 160  # characters of a first line that may be no header

ROLES = ("text", "text2", "label", "question", "context", "answer", "source", "target", "prefix", "split_by")

OPTIONS = {  # of `regard evaluate`, by what a column is for
    **dict.fromkeys(("text", "question", "source", "sentence1"), "--source"),
    **dict.fromkeys(("text2", "context", "sentence2"), "--other"),
    **dict.fromkeys(("label", "answer", "target", "score"), "--target"),
}


class NoColumn(UserError):
    """Columns that a file has not. Where none of those asked for is there, line 1 may also be a sample already."""

    def __init__(self, place: str, missing: Sequence[str], names: Sequence[str], header: bool = True) -> None:
        self.missing, self.header = tuple(missing), header
        said = f"{place}: no column {' and '.join(map(repr, missing))}"
        plain = ", ".join(name.strip() for name in names)
        alike = nearest(missing[0], names) if header and len(missing) == 1 else ""
        has = f"; {'it has' if header else 'line 1 is'}: {plain[:SHOWN]}{'…' * (len(plain) > SHOWN)}"
        super().__init__(said + (alike or has))

    def told(self, ways: Sequence[str], whole: str) -> UserError:
        """The same with how the right columns are named, and all of them where there is no header."""
        said = str(self)
        if ways:
            said += f"{' ' if said.endswith('?') else '; '}say which is meant with {' and '.join(ways)}"
        return UserError(said if self.header or not whole else f"{said}; where line 1 is already a sample, {whole}")


@contextmanager
def named_by(way: Callable[[str], str], whole: str = "") -> Iterator[None]:
    """Let an error about a missing column say what names another: `way` of the missing one, if there is any."""
    try:
        yield
    except NoColumn as error:
        raise error.told(list(dict.fromkeys(filter(None, map(way, error.missing)))), whole) from None


def role_of(name: str, data: "DataOptions | None") -> str:
    """The key of [data] that asks for a column; by default columns are called as their keys are."""
    return next((role for role in ROLES if data and getattr(data, role) == name), name)


def named_by_keys(data: "DataOptions") -> AbstractContextManager[None]:
    """As a recipe, or an override, names columns."""

    def way(name: str) -> str:
        role = role_of(name, data)
        return f"data.{role}=NAME" if role in ROLES else ""

    return named_by(way, 'name all columns with data.columns=["NAME", …]')


def named_by_options(task: str, recipe: "Recipe | None") -> AbstractContextManager[None]:
    """As `regard evaluate` names those of its file, which by default are called as the model's recipe says."""
    data = recipe.data if recipe else None
    whole = "name all with --columns NAME,…" if task in ("answer", "classify", "embed") else ""
    return named_by(lambda name: f"{OPTIONS.get(role_of(name, data), '--source')} NAME", whole)


def named_by_column(other: str = "") -> AbstractContextManager[None]:
    """As verbs do that read one column, or a second one beside it."""
    numbered = "give a number in place of a name: 1 is the first column"
    return named_by(lambda name: "--other NAME" if name == other else "--column NAME", numbered)
