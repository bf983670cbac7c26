"""Raw text: chunk boundaries do not show in tokens, no text is lost between splits, memory is constant."""

import gzip
import json
import os
import random
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from needs import need

from regard.config.options import DocumentOptions
from regard.config.recipe import TokenizerOptions
from regard.data import documents as running
from regard.data import token_stream as stream
from regard.data.documents import documents, read_chunks, tokenizer_texts
from regard.data.files import find
from regard.data.splits.hashed import split_of
from regard.data.token_stream import TokenStream, prepare_documents, prepare_stream
from regard.errors import UserError
from regard.tasks.translate.dataset import read
from regard.tasks.translate.options import TranslateData
from regard.text.tokenizer import Tokenizer
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

LINES = [
    "The first line, it's short.",
    "    indented  twice",
    "",
    "",
    "naïve 日本 🙂\ttab ",
    "\r",
    "12,345 = x",
    " one",
]
KINDS = ("characters", "bytes", "byte_bpe", "bpe", "unigram", "words")
BYTES = train_tokenizer(["a"], TokenizerOptions(kind="bytes"))


def made_up(count: int, seed: int = 3) -> str:
    chance = random.Random(seed)
    return "".join(chance.choice(LINES) + chance.choice(["\n", "\n", " ", "\n\n"]) for _ in range(count))


def options(kind: str, size: int) -> TokenizerOptions:
    return TokenizerOptions(**{"kind": kind, "vocab_size": size, "min_frequency": 1})


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    found = {kind: train_tokenizer([made_up(200), "abc"], options(kind, 401)) for kind in KINDS}
    llama = Path(os.environ.get("REGARD_WEIGHTS", "nowhere")) / "stories260K"
    return found | ({"llama": Vocabulary.load(llama).source} if llama.is_dir() else {})


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def prepared(folder: Path, cache: Path, name: str, part: str = "train", **fields) -> TokenStream:
    return prepare_stream(DocumentOptions(train=name, **fields), part, BYTES, cache, folder)


def text_of(found: TokenStream) -> str:
    return BYTES.decode(found.tokens.tolist())


# ── cutting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 61, 1 << 16])
@pytest.mark.parametrize("kind", [*KINDS, "llama"])
def test_chunk_boundaries_do_not_show_in_tokens(
    tokenizers: dict[str, Tokenizer], kind: str, size: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(kind in tokenizers, "set REGARD_WEIGHTS to a folder with stories260K")
    monkeypatch.setattr(stream, "CHUNK_BYTES", size)
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 997)
    text = made_up(300)
    write(tmp_path / "t.txt", text)
    found = prepare_stream(DocumentOptions(train="t.txt"), "train", tokenizers[kind], cache, tmp_path)
    assert isinstance(found.tokens, np.memmap)
    assert found.tokens.tolist() == tokenizers[kind].encode(text)
    assert (len(found), found.bytes, found.documents) == (len(found.tokens), len(text.encode()), 1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("ab. '\n\n \t\r\u3000é日🙂1"), min_size=1), size=st.integers(1, 9))
@pytest.mark.parametrize("kind", ["characters", "byte_bpe", "bpe"])
def test_chunk_boundaries_never_show(
    tokenizers: dict[str, Tokenizer], kind: str, text: str, size: int, tmp_path: Path
) -> None:
    tokenizer, path = tokenizers[kind], write(tmp_path / "t.txt", text)
    pieces = list(read_chunks(path, size=size))
    assert "".join(pieces) == text
    rows = [tokenizer.encode(piece) for piece in pieces]
    assert [token for row in rows for token in row] == tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["characters", "bytes", "byte_bpe"])
def test_chunk_boundaries_do_not_show_in_real_text(kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ.get("REGARD_DATA", "nowhere").split(os.pathsep)[0])
    path = folder / "tinyshakespeare" / "input.txt.gz"
    need(path.is_file(), "set REGARD_DATA to a folder with tinyshakespeare/input.txt.gz")
    monkeypatch.setattr(stream, "CHUNK_BYTES", 3001)
    data = DocumentOptions(train="tinyshakespeare/input.txt.gz")
    tokenizer = train_tokenizer(tokenizer_texts(data, "train"), options(kind, 1000))
    text = gzip.decompress(path.read_bytes()).decode()
    found = prepare_stream(data, "train", tokenizer, cache)
    assert found.tokens.tolist() == tokenizer.encode(text)
    assert tokenizer.decode(found.tokens.tolist()) == text
    assert found.bytes == len(text.encode())


@pytest.mark.parametrize("text", ["日" * 5003, "a" * 10_007, "ab  " * 2503 + "\n \n" * 101])
def test_a_text_without_a_boundary_is_split_at_the_limit(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MAX_CHUNK", 1009)
    pieces = list(read_chunks(write(tmp_path / "t.txt", text), size=101))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) < 1009 + 102


