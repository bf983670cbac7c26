"""Tokenizers: decoding loses nothing, training is the same every time, foreign folders mean what their owners mean."""

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config.recipe import TokenizerOptions
from regard.errors import UserError
from regard.tasks.classify.texts import PairEncoder
from regard.text.sentencepiece import SentencePieceTokenizer
from regard.text.tokenizer import SPECIALS, Tokenizer
from regard.text.tokenizer_checks import check_growth
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

KINDS = ("bpe", "unigram", "wordpiece", "words", "characters")
LETTERS = "abcdefgäöüßéABÄ.,!?()<>/#'\"-_1234567890日本▁"
WORDS = (
    "Ein",
    "Mann,",
    "läuft",
    "(schnell)",
    "nach",
    "Hause!",
    "don't",
    "e\u0301te\u0301",
    "3.",
    "日本",
    "</s>",
    "##a",
)
TEXT = [
    " ".join(WORDS[(start + step * skip) % len(WORDS)] for step in range(7)) for start in range(12) for skip in (1, 5)
]
ALPHABET = [" ".join(LETTERS), *LETTERS, *(f"a{letter}" for letter in LETTERS)]


def options(kind: str, **changes) -> TokenizerOptions:
    fields = {"kind": kind, "vocab_size": 211, "min_frequency": 1}
    return TokenizerOptions(**{**fields, **changes})


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(TEXT + ALPHABET, options(kind), extra=["<de_DE>"]) for kind in KINDS}


def collapsed(text: str) -> str:
    """The normalised text, computed without the library: NFC, runs of spaces are one, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).replace("▁", " ").split())


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=LETTERS + " \t\u3000", max_size=40))
def test_decoding_gives_the_normalised_text(trained: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = trained[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == collapsed(text) == tokenizer.normalise(text)


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=9), gap=st.sampled_from([" ", "  ", "\t "]))
@pytest.mark.parametrize("kind", KINDS[:4])
def test_decoding_known_words(trained: dict[str, Tokenizer], kind: str, words: list[str], gap: str) -> None:
    text = gap.join(words)
    assert trained[kind].decode(trained[kind].encode(text)) == collapsed(text)


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=LETTERS + "  ", max_size=40))
def test_characters_keep_every_character(trained: dict[str, Tokenizer], text: str) -> None:
    tokenizer = trained["characters"]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_fixed_ids(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    assert (tokenizer.pad, tokenizer.begin, tokenizer.end, tokenizer.unknown) == (0, 1, 2, 3)
    assert [tokenizer.inner.id_to_token(index) for index in range(4)] == list(SPECIALS)
    ids = tokenizer.encode("Ein Mann")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "Ein Mann"


@pytest.mark.parametrize("kind", KINDS)
def test_typed_special_tokens_are_text(trained: dict[str, Tokenizer], kind: str) -> None:
    ids = trained[kind].encode("Ein </s> <s><pad>")
    assert not {0, 1, 2} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["<de_DE> 3. Mann", "<de_DE>Ein", "Ein <de_DE> Mann <de_DE><de_DE>"])
def test_extra_tokens_are_single(trained: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = trained[kind]
    ids = tokenizer.encode(text)
    assert ids.count(tokenizer.table["<de_DE>"]) == text.count("<de_DE>")
    if tokenizer.unknown not in ids:
        assert tokenizer.decode(ids) == text
    if text.startswith("<"):
        assert ids[0] == tokenizer.table["<de_DE>"]


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase(kind: str) -> None:
    tokenizer = train_tokenizer(TEXT, options(kind, lowercase=True))
    assert tokenizer.decode(tokenizer.encode(TEXT[0])) == collapsed(TEXT[0]).lower()


def test_a_batch_equals_one_by_one_and_tokens_join_to_the_text(trained: dict[str, Tokenizer]) -> None:
    for tokenizer in trained.values():
        rows = tokenizer.encode_many(TEXT)
        assert rows == [tokenizer.encode(text) for text in TEXT]
        for text, row in zip(TEXT, rows, strict=True):
            assert "".join(tokenizer.pieces(row)).replace("␣", " ").strip() == collapsed(text)


TRAIN = """
import sys, hashlib
from regard.text.tokenizer_checks import check_growth
from regard.text.train_tokenizer import train_tokenizer
from regard.config.recipe import TokenizerOptions
sys.path.insert(0, sys.argv[1])
from tests.text.test_tokenizer import TEXT, ALPHABET, KINDS, options
for kind in KINDS:
    tokenizer = train_tokenizer(TEXT * 3 + ALPHABET, options(kind, vocab_size=101))
    print(hashlib.sha256(tokenizer.content().encode()).hexdigest())
