"""Tokenizers of language models: bytes lose nothing, GPT folders as in transformers, exact streaming."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import need

from regard.config.recipe import TokenizerOptions
from regard.errors import UserError
from regard.tasks.translate.dataset import collate_sources
from regard.text.tokenizer import MISSING, SPECIALS, Tokenizer
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

BYTE_KINDS = ("bytes", "byte_bpe")
KINDS = ("bpe", "unigram", "wordpiece", "words", "characters", *BYTE_KINDS)
VARIED = [
    "Hello world",
    " It's 12,345.67 — don't\n\n  wait…",
    "tabs\tand\r\nWindows  line ends   ",
    "naïve café e\u0301te\u0301 ẞ 日本語 العربية",
    "🙂👩‍👩‍👧 mixed🙂up",
    "",
    "\n",
    "   ",
    "def f(x):\n    return x ** 2\n\n\n\tpass",
    "</s><pad> <unk>",
]
WEIGHTS = Path(os.environ.get("REGARD_WEIGHTS", "nowhere"))
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\tab🙂é"), max_size=40)


def options(kind: str, **changes) -> TokenizerOptions:
    return TokenizerOptions(**{"kind": kind, "vocab_size": 411, "min_frequency": 1, **changes})


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(VARIED * 2, options(kind), extra=["<de_DE>", "<é>"]) for kind in KINDS}


@pytest.mark.parametrize("kind", BYTE_KINDS)
@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_bytes_give_back_every_text(trained: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = trained[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.normalise(text) == text
    assert tokenizer.unknown not in ids
    if kind == "bytes":
        assert ids == [len(SPECIALS) + byte for byte in text.encode()]


@settings(max_examples=100, deadline=None)
@given(text=st.text(" \n\r\tab.", max_size=40))
def test_characters_keep_line_breaks(trained: dict[str, Tokenizer], text: str) -> None:
    tokenizer = trained["characters"]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", BYTE_KINDS)
def test_byte_tokenizers_follow_the_common_rules(trained: dict[str, Tokenizer], kind: str, tmp_path: Path) -> None:
    tokenizer = trained[kind]
    assert (tokenizer.pad, tokenizer.begin, tokenizer.end, tokenizer.unknown) == (0, 1, 2, 3)
    assert [tokenizer.name(index) for index in range(4)] == list(SPECIALS)
    assert not {0, 1, 2, 3} & set(tokenizer.encode("<pad><s></s> <unk>" * 3))  # typed, they are text
    assert tokenizer.encode("<de_DE> Hello")[0] == tokenizer.table["<de_DE>"]
    assert tokenizer.decode([1, *tokenizer.encode("Hello"), 2, 0, MISSING]) == "Hello"
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").content() == tokenizer.content()


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("kind", ["characters", *BYTE_KINDS])
def test_transformers_opens_the_folder(kind: str, ends: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = train_tokenizer(VARIED, options(kind), append_eos=ends)
    Vocabulary(ours, ours).save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in VARIED:
        assert theirs(text)["input_ids"] == ours.prompt(text) + [ours.end] * ends
        assert theirs.decode(ours.encode(text), skip_special_tokens=True) == ours.decode(ours.encode(text))


def test_special_tokens_are_never_trained_as_text() -> None:
    """A piece "<s>" merged from text would be the special token's id."""
    tokenizer = train_tokenizer(["<s> </s> <pad> <unk>"] * 100, options("byte_bpe"))
    assert not {0, 1, 2, 3} & set(tokenizer.encode("<s> </s> <pad> <unk> <s></s>"))


TRAIN = """
import hashlib, json, sys
from regard.text.train_tokenizer import train_tokenizer
from regard.config.recipe import TokenizerOptions
options = TokenizerOptions(kind="byte_bpe", vocab_size=301, min_frequency=1)
tokenizer = train_tokenizer(json.loads(sys.argv[1]) * 3, options)
print(tokenizer.size, hashlib.sha256(tokenizer.content().encode()).hexdigest())
"""


def test_byte_pairs_are_the_same_in_every_process() -> None:
    runs = set()
    for parallel in ("true", "false"):
        command = [sys.executable, "-c", TRAIN, json.dumps(VARIED)]
        environment = {"TOKENIZERS_PARALLELISM": parallel}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        runs.add(done.stdout)
    assert len(runs) == 1
    assert runs.pop().startswith("301 ")