def test_text_is_taken_exactly_as_it_is(tmp_path: Path, cache: Path) -> None:
    text = " head\r\nbreak\n\n  two \u2028 \x85 é e\u0301\ttail \n"
    for name in ("t.txt", "t.md", "t", "t.txt.gz", "t.gz"):
        write(tmp_path / name, "\ufeff" + text)
        assert text_of(prepared(tmp_path, cache, name)) == text, name


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────

DOCUMENTS = ["eins\nzwei", " drei ", "vier 🙂"]


@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_documents_are_rows_or_files_and_each_ends(tmp_path: Path, cache: Path, zipped: str) -> None:
    rows = [json.dumps({"n": 3, "text": text, "body": text.upper()}) for text in DOCUMENTS]
    write(tmp_path / f"d.jsonl{zipped}", "\n".join(rows))
    flat = [text.replace("\n", " ") for text in DOCUMENTS]
    write(tmp_path / f"bare.tsv{zipped}", "".join(f"{text}\tx\n" for text in flat))
    write(tmp_path / f"head.tsv{zipped}", "id\tbody\n" + "".join(f"7\t{text}\n" for text in flat))
    for number, text in enumerate(DOCUMENTS):
        write(tmp_path / "books" / ("deep" if number else "") / f"{number}.txt{zipped}", text)

    def told(name: str, texts: list[str], **fields) -> TokenStream:
        found = prepared(tmp_path, cache, name, **fields)
        assert found.tokens.tolist() == [token for text in texts for token in [*BYTES.encode(text), BYTES.end]]
        assert (found.documents, found.bytes) == (3, sum(len(text.encode()) for text in texts))
        return found

    told(f"d.jsonl{zipped}", DOCUMENTS)
    told(f"d.jsonl{zipped}", [text.upper() for text in DOCUMENTS], text="body")
    assert "line 1 is read as a document" in str(told(f"bare.tsv{zipped}", flat).report)
    assert "line 1" not in str(told(f"bare.tsv{zipped}", flat, columns=("body", "other")).report)
    told(f"head.tsv{zipped}", flat, text="body")
    told(f"head.tsv{zipped}", flat, text="body", columns=("id", "body"))
    found = told(f"books/**/*.txt{zipped}", DOCUMENTS)
    assert list(found.hashes) == [f"{where}.txt{zipped}" for where in ("0", "deep/1", "deep/2")]
    assert prepared(tmp_path, cache, f"books/*/?.txt{zipped}").documents == 2
    shards = prepared(tmp_path, cache, f"*.jsonl{zipped}")  # rows also where a pattern names the file
    assert shards.documents == 3


def test_blank_documents_are_counted(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "d.jsonl", '{"text": "a"}\n\n{"text": " \\n"}\n{"text": "b"}\n')
    report = prepared(tmp_path, cache, "d.jsonl").report
    assert (report.read, report.kept, report.skipped["blank"].count) == (4, 2, 2)
    assert report.skipped["blank"].first.endswith("d.jsonl:2")
    assert "4 documents read, 2 kept; 2 skipped: blank (first: " in str(report)
    assert prepared(tmp_path, cache, "d.jsonl").report == report  # also from the cache
    for name, text in (("a.py", "x\n"), ("b.py", ""), ("c.py", "\n \n")):
        write(tmp_path / "code" / name, text)
    found = prepared(tmp_path, cache, "code/*.py")
    assert (found.documents, found.report.skipped["blank"].count) == (1, 2)
    write(tmp_path / "code" / "a.py", " ")
    with pytest.raises(UserError, match="no document left to use: 3 documents read, 0 kept; 3 skipped: blank"):
        prepared(tmp_path, cache, "code/*.py")


def test_a_tokenizer_without_an_end_token_is_an_error(tmp_path: Path, cache: Path) -> None:
    import tokenizers as library

    model = library.models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    library.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "d.jsonl", '{"text": "b"}\n{"text": "b"}\n')
    data, tokenizer = DocumentOptions(train="d.jsonl"), Tokenizer.load(tmp_path / "tokenizer.json")
    found = prepare_stream(data, "train", tokenizer, cache, tmp_path)
    assert found.tokens.tolist() == [1, 1]
    assert "no end token" in str(found.report)


def test_synthetic_documents_are_cached_by_their_key(cache: Path) -> None:
    found = prepare_documents(iter(["a", " ", "b\nc"]), "made/1", BYTES, cache)
    assert text_of(found) == "ab\nc"
    assert (found.documents, found.bytes, len(found)) == (2, 4, 6)
    assert found.report.skipped["blank"].first == "made/1:2"
    assert prepare_documents(iter(["never read"]), "made/1", BYTES, cache).tokens.tolist() == found.tokens.tolist()
    assert text_of(prepare_documents(iter(["d"]), "made/2", BYTES, cache)) == "d"


