"""Invariants of text-to-SQL: one query per question, results that distinguish queries, a safe database."""

import random
import re
from collections import Counter
from itertools import product

import pytest

from regard.config.recipe import TokenizerOptions
from regard.data.synthetic.pairs import SPLITS
from regard.text.train_tokenizer import train_tokenizer
from road.text_to_sql import items as sql
from road.text_to_sql.execute import MAX_LENGTH, Schema, Table, execute, is_correct
from road.text_to_sql.grammar import CLAUSES, DIALECTS, KINDS, NUMBERS, OWN_WORDS, TABLES, VALUES

SHOPS = Table(
    Schema("shops", ("city", "owner", "rent")),
    (("oslo", "anna", 31), ("oslo", "ben", 17), ("rome", "anna", 31), ("rome", "ben", 5), ("oslo", "ben", 2)),
)


@pytest.fixture(scope="module")
def held() -> list[sql.Item]:
    return [item for split in ("validation", "test") for item in sql.items(3, split, 151, 4)]


def read(text: str) -> tuple[str, list[tuple[str, str]]]:
    """An independent reader: the heading, and the questions with their queries."""
    first, *lines = text.splitlines()
    return first, [(question, query) for question, _, query in (line.partition(" → ") for line in lines)]


def own_word(text: str) -> str | None:
    return next((word for word in text.split() if word in OWN_WORDS), None)


def test_every_gold_query_runs_and_its_result_differs_from_every_alternative(held: list[sql.Item]):
    for item in held:
        outcome = execute(*item.table, item.gold)
        assert not outcome.error, item.gold
        assert outcome.rows, item.gold
        assert is_correct(item.gold, item.gold, item.table)
        for rival in sql.rivals(item.gold, item.table):
            assert not is_correct(rival, item.gold, item.table), (rival, item.gold)


def test_the_alternatives_lack_a_filter_reverse_an_order_or_change_a_meaning():
    rivals = list(sql.rivals("SELECT city FROM shops WHERE owner = ' anna ' AND rent > 5 ;", SHOPS))
    for expected in (
        "SELECT city FROM shops ;",
        "SELECT city FROM shops WHERE owner = ' anna ' ;",
        "SELECT city FROM shops WHERE rent > 5 ;",
        "SELECT owner FROM shops WHERE owner = ' anna ' AND rent > 5 ;",
        "SELECT city FROM shops WHERE owner = ' ben ' AND rent > 5 ;",
        "SELECT city FROM shops WHERE owner = ' anna ' AND rent < 5 ;",
        "SELECT city FROM shops WHERE owner = ' anna ' AND rent > 17 ;",
    ):
        assert expected in rivals
    assert "SELECT city FROM shops WHERE rent > 17 ;" in sql.rivals("SELECT city FROM shops WHERE rent > 9 ;", SHOPS)
    rivals = list(sql.rivals("SELECT city FROM shops ORDER BY rent DESC LIMIT 2 ;", SHOPS))
    assert {"SELECT city FROM shops ORDER BY rent ASC LIMIT 2 ;", "SELECT city FROM shops LIMIT 2 ;"} <= set(rivals)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_query_type_occurs_in_several_phrasings(kind: str, held: list[sql.Item]):
    assert len(set(KINDS[kind].phrases)) >= 3
    assert any(item.kind == kind for item in held)
    for clause in DIALECTS:
        assert len({f"{{{clause}}}" in phrase for phrase in KINDS[kind].phrases}) == 1


def test_a_question_has_one_query_in_its_document():
    for text in sql.documents(2, "train", 1009):
        answers: dict[str, str] = {}
        for question, query in read(text)[1]:
            assert answers.setdefault(question, query) == query


def test_word_categories_are_disjoint():
    values = {value for values in VALUES.values() for value in values}
    phrases = " ".join(phrase for kind in KINDS.values() for phrase in kind.phrases)
    plain = " ".join(word for meanings in CLAUSES.values() for ways in meanings.values() for word in ways)
    spoken = set(re.sub(r"\{\w+\}", " ", phrases).split()) | set(plain.split())
    sorts = [set(TABLES), set(NUMBERS), set(VALUES), values, set(OWN_WORDS), spoken]
    assert sum(map(len, sorts)) == len(set().union(*sorts))
    assert len(TABLES) + len(NUMBERS) + len(VALUES) > 300


