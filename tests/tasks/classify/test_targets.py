"""Targets of every problem type: multi-label, regression, class weights, stratified splits; and their metrics."""

import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import vocabulary
from encoders import letters
from needs import need

from regard.data.files import find
from regard.data.pairs import PairDataset
from regard.data.sampler import BatchOptions, epoch_shares
from regard.data.splits.hashed import split_of
from regard.data.splits.stratified import shares, stratified_split
from regard.data.targets import MultiLabelTargets, RegressionTargets, SingleLabelTargets, targets_of
from regard.errors import UserError
from regard.metrics import classification as marks
from regard.metrics.correlation import pearson, ranks, report, spearman, squared_error
from regard.tasks.classify.files import learn_labels, learn_scale, read
from regard.tasks.classify.options import ClassifyData
from regard.tasks.classify.texts import Encoders, PairEncoder, prepare
from regard.text.special_tokens import with_end_token


def sides(targets: Any) -> Encoders:
    return Encoders(PairEncoder(with_end_token(vocabulary(53).target)), targets)


def corpus(data: ClassifyData, targets: Any, place: Path, cache: Path) -> PairDataset:
    return prepare(data, "train", sides(targets), cache, 64, place)


def test_several_labels_from_columns_and_lists(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\nb|a\tw1\n\tw2\n a |c|a\tw3\n")
    lines = [{"label": ["b", "a"], "text": "w1"}, {"label": [], "text": "w2"}, {"label": ["a", "c"], "text": "w3"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name in ("a.tsv", "a.jsonl"):
        data = ClassifyData(train=name, problem_type="multi_label", label_separator="|")
        labels = learn_labels(data, tmp_path)
        assert labels == ("a", "b", "c")
        dataset = corpus(data, targets_of("multi_label", labels), tmp_path, cache)
        encoded = MultiLabelTargets(labels).tensor([dataset.target(index) for index in range(3)])
        assert encoded.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1]] and encoded.dtype == torch.float32


def test_numbers(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\n3.25\tw1\n-1e-3\tw2\n4\tw3\n\tw4\n")
    (tmp_path / "a.jsonl").write_text("\n".join(f'{{"label": {x}, "text": "w{x}"}}' for x in (3.25, -0.001, 4)))
    for name in ("a.tsv", "a.jsonl"):
        data = ClassifyData(train=name, problem_type="regression")
        assert learn_scale(data, tmp_path) == (pytest.approx((3.25 - 0.001 + 4) / 3), 2.0)  # deviation 1.73
        found = corpus(data, RegressionTargets(), tmp_path, cache)
        labels = RegressionTargets().tensor([found.target(index) for index in range(3)])
        assert labels.tolist() == pytest.approx([3.25, -0.001, 4])
        _, indices = next(epoch_shares(found, BatchOptions(batch_size=3), 0, 0, 1))
        labels = RegressionTargets().tensor([found.target(index) for index in indices])
        assert sorted(labels.tolist()) == pytest.approx([-0.001, 3.25, 4])


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (
            "regression",
            "label\ttext\n1\tw1\ngood\tw2\n",
            r"a\.tsv:3: label 'good': .* 'regression' needs numbers",
        ),
        (
            "regression",
            "label\ttext\n1\tw1\nnan\tw2\n",
            r"a\.tsv:3: label 'nan': .* 'regression' needs numbers",
        ),
        (
            "single_label",
            "label\ttext\na\tw1\nz\tw2\n",
            r"a\.tsv:3: unknown label 'z'; the model was trained with: a, b",
        ),
        ("multi_label", "label\ttext\na,b\tw1\na,z\tw2\n", r"a\.tsv:3: unknown label 'z'; the model was trained with"),
        ("multi_label", 'label\ttext\n["a", 1.5]\tw1\n', r"a\.tsv:2: label \[\"a\", 1\.5\]: expected a JSON list of"),
    ],
)
def test_labels_that_cannot_be_are_refused(tmp_path: Path, cache: Path, kind: Any, text: str, said: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(UserError, match=said):
        corpus(ClassifyData(train="a.tsv", problem_type=kind), targets_of(kind, ("a", "b")), tmp_path, cache)


@pytest.mark.parametrize(
    ("kind", "label"),
    [("single_label", '["a"]'), ("single_label", "1.5"), ("multi_label", "1.5"), ("regression", "[1]")],
)
def test_json_of_another_type_is_an_error(tmp_path: Path, cache: Path, kind: Any, label: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "w1", "label": {label}}}')
    with pytest.raises(UserError, match=r"a\.jsonl:1: 'label': expected a string, found a (list|float)"):
        corpus(ClassifyData(train="a.jsonl", problem_type=kind), targets_of(kind, ("a", "b")), tmp_path, cache)


