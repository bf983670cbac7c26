"""Invariants of in-context data: pure streams, disjoint splits, answers from the examples only, the optimum."""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import islice, permutations, product
from pathlib import Path

import pytest

from regard.data.synthetic.in_context import (
    DATASETS,
    LABELS,
    LESSONS,
    MODULUS,
    PAIRS,
    TEMPLATE,
    VERBS,
    WORDS,
    Pair,
    completion,
    document,
    draw_linear,
    in_context_dataset,
    prompt,
    questions,
    rows,
    tasks,
    write_rows,
)
from regard.data.synthetic.pairs import SPLITS
from regard.errors import UserError

NAMES = sorted(LESSONS)
Rule = tuple[str, ...]  # what a task answers to each of its inputs


def read(text: str, name: str = "mappings") -> list[Pair]:
    """An independent reader of a lesson's template."""
    between = " " if name == "colours" else " → "
    return [Pair(*line.split(between)) for line in text.splitlines()]


def rules(name: str) -> list[Rule]:
    """Every task there is over fixed inputs: all that an ideal learner must choose among."""
    if name in ("mappings", "colours"):
        return list(permutations(LABELS))
    return [
        tuple(str((a * x + b) % MODULUS) for x in range(MODULUS)) for a in range(1, MODULUS) for b in range(MODULUS)
    ]


def best_guess(possible: Iterable[Rule], question: int) -> float:
    """How likely the likeliest answer is when every possible rule is as likely."""
    answers = Counter(rule[question] for rule in possible)
    return max(answers.values()) / answers.total()


@pytest.mark.parametrize(("name", "shots"), [*(("mappings", n) for n in range(6)), *(("linear", n) for n in range(3))])
def test_the_optimum_is_that_of_enumerating_every_rule(name: str, shots: int) -> None:
    every = rules(name)
    true, inputs = every[5], range(len(every[5]))  # all rules are alike but for names
    seen = Counter(frozenset(shown) for shown in product(inputs, repeat=shots))
    accuracy = 0.0
    for shown, times in seen.items():
        possible = [rule for rule in every if all(rule[x] == true[x] for x in shown)]
        accuracy += times * sum(best_guess(possible, question) for question in inputs)
    assert LESSONS[name].ideal(shots) == pytest.approx(accuracy / seen.total() / len(inputs))


@pytest.mark.parametrize("name", NAMES)
def test_the_bayes_optimal_accuracy_rises_from_chance_to_nine_tenths_at_eight_shots(name: str) -> None:
    ideal = LESSONS[name].ideal
    labels = {pair.label for pair in next(tasks(name, 1, "test", 1)).pairs}
    assert ideal(0) == pytest.approx(1 / len(labels))
    assert all(ideal(shots) < ideal(shots + 1) for shots in range(8))
    assert ideal(8) >= 0.9


def test_lookup_alone_nearly_reaches_the_optimum_of_mappings() -> None:
    """What an induction head can do: copy the answer after the same word, else a random one."""
    every_question = list(questions("mappings", 3, "test", 1009, 8))
    hits = 0.0
    for question in every_question:
        *shown, text = question.prompt.splitlines()
        known = {pair.text.split()[0]: pair.label for pair in read("\n".join(shown))}
        guess = known.get(text.split()[0])
        hits += 1 / len(LABELS) if guess is None else guess == question.label
    assert 0.9 < hits / len(every_question) < LESSONS["mappings"].ideal(8)


@pytest.mark.parametrize("name", NAMES)
def test_a_document_never_contradicts_itself_and_documents_do(name: str) -> None:
    among: dict[str, set[str]] = {}
    for text in DATASETS[name].documents(1, "train", 307):
        pairs = read(text, name)
        assert len(pairs) == PAIRS
        assert document(pairs, LESSONS[name].template) == text
        inside: dict[str, str] = {}
        for pair in pairs:
            cue = pair.text.split()[0]
            assert inside.setdefault(cue, pair.label) == pair.label
            among.setdefault(cue, set()).add(pair.label)
    assert all(len(labels) > 1 for labels in among.values())


