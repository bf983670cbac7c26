"""Parallel text: what a vocabulary is trained on, and the progress shown meanwhile."""

import io
import sys
from pathlib import Path

import pytest

from regard.config.recipe import Recipe, TokenizerOptions
from regard.tasks.translate.dataset import corpus, train_vocabulary
from regard.tasks.translate.options import TranslateData
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
