"""Errors about columns that a file does not have."""

from collections.abc import Mapping, Sequence

from regard.errors import UserError, nearest

MAX_SHOWN = 160  # characters of the first line

HINTS = {  # for a file without header, by the kind of the options that name its columns
    "data.": 'name all columns with data.columns=["NAME", …]',
    "--": "give a column number instead of a name: 1 is the first",
}


class NoColumn(UserError):
    """Columns that a file does not have. If it has none of the required ones, line 1 may be a sample, not a header.

    `missing` maps the option that names a column, such as data.text or --column, to its name.
    """

    def __init__(self, location: str, missing: Mapping[str, str], names: Sequence[str], header: bool = True) -> None:
        self.missing = missing
        self.header = header
        columns = list(dict.fromkeys(missing.values()))
        shown = ", ".join(name.strip() for name in names)
        self.problem = f"{location}: no column {' and '.join(map(repr, columns))}"
        self.problem += (nearest(columns[0], names) if header and len(columns) == 1 else "") or (
            f"; {'it has' if header else 'line 1 is'}: {shown[:MAX_SHOWN]}{'…' * (len(shown) > MAX_SHOWN)}"
        )
        hint = next((hint for prefix, hint in HINTS.items() if next(iter(missing)).startswith(prefix)), "")
        super().__init__(self._message(list(missing), hint))

    def _message(self, options: Sequence[str], columns_hint: str) -> str:
        ways = [f"{option}{'=' if option.startswith('data.') else ' '}NAME" for option in dict.fromkeys(options)]
        message = self.problem
        if ways:
            message += f"{' ' if message.endswith('?') else '; '}choose one with {' and '.join(ways)}"
        if columns_hint and not self.header:
            message += f"; if line 1 is already a sample, {columns_hint}"
        return message

    def with_options(self, options: Mapping[str, str], columns_hint: str = "") -> UserError:
        """The same error for a command whose options have other names."""
        return UserError(self._message([options[option] for option in self.missing if option in options], columns_hint))
