"""Corpora: every file format, errors with file and line, counted skips, splits by hash, constant memory."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config.recipe import TokenizerOptions
from regard.data import cache as prepared
from regard.data.cache import Report
from regard.data.files import Record, find, rows
from regard.data.pairs import prepare_pairs
from regard.data.splits.hashed import split_of
from regard.errors import UserError
from regard.tasks.translate.dataset import prefixes, prepare, read
from regard.tasks.translate.options import TranslateData
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

PAIRS = [("ein Hund", "a dog"), ("zwei\u2028Hunde", "two\u0085dogs"), ("drei Männer", "three men"), ("vier", "four")]
VOCABULARY = Vocabulary(
    tokenizer := train_tokenizer(
        [text for pair in PAIRS for text in pair], TokenizerOptions(kind="characters"), extra=["<de>", "<en>"]
    ),
    tokenizer,
)


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def pairs(folder: Path, name: str, **fields) -> list[tuple[str, str]]:
    data = TranslateData(train=name, **fields)
    return [(record.source, record.target) for record in read(data, "train", folder)]


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_form_reads_the_same_pairs(tmp_path: Path, zipped: str, end: str, mark: str) -> None:
    for side, name in enumerate(("de", "en")):
        write(tmp_path / f"p.{name}{zipped}", mark + end.join(pair[side] for pair in PAIRS))
    rows = [f"{number}\t{de}\t{en}" for number, (de, en) in enumerate(PAIRS)]
    write(tmp_path / f"head.tsv{zipped}", mark + end.join(["id\tde\ten", *rows]) + end)
    write(tmp_path / f"bare.txt{zipped}", mark + end.join(rows) + end)
    objects = [json.dumps({"en": en, "de": de, "n": 3}) for de, en in PAIRS]
    write(tmp_path / f"o.jsonl{zipped}", mark + end.join(objects) + end)
    sides = {"source": "de", "target": "en"}
    assert pairs(tmp_path, f"p.{{de,en}}{zipped}") == PAIRS
    assert pairs(tmp_path, f"p.{{en,de}}{zipped}", **sides) == PAIRS
    assert pairs(tmp_path, f"p.{{de,en}}{zipped}", source="en") == [(en, de) for de, en in PAIRS]
    assert pairs(tmp_path, f"head.tsv{zipped}", **sides) == PAIRS
    assert pairs(tmp_path, f"bare.txt{zipped}", columns=("id", "de", "en"), **sides) == PAIRS
    assert pairs(tmp_path, f"head.tsv{zipped}", columns=("id", "de", "en"), **sides) == PAIRS
    assert pairs(tmp_path, f"head.tsv{zipped}", columns=("en", "de"), **sides) == PAIRS  # the columns of another file
    assert pairs(tmp_path, f"o.jsonl{zipped}", **sides) == PAIRS


def test_columns_without_names_are_ordered(tmp_path: Path) -> None:
    write(tmp_path / "t.tsv", "\n".join("\t".join(pair) for pair in PAIRS))
    assert pairs(tmp_path, "t.tsv") == PAIRS


def test_a_field_of_csv_may_be_a_long_document(tmp_path: Path) -> None:
    write(tmp_path / "long.csv", f'source,target\n"{"a, b " * 40_000}",x\n')
    assert pairs(tmp_path, "long.csv", source="source", target="target") == [("a, b " * 40_000, "x")]


def test_semicolons_separate_fields_if_there_is_no_comma(tmp_path: Path) -> None:
    write(tmp_path / "excel.csv", 'source;target\n"a; b, c";x\nd;y\n')
    assert pairs(tmp_path, "excel.csv", source="source", target="target") == [("a; b, c", "x"), ("d", "y")]


def test_a_row_of_several_lines_is_located_by_its_first(tmp_path: Path) -> None:
    write(tmp_path / "over.csv", 'source,target\n"a\nb",x\n"c\nd\ne",y\nf\n')
    found = rows(tmp_path / "over.csv", required={"data.source": "source", "data.target": "target"})
    assert [next(found).location for _ in range(2)] == [f"{tmp_path}/over.csv:2", f"{tmp_path}/over.csv:4"]
    with pytest.raises(UserError, match=r"over\.csv:7: 1 fields, but 2 columns"):
        next(found)


BROKEN = {
    "p.{a,b}": ({"p.a": "1\n2\n3\n", "p.b": "1\n2\n"}, {}, r"p\.a has 3 lines, .*p\.b has 2 lines"),
    "e.{a,b}": ({"e.a": "", "e.b": "1\n"}, {}, r"e\.a: the file is empty"),
    "u.{a,b}": ({"u.a": b"1\n2\n\xff3\n", "u.b": "1\n2\n3\n"}, {}, r"u\.a:3: not UTF-8 \(byte 0xff at 1\)"),
    "s.{a,b}": ({"s.a": "1\n", "s.b": "1\n"}, {"source": "c"}, "no column 'c'; expected one of: a, b"),
    "h.tsv": (
        {"h.tsv": "german\tenglish\nx\ty\n"},
        {"source": "germn"},
        r"h\.tsv:1: no column 'germn'; line 1 is: german, english",
    ),
    "m.tsv": ({"m.tsv": "de\ten\nx\ty\n"}, {"source": "de", "target": "eng"}, "no column 'eng'; did you mean 'en'"),
    "f.tsv": ({"f.tsv": "x\ty\nx\ty\tz\n"}, {}, r"f\.tsv:2: 3 fields, but 2 columns"),
    "one.tsv": ({"one.tsv": "x\ny\n"}, {}, r"one\.tsv:1: needs a source and a target"),
    "k.jsonl": ({"k.jsonl": '{"source": "x"}'}, {}, r"k\.jsonl:1: no column 'target'"),
    "b.jsonl": ({"b.jsonl": '{"source": "x", "target": "y"}\n{"sou'}, {}, r"b\.jsonl:2: not a JSON object"),
    "l.jsonl": ({"l.jsonl": "[1]"}, {}, r"l\.jsonl:1: expected a JSON object, found a list"),
    "n.jsonl": (
        {"n.jsonl": '{"source": 3, "target": "y"}'},
        {},
        r"n\.jsonl:1: 'source': expected a string, found a int",
    ),
    "d.jsonl": (
        {"d.jsonl": '{"source": "\\ud800", "target": "y"}'},
        {},
        r"d\.jsonl:1: .* unpaired surrogate",
    ),
    "w.xml": ({"w.xml": "x,y\n"}, {}, r"w\.xml: unknown file type; expected .*\.jsonl"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_errors_with_their_location(tmp_path: Path, name: str) -> None:
    files, fields, message = BROKEN[name]
    for file, content in files.items():
        write(tmp_path / file, content)
    with pytest.raises(UserError, match=message):
        pairs(tmp_path, name, **fields)


@pytest.mark.parametrize("damage", ["cut", "flipped", "plain"])
def test_a_broken_gz_is_an_error(tmp_path: Path, damage: str) -> None:
    lines = "".join(f"{random.random()}\t{random.random()}\n" for _ in range(5003))
    data = bytearray(gzip.compress(lines.encode()))
    if damage == "flipped":
        data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    content = {"cut": data[: len(data) // 2], "flipped": data, "plain": b"a\tb\n"}[damage]
    (tmp_path / "x.tsv.gz").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"x\.tsv\.gz: broken \.gz after line \d+|x\.tsv\.gz:\d+: "):
        pairs(tmp_path, "x.tsv.gz")


def test_a_folder_is_distinguished_from_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "news").mkdir()
    with pytest.raises(UserError, match=r"'news' is a folder \(.*\), expected .* pattern such as news/\*\.csv$"):
        find("news", tmp_path)
    write(tmp_path / "news" / "READ.me", "1")
    write(tmp_path / "news" / "a.jsonl.gz", "1")
    with pytest.raises(UserError, match=r"such as news/\*\.jsonl\.gz$"):
        find("news/", tmp_path)
    assert find("news/*.gz", tmp_path) == tmp_path / "news" / "*.gz"


def test_files_are_searched_next_to_the_recipe_then_in_the_data_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("beside", "first", "second"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("REGARD_DATA", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    write(tmp_path / "second" / "x.a", "1")
    write(tmp_path / "first" / "x.b", "1")
    with pytest.raises(UserError, match=r"'x.\{a,b\}' not found.*beside.*first.*second"):
        find("x.{a,b}", tmp_path / "beside")
    write(tmp_path / "second" / "x.b", "1")
    assert find("x.{a,b}", tmp_path / "beside") == tmp_path / "second" / "x.{a,b}"
    write(tmp_path / "beside" / "x.b", "1")
    assert find("x.b", tmp_path / "beside") == tmp_path / "beside" / "x.b"


def test_a_prepared_corpus_holds_what_was_read(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.tsv", "\n".join("\t".join(pair) for pair in PAIRS))
    corpus = prepare(TranslateData(train="t.tsv"), "train", VOCABULARY, cache, tmp_path)
    assert len(corpus) == len(PAIRS)
    for index, pair in enumerate(PAIRS):
        assert corpus.text(index) == pair
        assert corpus.source(index).tolist() == tokenizer.encode(pair[0])
        assert corpus.target(index).tolist() == tokenizer.encode(pair[1])
        assert corpus.source_lengths[index] == len(corpus.source(index))
        assert corpus.target_lengths[index] == len(corpus.target(index))
    assert isinstance(corpus.source_lengths, np.memmap)
    assert str(corpus.report).startswith("4 samples read, 4 kept")


def test_skipped_samples_are_counted_with_the_first_location(tmp_path: Path, cache: Path) -> None:
    rows = ["a\tb", "\tb", "", " \tb", "a\t\u3000", "a" * 12 + "\tb", "a\t" + "b" * 1_000_000, "a\tb"]
    write(tmp_path / "t.tsv", "\n".join(rows))
    corpus = prepare(TranslateData(train="t.tsv", max_length=11), "train", VOCABULARY, cache, tmp_path)
    report = corpus.report
    assert (report.read, report.kept, len(corpus)) == (8, 2, 2)
    told = {reason: (skip.count, skip.first.rsplit(":", 1)[1]) for reason, skip in report.skipped.items()}
    assert told == {
        "empty source": (2, "2"),
        "both sides empty": (1, "3"),
        "empty target": (1, "5"),
        "longer than 11 tokens": (1, "6"),
        "longer than 1100 characters": (1, "7"),
    }
    assert "2 skipped: empty source (first: " in str(report)
    again = prepare(TranslateData(train="t.tsv", max_length=11), "train", VOCABULARY, cache, tmp_path)
    assert again.report == report
    write(tmp_path / "t.tsv", "\tb\n\n")
    with pytest.raises(UserError, match="no sample left to use: 2 samples read, 0 kept; 1 skipped: empty source"):
        prepare(TranslateData(train="t.tsv"), "train", VOCABULARY, cache, tmp_path)


@given(value=st.text(st.characters(exclude_categories=["Cs"])), first=st.floats(0, 0.4), second=st.floats(0, 0.4))
def test_a_split_is_determined_by_the_value_alone(value: str, first: float, second: float) -> None:
    part = split_of(value, first, second)
    assert part == split_of(value, first, second)
    if part != "test":
        assert split_of(value, first, 0.0) == part  # the other fraction moves nothing
    if part != "validation":
        assert split_of(value, 0.0, second) == part


def test_held_out_splits_share_no_value_and_lose_no_sample(tmp_path: Path) -> None:
    rows = [f"s{number % 701}\tt{number}\tg{number % 97}" for number in range(2003)]
    write(tmp_path / "t.tsv", "\n".join(rows))
    columns = ("x", "y", "group")
    for split_by, field in (("source", 0), ("group", 2)):
        data = TranslateData(train="t.tsv", validation=0.2, test=0.1, columns=columns, split_by=split_by)
        parts = {name: [(r.source, r.target, r.group) for r in read(data, name, tmp_path)] for name in
                 ("train", "validation", "test")}  # fmt: skip
        assert sorted(row[1] for part in parts.values() for row in part) == sorted(row.split("\t")[1] for row in rows)
        values = [{row[2] for row in part} for part in parts.values()]
        assert sum(map(len, values)) == len(set.union(*values))
        assert values[0] <= {row.split("\t")[field] for row in rows}
    data = TranslateData(train="t.tsv", validation=0.2, test=0.1, columns=columns)
    assert 0.15 < sum(1 for _ in read(data, "validation", tmp_path)) / len(rows) < 0.25
    write(tmp_path / "t.tsv", "\n".join(reversed(rows)))
    assert sorted(r.target for r in read(data, "test", tmp_path)) == sorted(
        row.split("\t")[1] for row in rows if split_of(row.split("\t")[0], 0.2, 0.1) == "test"
    )
    with pytest.raises(UserError, match="leave nothing to train on"):
        next(read(TranslateData(train="t.tsv", validation=0.5, test=0.6), "train", tmp_path))


def test_a_prefix_is_the_first_token_of_the_source(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.tsv", "lang\tx\ty\nde\tein Hund\ta dog\nen\tdrei\tthree\n")
    data = TranslateData(train="t.tsv", source="x", target="y", prefix="lang")
    assert prefixes(data, "train", tmp_path) == ["<de>", "<en>"]
    corpus = prepare(data, "train", VOCABULARY, cache, tmp_path)
    assert corpus.text(0) == ("<de> ein Hund", "a dog")
    assert [corpus.source(i)[0] for i in range(2)] == [tokenizer.table["<de>"], tokenizer.table["<en>"]]
    write(tmp_path / "t.tsv", "lang\tx\ty\nfr\tein Hund\ta dog\n")
    with pytest.raises(UserError, match=r"t\.tsv:2: unknown prefix <fr>: the vocabulary has no such token"):
        prepare(data, "train", VOCABULARY, cache, tmp_path)


def test_prepared_once_and_again_when_anything_differs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "t.tsv", "\n".join("\t".join(pair) for pair in PAIRS))
    seen: list[int] = []
    monkeypatch.setattr("regard.data.pairs.shown", lambda message: nullcontext(seen.append))

    def folders(vocabulary: Vocabulary = VOCABULARY, part: str = "train", **fields) -> int:
        prepare(TranslateData(train="t.tsv", **fields), part, vocabulary, cache, tmp_path)
        return len(list(cache.iterdir()))

    assert (folders(), folders()) == (1, 1)
    assert seen == [4]
    assert folders(max_length=100) == 2
    assert folders(source="2", target="1") == 3
    other = train_tokenizer(["ein Hund a dog"], TokenizerOptions(kind="characters"))
    assert folders(Vocabulary(tokenizer, other)) == 4
    write(tmp_path / "t.tsv", "ein\ta\n")
    assert folders() == 5


def test_files_of_one_name_in_two_folders_are_both_part_of_the_key(tmp_path: Path, cache: Path) -> None:
    for side, text in (("de", "ein\n"), ("en", "a\n")):
        (tmp_path / side).mkdir()
        write(tmp_path / side / "train.txt", text)
    data = TranslateData(train="{de,en}/train.txt")
    first = prepare(data, "train", VOCABULARY, cache, tmp_path)
    assert list(first.hashes) == ["de/train.txt", "en/train.txt"]
    write(tmp_path / "de" / "train.txt", "drei\n")
    assert prepare(data, "train", VOCABULARY, cache, tmp_path).text(0) == ("drei", "a")


@pytest.mark.parametrize(
    "name", ["source.values", "target.offsets", "source_lengths.values", "text.values", "dataset.json"]
)
@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_damaged_corpus_is_prepared_again(name: str, left: float, tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.tsv", "\n".join("\t".join(pair) for pair in PAIRS))
    options = TranslateData(train="t.tsv"), "train", VOCABULARY, cache, tmp_path
    prepare(*options)
    path = next(cache.iterdir()) / name
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) // 2 * 2])
    again = prepare(*options)
    assert [again.text(i) for i in range(len(PAIRS))] == PAIRS
    assert [again.source(i).tolist() for i in range(len(PAIRS))] == [tokenizer.encode(pair[0]) for pair in PAIRS]
    assert path.read_bytes() == content


def test_a_first_line_that_may_be_a_header_is_reported(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "t.tsv", "ein\tdrei\nvier\tzwei\n")

    def told(name: str = "t.tsv", **fields) -> tuple[int, bool]:
        report = prepare(TranslateData(train=name, **fields), "train", VOCABULARY, cache, tmp_path).report
        return report.kept, "line 1 is taken as a sample: no header is named" in str(report)

    assert told() == told() == (2, True)  # also from the cache
    assert told(source="ein") == told(split_by="drei") == (1, False)
    assert told(source="1") == told(columns=("a", "b")) == (2, False)
    write(tmp_path / "p.a", "ein\n")
    write(tmp_path / "p.b", "ein\n")
    assert told("p.{a,b}") == (1, False)


def test_an_interrupted_preparation_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record("ein", "a", "", "", "")] * 5000

    def interrupted() -> Iterator[Record]:
        yield from records
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_pairs(interrupted(), ["interrupted"], VOCABULARY, cache, 256, Report())
    assert list(cache.iterdir()) == []
    (cache / ".unfinished-of-a-killed-run").mkdir()
    monkeypatch.setattr(prepared, "STALE", -1)
    corpus = prepare_pairs(records, ["interrupted"], VOCABULARY, cache, 256, Report())
    assert (len(corpus), len(list(cache.iterdir()))) == (5000, 1)


MEMORY = """
import itertools, sys
from pathlib import Path
from regard.data.sampler import BatchOptions, batches_per_epoch, epoch_shares
from regard.tasks.translate.dataset import collate_samples
from regard.tasks.translate.dataset import Sample, prepare
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary
from regard.tasks.translate.options import TranslateData
from regard.config.recipe import TokenizerOptions
def anonymous():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0])
folder, count = Path(sys.argv[1]), int(sys.argv[2])
with (folder / "t.tsv").open("w") as file:
    for number in range(count):
        print(*(f"{number * step % 9973:04} {step}" for step in (3, 5)), sep="\\t", file=file)
tokenizer = train_tokenizer(["0123456789 "], TokenizerOptions(kind="characters"))
vocabulary = Vocabulary(tokenizer, tokenizer)
before = anonymous()
corpus = prepare(TranslateData(train="t.tsv"), "train", vocabulary, folder / "cache", folder)
options = BatchOptions(batch_tokens=4096, window=1024)
number = batches_per_epoch(corpus, options)
batches = (rows for _, rows in itertools.islice(epoch_shares(corpus, options), number))
assert sum(len(collate_samples(corpus, indices, vocabulary).indices) for indices in batches) == count
print(before, anonymous())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    used = []
    for count in (1_050, 52_500):
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-c", MEMORY, str(folder), str(count)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used.append([int(kilobytes) for kilobytes in output.split()])
    (_, small), (before, large) = used
    assert large < 1.2 * small
    assert large - before < 14_000  # kB; about 8,000 as it is, about 20,000 when records or token lists are held
