"""TaggedBatch words: files, pieces, windows, spans of every scheme, and conlleval's figures worked by hand."""

import json
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import letters

from regard.config.recipe import TokenizerOptions
from regard.data.sampler import BatchOptions, epoch_shares
from regard.data.targets import SingleLabelTargets
from regard.errors import UserError
from regard.metrics.entities import Entity, count, count_unopened, entities, is_span_tag, report
from regard.tasks.tag.dataset import TagDataset, collate, prepare, split_into_windows, tokenize_words
from regard.tasks.tag.files import learn_tags, read, sentences
from regard.tasks.tag.options import TagData
from regard.text.tokenizer import Tokenizer
from regard.text.train_tokenizer import train_tokenizer

CONLL = """-DOCSTART- -X- -X- O

Ada NNP I-NP B-PER
Lovelace NNP I-NP I-PER
wrote VBD I-VP O
. . O O

-DOCSTART- -X- -X- O

London NNP I-NP I-LOC
calls VBZ I-VP O
"""
TAGS = ("O", "B-PER", "I-LOC", "I-PER")


def corpus(
    place: Path, cache: Path, text: str, length: int = 40, tokenizer: Tokenizer | None = None, tags: Any = TAGS
) -> TagDataset:
    (place / "a.conll").write_text(text)
    data = TagData(train="a.conll")
    return prepare(data, "train", tokenizer or letters(), SingleLabelTargets(tags), cache, length, place)


