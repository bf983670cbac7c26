"""Questions and answers as data: files, windows, offsets, batches, the best spans and SQuAD's scores."""

import gzip
import json
import os
import re
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import bert_vocabulary, letters, wordpiece
from needs import need

from regard.data.sampler import BatchOptions, epoch_shares
from regard.errors import UserError
from regard.metrics.squad import exact, f1, normalise
from regard.tasks.answer.files import Gold, Question, questions, read
from regard.tasks.answer.options import AnswerData
from regard.tasks.answer.spans import WindowLogits, best_of, best_spans, best_threshold, rank_answers, report
from regard.tasks.answer.windows import ABSENT, Windows, collate, prepare, split_into_windows, token_span
from regard.text.special_tokens import special_tokens_of
from regard.text.tokenizer import Tokenizer

CONTEXT = "Ada wrote notes. Bob, who read them, wrote a longer book about (Ada)."
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Ada",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {"id": "q1", "question": "Who wrote notes?", "answers": [{"text": "Ada", "answer_start": 0}]},
                        {
                            "id": "q2",
                            "question": "About whom?",
                            "answers": [{"text": "Ada", "answer_start": 64}, {"text": "(Ada)", "answer_start": 63}],
                        },
                        {"id": "q3", "question": "When?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        },
        {"title": "Zoë", "paragraphs": [{"context": "Zoë é.", "qas": [{"question": "Who?", "id": 7, "answers": []}]}]},
    ],
}


def asked(path: Path, text: str, **options: Any) -> list[Question]:
    path.write_text(text, encoding="utf-8")
    return list(questions(path, AnswerData(train=path.name, **options)))


def test_squad_is_read_in_any_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(SQUAD, ensure_ascii=False)
    whole = asked(tmp_path / "dev.json", text)
    assert [each.id for each in whole] == ["q1", "q2", "q3", "7"]
    assert whole[1].answers == (Gold("Ada", 64), Gold("(Ada)", 63)) and whole[2].answers == ()
    assert whole[3].context == "Zoë é." and {each.context for each in whole[:3]} == {CONTEXT}
    monkeypatch.setattr("regard.tasks.answer.files.CHUNK", 7)
    assert asked(tmp_path / "dev.json", text) == whole
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(text.encode()))
    again = questions(tmp_path / "dev.json.gz", AnswerData(train="dev.json.gz"))
    assert [each[:4] for each in again] == [each[:4] for each in whole]


def test_json_lines_and_tables_have_the_same_questions(tmp_path: Path) -> None:
    flat = {"context": CONTEXT, "question": "About whom?", "answers": {"text": ["Ada"], "answer_start": [64]}}
    listed = {**flat, "answers": [{"text": "Ada", "start": 64}]}
    paragraph = {"context": CONTEXT, "qas": [{"question": "About whom?", "answers": [{"text": "Ada", "start": 64}]}]}
    lines = "\n".join(map(json.dumps, (flat, listed, paragraph)))
    found = asked(tmp_path / "a.jsonl", lines)
    found += asked(tmp_path / "a.tsv", f"context\tquestion\tanswer\tanswer_start\n{CONTEXT}\tAbout whom?\tAda\t64\n")
    found += asked(tmp_path / "a.csv", f'q,a,answer_start,c\nAbout whom?,Ada,64,"{CONTEXT}"\n', question="q", context="c", answer="a")  # fmt: skip  # noqa: E501
    assert {(each.text, each.context, each.answers) for each in found} == {("About whom?", CONTEXT, (Gold("Ada", 64),))}
    first = asked(tmp_path / "b.tsv", f"context\tquestion\tanswer\n{CONTEXT}\tWho?\tAda\n{CONTEXT}\tWhen?\t\n")
    assert [each.answers for each in first] == [(Gold("Ada", 0),), ()]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"text": ["Ada"], "answer_start": [3]}, "a.jsonl:1, question 1: the answer 'Ada' is not at 3, which has"),
        ({"text": ["Ida"], "answer_start": [0]}, "a.jsonl:1, question 1: the answer 'Ida' does not occur"),
        ({"text": ["Ada", "Bob"], "answer_start": [0]}, "2 answers, but 1 starts"),
        ({"text": [7], "answer_start": [0]}, "an answer is 7 from 0 on"),
    ],
)
def test_an_answer_must_occur_in_its_passage(tmp_path: Path, answers: Any, said: str) -> None:
    line = json.dumps({"context": CONTEXT, "question": "Who?", "answers": answers})
    with pytest.raises(UserError, match=re.escape(said)):
        asked(tmp_path / "a.jsonl", line)