@pytest.mark.parametrize("kind", BYTE_KINDS)
def test_byte_tokenizers_state_what_they_need(kind: str) -> None:
    with pytest.raises(UserError, match="vocab_size = 259: the 256 bytes and 4 special tokens alone need 260"):
        train_tokenizer(VARIED, options(kind, vocab_size=259))
    assert train_tokenizer(VARIED, options(kind, vocab_size=260)).size == 260
    with pytest.raises(UserError, match=f"lowercase = true is not supported by kind = '{kind}'"):
        options(kind, lowercase=True)


@pytest.mark.parametrize("kind", BYTE_KINDS)
def test_labels_are_readable(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    for text in VARIED:
        labels = tokenizer.pieces(tokenizer.encode(text))
        assert "\ufffd" not in "".join(labels)
        assert all(label and label == label.replace("\n", "") for label in labels)
    plain = train_tokenizer(["a"], options("bytes"))
    assert plain.pieces(plain.encode("a €\n")) == ["a", "␣", "⟨e2⟩", "⟨82⟩", "⟨ac⟩", "⏎"]
    assert plain.pieces([0, 2, 999, MISSING]) == ["<pad>", "</s>", "<999>", "<-1>"]


def foreign(folder: Path, template: list[str] | None = None, config: dict | None = None) -> Tokenizer:
    import tokenizers
    from tokenizers import models, processors

    names = ["<s>", "</s>", "a", "b"]
    inner = tokenizers.Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="a"))
    if template:
        specials = [(name, names.index(name)) for name in ("<s>", "</s>")]
        inner.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=specials)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return Vocabulary.load(folder).source


@pytest.mark.parametrize(
    ("template", "config", "head"),
    [
        (None, {}, ()),
        (["$A", "</s>"], {}, ()),
        (["<s>", "$A", "</s>"], {}, (0,)),
        (["<s>", "<s>", "$A"], {}, (0, 0)),
        (["<s>", "$A"], {"add_bos_token": False}, ()),
        (["$A", "</s>"], {"add_bos_token": True}, (0,)),
        (None, {"add_bos_token": True, "bos_token": "b"}, (3,)),
    ],
)
def test_a_prompt_begins_with_the_special_tokens_of_its_tokenizer(
    template: list[str] | None, config: dict, head: tuple[int, ...], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = foreign(tmp_path, template, config)
    assert tokenizer.head == head
    assert tokenizer.prompt("b") == [*head, 3]
    Vocabulary(tokenizer, tokenizer).save(tmp_path / "saved")
    assert Vocabulary.load(tmp_path / "saved").source.head == head
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tuple(theirs("b")["input_ids"][: len(head) + 1]) == (*head, 3)


@pytest.mark.parametrize("name", ["stories15M", "stories260K"])
def test_real_prompts_are_those_of_the_reference(name: str) -> None:
    folder = WEIGHTS / name
    need((folder / "tokenizer.json").is_file(), f"set REGARD_WEIGHTS to a folder with {name}")
    tokenizer = Vocabulary.load(folder).source
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert tokenizer.prompt(expected["prompt"]) == expected["prompt_ids"]
    assert tokenizer.decode(expected["greedy_ids"]) == expected["greedy_text"]
    assert tokenizer.pieces([3 + 0xE2, 3 + 0x0A, 3 + ord("a")]) == ["⟨e2⟩", "⏎", "a"]


def test_roles_without_a_token_are_missing_not_errors(tmp_path: Path) -> None:
    import tokenizers

    model = tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert set(tokenizer.ids.values()) == {MISSING}
    assert Tokenizer.load(tmp_path / "tokenizer.json", ids={"end": 1}).end == 1
    assert tokenizer.decode([0, tokenizer.end]) == "a"
    assert tokenizer.coverage(["a"]) == (1, 1, 0)
    Vocabulary(tokenizer, tokenizer).save(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert not [key for key in written if key.endswith("_token")]
    with pytest.raises(UserError, match=r"no token for 'end'.*eos_token"):
        collate_sources([[0]], Vocabulary(tokenizer, tokenizer))


# ── folders with vocab.json and merges.txt ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = Path(os.environ.get("REGARD_DATA", "nowhere").split(os.pathsep)[0]) / "tokenizers" / "gpt2"
    need(packed.is_dir(), "set REGARD_DATA to a folder with tokenizers/gpt2")
    folder = tmp_path_factory.mktemp("gpt2")
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes(gzip.decompress((packed / f"{name}.gz").read_bytes()))
    return folder


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vocabulary of openai-gpt's kind."""
    folder = tmp_path_factory.mktemp("openai-gpt")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!'-日"
    merges = ["t h", "th e</w>", "h e", "he l", "hel l", "hell o</w>", "w o", "1 2", "12 3</w>", "a b", "i t</w>"]
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *(merge.replace(" ", "") for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(["<unk>", *pieces])}))
    return folder