def test_sequences_are_short_and_complete(tmp_path: Path) -> None:
    text = made_up(5000)
    write(tmp_path / "t.txt", text)
    found = list(tokenizer_texts(DocumentOptions(train="t.txt"), "train", tmp_path))
    assert "".join(found) == text
    assert max(map(len, found)) <= 2 * running.TRAINER_CHUNK
    write(tmp_path / "d.jsonl", '{"text": "a\\nb"}\n{"text": " "}\n{"text": "c"}\n')
    assert list(tokenizer_texts(DocumentOptions(train="d.jsonl"), "train", tmp_path)) == ["a\nb", "c"]


# ── splits ───────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = {
    "lines": made_up(2000),
    "one line": "word " * 5003,
    "no space": "日本語🙂" * 1009,
    "few": "a\nb\nc\nd\ne",
}


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("shares", [(0.1, 0.0), (0.0, 0.2), (0.25, 0.25), (0.1, 0.05)])
def test_splits_of_raw_text_are_contiguous(
    name: str, zipped: str, shares: tuple[float, float], tmp_path: Path, cache: Path
) -> None:
    text, file = TEXTS[name], f"t.txt{zipped}"
    write(tmp_path / file, text)
    fields = {part: share for part, share in zip(("validation", "test"), shares, strict=True) if share}
    if (name, shares) == ("few", (0.1, 0.05)):
        with pytest.raises(UserError, match=r"too short \(9 bytes\) to hold out .* the validation split is empty"):
            prepared(tmp_path, cache, file, "validation", **fields)
        return
    parts = {part: text_of(prepared(tmp_path, cache, file, part, **fields)) for part in ("train", *fields)}
    assert "".join(parts.values()) == text
    size = len(text.encode())
    for part, share in fields.items():
        longest = 100 if name == "lines" else 8
        assert abs(len(parts[part].encode()) - share * size) <= longest
    if name in ("lines", "few"):
        assert all(part.endswith("\n") for part in list(parts.values())[:-1])


def test_splits_of_documents_are_determined_by_their_hash(tmp_path: Path, cache: Path) -> None:
    texts = [f"text {number}" for number in range(701)]
    write(tmp_path / "d.jsonl", "\n".join(json.dumps({"text": text, "book": text[-1]}) for text in texts))
    fields: dict[str, Any] = {"validation": 0.2, "test": 0.1}
    data = DocumentOptions(train="d.jsonl", **fields)
    seen: list[str] = []
    for part in ("train", "validation", "test"):
        own = ["".join(document.chunks(100)) for document in documents(data, part, tmp_path)]
        assert own == [text for text in texts if split_of(text, 0.2, 0.1) == part]
        assert prepared(tmp_path, cache, "d.jsonl", part, **fields).documents == len(own)
        seen += own
    assert sorted(seen) == sorted(texts)
    books = DocumentOptions(train="d.jsonl", validation=0.5, split_by="book")
    sides = [{"".join(d.chunks(9))[-1] for d in documents(books, part, tmp_path)} for part in ("train", "validation")]
    assert not sides[0] & sides[1]
    for number in range(41):
        write(tmp_path / "files" / f"{number}.txt", f"{number}")
    found = [prepared(tmp_path, cache, "files/*.txt", part, validation=0.4) for part in ("train", "validation")]
    assert sum(each.documents for each in found) == 41
    assert min(each.documents for each in found) > 5


