"""Questions about small tables → SQL: documents to learn the language from, and items to be answered by execution.

    bridges : price owner age city                                                the table and its columns
    zom price of bridges → SELECT MIN ( price ) FROM bridges ;
    how many bridges for each city → SELECT city , COUNT ( * ) FROM bridges GROUP BY city ;

Every document has one word of its own ("zom") in the place of a known one. What it means is drawn anew, one of four,
and only the examples that use it tell. A stream is a pure function of its arguments; parts never share a schema.
"""

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from regard.data.synthetic.pairs import chance_of, part_of
from regard.data.synthetic.prompts import Pair, document, prompt
from road.text_to_sql.execute import Outcome, Schema, Table, execute, outcomes, right, same
from road.text_to_sql.grammar import CLAUSES, DIALECTS, KINDS, NUMBERS, OWN_WORDS, TABLES, VALUES

__all__ = [
    "Dialect", "Item", "Outcome", "Schema", "Table", "documents", "execute", "heading", "ideal", "items", "right",
    "rivals", "statement",
]  # fmt: skip

PAIRS = 6  # of a document

OWN_SHARE = 0.5  # of the questions that use the document's own word

CELLS = range(1, 100)  # the numbers in a table

ASKED = range(10, 91)  # the numbers in a question: a table can have some on either side

ROWS = 9

LIMITS = range(2, 6)

LACKING = (" WHERE .*(?= ;)", "(?<=WHERE ).* AND ", " AND .*(?= ;)", r" ORDER BY \w+ \w+", r" LIMIT \w+", "DISTINCT ")


class Dialect(NamedTuple):
    """The word of a document's own, the clause it stands in, and what it means there."""

    word: str
    clause: str
    meaning: str


class Asked(NamedTuple):
    """A question with its query, its kind, and whether it uses the document's own word."""

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


def documents(seed: int, part: str, count: int) -> Iterator[str]:
    """Documents to train on: a table's heading, and questions about it with their queries."""
    for schema, chance in _schemas(seed, part, count):
        dialect = draw_dialect(chance)
        yield heading(schema) + document(ask(schema, dialect, chance).pair for _ in range(PAIRS))


def items(seed: int, part: str, count: int, shots: int) -> Iterator[Item]:
    """Questions to score on; with more shots the questions are the same, and so are their first shots."""
    for schema, chance in _schemas(seed, part, count):
        dialect = draw_dialect(chance)
        (text, gold), kind, own = ask(schema, dialect, chance)
        table = draw_table(schema, gold, chance)
        shown = [ask(schema, dialect, chance) for _ in range(shots)]
        asked = heading(schema) + prompt((shot.pair for shot in shown), text)
        yield Item(asked, gold, table, kind, own, determined=not own or any(shot.own for shot in shown))


def ideal(shots: int) -> float:
    """The best accuracy on questions with the own word: known once a shot shows it, one of four meanings before."""
    unknown = (1 - OWN_SHARE) ** shots
    return 1 - unknown * (1 - 1 / len(CLAUSES["compare"]))


def heading(schema: Schema) -> str:
    """The first line of a document."""
    return f"{schema.table} : {' '.join(schema.columns)}\n"


def statement(answer: str) -> str:
    """The query at the head of what a model wrote on: up to the first semicolon or line break."""
    return answer.strip().partition("\n")[0].partition(";")[0] + ";"


def draw_dialect(chance: random.Random) -> Dialect:
    clause = chance.choice(DIALECTS)
    return Dialect(chance.choice(OWN_WORDS), clause, chance.choice(list(CLAUSES[clause])))


def ask(schema: Schema, dialect: Dialect, chance: random.Random) -> Asked:
    """A question of any kind in plain words, or of a kind that has a place for the own word."""
    fields = _fields(schema, chance)
    own = chance.random() < OWN_SHARE
    fitting = list(KINDS)
    if own:
        fields |= {dialect.clause: dialect.word, dialect.clause.upper(): dialect.meaning}
        fitting = [name for name in KINDS if f"{{{dialect.clause}}}" in KINDS[name].phrases[0]]
    kind = chance.choice(fitting)
    text = chance.choice(KINDS[kind].phrases).format(**fields)
    return Asked(Pair(text, KINDS[kind].query.format(**fields)), kind, own)