def test_conll_and_json_lines_have_the_same_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(CONLL)
    found = list(read(TagData(train="a.conll"), "train", tmp_path))
    assert [each.words for each in found] == [("Ada", "Lovelace", "wrote", "."), ("London", "calls")]
    assert [each.location.rsplit(":", 1)[1] for each in found] == ["3", "10"]
    lines = [json.dumps({"tokens": each.words, "tags": each.tags}) for each in found]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    again = list(read(TagData(train="a.jsonl"), "train", tmp_path))
    assert [each[:2] for each in again] == [each[:2] for each in found]
    (tmp_path / "a.tsv").write_text("New York\tB-LOC\nis\tO\n")
    assert next(read(TagData(train="a.tsv"), "train", tmp_path)).words == ("New York", "is")
    assert learn_tags(TagData(train="a.conll"), tmp_path) == TAGS


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.conll", "Ada O\nwrote\n", r"a\.conll:2: 'wrote' has 1 columns; expected 2"),
        ("a.conll", "Ada NNP O\nwrote O\n", r"a\.conll:2: 'wrote O' has 2 columns; expected 3"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', r"a\.jsonl:1: 2 tokens, but 1 tags"),
        ("a.jsonl", '{"tokens": ["\\ud800"], "tags": ["O"]}', r'a\.jsonl:1: "tokens" should be a list of words'),
        ("a.jsonl", '{"tokens": ["a"]}', r'a\.jsonl:1: "tags" should be a list of words'),
        ("a.xml", "<a/>", r"unknown file type"),
        ("a.conll", "Ada O\n", "has the one tag 'O'"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        learn_tags(TagData(train=name), tmp_path)


def test_an_unseen_tag_is_an_error_with_its_line(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError, match=r"a\.conll:10: the tag 'I-LOC' of word 1, 'London', is none of those that"):
        corpus(tmp_path, cache, CONLL, tags=("O", "B-PER", "I-PER"))


def test_the_first_token_of_a_word_has_its_tag(tmp_path: Path, cache: Path) -> None:
    tokenizer = letters()
    found = corpus(tmp_path, cache, CONLL, tokenizer=tokenizer)
    assert len(found) == found.sentences == 2 and "1 words continue an entity that none began" in str(found.report)
    batch = collate(found, [1, 0])
    names = [[tokenizer.name(int(token)) for token in row] for row in batch.text.tokens]
    marked = [
        [name for name, here in zip(row, at, strict=True) if here] for row, at in zip(names, batch.at, strict=True)
    ]
    assert marked == [["l", "c"], ["a", "l", "w", "."]]
    assert [TAGS[tag] for tag in batch.tags.tolist()] == ["I-LOC", "O", "B-PER", "I-PER", "O", "O"]
    assert names[0][0] == "[CLS]" and found.words(1) == ["London", "calls"]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram"])
def test_tokens_belong_to_their_words(kind: Any) -> None:
    words = ["Ada", "Lovelace", "wrote", "(notes)", ",", "naïve", "日本"]
    tokenizer = train_tokenizer([" ".join(words)] * 3, TokenizerOptions(kind=kind, vocab_size=300))
    (row,) = tokenize_words(tokenizer, [words])
    ends = [*row.firsts[1:], len(row.tokens)]
    texts = [tokenizer.decode(row.tokens[first:end]) for first, end in zip(row.firsts, ends, strict=True)]
    assert [text.replace(" ", "") for text in texts] == words


def test_a_word_that_leaves_nothing_is_unknown() -> None:
    tokenizer = letters()
    (row,) = tokenize_words(tokenizer, [["a", "\u200b", "b", "\u200b"]])
    assert [tokenizer.name(token) for token in row.tokens] == ["a", "[UNK]", "b", "[UNK]"] and row.firsts == [
        0,
        1,
        2,
        3,
    ]


def test_every_word_counts_once_where_it_has_most_context() -> None:
    chance = np.random.default_rng(3)
    for words in (1, 2, 7, 40):
        sizes = chance.integers(1, 5, words)
        ends = np.cumsum(sizes)
        firsts, length, room = (ends - sizes).tolist(), int(ends[-1]), 17
        windows = split_into_windows(firsts, length, room)
        counted = [word for _, _, word, until in windows for word in range(word, until)]
        assert counted == list(range(words)) and all(end - begin <= room for begin, end, _, _ in windows)
        for word in range(words):
            holding = [w for w in windows if w[0] <= firsts[word] and ends[word] <= w[1]]
            context = {
                w: min(firsts[word] - w[0] if w[0] else 99, w[1] - ends[word] if w[1] < length else 99) for w in holding
            }
            mine = next(w for w in windows if w[2] <= word < w[3])
            assert context[mine] == max(context.values())
    assert split_into_windows([0, 2], 40, 17) == [(0, 2, 0, 1), (2, 19, 1, 2)]  # a word over the bound by itself


def test_a_window_without_new_words_is_skipped() -> None:
    """Alone in a batch it would have nothing to be a mean over."""
    chance = np.random.default_rng(5)
    for room in range(2, 15):
        for sizes in chance.choice([1, 1, 2, 5, 9, 15], (40, 20)):
            firsts = (np.cumsum(sizes) - sizes).tolist()
            windows = split_into_windows(firsts, int(sizes.sum()), room)
            assert all(word < until for _, _, word, until in windows)
            assert [each for _, _, word, until in windows for each in range(word, until)] == list(range(20))


def test_long_sentences_are_split_into_windows(tmp_path: Path, cache: Path) -> None:
    words = ["abcde", "fg", "hij"] * 9
    text = "\n".join(f"{word} {('B-PER', 'O', 'I-LOC')[number % 3]}" for number, word in enumerate(words))
    found = corpus(tmp_path, cache, f"{text}\n\nAda O\n", 23)
    assert found.sentences == 2 and len(found) > 6 and "windows of at most 23 tokens" in str(found.report)
    batch = collate(found, range(len(found)))
    assert batch.text.tokens.shape[1] <= 23
    assert batch.tags.tolist() == [*found.tags(0).tolist(), *found.tags(1).tolist()]
    heads = [letters().name(int(token)) for token in batch.text.tokens[batch.at]]
    assert heads == [*(word[0] for word in words), "a"]
    options = BatchOptions(batch_size=2, seed=3)
    numbers = [collate(found, rows).indices.tolist() for _, rows in islice(epoch_shares(found, options, 0, 0, 1), 9)]
    parts = [[rows for _, rows in islice(epoch_shares(found, options, 0, rank, 3), 3)] for rank in range(3)]
    assert [each for row in zip(*parts, strict=True) for each in row] == numbers


# ── spans and their scores ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("I-A I-A O I-B B-B", [("A", 0, 1), ("B", 3, 3), ("B", 4, 4)]),  # IOB1
        ("B-A I-A O B-B B-B", [("A", 0, 1), ("B", 3, 3), ("B", 4, 4)]),  # IOB2
        ("B-A E-A O S-B S-B", [("A", 0, 1), ("B", 3, 3), ("B", 4, 4)]),  # BIOES
        ("B-A L-A O U-B U-B", [("A", 0, 1), ("B", 3, 3), ("B", 4, 4)]),  # BILOU
        ("O I-A I-B I-B B-B", [("A", 1, 1), ("B", 2, 3), ("B", 4, 4)]),
        ("B-A I-B", [("A", 0, 0), ("B", 1, 1)]),
        ("E-A E-A I-A", [("A", 0, 0), ("A", 1, 1), ("A", 2, 2)]),
        ("O O", []),
        ("", []),
        ("B-A-b I-A-b", [("A-b", 0, 1)]),
    ],
)
def test_spans_of_every_scheme(tags: str, wanted: list[tuple]) -> None:
    assert entities(tags.split()) == [Entity(*each) for each in wanted]