def test_balanced_weights(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "".join(f"{x}\tw{n}\n" for n, x in enumerate("aaabaacaa")))
    labels = SingleLabelTargets("abc")
    weights = labels.balanced_weights(corpus(ClassifyData(train="a.tsv"), labels, tmp_path, cache))
    assert weights.tolist() == pytest.approx([9 / 21, 3, 3])
    sets = MultiLabelTargets("abc")
    data = ClassifyData(train="a.tsv", problem_type="multi_label")
    assert sets.balanced_weights(corpus(data, sets, tmp_path, cache)).tolist() == pytest.approx([2 / 7, 8, 8])


def test_pairs_have_the_segments_of_their_tokenizer(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\ttext2\na\tone two\tthree\nb\tc\tde f\n")
    data, tokenizer = ClassifyData(train="a.tsv", text_pair="text2"), letters()
    both = Encoders(PairEncoder(tokenizer, paired=True), SingleLabelTargets("ab"))
    dataset = prepare(data, "train", both, cache, 64, tmp_path)
    batch = both.source.sequences([dataset.source(index) for index in (0, 1)])
    wanted = [tokenizer.inner.encode(*pair) for pair in (("one two", "three"), ("c", "de f"))]
    assert batch.segments is not None and batch.segments.shape == batch.tokens.shape
    for row, encoded in enumerate(wanted):
        assert batch.tokens[row, : len(encoded.ids)].tolist() == encoded.ids
        assert batch.segments[row, : len(encoded.ids)].tolist() == encoded.type_ids
    alike = PairEncoder(with_end_token(vocabulary(53).target), paired=True)
    assert alike.sequences(alike.rows([("w1", "w2")])).segments is None


# ── held-out splits ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_label_has_its_share(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    rows = [(f"w{chance.integers(400)}", chance.choice(list("aaaaaaaabbc"))) for _ in range(700)]

    def parts(rows: list) -> dict[str, Counter]:
        (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
        data = ClassifyData(train="a.tsv", validation=0.2, test=0.1, stratify=True)
        return {
            part: Counter((each.source, each.target) for each in read(data, part, tmp_path))
            for part in ("train", "validation", "test")
        }

    found = parts(rows)
    assert sum(found.values(), Counter()) == Counter(rows)
    texts = {part: {text for text, _ in each} for part, each in found.items()}
    assert not texts["train"] & texts["validation"] and not texts["train"] & texts["test"]
    assert not texts["validation"] & texts["test"]
    own = dict(sorted(((text, label) for text, label in rows), reverse=True))  # the least label of a text
    for label in "abc":
        groups = {text for text, called in own.items() if called == label}
        assert len(groups & texts["validation"]) == round(0.2 * len(groups)) > 0
        assert len(groups & texts["test"]) == round(0.1 * len(groups)) > 0
    chance.shuffle(rows)
    assert parts([tuple(row) for row in rows]) == found  # the order of the file does not matter


def test_something_is_left_to_train_on() -> None:
    assert list(shares([1, 2, 10], 0.6, 0.3)) == [(0, 0), (1, 0), (7, 2)]
    assert stratified_split([], 0.5, 0.2).split_of("x") == "train"


def test_rare_labels_have_their_share_together() -> None:
    """Four texts of each of 150 labels: a tenth of a label is nothing, a tenth of all is sixty."""
    chosen = stratified_split(
        ((f"{label} {number}", f"l{label:03}") for label in range(150) for number in range(4)), 0.1, 0.1
    )
    assert len(chosen.validation) == len(chosen.test) == 60
    many = stratified_split(
        ((f"w{number}", f"{number}{'x' * 20_000 * (number == 7)}") for number in range(3000)), 0.2, 0.1
    )
    assert not len(many.validation) + len(many.test)  # one text each: all are left to train on


def test_a_column_without_labels_is_an_error_before_splitting(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"w{number}\tl{number}\n" for number in range(10_002)))
    data = ClassifyData(train="a.tsv", validation=0.2, stratify=True)
    with pytest.raises(UserError, match=r"a\.tsv:10002: over 10,000 different labels.*data\.label"):
        next(read(data, "validation", tmp_path))


@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
def test_a_label_that_only_a_held_out_split_has_is_known(tmp_path: Path, kind: str) -> None:
    rows = [f"w{number}\t{'ab'[number % 2]}" for number in range(60)]
    held = next(f"w{number}" for number in range(60, 999) if split_of(f"w{number}", 0.2, 0) == "validation")
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *rows, f"{held}\tz"]) + "\n")
    data = ClassifyData(train="a.tsv", validation=0.2, problem_type=kind, stratify=False)  # type: ignore[arg-type]
    assert not any("z" in record.target for record in read(data, "train", tmp_path))
    assert learn_labels(data, tmp_path) == ("a", "b", "z")