def test_a_question_without_an_answer_must_be_explicit(tmp_path: Path) -> None:
    line = {"context": CONTEXT, "question": "Who?"}
    for more, golds in (
        ({"answer": "Ada"}, (Gold("Ada", 0),)),
        ({"answers": []}, ()),
        ({"is_impossible": True}, ()),
    ):
        (found,) = asked(tmp_path / "a.jsonl", json.dumps(line | more))
        assert found.answers == golds
    with pytest.raises(UserError, match=r"a\.jsonl:1: no 'answers'; it has: context, question"):
        asked(tmp_path / "a.jsonl", json.dumps(line))
    with pytest.raises(UserError, match="no 'antwort'"):
        asked(tmp_path / "a.jsonl", json.dumps(line | {"answers": ["Ada"]}), answer="antwort")


def test_a_cached_question_has_no_folder_of_its_own(tmp_path: Path) -> None:
    """The same file in another folder is prepared once; messages must not name the first."""
    places, data = [], AnswerData(train="q.csv")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "q.csv").write_text("context,question,answer\nAda sang.,Who?,Ada\n")
        windows = prepare(data, "train", letters(), tmp_path / "cache", 40, tmp_path / folder)
        places.append(windows.question(0).location)
    assert places == ["q.csv:2", "q.csv:2"]


@pytest.mark.parametrize("text", ['{"data": [{"title": "x"', '{"version": 1}', "[]"])
def test_broken_squad_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"dev\.json: not JSON as SQuAD has it"):
        asked(tmp_path / "dev.json", text)


# ── windows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_windows_reach_every_token() -> None:
    for length in (1, 5, 12, 13, 40):
        found = list(split_into_windows(length, 13, 5))
        assert {place for begin, end in found for place in range(begin, end)} == set(range(length))
        assert all(end - begin <= 13 for begin, end in found) and found[-1][1] == length
        assert [begin for begin, _ in found] == list(range(0, 5 * len(found), 5))
        assert all(end < length for _, end in found[:-1])  # none too many


def prepared(place: Path, cache: Path, text: str, tokenizer: Tokenizer, length: int = 31, **options: Any) -> Windows:
    (place / "dev.json").write_text(text, encoding="utf-8")
    return prepare(AnswerData(train="dev.json", **options), "train", tokenizer, cache, length, place)


def test_answers_are_recovered_from_the_rows(tmp_path: Path, cache: Path) -> None:
    tokenizer = letters()
    windows = prepared(tmp_path, cache, json.dumps(SQUAD), tokenizer, 40, stride=7)
    assert windows.questions == 4 and "2 without an answer" in str(windows.report)
    batch, held = collate(windows, range(len(windows))), set()
    for row in range(len(windows)):
        window = windows.window(row)
        question, spans = windows.question(window.question), windows.spans(window.question)
        begin, end = batch.context[row].tolist()
        first, last = int(batch.first[row]), int(batch.last[row])
        tokens = batch.text.tokens[row]
        assert tokens[0] == tokenizer.table["[CLS]"] and batch.text.lengths[row] == end + 1 <= 40
        assert batch.text.segments is not None
        assert batch.text.segments[row].tolist() == [int(begin <= place <= end) for place in range(len(tokens))]
        if window.first == ABSENT:
            assert (first, last) == (0, 0)
            continue
        held.add(window.question)
        start, stop = spans[first - begin + window.begin, 0], spans[last - begin + window.begin, 1]
        assert question.context[start:stop] == question.answers[0].text == "Ada"
        assert tokenizer.decode(tokens[first : last + 1].tolist()) == "ada"
    assert held == {0, 1}
    assert [number for question in range(4) for number in windows.windows_of(question)] == list(range(len(windows)))


def test_an_answer_that_ends_inside_a_token_is_counted(tmp_path: Path, cache: Path) -> None:
    tokenizer = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "books", "who"])
    qas = [{"question": "who", "id": "1", "answers": [{"text": "book", "answer_start": 0}]}]
    text = json.dumps({"data": [{"title": "", "paragraphs": [{"context": "books", "qas": qas}]}]})
    windows = prepared(tmp_path, cache, text, tokenizer)
    assert "1 answers end inside a token" in str(windows.report)
    assert windows.window(0)[1:] == (0, 1, 0, 0)


