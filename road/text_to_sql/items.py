"""Questions about small tables → SQL: documents to train on, and items that are scored by execution.

    bridges : price owner age city                                                the table and its columns
    zom price of bridges → SELECT MIN ( price ) FROM bridges ;
    how many bridges for each city → SELECT city , COUNT ( * ) FROM bridges GROUP BY city ;

Every document uses one made-up word ("zom") instead of a known one. Its meaning, one of four, is drawn per document
and can only be inferred from the examples. A stream is a pure function of its arguments; splits never share a schema.
"""

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from regard.data.synthetic.in_context import Pair, document, prompt
from regard.data.synthetic.pairs import random_generator, split_of
from road.text_to_sql.execute import Outcome, Schema, Table, execute, is_correct, outcomes, same
from road.text_to_sql.grammar import CLAUSES, DIALECTS, KINDS, NUMBERS, OWN_WORDS, TABLES, VALUES

__all__ = [
    "Dialect", "Item", "Outcome", "Schema", "Table", "documents", "execute", "heading", "ideal", "is_correct", "items",
    "rivals", "statement",
]  # fmt: skip

PAIRS = 6  # of a document

OWN_SHARE = 0.5  # of the questions that use the document's own word

CELLS = range(1, 100)  # the numbers in a table

QUERY_NUMBERS = range(10, 91)  # the numbers in a question: a table can have some on either side

ROWS = 9

LIMITS = range(2, 6)

LACKING = (" WHERE .*(?= ;)", "(?<=WHERE ).* AND ", " AND .*(?= ;)", r" ORDER BY \w+ \w+", r" LIMIT \w+", "DISTINCT ")


class Dialect(NamedTuple):
    """The made-up word of a document, the clause it occurs in, and its meaning."""

    word: str
    clause: str
    meaning: str


class Example(NamedTuple):
    """A question with its query, its kind, and whether it uses the document's made-up word."""

    pair: Pair
    kind: str
    own: bool


class Item(NamedTuple):
    """A held-out question after some shots; `determined` when they show all that its query needs."""

    prompt: str
    gold: str
    table: Table
    kind: str
    own: bool
    determined: bool


def documents(seed: int, split: str, count: int) -> Iterator[str]:
    """Documents to train on: a table's heading, and questions about it with their queries."""
    for schema, rng in _schemas(seed, split, count):
        dialect = draw_dialect(rng)
        yield heading(schema) + document(ask(schema, dialect, rng).pair for _ in range(PAIRS))


def items(seed: int, split: str, count: int, shots: int) -> Iterator[Item]:
    """Questions to score on; with more shots the questions are the same, and so are their first shots."""
    for schema, rng in _schemas(seed, split, count):
        dialect = draw_dialect(rng)
        (text, gold), kind, own = ask(schema, dialect, rng)
        table = draw_table(schema, gold, rng)
        shown = [ask(schema, dialect, rng) for _ in range(shots)]
        few_shot = heading(schema) + prompt((shot.pair for shot in shown), text)
        yield Item(few_shot, gold, table, kind, own, determined=not own or any(shot.own for shot in shown))


def ideal(shots: int) -> float:
    """Bayes-optimal accuracy on questions with the made-up word: known once a shot shows it, one of four before."""
    unknown = (1 - OWN_SHARE) ** shots
    return 1 - unknown * (1 - 1 / len(CLAUSES["compare"]))


def heading(schema: Schema) -> str:
    """The first line of a document."""
    return f"{schema.table} : {' '.join(schema.columns)}\n"


def statement(answer: str) -> str:
    """The query at the start of a completion: up to the first semicolon or line break."""
    return answer.strip().partition("\n")[0].partition(";")[0] + ";"


def draw_dialect(rng: random.Random) -> Dialect:
    clause = rng.choice(DIALECTS)
    return Dialect(rng.choice(OWN_WORDS), clause, rng.choice(list(CLAUSES[clause])))


