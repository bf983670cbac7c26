"""Tokenizers of encoders' folders without a tokenizer.json cut text as transformers' own do."""

import json
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.text.vocabulary import Vocabulary
from tests.interop.test_real_encoders import HARD

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789é"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *",.!()'北京中ß", *(f"##{each}" for each in LETTERS),
          "the", "##ing", "hel", "##lo", "and", "quotes", "spaces", "naive", "naïve"]  # fmt: skip
SETTINGS = {
    "nothing said": None,
    "cased": {"do_lower_case": False},
    "accents kept": {"do_lower_case": True, "strip_accents": False},
    "accents stripped, cased": {"do_lower_case": False, "strip_accents": True},
    "Chinese words whole": {"do_lower_case": True, "tokenize_chinese_chars": False},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_vocab_txt_is_read_as_bert_tokenizer_reads_it(settings: dict | None, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = Vocabulary.load(tmp_path).target, BertTokenizer.from_pretrained(tmp_path)
    assert ours.size == len(PIECES)
    for text in (HARD, *HARD.splitlines()):
        assert ours.inner.encode(text).ids == theirs(text)["input_ids"], text
    found, expected = ours.inner.encode("hello the", "and é"), theirs("hello the", "and é")
    assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"])
    assert (ours.pad, ours.begin, ours.end, ours.unknown) == (0, 2, 3, 1)


def test_lower_casing_of_a_cased_vocabulary_is_reported(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\nCO\n##c\n")
    with pytest.warns(UserWarning, match='upper-case tokens.*"do_lower_case": false'):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Vocabulary.load(tmp_path).target.encode("CO") == [1]


def test_unknown_words_are_named_and_decoded(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nthe\n")
    tokenizer = Vocabulary.load(tmp_path).target
    assert tokenizer.unknown_words(["Hello the Ω", "the thé §"]) == ["Ω", "§"]
    ids = tokenizer.inner.encode("hello Ω the").ids
    assert (tokenizer.decode(ids), tokenizer.decode_with_unknown(ids)) == ("hello the", "hello [UNK] the")


def test_robertas_merges_have_its_special_tokens(tmp_path: Path) -> None:
    from transformers import RobertaTokenizer

    letters = [chr(number) for number in range(33, 127)] + ["Ġ", "Ċ"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(a + b for a, b in merges), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges) + "\n")
    ours = Vocabulary.load(tmp_path).target
    theirs = RobertaTokenizer.from_pretrained(tmp_path)
    for text in ("hello world", "hello", " a  b", "tabs and\nlines", "x<mask>y </s> z"):
        assert ours.inner.encode(text).ids == theirs(text)["input_ids"], text
        pair = ours.inner.encode(text, "other")
        assert pair.ids == theirs(text, "other")["input_ids"]
        assert set(pair.type_ids) == {0}
    assert ours.inner.encode("hello <mask>").ids == [0, pieces.index("hello"), len(pieces) - 1, 2]  # with its space


def test_a_vocab_txt_must_have_a_word_for_the_unknown(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"\[UNK\]"):
        Vocabulary.load(tmp_path)


def test_a_saved_copy_opens_in_transformers_with_all_its_special_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    ours = Vocabulary.load(tmp_path)
    ours.save(tmp_path / "copy")
    theirs, again = AutoTokenizer.from_pretrained(tmp_path / "copy"), Vocabulary.load(tmp_path / "copy").target
    assert (theirs.mask_token, theirs.cls_token, theirs.sep_token) == ("[MASK]", "[CLS]", "[SEP]")
    for text in HARD.splitlines():
        assert ours.target.inner.encode(text).ids == again.inner.encode(text).ids == theirs(text)["input_ids"]


UNIGRAM = [
    ("<unk>", 0.0),
    ("▁", -2.0),
    ("▁hel", -3.0),
    ("lo", -3.5),
    ("▁the", -2.5),
    *((letter, -5.0) for letter in LETTERS),
]


@pytest.mark.parametrize("kind", ["camembert", "albert"])
def test_pieces_of_sentencepiece_are_read_from_tokenizer_json(kind: str, tmp_path: Path) -> None:
    """As transformers writes it: the special tokens around a text, and the segments of a pair."""
    import transformers

    marks = {"camembert": ["<s>", "<pad>", "</s>", "<mask>"], "albert": ["<pad>", "[CLS]", "[SEP]", "[MASK]"]}[kind]
    pieces = [*((mark, 0.0) for mark in marks), *UNIGRAM]
    made = {"camembert": transformers.CamembertTokenizer, "albert": transformers.AlbertTokenizer}[kind]
    theirs = made(vocab=pieces)
    theirs.save_pretrained(tmp_path)
    ours = Vocabulary.load(tmp_path).target
    for text in ("hello the world", "Hello  (the)", HARD):
        found, expected = ours.inner.encode(text), theirs(text)
        assert found.ids == expected["input_ids"], text
    found, expected = ours.inner.encode("hello", "the world"), theirs("hello", "the world", return_token_type_ids=True)
    assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"])
    assert len({*found.type_ids}) == (2 if kind == "albert" else 1)