def test_a_separate_file_is_used_completely(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.txt", "a\nb\nc\nd\n")
    write(tmp_path / "v.txt", "e\nf\n")
    fields = {"validation": "v.txt", "test": 0.5}
    told = [text_of(prepared(tmp_path, cache, "t.txt", part, **fields)) for part in ("train", "validation", "test")]
    assert told == ["a\nb\nc\n", "e\nf\n", "d\n"]


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BROKEN = {
    "empty.txt": (b"", {}, r"empty\.txt: the file is empty"),
    "empty.gz": (b"", {}, r"empty\.gz: the file is empty"),
    "blank.txt": (b" \n", {}, r"no document left to use: 1 documents read, 0 kept; 1 skipped: blank"),
    "bad.txt": (b"ok\nab\xffc\n", {}, r"bad\.txt:2: not UTF-8 \(byte 0xff at 3\)"),
    "half.txt": ("ok\n\n🙂".encode()[:-1], {}, r"half\.txt:3: not UTF-8 \(byte 0xf0 at 1\)"),
    "late.txt.gz": (b"\xef\xbb\xbfok\n" * 5000 + b"\xe9a", {}, r"late\.txt\.gz:5001: not UTF-8 \(byte 0xe9 at 1\)"),
    "k.jsonl": (b'{"body": "x"}', {}, r"k\.jsonl:1: no column 'text'"),
    "n.jsonl": (b'{"text": 3}', {}, r"n\.jsonl:1: 'text': expected a string, found a int"),
    "h.tsv": (b"id\tbody\n1\tx\n", {"text": "boby"}, r"h\.tsv:1: no column 'boby'"),
    "p.txt": (b"x", {"text": "body"}, r"data\.text = 'body', but .*p\.txt has no columns"),
}


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_text_is_an_error_with_its_location(
    name: str, size: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, fields, message = BROKEN[name]
    monkeypatch.setattr(stream, "CHUNK_BYTES", size)
    write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, cache, name, **fields)
    assert list(cache.iterdir()) == []


def test_a_held_out_split_has_line_numbers(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.txt", b"line\n" * 100 + b"\xff\n")
    assert prepared(tmp_path, cache, "t.txt", "train", validation=0.1).bytes < 500
    with pytest.raises(UserError, match=r"t\.txt:101: not UTF-8 \(byte 0xff at 1\)"):
        prepared(tmp_path, cache, "t.txt", "validation", validation=0.1)


@pytest.mark.parametrize("fields", [{}, {"validation": 0.1}])
def test_a_broken_gz_is_an_error(fields: dict, tmp_path: Path, cache: Path) -> None:
    data = gzip.compress("".join(f"{random.random()}\n" for _ in range(60_013)).encode())
    (tmp_path / "t.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"t\.gz: broken \.gz after line [1-9]\d+"):
        prepared(tmp_path, cache, "t.gz", **fields)


def test_patterns_are_searched_like_files(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    with pytest.raises(UserError, match=r"'b/\*\.txt' matches no file; searched: .*beside.*data"):
        find("b/*.txt", tmp_path / "beside")
    write(tmp_path / "data" / "b" / "1.txt", "x")
    assert find("b/*.txt", tmp_path / "beside") == tmp_path / "data" / "b" / "*.txt"
    write(tmp_path / "odd [1]" / "b" / "2.txt", "y")
    found = prepare_stream(DocumentOptions(train="b/*.txt"), "train", BYTES, cache, tmp_path / "odd [1]")
    assert text_of(found) == "y"
    write(tmp_path / "data" / "x[1].txt", "z")
    assert find("x[1].txt", tmp_path) == tmp_path / "data" / "x[1].txt"  # a file of that very name
    write(tmp_path / "data" / "b" / "0.txt", "one\ttwo")
    write(tmp_path / "data" / "b" / "1.txt", "three\tfour")
    rows = list(read(TranslateData(train="b/*.txt"), "train", tmp_path))  # of pairs, too
    assert [(row.source, row.target) for row in rows] == [("one", "two"), ("three", "four")]


# ── the cache, and memory ────────────────────────────────────────────────────────────────────────────────────────────


def test_prepared_once_and_again_when_anything_differs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "t.txt", "eins\nzwei\n" * 100)
    seen: list[int] = []
    monkeypatch.setattr("regard.data.token_stream.shown", lambda message: nullcontext(seen.append))

    def folders(part: str = "train", tokenizer: Tokenizer = BYTES, **fields) -> int:
        data = DocumentOptions(train="t.txt", **fields)
        prepare_stream(data, part, tokenizer, cache, tmp_path)
        return len(list(cache.iterdir()))

    assert (folders(), folders()) == (1, 1)
    assert seen == [1000]
    assert folders(validation=0.5) == 2
    assert folders("validation", validation=0.5) == 3
    assert folders(tokenizer=train_tokenizer(["einszw\n"], TokenizerOptions(kind="characters"))) == 4
    write(tmp_path / "t.txt", "drei\n")
    assert folders() == 5


@pytest.mark.parametrize("name", ["tokens.values", "dataset.json"])
@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_damaged_stream_is_prepared_again(name: str, left: float, tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.txt", "eins zwei drei")
    first = prepared(tmp_path, cache, "t.txt").tokens.tolist()
    path = next(cache.iterdir()) / name
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) // 2 * 2])
    assert prepared(tmp_path, cache, "t.txt").tokens.tolist() == first
    assert path.read_bytes() == content


@pytest.mark.parametrize("fields", [{}, {"validation": 0.01}])
def test_memory_does_not_grow_with_the_text(
    fields: dict, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(stream, "BATCH_CHARACTERS", 1 << 14)
    peaks = []
    for lines in (10_007, 100_003):
        write(tmp_path / f"{lines}.txt.gz", "\n".join(f"line {number} of a long text" for number in range(lines)))
        tracemalloc.start()
        found = prepared(tmp_path, cache, f"{lines}.txt.gz", **fields)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found.bytes > 24 * lines
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 3_000_000  # of a text of 3 MB, whose token numbers alone would be 24 MB