def test_splits_of_texts_with_several_labels_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"w{number}\ta,b\n" for number in range(100)))
    data = ClassifyData(train="a.tsv", validation=0.2, problem_type="multi_label")
    held = {record.source for record in read(data, "validation", tmp_path)}
    assert held == {f"w{number}" for number in range(100) if split_of(f"w{number}", 0.2, 0) == "validation"}


def test_shares_of_a_real_file(cache: Path) -> None:
    try:
        find("cola/in_domain_train.tsv.gz")
    except UserError:
        need(False, "set REGARD_DATA to a folder with cola")
    data = ClassifyData(train="cola/in_domain_train.tsv.gz", columns=("label", "text"), validation=0.1, stratify=True)
    shares = []
    for part in ("train", "validation"):
        labels = Counter(record.target for record in islice(read(data, part), 9000))
        shares.append(labels["1"] / labels.total())
    assert shares[0] == pytest.approx(shares[1], abs=0.002)


# ── scores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_correlations_computed_by_hand() -> None:
    assert pearson([1, 2, 3, 4], [2, 4, 5, 4]) == pytest.approx(3.5 / np.sqrt(5 * 4.75))
    assert ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    assert spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(8 / np.sqrt(10 * 9.5))
    assert spearman([1, 2, 3], [1, 10, 100]) == pytest.approx(1) and pearson([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert pearson([1, 1], [1, 2]) == 0 and squared_error([1, 2], [1, 4]) == 2
    values = np.random.default_rng(0).normal(size=(2, 50))
    assert pearson(*values) == pytest.approx(float(np.corrcoef(values)[0, 1]))  # type: ignore[index]
    assert [score.name for score in report([1, 2, 3.5], [1, 2, 3])] == ["pearsonr", "spearmanr", "mse"]


def test_the_macro_average_names_its_number_of_labels() -> None:
    """A label that is neither expected nor predicted has no F1: it is not part of the mean."""
    told: Any = marks.single_label_report(np.eye(3)[[0, 0, 2]], [0, 0, 2], ["a", "b", "c"])["scores"]
    (one,) = [score for score in told if score.name == "macro_f1"]
    assert one.value == 100 and one.signature.startswith("mean of 2 labels|")
    holds = np.array([[True, False, False], [True, False, True]])
    several: Any = marks.multi_label_report(np.where(holds, 0.9, 0.1), holds, ["a", "b", "c"], 0.5)["scores"]
    (mean,) = [score for score in several if score.name == "macro_f1"]
    assert mean.value == 100 and mean.signature.startswith("mean of 2 labels|")


def test_matthews_and_the_f1_of_a_class_computed_by_hand() -> None:
    table = np.array([[50, 10], [5, 35]])  # wanted 0: 60; wanted 1: 40
    assert marks.matthews(table) == pytest.approx(100 * (35 * 50 - 10 * 5) / np.sqrt(45 * 40 * 60 * 55))
    assert marks.f1_of(table, 1) == pytest.approx(100 * 2 * 35 / (2 * 35 + 10 + 5))
    assert marks.matthews(np.array([[9, 0], [4, 0]])) == 0 and marks.matthews(np.diag([3, 4, 5])) == pytest.approx(100)
    assert marks.matthews(np.array([[0, 7], [3, 0]])) == pytest.approx(-100)


def test_multi_label_scores_computed_by_hand() -> None:
    wanted = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], bool)
    found = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0]], bool)
    told = marks.multi_label_metrics(found, wanted)
    assert told == pytest.approx(
        {"micro_f1": 100 * 4 / 6, "macro_f1": (100 + 200 / 3 + 0) / 3, "subset_accuracy": 100 / 3}
    )