def test_a_question_that_leaves_no_room_is_counted(tmp_path: Path, cache: Path) -> None:
    windows = prepared(tmp_path, cache, json.dumps(SQUAD), letters(), 19, stride=8)
    assert windows.report.skipped["a question longer than 8 tokens"].count == 2 and windows.questions == 2


def test_batches_do_not_depend_on_the_number_of_pieces_and_the_cache_is_reused(tmp_path: Path, cache: Path) -> None:
    tokenizer = letters()
    windows = prepared(tmp_path, cache, json.dumps(SQUAD), tokenizer, stride=2)
    options = BatchOptions(batch_size=3, seed=5)
    shares = islice(epoch_shares(windows, options, 0, 0, 1), 24)
    numbers = [collate(windows, rows).indices.tolist() for _, rows in shares]
    assert sorted(chain(*numbers[: -(-len(windows) // 3)])) == list(range(len(windows)))
    parts = [[rows for _, rows in islice(epoch_shares(windows, options, 1, rank, 2), 5)] for rank in (0, 1)]
    assert [number for pair in zip(*parts, strict=True) for number in pair] == numbers[2:12]
    folders = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    again = prepared(tmp_path, cache, json.dumps(SQUAD), tokenizer, stride=2)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == folders
    assert all(np.array_equal(again.row(n).tokens, windows.row(n).tokens) for n in range(len(windows)))
    folder = next(iter(folders))
    (folder / "windows.values").write_bytes(b"12345678")  # a full disk
    assert len(prepared(tmp_path, cache, json.dumps(SQUAD), tokenizer, stride=2)) == len(windows)


def test_a_frame_joins_as_the_tokenizer_does() -> None:
    tokenizer = letters()
    for texts in (["one two"], ["one two", "3, four"]):
        encoded, rows = tokenizer.inner.encode(texts[0], *texts[1:]), tokenizer.encode_many(texts)  # type: ignore[arg-type]
        placed = special_tokens_of(tokenizer, len(texts)).wrap(*rows)
        assert placed.tokens.tolist() == encoded.ids and placed.segments.tolist() == encoded.type_ids


def test_windows_are_those_of_the_reference(tmp_path: Path, cache: Path) -> None:
    """Rows, segments and offsets of real questions equal those of transformers' tokenizer."""
    pytest.importorskip("transformers")
    from transformers import PreTrainedTokenizerFast

    path = Path(os.environ.get("REGARD_DATA", "nowhere")) / "squad" / "train-v1.1.paragraphs.jsonl.gz"
    need(path.is_file(), "set REGARD_DATA to a folder with squad")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        (tmp_path / "some.jsonl").write_text("".join(islice(file, 40, 52)), encoding="utf-8")
    tokenizer, length, stride = wordpiece(bert_vocabulary()), 101, 37
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.inner)
    data = AnswerData(train="some.jsonl", stride=stride)
    found = list(read(data, "train", tmp_path))
    windows = prepare(data, "train", tokenizer, cache, length, tmp_path)
    assert windows.questions == len(found) > 20 and len(windows) > 2 * len(found)
    for number, question in enumerate(found):
        room = length - 3 - len(tokenizer.encode(question.text))
        wanted = theirs(
            question.text,
            question.context,
            truncation="only_second",
            max_length=length,
            stride=room - stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        mine, spans = windows.windows_of(number), windows.spans(number)
        assert [windows.row(window).tokens.tolist() for window in mine] == wanted["input_ids"]
        assert [windows.row(window).segments.tolist() for window in mine] == wanted["token_type_ids"]
        for window, offsets in zip(map(windows.window, mine), wanted["offset_mapping"], strict=True):
            assert spans[window.begin : window.end].tolist() == [list(each) for each in offsets[-len(spans[window.begin : window.end]) - 1 : -1]]  # fmt: skip  # noqa: E501


def test_characters_to_tokens() -> None:
    spans = np.array([[0, 3], [3, 3], [4, 9], [10, 11]])
    assert token_span(spans, 0, 3) == (0, 0)
    assert token_span(spans, 5, 11) == (2, 3)
    assert token_span(spans, 3, 4) is None


# ── scores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def exhaustive(seen: WindowLogits, longest: int) -> list[tuple[float, int, int]]:
    found = [
        (seen.first[begin] + seen.last[end], begin - seen.begin + seen.offset, end - seen.begin + seen.offset)
        for begin in range(seen.begin, seen.end)
        for end in range(begin, min(seen.end, begin + longest))
    ]
    return sorted(found, reverse=True)


def without_overlaps(spans: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    taken: list[tuple[float, int, int]] = []
    for score, first, last in sorted(spans, reverse=True):
        if all(first > other[2] or last < other[1] for other in taken):
            taken.append((score, first, last))
    return taken


def test_best_spans_equal_trying_all() -> None:
    chance = np.random.default_rng(2)
    windows = [WindowLogits(chance.normal(size=19), chance.normal(size=19), 4, 18, offset) for offset in (0, 6)]
    for seen in windows:
        wanted = without_overlaps(exhaustive(seen, 5))
        assert len(wanted) > 3
        np.testing.assert_allclose(best_spans(seen, 999, 5), wanted)  # all there are
        np.testing.assert_allclose(best_spans(seen, 3, 5), wanted[:3])
    found = best_of(windows, 6, 5)
    wanted = without_overlaps([span for seen in windows for span in without_overlaps(exhaustive(seen, 5))])
    np.testing.assert_allclose(found.spans, wanted[:6])
    np.testing.assert_allclose(found.spans[0], max(chain(*(exhaustive(seen, 5) for seen in windows))))
    np.testing.assert_allclose(best_of(windows, 1, 5).spans, found.spans[:1])
    assert found.null_score == min(seen.first[0] + seen.last[0] for seen in windows)


def test_no_answer_is_predicted_beyond_the_threshold() -> None:
    first, last = np.array([2.0, 0.0, 3.0, 1.0]), np.array([2.5, 0.0, 0.5, 1.0])
    found = best_of([WindowLogits(first, last, 2, 4, 0)])
    spans, context = np.array([[0, 3], [4, 7]]), "one two"
    assert found.margin == pytest.approx(0.5)
    assert rank_answers(found, spans, context)[0][::2] == ("one two", 0)
    assert (
        rank_answers(found, spans, context, 0.4)[0].text == ""
        and rank_answers(found, spans, context, 0.6)[0].text == "one two"
    )
    told = rank_answers(found, spans, context, 0.0)
    assert sum(each.score for each in told) == pytest.approx(1) and len(told) == 2
    assert told[0].score / told[1].score == pytest.approx(np.exp(0.5))


def test_squad_scores_computed_by_hand() -> None:
    assert normalise("The  Great, (a) Wall!") == "great wall"
    assert exact("an apple", ["Apple."]) == 1 and exact("apples", ["apple"]) == 0
    assert f1("the big red apple", ["red apple", "banana"]) == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert f1("red red", ["red apple red"]) == pytest.approx(0.8)
    assert f1("", []) == exact("", []) == 1 and f1("x", []) == exact("x", []) == 0 and f1("", ["x"]) == 0
    assert exact("", ["the"]) == 1  # a gold that normalises to nothing is none, as in SQuAD 2.0's script
    found = report(["apple", "", "wrong", "x y"], [["an apple"], [], [], ["x"]])
    values = {score.name: score.value for score in found["scores"]}
    assert values["exact_match"] == 50 and values["f1"] == pytest.approx((100 + 100 + 0 + 200 / 3) / 4)
    assert found["unanswerable"] == {"questions": 2, "exact_match": 50, "f1": 50}


def test_the_best_threshold_equals_trying_all() -> None:
    chance = np.random.default_rng(4)
    for _ in range(20):
        margins, answerable = chance.integers(-5, 6, 17).astype(float), chance.random(17) < 0.5
        scores = np.where(answerable, chance.random(17), 0.0)

        def mean(threshold: float) -> float:
            given = np.where(margins > threshold, ~answerable, scores)  # noqa: B023
            return 100 * float(given.mean())

        threshold, score = best_threshold(margins.tolist(), scores.tolist(), answerable.tolist())
        assert score == pytest.approx(mean(threshold))
        assert score == pytest.approx(max(mean(each) for each in [-9.0, *margins]))


def test_questions_may_be_in_many_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        row = {"question": f"Who is {name}?", "context": f"{name} sang.", "answers": [name]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    found = list(questions(tmp_path / "*.jsonl", AnswerData()))
    assert [each.text for each in found] == ["Who is a?", "Who is b?"]
    assert [Path(each.location.rsplit(":", 1)[0]).name for each in found] == ["a.jsonl", "b.jsonl"]
