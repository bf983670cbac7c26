"""Executes generated queries: in memory, read-only, with a limit on length and steps; errors are values."""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

MAX_LENGTH = 1000  # characters of a query, and bytes of any text that it makes

STEPS = 100_000  # of SQLite's virtual machine, not seconds: deterministic

FUNCTIONS = {"count", "max", "min", "avg", "sum", "total", "like", "abs", "round", "length", "lower", "upper"}

DECIMALS = 9  # sums in another order differ in the last bits

Row = tuple[str | int, ...]


class Schema(NamedTuple):
    """A table's name and its columns."""

    table: str
    columns: tuple[str, ...]


class Table(NamedTuple):
    """A table with its contents."""

    schema: Schema
    rows: tuple[Row, ...]


class Outcome(NamedTuple):
    """The result of a query: rows, or an error."""

    rows: tuple[tuple, ...]
    error: str = ""


def execute(schema: Schema, rows: Sequence[Row], query: str) -> Outcome:
    """The result of one query on a new database that holds this table alone."""
    return next(outcomes(Table(schema, tuple(rows)), [query]))


def outcomes(table: Table, queries: Iterable[str]) -> Iterator[Outcome]:
    """The results of many queries on the same table, none of which can change it."""
    names = ", ".join(f'"{name}"' for name in table.schema.columns)
    placeholders = ", ".join("?" * len(table.schema.columns))
    with closing(sqlite3.connect(":memory:", cached_statements=0)) as database:
        database.execute(f'CREATE TABLE "{table.schema.table}" ({names})')
        database.executemany(f'INSERT INTO "{table.schema.table}" VALUES ({placeholders})', table.rows)
        _confine(database, table.schema.table)
        for query in queries:
            yield _run(database, tidy(query))


def is_correct(predicted: str, gold: str, table: Table) -> bool:
    """Execution accuracy: whether a query gives the rows of the gold query, in its order where that sorts them."""
    prediction, expected = outcomes(table, [predicted, gold])
    return same(prediction, expected, in_order="ORDER BY" in gold)


def same(prediction: Outcome, expected: Outcome, in_order: bool) -> bool:
    """Whether two results are equal, as lists or as multisets; an error equals nothing."""
    if prediction.error or expected.error:
        return False
    first, second = (tuple(map(_rounded, outcome.rows)) for outcome in (prediction, expected))
    return first == second if in_order else Counter(first) == Counter(second)


def tidy(query: str) -> str:
    """Spaces that keep the signs of a value apart do not belong to it: ' paris ' is 'paris', ' b % ' is 'b%'."""
    return re.sub("'([^']*)'", lambda match: f"'{''.join(match[1].split())}'", query)


def _confine(database: sqlite3.Connection, table: str) -> None:
    """Allow reading this table by harmless functions, and nothing else."""

    def allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = (
            action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first == table)
            or (action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_LENGTH)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LENGTH)
    database.set_authorizer(allow)
    database.set_progress_handler(lambda: 1, STEPS)


def _run(database: sqlite3.Connection, query: str) -> Outcome:
    # A few lines of WITH can double their work with each line while they are compiled, where no steps are counted.
    if not re.match(r"\s*select\b", query, re.IGNORECASE) or re.search(r"\bwith\b", query, re.IGNORECASE):
        return Outcome((), "only SELECT without WITH is run")
    try:
        return Outcome(tuple(database.execute(query)))
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        return Outcome((), str(error) or type(error).__name__)


def _rounded(row: tuple) -> tuple:
    return tuple(round(cell, DECIMALS) if isinstance(cell, float) else cell for cell in row)
