"""Parallel text: what a vocabulary is trained on, and the progress shown meanwhile."""

import io
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from regard.config.recipe import Recipe, TokenizerOptions
from regard.errors import UserError
from regard.tasks.translate.dataset import corpus, prepare, records, train_vocabulary
from regard.tasks.translate.options import TranslateData
from regard.tasks.translate.task import Translate
from regard.text.train_tokenizer import train_tokenizer


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_is_trained_on_the_kept_samples(kind: str, joint: bool, tmp_path: Path, cache: Path) -> None:
    """A line of a million characters is not trained on, takes no time, and is counted with the samples."""
    rows = ["ein Hund\ta dog", "zwei Hunde\ttwo dogs", "Q" * 1_000_000 + "\ta", "ein\t" + "Y" * 1_000_000, "J\t"]
    (tmp_path / "t.tsv").write_text("\n".join(rows))
    data = TranslateData(train="t.tsv", max_length=11)
    options = TokenizerOptions(kind=kind, vocab_size=60, joint=joint)  # type: ignore[arg-type]
    recipe = Recipe(task="translate", output="", origin=str(tmp_path), data=data, tokenizer=options)
    vocabulary = train_vocabulary(recipe)
    assert not set("QYJ") & (set(vocabulary.source.table) | set(vocabulary.target.table))
    prepared = corpus(recipe, "train", vocabulary, cache)
    assert prepared is not None
    assert "5 samples read, 2 kept; 2 skipped: longer than 1100 characters (first: " in str(prepared.report)
    assert "1 skipped: empty target" in str(prepared.report)


@pytest.mark.parametrize("watched", [True, False])
def test_tokenizer_training_shows_progress_in_a_terminal_only(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    stderr.isatty = lambda: watched  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)
    for name, value in {"TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    train_tokenizer(["ein Hund"] * 3000, TokenizerOptions(vocab_size=1234))
    assert ("training a vocabulary of 1,234 on" in stderr.getvalue()) == watched
    assert ("lines" in stderr.getvalue()) == watched


def test_a_table_of_more_than_two_columns_needs_their_names(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("id\ten\tde\n7\ta dog\tein Hund\n")
    with pytest.raises(UserError, match=r"1: id, 2: en, 3: de; choose with data\.source=NAME .* data\.target=NAME"):
        list(records(path, TranslateData()))
    with pytest.raises(UserError, match=r"has id, en, de; choose with data\.target=NAME$"):
        list(records(path, TranslateData(source="en")))
    (row,) = records(path, TranslateData(source="en", target="de"))
    assert (row.source, row.target) == ("a dog", "ein Hund")
    assert [row.target for row in records(path, TranslateData(source="2", target="3"))] == ["de", "ein Hund"]


@pytest.mark.parametrize(("line", "reported"), [("en\tde", True), ("Source\tTarget", True), ("dog\tHund", False)])
def test_a_header_that_is_read_as_a_sample_is_reported(line: str, reported: bool, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(f"{line}\na dog\tein Hund\n")
    data = TranslateData(train=str(tmp_path / "pairs.tsv"))
    vocabulary = train_vocabulary(Recipe("translate", "run", data=data, tokenizer=TokenizerOptions(kind="characters")))
    with pytest.warns(UserWarning, match="looks like a header") if reported else nullcontext():
        assert len(prepare(data, "train", vocabulary, cache)) == 2


@pytest.mark.parametrize(
    ("score", "exact", "constant", "said"),
    [
        (0.4, 0.0, False, "bleu 0.4 is below 1"),
        (0.4, 2.0, False, ""),
        (9.0, 0.0, True, "outputs are equal"),
        (9.0, 0.0, False, ""),
    ],
)
def test_a_model_that_has_not_learned_is_reported(score: float, exact: float, constant: bool, said: str) -> None:
    task = Translate.__new__(Translate)
    task.score_name, task.exact, task.constant_output = "bleu", exact, constant
    warning = task.score_warning(score)
    assert said in warning if said else not warning