def ask(schema: Schema, dialect: Dialect, rng: random.Random) -> Example:
    """A question of any kind in plain words, or of a kind that can use the made-up word."""
    fields = _fields(schema, rng)
    own = rng.random() < OWN_SHARE
    fitting = list(KINDS)
    if own:
        fields |= {dialect.clause: dialect.word, dialect.clause.upper(): dialect.meaning}
        fitting = [name for name in KINDS if f"{{{dialect.clause}}}" in KINDS[name].phrases[0]]
    kind = rng.choice(fitting)
    text = rng.choice(KINDS[kind].phrases).format(**fields)
    return Example(Pair(text, KINDS[kind].query.format(**fields)), kind, own)


def _fields(schema: Schema, rng: random.Random) -> dict[str, str]:
    """A value for every placeholder of a question."""
    word = rng.choice([name for name in schema.columns if name in VALUES])
    number = rng.choice([name for name in schema.columns if name in NUMBERS])
    shown = rng.choice([name for name in schema.columns if name not in (word, number)])
    low, high = sorted(rng.sample(QUERY_NUMBERS, 2))
    text, begins = rng.choice(VALUES[word]), rng.choice(VALUES[word])[0]
    fields = {"table": schema.table, "word": word, "number": number, "shown": shown, "text": text, "letter": begins}
    fields |= {"value": str(low), "high": str(high), "limit": str(rng.choice(LIMITS))}
    for clause, meanings in CLAUSES.items():
        meaning = rng.choice(list(meanings))
        fields |= {clause.upper(): meaning, clause: rng.choice(meanings[meaning])}
    return fields


def _schemas(seed: int, split: str, count: int) -> Iterator[tuple[Schema, random.Random]]:
    """Schemas that no other split has, each with its own random generator."""
    rng = random_generator("sql", seed, split)
    made = 0
    while made < count:
        columns = [*rng.sample(list(VALUES), 2), *rng.sample(NUMBERS, 2)]
        schema = Schema(rng.choice(TABLES), tuple(rng.sample(columns, len(columns))))
        if split_of(" ".join([schema.table, *sorted(columns)])) == split:
            yield schema, random.Random(f"sql {seed} {split} {made}")
            made += 1


def draw_table(schema: Schema, gold: str, rng: random.Random) -> Table:
    """Contents on which the gold query and its rivals differ; drawn again until they do."""
    while True:
        columns = [_cells(name, gold, rng) for name in schema.columns]
        table = Table(schema, tuple(zip(*columns, strict=True)))
        expected, *others = outcomes(table, [gold, *rivals(gold, table)])
        if expected.rows and not any(same(other, expected, in_order="ORDER BY" in gold) for other in others):
            return table


def _cells(column: str, gold: str, rng: random.Random) -> list[str | int]:
    """A column of few different values, among them those of the query; of many where the query sorts by them."""
    signs = gold.split()
    if column in NUMBERS:
        if f"ORDER BY {column}" in gold:
            return list(rng.sample(CELLS, ROWS))
        named = [int(sign) for sign in signs if sign.isdigit()]
        return rng.choices([*named, *rng.sample(CELLS, 4)], k=ROWS)
    named = [value for value in VALUES[column] if value in signs or (value[0] in signs and rng.random() < 0.5)]
    return rng.choices([*named, *rng.sample(VALUES[column], 3)], k=ROWS)


def rivals(query: str, table: Table) -> Iterator[str]:
    """Queries that differ in one sign, or lack a clause: typical errors of a model."""
    signs = query.split()
    column = ""
    for index, sign in enumerate(signs):
        column = sign if sign in table.schema.columns else column
        for other in _alternatives(sign, column, table):
            yield " ".join([*signs[:index], other, *signs[index + 1 :]])
    for clause in LACKING:
        if (shorter := re.sub(clause, "", query)) != query:
            yield shorter


def _alternatives(sign: str, column: str, table: Table) -> list[str]:
    """Wrong alternatives for a token: another column of its type, operator of its clause or value."""
    families = [list(meanings) for meanings in CLAUSES.values()]
    families += [[name for name in table.schema.columns if name in names] for names in (NUMBERS, VALUES)]
    families += [["AND", "OR"]]
    if column:
        index = table.schema.columns.index(column)
        values = sorted({str(row[index]) for row in table.rows})
        families += [[sign, *values]] if sign.isdigit() else [values]  # a number counts where the column lacks it too
    return [other for family in families if sign in family for other in family if other != sign]
