"""Masked tokens and sentence pairs: rates, whole-word masking, what is never masked, and batches in pieces."""

import json
import math
import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import tokenizer as words_only
from encoders import SPECIALS, letters, wordpiece
from needs import need

from regard.config.recipe import TokenizerOptions
from regard.errors import UserError
from regard.tasks.fill.batches import MaskedBatch, MaskOptions, draw_pair, masked_rows, pair_budget
from regard.tasks.fill.masking import masker_of
from regard.tasks.fill.options import FillData
from regard.tasks.fill.sentences import SentenceDataset, paragraphs, prepare_sentences, prepare_stream
from regard.text.sentences import sentences
from regard.text.special_tokens import with_mask_token
from regard.text.tokenizer import Tokenizer
from regard.text.train_tokenizer import train_tokenizer

WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in "aeiou"]


def numbered(documents: int = 30) -> Tokenizer:
    """A word for each document, so that a row shows where its tokens come from."""
    return wordpiece([*SPECIALS, ".", *(f"d{number}" for number in range(documents)), *WORDS])


def lay_out(place: Path, documents: int = 30) -> FillData:
    """Documents of sentences with their document's word in front: d3 ba do . d3 ma …"""
    chance = np.random.default_rng(7)
    texts = []
    for number in range(documents):
        lines = [
            " ".join([f"d{number}", *chance.choice(WORDS, chance.integers(1, 9)), "."])
            for _ in range(int(chance.integers(2, 15)))
        ]
        texts.append("\n".join(lines))
    (place / "texts.txt").write_text("\n\n".join(texts) + "\n")
    return FillData(train="texts.txt")


def pairs_of(place: Path, cache: Path, length: int = 41) -> tuple[Tokenizer, SentenceDataset]:
    tokenizer = numbered()
    return tokenizer, prepare_sentences(
        lay_out(place), "train", tokenizer, cache, pair_budget(tokenizer, length), place
    )


def within(hits: float, of: float, share: float) -> bool:
    """Whether a count is what so many draws give, but for one case in ten million (5.3 σ)."""
    return abs(hits - of * share) < 5.3 * math.sqrt(of * share * (1 - share))


# ── documents and sentences ──────────────────────────────────────────────────────────────────────────────────────────


def test_sentences_end_at_punctuation() -> None:
    text = 'Dr. J. Smith came at 3.30 p.m. on foot. "Why?" asked Ann (twice!). He left… 5 days went by.'
    assert sentences(text) == [
        "Dr. J. Smith came at 3.30 p.m. on foot.",
        '"Why?" asked Ann (twice!).',
        "He left…",
        "5 days went by.",
    ]
    assert sentences("これは本です。あれは？そう") == ["これは本です。", "あれは？", "そう"]
    assert sentences("  ") == [] and sentences("no end") == ["no end"]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("a.txt", "one\ntwo\n\nthree\n\n\nfour\n", ["one\ntwo", "three", "four"]),
        ("a.txt", "one\ntwo\nthree\n\n", ["one", "two", "three"]),
        ("a.jsonl", '{"text": "one\\n\\ntwo"}\n{"text": "three"}\n', ["one\n\ntwo", "three"]),
    ],
)
def test_documents(tmp_path: Path, name: str, text: str, wanted: list[str]) -> None:
    (tmp_path / name).write_text(text)
    found = paragraphs(FillData(train=name), "train", tmp_path)
    assert ["".join(document.chunks(99)) for document in found] == wanted