def test_no_word_is_of_one_colour_more_than_of_another() -> None:
    pairs = [pair for task in tasks("mappings", 2, "train", 5003) for pair in task.pairs[:: len(VERBS)]]
    counts = Counter((pair.text.split()[0], pair.label) for pair in pairs)
    expected = len(pairs) / len(WORDS) / len(LABELS)
    assert len(counts) == len(WORDS) * len(LABELS)
    assert all(abs(count - expected) < 6 * expected**0.5 for count in counts.values())


@pytest.mark.parametrize("name", NAMES)
def test_splits_never_share_a_task_whatever_the_seeds(name: str) -> None:
    train, validation, test = (
        {task.key for seed in (1, 2, 3) for task in tasks(name, seed, split, 307)} for split in SPLITS
    )
    assert train
    assert validation
    assert test
    assert not train & (validation | test)
    assert not validation & test


def test_the_lines_are_lines() -> None:
    for number in range(101):
        task = draw_linear(random.Random(number))
        a, b = map(int, task.key.split())
        assert [int(pair.label) for pair in task.pairs] == [(a * int(pair.text) + b) % MODULUS for pair in task.pairs]
        assert len({pair.label for pair in task.pairs}) == MODULUS


@pytest.mark.parametrize("name", [*sorted(DATASETS), "sql"])
def test_a_stream_is_a_pure_function_and_a_prefix_of_a_longer_one(name: str) -> None:
    make = in_context_dataset(name).documents
    assert list(make(5, "train", 31)) == list(make(5, "train", 31)) == list(islice(make(5, "train", 10**12), 31))
    assert list(make(5, "train", 31)) != list(make(6, "train", 31))
    assert list(make(5, "train", 0)) == []
    with pytest.raises(UserError, match="did you mean 'validation'"):
        next(make(5, "validatoin", 1))


@pytest.mark.parametrize("name", [*sorted(DATASETS), "sql"])
def test_a_stream_is_the_same_in_another_process_and_needs_no_torch(name: str) -> None:
    code = "from regard.data.synthetic.in_context import in_context_dataset"
    code += f"; print(list(in_context_dataset({name!r}).documents(5, 'test', 7)))"
    code += "; import sys; assert 'torch' not in sys.modules"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(list(in_context_dataset(name).documents(5, "test", 7)))


@pytest.mark.parametrize("name", NAMES)
def test_more_shots_are_inserted_and_change_no_question(name: str) -> None:
    few, many = (list(questions(name, 3, "test", 53, shots)) for shots in (2, 5))
    for first, second in zip(few, many, strict=True):
        assert (first.label, first.labels) == (second.label, second.labels)
        *shown, question = first.prompt.splitlines()
        assert second.prompt.splitlines()[:2] == shown
        assert second.prompt.splitlines()[5:] == [question]
        assert first.label in first.labels


def test_prompt_and_completion_are_the_document() -> None:
    pairs = [Pair("gub sleeps", "red"), Pair("a {label} → b", "{text}"), Pair("zaf", "light blue")]
    for template in (TEMPLATE, "Review: {text}\nLabel: {label}\n\n", "{text}={label};"):
        *shots, last = pairs
        question = prompt(shots, last.text, template)
        assert question + completion(last.label, template) == document(pairs, template)
        assert not question.endswith(" ")


def test_rows_are_a_labelled_file_of_one_task(tmp_path: Path) -> None:
    task = next(tasks("mappings", 1, "test", 1))
    assert rows(task) == rows(task) != rows(task, seed=2)
    assert Counter(rows(task)) == Counter(task.pairs)
    assert set(Counter(pair.label for pair in rows(task)).values()) == {len(VERBS)}
    write_rows(tmp_path / "task.jsonl", rows(task))
    read_back = [json.loads(line) for line in (tmp_path / "task.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [Pair(**row) for row in read_back] == rows(task)