def test_every_name_is_a_valid_sql_identifier():
    for name in (*TABLES, *NUMBERS, *VALUES):
        assert execute(Schema(name, ("thing",)), [(7,)], f"SELECT thing FROM {name} ;").rows == ((7,),)
        assert execute(Schema("things", (name,)), [(7,)], f"SELECT MAX ( {name} ) FROM things ;").rows == ((7,),)


@pytest.mark.parametrize("clause", DIALECTS)
def test_only_the_query_shows_what_an_own_word_means(clause: str):
    """The same draws under each of four meanings: one and the same question, and queries that differ in one sign."""
    schema = Schema("shops", ("city", "rent", "owner", "size"))
    for seed in range(307):
        dialects = [sql.Dialect("zom", clause, meaning) for meaning in CLAUSES[clause]]
        question = [sql.ask(schema, dialect, random.Random(seed)) for dialect in dialects]
        texts, queries = {each.pair.text for each in question}, [each.pair.label for each in question]
        assert len(texts) == 1
        assert ("zom" in texts.pop().split()) == question[0].own
        for dialect, query in zip(dialects, queries, strict=True):
            expected = queries[0] if not question[0].own else queries[0].replace(dialects[0].meaning, dialect.meaning)
            assert query == expected


def test_every_meaning_of_a_defined_word_is_equally_probable():
    rng = random.Random(1)
    counts = Counter(sql.draw_dialect(rng)[1:] for _ in range(8009))
    assert set(counts) == {(clause, meaning) for clause in DIALECTS for meaning in CLAUSES[clause]}
    assert all(abs(count - 1001) < 5 * 1001**0.5 for count in counts.values())


def test_the_bayes_optimal_accuracy_is_as_computed():
    for shots in range(5):
        patterns = list(product((True, False), repeat=shots))  # which shots use the word: each half of the time
        expected = sum(1.0 if any(pattern) else 1 / 4 for pattern in patterns) / len(patterns)
        assert sql.ideal(shots) == pytest.approx(expected)
    for clause in DIALECTS:
        assert len(CLAUSES[clause]) == 4


@pytest.mark.parametrize("shots", [0, 1, 4])
def test_shots_determine_what_they_show(shots: int):
    items = list(sql.items(5, "test", 307, shots))
    for item in items:
        *shown, question = item.prompt.splitlines()[1:]
        assert len(shown) == shots
        assert item.own == (own_word(question) is not None)
        assert item.determined == (not item.own or own_word(question) in " ".join(shown).split())
    own = [item for item in items if item.own]
    share = sum(item.determined + (not item.determined) / 4 for item in own) / len(own)
    assert share == pytest.approx(sql.ideal(shots), abs=0.1)


def test_more_shots_are_inserted_and_change_no_question():
    for few, many in zip(sql.items(3, "test", 31, 1), sql.items(3, "test", 31, 4), strict=True):
        assert few._replace(prompt="", determined=True) == many._replace(prompt="", determined=True)
        head, shot, question = few.prompt.splitlines()
        lines = many.prompt.splitlines()
        assert (lines[0], lines[1], lines[-1], len(lines)) == (head, shot, question, 6)


def test_splits_never_share_a_schema_whatever_the_seeds():
    train, validation, test = (
        {frozenset(read(text)[0].split()) for seed in (1, 2) for text in sql.documents(seed, split, 503)}
        for split in SPLITS
    )
    assert not train & (validation | test)
    assert not validation & test