def test_texts_of_squad_are_documents(tmp_path: Path, cache: Path) -> None:
    folder = Path(os.environ.get("REGARD_DATA", "nowhere")) / "squad"
    need(folder.is_dir(), "set REGARD_DATA to a folder with squad")
    import gzip

    with gzip.open(folder / "train-v1.1.paragraphs.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = list(islice(file, 9))
    (tmp_path / "some.jsonl").write_text("".join(lines), encoding="utf-8")
    data = FillData(train="some.jsonl", text="context")
    found = prepare_sentences(data, "train", letters(), cache, 64, tmp_path)
    assert found.report.read == 9 and found.report.kept + sum(s.count for s in found.report.skipped.values()) == 9
    tokens = sum(len(found.tokens[number]) for number in range(len(found.tokens)))
    whole = sum(len(row) for row in letters().encode_many([json.loads(line)["context"] for line in lines]))
    assert tokens == whole


# ── masked tokens ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_masking_rates() -> None:
    tokenizer = numbered()
    masker, chance = masker_of(tokenizer), np.random.default_rng(3)
    tokens = chance.integers(5, tokenizer.size, (400, 97))
    tokens[:, 0], tokens[:, 40] = tokenizer.table["[CLS]"], tokenizer.table["[SEP]"]
    real = np.arange(97) < chance.integers(50, 98, (400, 1))
    hidden, at = masker.mask_tokens(tokens, real, np.random.default_rng(5), 0.15, False)
    free = real & (np.arange(97) != 0) & (np.arange(97) != 40)
    assert not (at & ~free).any() and (hidden == tokens)[~at].all()
    assert (at.sum(1) == np.rint(0.15 * free.sum(1))).all()
    count, masks = at.sum(), (hidden == masker.mask)[at].sum()
    assert within(masks, count, 0.8)
    changed = (hidden != tokens)[at].sum() - masks
    assert within(changed, count, 0.1 * (1 - 1 / len(masker.replacements)))
    assert not masker.special[hidden[at & (hidden != masker.mask)]].any()
    places = at[:, 1:30].sum(0)  # each position is equally probable
    assert all(within(each, 400, 0.15) for each in places)
    one = masker.mask_tokens(tokens[:, :4], real[:, :4], chance, 0.15, False)[1]
    assert (one.sum(1) == 1).all()


def test_whole_words_are_masked_together() -> None:
    tokenizer = letters()
    masker = masker_of(tokenizer)
    chance = np.random.default_rng(1)
    row = tokenizer.inner.encode("seven letters, or not; a word has many. " * 4).ids
    tokens = np.tile(np.array(row), (50, 1))
    at = masker.mask_tokens(tokens, np.ones_like(tokens, bool), chance, 0.15, True)[1]
    assert (at.sum(1) <= np.rint(0.15 * (len(row) - 2))).all() and (at.sum(1) >= 9).all()
    for place in range(1, len(row)):
        if tokenizer.name(row[place]).startswith("##"):
            assert (at[:, place] == at[:, place - 1]).all()
    long = np.array([tokenizer.inner.encode("incomprehensibilities").ids])
    assert (
        masker.mask_tokens(long, long > 0, chance, 0.15, True)[1].sum() == 21
    )  # a word that is over the count by itself


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "wordpiece"])
def test_word_boundaries_of_every_tokenizer_type(kind: Any) -> None:
    texts = ["The readers read unreadable, reread things.", "Things unread: readable (things) reader!"] * 9
    tokenizer = with_mask_token(
        train_tokenizer(texts, TokenizerOptions(kind=kind, vocab_size=290 if kind == "byte_bpe" else 40))
    )
    masker, row = masker_of(tokenizer), tokenizer.encode(texts[0])
    begins = [number for number, token in enumerate(row) if number == 0 or not masker.continues[token]]
    pieces = [tokenizer.decode(row[begin:end]).strip() for begin, end in zip(begins, [*begins[1:], None], strict=True)]
    assert [each for each in pieces if each not in (",", ".")] == [
        "The",
        "readers",
        "read",
        "unreadable",
        "reread",
        "things",
    ]
    encoded = tokenizer.inner.encode("read", "things")
    assert [tokenizer.name(encoded.ids[place]) for place in (0, -1)] == ["<s>", "</s>"]
    assert encoded.type_ids[0] == 0 and encoded.type_ids[-1] == 1


def test_without_a_mask_token_it_is_an_error() -> None:
    with pytest.raises(UserError, match=r"no mask token \(\[MASK\] or <mask>\)"):
        masker_of(words_only(20))


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def same(one: MaskedBatch, other: MaskedBatch) -> bool:
    pairs = [(one.text.tokens, other.text.tokens), (one.at, other.at), (one.targets, other.targets)]
    pairs += [(one.labels, other.labels)] if one.labels is not None and other.labels is not None else []
    return all(torch.equal(a, b) for a, b in [*pairs, (one.indices, other.indices)])


@pytest.mark.parametrize("pairs", ["none", "nsp", "sop"])
def test_batches_are_those_of_any_split(tmp_path: Path, cache: Path, pairs: Any) -> None:
    tokenizer, found = pairs_of(tmp_path, cache)
    options = MaskOptions(41, 5, seed=11, pair_task=pairs, whole_word_mask=pairs == "sop")

    def batches(start: int = 0, rank: int = 0, world: int = 1, options: MaskOptions = options) -> Any:
        if pairs == "none":
            stream = prepare_stream(FillData(train="texts.txt"), "train", tokenizer, cache, tmp_path)
            return masked_rows(stream, tokenizer, options, start, rank, world)
        return masked_rows(found, tokenizer, options, start, rank, world)

    first = list(islice(batches(), 12))
    for world in (2, 3):
        parts = [list(islice(batches(1, rank, world), 3)) for rank in range(world)]
        joined = [batch for row in zip(*parts, strict=True) for batch in row]
        assert all(same(a, b) for a, b in zip(joined, first[world:], strict=False))
    assert not same(first[0], first[1]) and not same(first[0], next(batches(options=MaskOptions(41, 5, 12, pairs))))
    for batch in first:
        assert batch.at.sum() == len(batch.targets) and (batch.labels is None) == (pairs == "none")
        assert batch.text.tokens.shape[1] <= 41 and not (batch.at & ~batch.text.real).any()