"""


def test_training_is_the_same_in_every_process() -> None:
    runs = []
    for parallel in ("true", "false", "true"):
        process = subprocess.run(
            [sys.executable, "-c", TRAIN, str(Path(__file__).parents[2])],
            capture_output=True, text=True, check=True, env={"TOKENIZERS_PARALLELISM": parallel},
        )  # fmt: skip
        runs.append(process.stdout.split())
    assert len(set(runs[0])) == len(KINDS)
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters"])
def test_too_small_a_vocabulary_is_an_error(kind: str) -> None:
    with pytest.raises(UserError, match=r"vocab_size = 11.*characters of the text"):
        train_tokenizer(TEXT, options(kind, vocab_size=11))


def test_words_beyond_the_vocabulary_are_unknown_and_counted() -> None:
    tokenizer = train_tokenizer(["eins eins zwei"], options("words", vocab_size=5))
    coverage = tokenizer.coverage(["eins zwei drei", "eins"])
    assert coverage == (4, 4, 2)
    assert coverage.unknown_rate == 0.5


@pytest.mark.parametrize(
    ("texts", "changes", "extra", "message"),
    [
        ([], {}, [], "no text"),
        (["", " \t"], {}, [], "no text"),
        (TEXT, {}, ["</s>"], "</s> is reserved"),
    ],
)
def test_training_errors_state_the_fix(texts: list[str], changes: dict, extra: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train_tokenizer(texts, options("bpe", **changes), extra=extra)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_tokenizes_the_same(trained: dict[str, Tokenizer], kind: str, tmp_path: Path) -> None:
    trained[kind].save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.content() == trained[kind].content()
    assert loaded.encode_many([*TEXT, "<de_DE> </s>"]) == trained[kind].encode_many([*TEXT, "<de_DE> </s>"])


def test_transformers_opens_the_folder(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = trained["bpe"]
    Vocabulary(ours, ours).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXT, "<de_DE> Ein </s> Mann"]:
        assert theirs(text)["input_ids"] == [*ours.encode(text), ours.end]
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id) == (0, 2, 3)


def test_vocabulary_folders(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    joint = Vocabulary(trained["bpe"], trained["bpe"])
    joint.save(tmp_path / "joint")
    again = Vocabulary.load(tmp_path / "joint")
    assert again.joint
    assert again.source is again.target
    separate = Vocabulary(trained["bpe"], trained["words"])
    separate.save(tmp_path / "separate")
    again = Vocabulary.load(tmp_path / "separate")
    assert not again.joint
    assert again.target.content() == trained["words"].content()
    joint.save(tmp_path / "separate")  # a second tokenizer must not stay behind
    assert Vocabulary.load(tmp_path / "separate").joint
    with pytest.raises(UserError, match="no tokenizer found"):
        Vocabulary.load(tmp_path)


HUGE = """
import sys
from regard.text.tokenizer_checks import check_growth
from regard.text.train_tokenizer import train_tokenizer
from regard.config.recipe import TokenizerOptions
text = ["ein Hund, a dog", "ab" * 500_000]
train_tokenizer(text, TokenizerOptions(kind=sys.argv[1], vocab_size=200))
"""


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_word_of_a_million_characters_is_split_for_training(kind: str) -> None:
    """Unsplit it takes quadratic time: hours."""
    subprocess.run([sys.executable, "-c", HUGE, kind], check=True, timeout=30)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_is_one_token_also_in_lowercase(kind: str) -> None:
    tokenizer = train_tokenizer(TEXT, options(kind, lowercase=True), extra=["<de_DE>", "<de_AT>"])
    for token in ("<de_DE>", "<de_AT>"):
        first, *rest = tokenizer.encode(f"{token} Ein Mann")
        assert first == tokenizer.table[token]
        assert tokenizer.table["<de_DE>"] not in rest
        assert tokenizer.decode(rest).strip() == "ein mann"


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_tokens_that_are_one_after_normalisation_are_refused(kind: str) -> None:
    train_tokenizer(TEXT, options(kind), extra=["<de_DE>", "<de_de>", "<S>"])
    with pytest.raises(UserError, match=r"the tokens <de_DE> and <de_de> are the same after normalisation.*lowercase"):
        train_tokenizer(TEXT, options(kind, lowercase=True), extra=["<en>", "<de_DE>", "<de_de>"])
    with pytest.raises(UserError, match="the token <S> is reserved"):
        train_tokenizer(TEXT, options(kind, lowercase=True), extra=["<S>"])


FOREIGN = {
    "bert": (["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a"], (0, 1, 2, 3)),
    "gpt": (["a", "b", "<|endoftext|>"], (2, 2, 2, 2)),
    "shuffled": (["a", "<unk>", "</s>", "<s>", "<pad>"], (4, 3, 2, 1)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_special_tokens_are_found_by_name(name: str, tmp_path: Path) -> None:
    names, expected = FOREIGN[name]
    model = tokenizers.models.WordLevel({word: index for index, word in enumerate(names)}, unk_token=names[expected[3]])
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.pad, loaded.begin, loaded.end, loaded.unknown) == expected
    assert Tokenizer.load(tmp_path / "tokenizer.json", ids={"begin": 0}).begin == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "a"}}))
    assert Tokenizer.load(tmp_path / "tokenizer.json").begin == names.index("a")


def test_unreadable_tokenizers_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="cannot be read"):
        Tokenizer.load(path)
    path.write_text("{}")
    with pytest.raises(UserError, match=r"not a valid tokenizer\.json"):
        Tokenizer.load(path)


HOSTILE = {  # a change of tokenizer.json → the error message
    "growth": (
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 1000}] * 3}},
        r"its normalizer, pre_tokenizer, post_processor may make 2,000,000,000 characters or tokens of one",
    ),
    "growth between characters": (
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"Regex": "(?=q)"}, "content": "q"}] * 30}},
        "its normalizer, pre_tokenizer, post_processor may make",
    ),
    "growth of two components": (
        {"normalizer": {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 100},
         "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 100,
                            "pair": [], "special_tokens": {}}},
        "may make 10,000 characters or tokens of one",
    ),
    "growth by other characters": (
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": a}, "content": b * 100} for a, b in ("ab", "bc")]}},
        "may make",
    ),
    "growth by Unicode": (
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "\u0627"}, "content": "\ufdfa"}, {"type": "NFKD"}] * 4}},
        "may make",
    ),
    "growth by bytes": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}] * 12}},
        "may make",
    ),
    "many special tokens": (
        {"post_processor": {"type": "TemplateProcessing", "pair": [],
                            "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                       {"SpecialToken": {"id": "<s>", "type_id": 0}}],
                            "special_tokens": {"<s>": {"id": "<s>", "ids": [1] * 999, "tokens": ["<s>"] * 999}}}},
        "may make 2,000",
    ),
    "many steps": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 257}}, "has 257 steps",
    ),
    "growth of the output": (
        {"decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 1000}] * 3}},
        "its decoder may make",
    ),
    "repetition": (
        {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 1000,
                            "pair": [], "special_tokens": {}}},
        "post_processor may make 2,000",
    ),
    "a second text that is not there": (
        {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}],
                            "pair": [], "special_tokens": {}}},
        "the tokenizer fails",
    ),
    "an id over the vocabulary": (
        {"post_processor": {"type": "BertProcessing", "sep": ["</s>", 999], "cls": ["<s>", 1]}},
        "adds id 999, but its vocabulary has",
    ),
    "no token": ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}, "added_tokens": []}, "is empty"),
    "no unknown token": ({"model": {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "?"}}, "the tokenizer fails"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tokenizer_is_an_error(
    change: dict, message: str, trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    trained["bpe"].save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=f"{path}.*{message}"):
        Tokenizer.load(path)


def test_a_failure_of_the_library_on_a_text_is_an_error(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"a": 0, "</s>": 1}, unk_token="?")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.encode("a") == [0]
    classify = PairEncoder(tokenizer)
    for encode in (tokenizer.encode, lambda text: tokenizer.encodings([text]), lambda text: classify.rows([text])):
        with pytest.raises(UserError, match="the tokenizer fails"):
            encode("b")


@pytest.mark.parametrize("value", [None, "true", 1, []])
def test_split_special_tokens_is_true_or_false(value: object, trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    trained["bpe"].save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"split_special_tokens": value}))
    path = tmp_path / "tokenizer_config.json"
    with pytest.raises(UserError, match=rf"^{path}: split_special_tokens = .*: expected true or false"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("value", [[1], 7, {"content": 7}])
def test_a_special_token_is_a_string(value: object, trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    trained["bpe"].save(tmp_path / "tokenizer.json")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"pad_token": value}))
    with pytest.raises(UserError, match=rf"^{path}: pad_token = .*: expected a string"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_replacements_of_different_characters_do_not_compound() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs = zip("，。：；？！、（）《》", ",.:;?!,()<>", strict=True)
    steps = [tokenizers.normalizers.Replace(theirs, f"{ours} ") for theirs, ours in pairs]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    check_growth(tokenizer)


def test_an_error_of_ours_is_not_blamed_on_the_file(
    trained: dict[str, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained["bpe"].save(tmp_path / "tokenizer.json")
    monkeypatch.setattr(Tokenizer, "of", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Marian models have it: two SentencePiece models, one numbering that lacks a piece."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    sides = {"source": TEXT, "target": [text.upper() for text in TEXT]}
    pieces: list[str] = []
    for side, texts in sides.items():
        with (folder / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts), model_writer=file, vocab_size=61, minloglevel=2, hard_vocab_limit=False
            )
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces += [model.id_to_piece(index) for index in range(3, model.get_piece_size())]
    names = ["</s>", "<unk>", *list(dict.fromkeys(pieces))[1:], ">>deu<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    config = {"source_lang": "a", "target_lang": "b", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.filterwarnings("ignore:Recommended")
def test_marian_folders_tokenize_as_in_transformers(marian: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = Vocabulary.load(marian)
    assert isinstance(vocabulary.source, SentencePieceTokenizer)
    assert vocabulary.joint
    vocabulary.save(tmp_path)
    for folder in (marian, tmp_path):
        theirs = transformers.MarianTokenizer.from_pretrained(folder)
        ours = Vocabulary.load(folder)
        plain = [text.replace("</s>", "") for text in TEXT]  # theirs takes a typed </s> for the end; ours for text
        for text in [*plain, "", "ẞ unbekannt", ">>deu<< Ein Mann", "  zwei  Räume "]:
            assert [*ours.source.encode(text), ours.source.end] == theirs(text)["input_ids"], text
            upper = theirs(text_target=text.upper())["input_ids"]
            assert [*ours.target.encode(text.upper()), ours.target.end] == upper
            assert ours.target.decode(upper) == theirs.decode(upper, skip_special_tokens=True)
        assert (ours.source.pad, ours.source.begin) == (theirs.pad_token_id, theirs.pad_token_id)


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 70), max_size=20))
def test_marian_text_that_grows_is_the_text_at_once(marian: Path, numbers: list[int]) -> None:
    tokenizer = Vocabulary.load(marian).target
    assert (tokenizer.head, tokenizer.prompt("EIN")) == ((), tokenizer.encode("EIN"))
    text = tokenizer.incremental()
    assert "".join([*(text.feed([token]) for token in numbers), text.finish()]) == tokenizer.decode(numbers)


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 999])
@pytest.mark.parametrize("name", ["source.spm", "target.spm"])
def test_a_damaged_sentencepiece_model_is_an_error(name: str, content: bytes, marian: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(marian, folder)
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{folder / name}: not a valid SentencePiece model"):
        Vocabulary.load(folder)


def test_without_sentencepiece_the_error_names_the_install_line(marian: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r'pip install "regard\[sentencepiece\]"'):
        Vocabulary.load(marian)