# ── texts inside texts ───────────────────────────────────────────────────────────────────────────────────────────────


def inside(one: str, other: str) -> bool:
    """By definition: the words of one are consecutive in the other."""
    return f" {other} ".find(f" {one} ") >= 0


@pytest.mark.parametrize("stratify", [False, True])
def test_nothing_of_a_held_out_text_is_trained_on(tmp_path: Path, cache: Path, stratify: bool) -> None:
    chance = random.Random(4)
    whole = [[chance.choice("abcde") for _ in range(chance.randint(2, 12))] for _ in range(80)]
    texts = [" ".join(words) for words in whole]
    for words in whole:
        begin = chance.randrange(len(words))
        texts.append(" ".join(words[begin : begin + chance.randint(1, 4)]))
    texts += [texts[3].upper().replace(" ", "  "), ""]
    (tmp_path / "a.tsv").write_text("\n".join(f"{chance.choice('xy')}\t{text}" for text in texts))
    data = ClassifyData(
        train="a.tsv",
        validation=0.2,
        test=0.1,
        columns=("label", "text"),
        split_by="containing_text",
        stratify=stratify,
    )
    held = {part: [record.source for record in read(data, part, tmp_path)] for part in ("train", "validation", "test")}
    plain = {part: {" ".join(text.lower().split()) for text in found} - {""} for part, found in held.items()}
    all_texts = {" ".join(text.lower().split()) for text in texts} - {""}
    away = plain["validation"] | plain["test"]
    assert len(plain["validation"]) > 5 and len(plain["test"]) > 2 and not plain["validation"] & plain["test"]
    for text in away:
        assert not any(inside(text, other) for other in all_texts - {text})  # it is complete
    lost = {text for text in all_texts if any(inside(text, other) for other in away - {text})}
    assert lost and not plain["train"] & lost
    assert plain["train"] | lost | away == all_texts  # and nothing else is missing
    report = corpus(data, targets_of("single_label", ("x", "y")), tmp_path, cache).report
    assert report.skipped["inside a text that is held out"].count == sum(
        " ".join(text.lower().split()) in lost for text in texts
    )


def test_numbers_among_texts_are_refused(tmp_path: Path, cache: Path) -> None:
    for kind, lines in (
        ("single_label", ('"good"', "1")),
        ("regression", ("1.5", '"2"')),
        ("multi_label", ('["a"]', "3")),
    ):
        rows = [f'{{"text": "w{number}", "label": {label}}}' for number, label in enumerate((lines[0], '""', *lines))]
        (tmp_path / "a.jsonl").write_text("\n".join(rows))
        data: Any = ClassifyData(train="a.jsonl", problem_type=kind)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"a\.jsonl:4: 'label' = .*: (numbers|text), but .* at .*a\.jsonl:1"):
            list(read(data, "train", tmp_path))


def test_many_numeric_labels_suggest_regression(tmp_path: Path) -> None:
    rows = [f"{number / 7:.3f}\tw{number}" for number in range(30)]
    (tmp_path / "likeness.tsv").write_text("\n".join(["label\ttext", *rows]))
    with pytest.raises(UserError, match=r"likeness\.tsv: the labels are 30 different numbers such as 0\.000: give data\.problem_type"):  # fmt: skip  # noqa: E501
        learn_labels(ClassifyData(train="likeness.tsv"), tmp_path)
    (tmp_path / "stars.tsv").write_text("label\ttext\n" + "\n".join(f"{number / 2}\tw{number}" for number in range(10)))
    assert len(learn_labels(ClassifyData(train="stars.tsv"), tmp_path)) == 10
