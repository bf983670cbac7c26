"""Examples in a prompt: shots that never give the question away, accuracies computed by hand, and clear refusals."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.cli.evaluate import draw_chart
from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe, TokenizerOptions
from regard.data.synthetic.in_context import TEMPLATE, Pair, Question, document
from regard.errors import UserError
from regard.layers.pytree import State
from regard.tasks.generate.few_shot import (
    Benchmark,
    FewShotOptions,
    benchmark_of,
    curve,
    evaluate,
    parse_shots,
    template_of,
)
from regard.tasks.generate.prompting import (
    accuracy,
    by_generation,
    by_likelihood,
    draw_questions,
    max_tokens,
    read_pairs,
    reject_long,
)
from regard.tasks.generate.text_generator import TextGenerator
from regard.text.tokenizer import Tokenizer
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary
from road.text_to_sql import items as sql
from road.text_to_sql.dataset import CATEGORIES

LABELS = ("blue", "gold", "red")
PAIRS = [Pair(f"w{number} x", LABELS[number * number % 3]) for number in range(17)]  # red is never a square's rest


def tokenizer(*texts: str) -> Tokenizer:
    return train_tokenizer(iter([*texts] * 3), TokenizerOptions(kind="byte_bpe", vocab_size=400))


WORDS = tokenizer(document(PAIRS), " red")


class Fixed(nn.Module):
    """A network whose logits are a function of the tokens so far, `favour(tokens) → the token that it expects`."""

    def __init__(self, size: int, favour: Any, limit: int = 200):
        super().__init__()
        self.size, self.favour, self.max_positions = size, favour, limit
        self.weight = nn.Parameter(torch.zeros(1))
        self.output = nn.Identity()

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        before = state.hypothesis[0] if state.hypothesis else tokens[:, :0]
        whole = torch.cat([before, tokens], 1)
        logits = torch.zeros(*whole.shape, self.size)
        for row, line in enumerate(whole.tolist()):
            for place in range(len(line)):
                logits[row, place, self.favour(line[: place + 1])] += 9
        return logits[:, before.size(1) :], State(None, (whole,))

    def start(self, source: Any) -> State:
        gap = int(source.lengths.max()) - source.lengths
        assert not gap.any()
        return State(None, (source.tokens[:, :-1],))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self.decode(tokens, state)


def label_token(label: str, words: Tokenizer = WORDS) -> int:
    (token,) = words.encode(f" {label}")
    return token


def last_label(tokens: list[int]) -> int:
    """Predicts the last label, as a model that uses only the nearest example; else the reference."""
    known = [label_token(label) for label in LABELS]
    return next((token for token in reversed(tokens) if token in known), label_token("gold"))


def writes_last_label(tokens: list[int]) -> int:
    """The same, and a line break behind it."""
    known = [label_token(label) for label in LABELS]
    return WORDS.encode("\n")[0] if tokens[-1] in known else last_label(tokens)


def shown(question: Question) -> list[Pair]:
    """An independent reader of the shots in a prompt."""
    return [Pair(*line.split(" → ")) for line in question.prompt.splitlines()[:-1]]


def model(network: Any, words: Tokenizer = WORDS, recipe: Recipe | None = None) -> Any:
    predictor = SimpleNamespace(text_generator=lambda: TextGenerator(network, words, words.end))
    vocabulary = Vocabulary(words, words)
    return SimpleNamespace(network=network, processor=vocabulary, predictor=lambda task: predictor, recipe=recipe)


def exam(shots: str = "0", **options: Any) -> Benchmark:
    return benchmark_of(None, "rows.jsonl", FewShotOptions(shots=shots, **options))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in PAIRS), encoding="utf-8")
    return path


# ── shots ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shots", [0, 1, 5, 16])
def test_shots_are_other_rows_each_once_and_never_the_question(shots: int) -> None:
    found = list(draw_questions(PAIRS, shots, seeds=3))
    assert len(found) == 3 * len(PAIRS)
    for number, question in enumerate(found):
        asked = PAIRS[number // 3]
        assert question.prompt.splitlines()[-1] == f"{asked.text} →"
        assert (question.label, question.labels) == (asked.label, ("blue", "gold"))
        assert len(set(shown(question))) == shots
        assert set(shown(question)) <= set(PAIRS) - {asked}


def test_a_copy_of_the_question_is_no_shot() -> None:
    twins = [Pair("same", "red"), Pair("same", "blue"), Pair("other", "red"), Pair("third", "blue")]
    for question in draw_questions(twins, 2, seeds=11):
        assert question.prompt.splitlines()[-1].removesuffix(" →") not in {pair.text for pair in shown(question)}


def test_more_shots_come_behind_and_change_no_question() -> None:
    few, many = (list(draw_questions(PAIRS, shots, limit=7, seeds=2)) for shots in (3, 9))
    assert len(few) == 14
    for first, second in zip(few, many, strict=True):
        assert shown(second)[:3] == shown(first)
        assert first.prompt.splitlines()[-1] == second.prompt.splitlines()[-1]


def test_each_seed_has_other_shots_and_is_the_same_again() -> None:
    found = list(draw_questions(PAIRS, 5, seeds=3))
    assert found == list(draw_questions(PAIRS, 5, seeds=3))
    assert all(len({question.prompt for question in found[begin : begin + 3]}) == 3 for begin in range(0, 51, 3))


def test_shots_are_drawn_evenly() -> None:
    counts = Counter(pair for question in draw_questions(PAIRS, 4, seeds=101) for pair in shown(question))
    expected = 101 * 4
    assert all(abs(counts[pair] - expected) < 5 * expected**0.5 for pair in PAIRS)


def test_a_template_of_ones_own() -> None:
    template = "Text: {text}\nLabel: {label}\n\n"
    question = next(draw_questions(PAIRS, 1, template=template))
    assert re.fullmatch(r"Text: w\d+ x\nLabel: \w+\n\nText: w0 x\nLabel:", question.prompt)


def test_breaks_and_tabs_may_be_typed() -> None:
    assert template_of(r"{text}\t{label}\n\n") == "{text}\t{label}\n\n"
    assert template_of("") == TEMPLATE


@pytest.mark.parametrize(
    "given", ["{label} {text}", "{text}", "{text} {label} {label}", "{text} {lable}", "{} {}", "{text} {label"]
)
def test_a_template_has_a_text_and_then_a_label(given: str) -> None:
    with pytest.raises(UserError, match=r"expected \{text\} and then \{label\}"):
        template_of(given)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shots", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [1, 32])
def test_the_most_probable_label_is_the_answer(shots: int, batch_size: int) -> None:
    found = list(draw_questions(PAIRS, shots, seeds=2))
    network: Any = Fixed(WORDS.size, last_label)
    answers = by_likelihood(network, WORDS, found, batch_size=batch_size)
    assert answers == [shown(question)[-1].label if shots else "gold" for question in found]


def test_greedy_generation_gives_the_same_answers_here() -> None:
    found = list(draw_questions(PAIRS[:10], 3, seeds=2))
    network: Any = Fixed(WORDS.size, writes_last_label)
    writer = TextGenerator(network, WORDS, WORDS.end)
    assert by_generation(writer, found, batch_size=1) == [shown(question)[-1].label for question in found]


def test_a_label_that_begins_another_is_not_half_of_it() -> None:
    """Without its end "no" would be at least as probable as "no way"; with it, the full completion counts."""
    words = tokenizer("a → no\n", "a → no way\n")
    way, no = label_token("way", words), label_token("no", words)
    (end,) = words.encode("\n")
    network: Any = Fixed(words.size, lambda tokens: {no: way, way: end}.get(tokens[-1], no))
    question = Question("a →", "no way", ("no", "no way"))
    assert by_likelihood(network, words, [question]) == ["no way"]


def test_a_token_across_the_border_counts_for_every_option() -> None:
    """ "==" is one token and "=" another: both options are then scored from the token before on."""
    words, template = tokenizer("is==; is=red; =="), "{text}={label};"
    (double,) = words.encode("==")
    network: Any = Fixed(words.size, lambda tokens: double)
    assert by_likelihood(network, words, [Question("is=", "=", ("=", "red"))], template) == ["="]


def test_accuracies_over_shots_are_those_computed_by_hand(rows: Path) -> None:
    found = evaluate(model(Fixed(WORDS.size, last_label)), exam(seeds=2), [0, 1, 4], batch_size=8)
    assert (found["rows"], found["labels"], found["chance"]) == (17, 2, 50.0)
    share = sum(pair.label == "gold" for pair in PAIRS) / len(PAIRS)
    assert found["majority_baseline"] == pytest.approx(100 * max(share, 1 - share))
    for row in found["shots"]:
        questions = list(draw_questions(PAIRS, row["shots"], seeds=2))
        right = [(shown(each)[-1].label if row["shots"] else "gold") == each.label for each in questions]
        assert row["accuracy"] == pytest.approx(100 * np.mean(right), abs=0.01)
        assert row["answers"] == 34
        assert 0 < row["interval"] < 50


def test_generation_end_to_end(rows: Path) -> None:
    few = exam(seeds=1, limit=9, by="generation")
    found = evaluate(model(Fixed(WORDS.size, writes_last_label)), few, [3], batch_size=1)
    right = [shown(each)[-1].label == each.label for each in draw_questions(PAIRS, 3, limit=9)]
    assert found["shots"][0]["accuracy"] == pytest.approx(100 * np.mean(right), abs=0.01)


# ── intervals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_interval_is_that_of_so_many_independent_answers() -> None:
    hits = [True] * 60 + [False] * 40
    percent, interval = accuracy(hits)
    assert percent == 60
    assert interval == pytest.approx(1.96 * (0.6 * 0.4 / 100) ** 0.5 * 100, rel=0.1)
    assert accuracy([True] * 7) == (100, 0)


def test_a_repeated_row_does_not_narrow_the_interval() -> None:
    hits = [True] * 60 + [False] * 40
    thrice = [hit for hit in hits for _ in range(3)]
    assert accuracy(thrice, seeds=3) == accuracy(hits)
    assert accuracy(thrice, seeds=1)[1] < 0.7 * accuracy(hits)[1]


# ── synthetic data ────────────────────────────────────────────────────────────────────────────────────────────────


def made(name: str, **data: Any) -> Recipe:
    return Recipe(task="generate", output="", data=DocumentOptions(train=10, synthetic=name, **data))


def test_sequences_have_a_new_task_each_time() -> None:
    found = benchmark_of(made("mappings", test=23), None, FewShotOptions(shots="2", seeds=2))
    questions = found.questions(2)
    assert len(questions) == 46
    assert len({question.prompt for question in questions}) == 46
    assert found.facts["chance"] == 25
    assert [found.ideal(shots)[""] for shots in (0, 1)] == [0.25, 0.5]
    assert len(benchmark_of(made("linear", test=23), None, FewShotOptions(limit=5, seeds=1)).items(0)) == 5


def test_queries_are_right_when_they_give_the_same_rows() -> None:
    found = benchmark_of(made("sql"), None, FewShotOptions(limit=40, seeds=1))
    assert found.by == "generation"
    asked = found.items(2)
    for each, item in zip(asked, sql.items(1, "test", 40, 2), strict=True):
        assert each.is_correct(f" {item.gold}\nand more")
        assert not each.is_correct(" SELECT 1 ;")
        assert each.category == (CATEGORIES[2] if not item.own else CATEGORIES[0] if item.determined else CATEGORIES[1])
    ideal = found.ideal(0)
    assert (ideal[""], ideal[CATEGORIES[1]]) == (0.625, 0.25)
    assert {each.category for each in found.items(0)} == set(CATEGORIES[1:])


def test_question_types_are_scored_separately() -> None:
    words = tokenizer(*sql.documents(1, "train", 20))
    found = evaluate(
        model(Fixed(words.size, lambda tokens: words.end, limit=2000), words),
        benchmark_of(made("sql"), None, FewShotOptions(limit=12, seeds=1)),
        [1],
        batch_size=1,
    )
    assert sum(row["answers"] for row in found["categories"]) == 12
    assert all(row["accuracy"] == 0 for row in found["categories"])


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_column_is_named_with_the_nearest(rows: Path) -> None:
    with pytest.raises(UserError, match="no column 'lable'; did you mean 'label'"):
        read_pairs("rows.jsonl", "text", "lable")


def test_other_columns_and_tabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.tsv").write_text("review\tstars\tid\ngood\tfive\t1\nbad\tone\t2\n")
    assert read_pairs("rows.tsv", "review", "stars") == [Pair("good", "five"), Pair("bad", "one")]
    with pytest.raises(UserError, match="no column 'text'"):
        read_pairs("rows.tsv")


def test_a_blank_label_and_one_label_only_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blank.jsonl").write_text('{"text": "a", "label": "b"}\n{"text": "c", "label": " "}\n')
    with pytest.raises(UserError, match=r"blank.jsonl:2: 'label' is blank"):
        read_pairs("blank.jsonl")
    Path("one.jsonl").write_text('{"text": "a", "label": "b"}\n{"text": "c", "label": "b"}\n')
    with pytest.raises(UserError, match="every row has the label 'b'"):
        read_pairs("one.jsonl")


def test_more_shots_than_rows_are_refused() -> None:
    with pytest.raises(UserError, match="--shots 17: not enough examples: only 16 of the 17 rows differ"):
        next(draw_questions(PAIRS, 17))


def test_the_error_of_a_long_prompt_states_how_many_shots_fit(rows: Path) -> None:
    few = exam()
    sizes = {shots: max_tokens(WORDS, few.questions(shots), TEMPLATE) for shots in range(10)}
    network = Fixed(WORDS.size, last_label, limit=sizes[6])
    with pytest.raises(
        UserError, match=rf"--shots 9: .* up to {sizes[9]} tokens, .* context is {sizes[6]}; --shots 6 fits"
    ):
        evaluate(model(network), few, [0, 9])
    assert evaluate(model(network), few, [6])["shots"][0]["shots"] == 6
    with pytest.raises(UserError, match="even a question alone does not fit"):
        reject_long(3, 2, lambda shots: 10 + shots)


@pytest.mark.parametrize("given", ["", "a", "1,,2", "-1", "1;2"])
def test_shots_are_whole_numbers(given: str) -> None:
    with pytest.raises(UserError, match="such as 0,1,2,4,8"):
        parse_shots(given)


def test_numbers_of_shots_are_in_order_and_once() -> None:
    assert parse_shots("4,0,1, 4") == [0, 1, 4]


def test_contradicting_options_are_refused(rows: Path) -> None:
    with pytest.raises(UserError, match="--by likelyhood is unknown; did you mean 'likelihood'"):
        exam(by="likelyhood")
    with pytest.raises(UserError, match="--shots needs a FILE with the columns text and label"):
        benchmark_of(None, None, FewShotOptions(shots="1"))
    with pytest.raises(UserError, match="--template is for a FILE"):
        benchmark_of(made("mappings"), None, FewShotOptions(template="{text}"))
    with pytest.raises(UserError, match="--by likelihood needs labels"):
        benchmark_of(made("sql"), None, FewShotOptions(by="likelihood"))


def test_the_curve_shows_accuracy_optimum_and_chance(tmp_path: Path) -> None:
    shots = [{"shots": n, "accuracy": 25.0 + n, "interval": 2.0, "ideal": 30.0 + n} for n in (0, 1, 4)]
    draw_chart(tmp_path / "curve.svg", curve("mine", {"shots": shots, "chance": 25.0}))
    text = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "mine: 0 → 25.0, 1 → 26.0, 4 → 29.0; Bayes-optimal: 0 → 30.0" in text
    assert text.count("<polyline") == 3
    assert text.count("<polygon") == 1