def _fields(schema: Schema, chance: random.Random) -> dict[str, str]:
    """Something for every place that a kind of question may have."""
    word = chance.choice([name for name in schema.columns if name in VALUES])
    number = chance.choice([name for name in schema.columns if name in NUMBERS])
    shown = chance.choice([name for name in schema.columns if name not in (word, number)])
    low, high = sorted(chance.sample(ASKED, 2))
    text, begins = chance.choice(VALUES[word]), chance.choice(VALUES[word])[0]
    fields = {"table": schema.table, "word": word, "number": number, "shown": shown, "text": text, "letter": begins}
    fields |= {"value": str(low), "high": str(high), "limit": str(chance.choice(LIMITS))}
    for clause, meanings in CLAUSES.items():
        meaning = chance.choice(list(meanings))
        fields |= {clause.upper(): meaning, clause: chance.choice(meanings[meaning])}
    return fields


def _schemas(seed: int, part: str, count: int) -> Iterator[tuple[Schema, random.Random]]:
    """Schemata that no other part has, each with a random source of its own."""
    chance = chance_of("sql", seed, part)
    made = 0
    while made < count:
        columns = [*chance.sample(list(VALUES), 2), *chance.sample(NUMBERS, 2)]
        schema = Schema(chance.choice(TABLES), tuple(chance.sample(columns, len(columns))))
        if part_of(" ".join([schema.table, *sorted(columns)])) == part:
            yield schema, random.Random(f"sql {seed} {part} {made}")
            made += 1


def draw_table(schema: Schema, gold: str, chance: random.Random) -> Table:
    """Contents that tell the gold query from its rivals; drawn again until they do."""
    while True:
        columns = [_cells(name, gold, chance) for name in schema.columns]
        table = Table(schema, tuple(zip(*columns, strict=True)))
        wanted, *others = outcomes(table, [gold, *rivals(gold, table)])
        if wanted.rows and not any(same(other, wanted, in_order="ORDER BY" in gold) for other in others):
            return table


def _cells(column: str, gold: str, chance: random.Random) -> list[str | int]:
    """A column of few different values, among them those that the query asks for; of many where it sorts by them."""
    signs = gold.split()
    if column in NUMBERS:
        if f"ORDER BY {column}" in gold:
            return list(chance.sample(CELLS, ROWS))
        named = [int(sign) for sign in signs if sign.isdigit()]
        return chance.choices([*named, *chance.sample(CELLS, 4)], k=ROWS)
    named = [value for value in VALUES[column] if value in signs or (value[0] in signs and chance.random() < 0.5)]
    return chance.choices([*named, *chance.sample(VALUES[column], 3)], k=ROWS)


def rivals(query: str, table: Table) -> Iterator[str]:
    """Queries that differ in one sign, or lack a clause: what a model that did not quite understand would write."""
    signs = query.split()
    column = ""
    for place, sign in enumerate(signs):
        column = sign if sign in table.schema.columns else column
        for other in _alternatives(sign, column, table):
            yield " ".join([*signs[:place], other, *signs[place + 1 :]])
    for clause in LACKING:
        if (shorter := re.sub(clause, "", query)) != query:
            yield shorter


def _alternatives(sign: str, column: str, table: Table) -> list[str]:
    """What might stand wrongly in a sign's place: another column of its type, word of its clause or value."""
    families = [list(meanings) for meanings in CLAUSES.values()]
    families += [[name for name in table.schema.columns if name in names] for names in (NUMBERS, VALUES)]
    families += [["AND", "OR"]]
    if column:
        place = table.schema.columns.index(column)
        values = sorted({str(row[place]) for row in table.rows})
        families += [[sign, *values]] if sign.isdigit() else [values]  # a number counts where the column lacks it too
    return [other for family in families if sign in family for other in family if other != sign]