def compare(ours: Tokenizer, theirs) -> None:
    for text in [*VARIED, "the hello 123 world, IT'S the <unk> <|endoftext|> end"]:
        ids = ours.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_gpt2_folders_tokenize_as_in_transformers(gpt2: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = Vocabulary.load(gpt2)
    ours = vocabulary.source
    assert vocabulary.joint
    assert (ours.size, ours.end, ours.begin) == (50257, 50256, 50256)
    assert ours.prompt("Hello world") == [15496, 995]
    compare(ours, transformers.GPT2TokenizerFast.from_pretrained(gpt2))
    vocabulary.save(tmp_path)
    assert not (tmp_path / "merges.txt").exists()
    compare(Vocabulary.load(tmp_path).source, transformers.AutoTokenizer.from_pretrained(tmp_path))


def test_openai_gpt_folders_tokenize_as_in_transformers(gpt: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = Vocabulary.load(gpt)
    assert vocabulary.source.ids == {"pad": MISSING, "begin": MISSING, "end": MISSING, "unknown": 0}
    compare(vocabulary.source, transformers.OpenAIGPTTokenizerFast.from_pretrained(gpt))
    vocabulary.save(tmp_path)
    compare(Vocabulary.load(tmp_path).source, transformers.AutoTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", None, r"vocab\.json: a folder with merges\.txt needs this file"),
        ("vocab.json", "[1]", r"vocab\.json: expected a JSON object"),
        ("merges.txt", "#version: 0.2\na b\na  b\n", r"merges\.txt:3: 'a  b': expected a merge, two tokens"),
        ("merges.txt", "b a\n", r"merges\.txt:1: unknown token 'ba': not in .*vocab\.json"),
        ("merges.txt", b"\xff", r"merges\.txt: cannot be read as UTF-8"),
    ],
)
def test_broken_gpt_folders_are_errors(name: str, content: str | bytes | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (tmp_path / "merges.txt").write_text("a b\n")
    assert Vocabulary.load(tmp_path).source.encode("ab") == [2]
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message):
        Vocabulary.load(tmp_path)


# ── growing text ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def growing(trained: dict[str, Tokenizer], gpt: Path) -> dict[str, Tokenizer]:
    found = {**trained, "openai-gpt": Vocabulary.load(gpt).source}
    if (WEIGHTS / "stories15M").is_dir():
        found["stories15M"] = Vocabulary.load(WEIGHTS / "stories15M").source
        found["stories260K"] = Vocabulary.load(WEIGHTS / "stories260K").source
    return found


def grown(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> Iterator[str]:
    text = tokenizer.incremental()
    for start, end in pairwise([0, *sorted(cuts), len(ids)]):
        yield text.feed(ids[start:end])
    yield text.finish()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", [*KINDS, "openai-gpt", "stories15M", "stories260K"])
def test_a_text_that_grows_is_the_text_at_once(growing: dict[str, Tokenizer], kind: str, data: st.DataObject) -> None:
    need(kind in growing, f"set REGARD_WEIGHTS to a folder with {kind}")
    tokenizer = growing[kind]
    real = TEXT.map(tokenizer.encode)
    chance = st.lists(st.integers(0, min(tokenizer.size, 600)), max_size=20)  # broken characters, specials, beyond
    ids = data.draw(real | chance)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=30))
    assert "".join(grown(tokenizer, ids, cuts)) == tokenizer.decode(ids)
    assert "".join(grown(tokenizer, ids, list(range(len(ids))))) == tokenizer.decode(ids)


def test_complete_text_is_streamed_at_once(growing: dict[str, Tokenizer]) -> None:
    """No more is held back than an unfinished character."""
    text = growing["bytes"].incremental()
    given = [text.feed([token]) for token in growing["bytes"].encode("a é\n🙂")]
    assert given == ["a", " ", "", "é", "\n", "", "", "", "🙂"]
    for kind in ("bpe", "unigram", "words", "characters", "openai-gpt"):
        tokenizer = growing[kind]
        ids = tokenizer.encode("wait world the hello")
        text, shown = tokenizer.incremental(), ""
        for number, token in enumerate(ids, 1):
            shown += text.feed([token])
            assert shown == tokenizer.decode(ids[:number])