ENDS = {"BIOES": "SE", "BILOU": "UL"}  # of one word alone, and of the last of several


def tags_of(spans: list[Entity], length: int, scheme: str) -> list[str]:
    """The tags of these spans in a scheme."""
    tags, before = ["O"] * length, Entity("", -2, -2)
    for span in spans:
        inside = [f"I-{span.kind}"] * (span.last - span.first + 1)
        if scheme != "IOB1" or (before.kind == span.kind and before.last == span.first - 1):
            inside[0] = f"B-{span.kind}"
        if scheme in ENDS:
            inside[-1] = f"{ENDS[scheme][len(inside) > 1]}-{span.kind}"
        tags[span.first : span.last + 1], before = inside, span
    return tags


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES", "BILOU"])
def test_any_spans_are_recovered(scheme: str) -> None:
    chance = np.random.default_rng(6)
    for _ in range(200):
        borders = np.unique(chance.integers(0, 20, 9)).tolist()
        spans = [
            Entity(str(chance.choice(["A", "B"])), first, end - 1)
            for first, end in pairwise(borders)
            if chance.random() < 0.7
        ]
        tags = tags_of(spans, 20, scheme)
        assert entities(tags) == spans and (count_unopened(tags) == 0 or scheme == "IOB1")


def test_words_without_a_window_are_counted() -> None:
    assert count_unopened(["O", "I-A", "I-A", "B-B", "I-A", "E-A", "I-A"]) == 3
    assert [is_span_tag(tag) for tag in ("O", "B-x", "NN", "B-", "b-x")] == [True, True, False, False, False]


def test_scores_computed_by_hand() -> None:
    wanted = [["B-PER", "I-PER", "O", "B-LOC", "O"], ["O", "B-LOC", "I-LOC", "O"], ["O", "O"]]
    found = [["B-PER", "I-PER", "O", "B-ORG", "O"], ["O", "B-LOC", "O", "O"], ["O", "B-PER"]]
    assert count(found[0], wanted[0]) == {"LOC": (1, 0, 0), "ORG": (0, 1, 0), "PER": (1, 1, 1)}
    told: Any = report(found, wanted)
    values = {score.name: score.value for score in told["scores"]}
    assert values == pytest.approx({"precision": 100 / 4, "recall": 100 / 3, "f1": 200 / 7})
    assert told["by_type"]["PER"] == pytest.approx(
        {"entities": 1, "found": 2, "precision": 50, "recall": 100, "f1": 200 / 3}
    )
    assert told["accuracy"] == pytest.approx(100 * 8 / 11)
    assert report([["O"]], [["O"]])["scores"][2].value == 0  # type: ignore[index]


def test_sentences_may_be_in_many_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.conll").write_text(f"{name} B-X\n\n")
    assert [each.words for each in sentences(tmp_path / "*.conll", TagData())] == [("a",), ("b",)]