def test_an_epoch_has_every_chunk(tmp_path: Path, cache: Path) -> None:
    tokenizer, found = pairs_of(tmp_path, cache)
    options = MaskOptions(41, 1, seed=2, pair_task="nsp")
    seen = [int(batch.indices[0]) for batch in islice(masked_rows(found, tokenizer, options), 2 * len(found))]
    assert sorted(seen[: len(found)]) == sorted(seen[len(found) :]) == list(range(len(found)))
    assert seen[: len(found)] != seen[len(found) :]
    chunks = [found.chunk(number) for number in range(len(found))]
    covered = {sentence for _, begin, end in chunks for sentence in range(begin, end)}
    assert covered == set(range(len(found.tokens))) and all(end - begin >= 2 for _, begin, end in chunks)


def test_next_is_another_documents_half_the_time(tmp_path: Path, cache: Path) -> None:
    tokenizer, found = pairs_of(tmp_path, cache)
    options, chance = MaskOptions(41, 1, pair_task="nsp"), np.random.default_rng(9)
    labels, lengths = [], []
    for number in range(1500):
        pair = draw_pair(found, number % len(found), options, chance)
        documents = [{tokenizer.name(t) for t in text.tolist() if tokenizer.name(t)[0] == "d" and tokenizer.name(t)[1:].isdecimal()} for text in (pair.first, pair.second)]  # fmt: skip  # noqa: E501
        if all(documents):  # a trimmed text may have lost its document's word
            assert (documents[0] == documents[1]) == (pair.label == 0)
        labels.append(pair.label)
        lengths.append(len(pair.first) + len(pair.second))
        assert len(pair.first) and len(pair.second) and lengths[-1] <= found.max_tokens
    assert within(sum(labels), 1500, 0.5)


@pytest.mark.parametrize("sentences", [8, 40])
def test_the_length_of_a_pair_does_not_reveal_its_label(sentences: int, tmp_path: Path, cache: Path) -> None:
    """Of documents of a row or two, and of long ones."""
    tokenizer, chance = numbered(), random.Random(5)
    rows = [f"d{number} {'ba ' * chance.randint(1, 12)}." for number in range(30) for _ in range(sentences)]
    documents = ["\n".join(rows[begin : begin + sentences]) for begin in range(0, len(rows), sentences)]
    (tmp_path / "some.txt").write_text("\n\n".join(documents) + "\n")
    found = prepare_sentences(FillData(train="some.txt"), "train", tokenizer, cache, 38, tmp_path)
    options, draw = MaskOptions(41, 1, pair_task="nsp"), np.random.default_rng(6)
    pairs = [draw_pair(found, number % len(found), options, draw) for number in range(3000)]
    lengths = np.array([len(pair.first) + len(pair.second) for pair in pairs])
    labels = np.array([pair.label for pair in pairs])
    best = max(abs(((lengths < bound) == labels).mean() - 0.5) for bound in np.unique(lengths))
    assert best < 0.06


def test_order_is_swapped_half_the_time_and_one_in_ten_is_short(tmp_path: Path, cache: Path) -> None:
    tokenizer = numbered()
    (tmp_path / "long.txt").write_text(
        "\n".join(f"d{number % 30} {'ba ' * 9}." for number in range(290)) + "\n\nda.\nde.\n"
    )
    found = prepare_sentences(FillData(train="long.txt"), "train", tokenizer, cache, 38, tmp_path)
    options, chance, kinds, short = MaskOptions(41, 1, pair_task="sop"), np.random.default_rng(4), Counter(), 0
    for number in range(1500):
        pair = draw_pair(found, number % (len(found) - 1), options, chance)
        heads = [[int(tokenizer.name(t)[1:]) for t in text.tolist() if tokenizer.name(t)[1:].isdecimal()] for text in pair[:2]]  # fmt: skip  # noqa: E501
        short += len(pair.first) + len(pair.second) < 38
        if all(heads):
            assert ((heads[1][0] - heads[0][-1]) % 30 < 15) == (pair.label == 0)
        kinds[pair.label] += 1
    assert within(kinds[1], 1500, 0.5) and within(short, 1500, 0.1 * 36 / 37)


def test_one_document_has_no_other(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "one.txt").write_text("ba.\nda.\n\nla\n")
    tokenizer = numbered()
    found = prepare_sentences(FillData(train="one.txt"), "train", tokenizer, cache, 38, tmp_path)
    assert found.report.skipped["a single sentence, which has no next"].count == 1
    with pytest.raises(UserError, match="another document, but there is only one"):
        next(masked_rows(found, tokenizer, MaskOptions(41, 1, pair_task="nsp")))