def test_four_shots_are_short_also_for_the_tokenizer_of_words(held: list[sql.Item]):
    tokenizer = train_tokenizer(sql.documents(1, "train", 307), TokenizerOptions(kind="words", vocab_size=2000))
    assert max(len(tokenizer.encode(item.prompt + item.gold)) for item in held) < 250


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT COUNT ( * ) FROM shops WHERE city = ' oslo ' ;", ((3,),)),
        ("SELECT COUNT(*) FROM shops WHERE city = 'oslo'", ((3,),)),
        ("SELECT owner FROM shops WHERE city LIKE ' r % ' ORDER BY rent ASC ;", (("ben",), ("anna",))),
        ("SELECT MAX ( rent ) FROM shops ;", ((31,),)),
        ("SELECT city FROM (SELECT * FROM shops WHERE rent < 10) LIMIT 1", (("rome",),)),
    ],
)
def test_queries_run(query: str, rows: tuple):
    assert execute(*SHOPS, query) == (rows, "")


def test_results_are_compared_as_multisets_and_in_order_with_order_by():
    gold = "SELECT owner FROM shops WHERE city = ' oslo ' ;"
    assert is_correct("SELECT owner FROM shops WHERE city = 'oslo' ORDER BY rent", gold, SHOPS)
    assert not is_correct("SELECT DISTINCT owner FROM shops WHERE city = 'oslo'", gold, SHOPS)
    gold = "SELECT owner FROM shops WHERE city = ' oslo ' ORDER BY rent ASC ;"
    assert is_correct("SELECT owner FROM shops WHERE city <> 'rome' ORDER BY rent", gold, SHOPS)
    assert not is_correct("SELECT owner FROM shops WHERE city = 'oslo'", gold, SHOPS)
    assert is_correct("SELECT SUM(rent) / 5.0 FROM shops", "SELECT AVG ( rent ) FROM shops ;", SHOPS)


@pytest.mark.parametrize(
    "query",
    [
        "", ";", "-- nothing", "what", "SELECT", "SELECT rent FROM nowhere", "SELECT rents FROM shops",
        "SELECT rent FROM shops ; DROP TABLE shops", "DROP TABLE shops", "DELETE FROM shops",
        "UPDATE shops SET rent = 1", "INSERT INTO shops VALUES (1, 2, 3)", "CREATE TABLE mine (a)",
        "CREATE TEMP TABLE mine (a)", "ATTACH 'other.db' AS other", "VACUUM INTO 'copy.db'", "PRAGMA table_info(shops)",
        "SELECT * FROM pragma_database_list", "SELECT * FROM sqlite_master", "SELECT load_extension('evil')",
        "SELECT randomblob(1000000000)", "SELECT * FROM json_each('[1]')", "BEGIN", "EXPLAIN SELECT 1", "REINDEX",
        "WITH RECURSIVE a (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a) SELECT n FROM a",
        "SELECT * FROM (WITH b AS (SELECT 1) SELECT * FROM b, b)",
        "SELECT COUNT(*) FROM " + ", ".join(f"shops s{number}" for number in range(12)),
        "SELECT " + "(" * 400 + "1" + ")" * 400, "SELECT '" + "a" * MAX_LENGTH + "'", "SELECT '\0'", "SELECT '\ud800'",
        "SELECT CAST(x'ff' AS TEXT)", "SELECT 9223372036854775807 + rent FROM shops WHERE SUM(rent)",
    ],
)  # fmt: skip
def test_an_unsafe_query_is_an_error_and_counts_as_wrong(query: str):
    outcome = execute(*SHOPS, query)
    assert outcome.error
    assert outcome.rows == ()
    assert not is_correct(query, "SELECT COUNT ( * ) FROM shops ;", SHOPS)
    assert not is_correct(query, query, SHOPS)


def test_a_hostile_query_spoils_nothing_for_the_next():
    gold = "SELECT COUNT ( * ) FROM shops ;"
    assert not is_correct("DELETE FROM shops", gold, SHOPS)
    assert not is_correct("DROP TABLE shops", gold, SHOPS)
    assert is_correct("SELECT COUNT(rent) FROM shops", gold, SHOPS)


def test_the_statement_ends_at_its_semicolon_or_line():
    assert sql.statement(" SELECT 1 ;\nhow many → SELECT 2 ;") == "SELECT 1 ;"
    assert sql.statement(" SELECT 1\nSELECT 2 ;").split() == ["SELECT", "1;"]
    assert sql.statement("") == ";"
