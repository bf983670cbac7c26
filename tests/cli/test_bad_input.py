"""Bad recipes, data and checkpoints on the command line: one screen that names the cause, and no traceback."""

import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from calling import Call
from chatting import LIMIT, language_folder
from checkpoints import change, retensor, shard, vocabulary

from regard import UserError
from regard.cli.main import main
from regard.model import Model, load

RECIPE = """task = "translate"
output = "run"
[data]
train = "train.tsv"
validation = "validation.tsv"
[tokenizer]
kind = "words"
vocab_size = 60
min_frequency = 1
[model]
family = "transformer"
width = 12
heads = 3
depth = 1
feedforward = 17
norm = "pre"
[train]
batch_size = 7
max_steps = 6
save_steps = 2
eval_steps = 3
warmup_steps = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe that works, to be broken in one way each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    Path("mine.toml").write_text(RECIPE)
    for part, count in (("train", 43), ("validation", 11)):
        lines = (f"w{n % 7} w{n % 5} w{n % 3}\tw{n % 3} w{n % 5} w{n % 7}\n" for n in range(count))
        Path(f"{part}.tsv").write_text("".join(lines))
    return tmp_path


def refused(result: tuple[int, str, str], said: tuple[str, ...], code: int = 1) -> None:
    """The exit code, and an error message of at most 24 lines of 80 characters."""
    left, out, err = result
    assert (left, out) == (code, ""), err
    assert sum(-(-max(len(line), 1) // 80) for line in err.splitlines()) <= 24
    assert "Traceback" not in err
    for words in said:
        assert words in err


def write(name: str, content: str | bytes) -> Callable[[], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda: Path(name).write_bytes(data)


def edit(old: str, new: str) -> Callable[[], object]:
    assert old in RECIPE
    return write("mine.toml", RECIPE.replace(old, new))


def at(key: str) -> str:
    """The location of a line of the recipe."""
    lines = RECIPE.splitlines()
    return f"mine.toml:{1 + next(number for number, line in enumerate(lines) if line.startswith(key))}:"


RECIPES = {  # how the recipe is broken, further arguments, what the error contains
    "unknown key": (edit("save_steps", "save_step"), [], (at("save_steps"), "'train.save_step'", "'train.save_steps'")),
    "unknown section": (edit("[tokenizer]", "[tokeniser]"), [], (at("[tokenizer]"), "did you mean 'tokenizer'")),
    "wrong type": (edit("max_steps = 6", 'max_steps = "six"'), [], (at("max_steps"), '"six"', "a whole number")),
    "out of range": (edit("max_steps = 6", "max_steps = -6"), [], (at("max_steps"), "0 or more")),
    "two lengths": (edit("max_steps = 6", "max_steps = 6\nepochs = 2"), [], ("train.epochs = 2", "set one of")),
    "no length": (edit("max_steps = 6\n", ""), [], ("mine.toml", "train.max_steps or train.epochs or train.minutes")),
    "not TOML": (edit("[train]", "[train"), [], ("mine.toml", "not valid TOML", f"line {at('[train]').split(':')[1]}")),
    "not UTF-8": (
        write("mine.toml", RECIPE.replace("60", '60 # "ä"').encode("latin-1")),
        [],
        (at("vocab_size"), "UTF-8"),
    ),
    "no such recipe": (None, ["revers"], ("'revers'", "did you mean 'reverse'")),
    "no such task": (edit('"translate"', '"translat"'), [], ("'translat'", "'translate'")),
    "no such family": (edit('"transformer"', '"transfomer"'), [], ("'transfomer'", "'transformer'")),
    "no such preset": (None, ["mine.toml", "model.preset=smal"], ("'smal'", "'small'")),
    "no such field": (None, ["mine.toml", "model.head=3"], ("model.head", "'model.heads'")),
    "no such score": (
        None,
        ["mine.toml", 'model={family="seq2seq", score="aditive"}'],
        ("model.score = 'aditive'", "'additive'"),
    ),
    "heads do not divide": (edit("heads = 3", "heads = 5"), [], ("width 12", "heads 5")),
    "no heads": (edit("heads = 3", "heads = 0"), [], ("model.heads = 0",)),
    "no width": (edit("width = 12", "width = 0"), [], ("model.width = 0",)),
    "unequal widths": (
        None,
        ["mine.toml", 'model={family="seq2seq", score="dot", width=12, encoder_width=10}'],
        ("'dot'", "20", "12", "encoder_width"),
    ),
    "tied but separate": (
        None,
        ["mine.toml", "tokenizer.joint=false"],
        ('tied = "all"', "tokenizer.joint = true"),
    ),
    "a vocabulary too small": (
        None,
        ["mine.toml", "tokenizer.kind=bpe", "tokenizer.vocab_size=7"],
        ("vocab_size = 7",),
    ),
    "generated and read": (None, ["mine.toml", "data.synthetic=reverse"], ("data.train", "synthetic")),
    "part of what is generated": (
        None,
        ["mine.toml", "data.synthetic=reverse", "data.train=53", "data.validation=0.1"],
        ("data.validation = 0.1", "synthetic"),
    ),
    "no such generator": (
        None,
        ["mine.toml", "data.synthetic=revers", "data.train=53", "data.validation=7"],
        ("'revers'", "'reverse'"),
    ),
    "no such device": (None, ["mine.toml", "train.device=gpu"], ("'gpu'", "cuda")),
    "a device that is not here": (None, ["mine.toml", "train.device=cuda:93"], ("cuda:93", "cpu")),
    "weights that are not there": (None, ["mine.toml", 'model={from="nowhere"}'], ("nowhere", "config.json")),
    "a shape for given weights": (
        None,
        ["mine.toml", "model.from=nowhere", "model.width=8"],
        ("model.from", "model.width"),
    ),
    "an output that is a file": (None, ["mine.toml", "output=train.tsv"], ("train.tsv", "output=")),
    "an output under a file": (None, ["mine.toml", "output=train.tsv/run"], ("train.tsv/run",)),
}


@pytest.mark.parametrize(("spoil", "given", "said"), RECIPES.values(), ids=RECIPES)
def test_a_bad_recipe_is_an_error(spoil, given: list[str], said: tuple[str, ...], call: Call, folder: Path) -> None:
    if spoil:
        spoil()
    refused(call("train", *(given or ["mine.toml"])), said)
    assert not Path("run").exists()


LINES = "".join(f"w{n % 7}\tw{n % 3}\n" for n in range(5000)).encode()
DATA = {  # files to write, arguments, what the error contains
    "unequal lines": (
        {"t.a": "1\n2\n3\n", "t.b": "1\n2\n"},
        ["data.train=t.{a,b}"],
        ("t.a has 3 lines", "t.b has 2 lines"),
    ),
    "empty": ({"train.tsv": ""}, [], ("train.tsv", "the file is empty")),
    "empty lines only": ({"train.tsv": " \t \n\t\n\n"}, [], ("every line is empty",)),
    "no first line": ({"train.tsv": "\na\tb\n"}, [], ("train.tsv:1", "a source and a target")),
    "not UTF-8": ({"train.tsv": b"a\tb\nM\xe4rz\tMarch\n"}, [], ("train.tsv:2", "0xe4", "iconv")),
    "validation not UTF-8": ({"validation.tsv": b"w1\tw1\nM\xe4rz\tMarch\n"}, [], ("validation.tsv:2", "0xe4")),
    "missing column": (
        {"train.tsv": "german\tenglish\na\tb\n"},
        ["data.source=german", "data.target=englisch"],
        ("train.tsv:1", "'englisch'", "'english'"),
    ),
    "too many fields": ({"train.tsv": "a\tb\nc\td\te\n"}, [], ("train.tsv:2", "3 fields", "2 columns")),
    "broken JSON": (
        {"t.jsonl": '{"source": "a", "target": "b"}\n{"source": "a", "tar'},
        ["data.train=t.jsonl"],
        ("t.jsonl:2", "not a JSON object"),
    ),
    "no text in JSON": ({"t.jsonl": '{"source": "a", "target": 7}'}, ["data.train=t.jsonl"], ("t.jsonl:1", "'target'")),
    "cut gz": ({"t.tsv.gz": gzip.compress(LINES)[:-50]}, ["data.train=t.tsv.gz"], ("t.tsv.gz", "broken .gz")),
    "no gz": ({"t.tsv.gz": LINES}, ["data.train=t.tsv.gz"], ("t.tsv.gz", "broken .gz")),
    "not found": ({}, ["data.train=trian.tsv"], ("'trian.tsv' not found", "REGARD_DATA")),
    "kind not known": ({"t.xml": "a,b\n"}, ["data.train=t.xml"], ("t.xml", ".tsv", ".jsonl")),
    "a folder": ({}, ["data.train=."], ("'.' is a folder", "*.tsv")),
    "no such columns": (
        {"t.csv": "german,english\na,b\n"},
        ["data.train=t.csv", "data.source=de", "data.target=en"],
        ("t.csv:1: no column 'de' and 'en'; line 1 is: german, english;", "data.source=NAME and data.target=NAME"),
    ),
    "no such column in JSON": (
        {"t.jsonl": '{"source": "a", "goal": "b"}'},
        ["data.train=t.jsonl"],
        ("t.jsonl:1: no column 'target'; expected one of: goal, source; choose one with data.target=NAME",),
    ),
    "all too long": ({}, ["data.max_length=1"], ("no sample left", "longer than 1 tokens", "train.tsv:1")),
    "nothing to hold out": ({}, ["data.validation=0.6", "data.test=0.5"], ("0.6", "0.5", "nothing to train on")),
}


@pytest.mark.parametrize(("files", "given", "said"), DATA.values(), ids=DATA)
def test_bad_data_is_an_error(files: dict, given: list[str], said: tuple[str, ...], call: Call, folder: Path) -> None:
    for name, content in files.items():
        write(name, content)()
    refused(call("train", "mine.toml", *given), said)
    assert not Path("run").exists()


def test_skipped_samples_are_counted_with_the_first_location(call: Call, folder: Path) -> None:
    good = Path("train.tsv").read_text()
    bad = ["", "\t", "w1\t", " \tw2", f"{'x' * 1_000_000}\tw1", f"{'w1 ' * 301}\tw1", f"w1\t{'w2 ' * 302}"]
    Path("train.tsv").write_text(good + "".join(f"{line}\n" for line in bad))
    code, _, err = call("train", "mine.toml")
    assert code == 0
    (told,) = [line for line in err.splitlines() if line.startswith("train: ")]
    first = good.count("\n") + 1
    assert f"{first + 6} samples read, {first - 1} kept" in told
    for reason in (
        f"2 skipped: both sides empty (first: train.tsv:{first})",
        f"1 skipped: empty target (first: train.tsv:{first + 2})",
        f"1 skipped: empty source (first: train.tsv:{first + 3})",
        f"1 skipped: longer than 25600 characters (first: train.tsv:{first + 4})",
        f"2 skipped: longer than 256 tokens (first: train.tsv:{first + 5})",
    ):
        assert reason in told.replace(f"{folder}/", "")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps with checkpoints 2, 4, 6 and its best at 3 or 6, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "mine.toml").write_text(RECIPE.replace('"train.tsv"', "211").replace('"validation.tsv"', "23"))
    given = ["data.synthetic=reverse", f"output={folder / 'run'}", "train.keep=9", "--quiet"]
    with pytest.raises(SystemExit) as left:
        main(["train", str(folder / "mine.toml"), *given])
    assert left.value.code == 0
    return folder / "run"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BIAS = "output.bias"
CHECKPOINTS = {  # how the folder is broken, whether it has a manifest, what the error contains
    "truncated": (lambda f: truncate(f / "model.safetensors"), True, ("model.safetensors", "bytes instead of")),
    "altered": (lambda f: alter(f / "model.safetensors"), True, ("model.safetensors", "altered")),
    "altered tokenizer": (lambda f: alter(f / "tokenizer.json"), True, ("tokenizer.json", "altered")),
    "cut, no manifest": (lambda f: truncate(f / "model.safetensors"), False, ("model.safetensors", "not a complete")),
    "missing tensor": (lambda f: retensor(f, **{BIAS: None}), False, ("missing", BIAS)),
    "unknown type": (lambda f: change(f, model_type="marion"), False, ("config.json", "= 'marion'", "marian")),
    "pickled": (only_pickled, False, ("pytorch_model.bin", "python -c", "safetensors")),
    "another vocabulary": (lambda f: vocabulary(41).save(f), False, ("41 tokens", "rows")),
    "broken config": (lambda f: truncate(f / "config.json"), False, ("config.json", "not JSON")),
    "config not UTF-8": (
        lambda f: (f / "config.json").write_bytes(b'{"a": "\xe4"}'),
        False,
        ("config.json", "not JSON"),
    ),
    "outside": (lambda f: shard(f, "../model-{}-of-2.safetensors"), False, ("index.json", "'../model-0-of-2")),
    "broken tokenizer": (
        lambda f: truncate(f / "tokenizer.json"),
        False,
        ("tokenizer.json", "not a valid tokenizer.json"),
    ),
    "tokenizer settings": (
        lambda f: (f / "tokenizer_config.json").write_text("[1]"),
        False,
        ("tokenizer_config.json", "object"),
    ),
    "decoding of another type": (
        lambda f: (f / "generation_config.json").write_text('{"num_beams": "five"}'),
        False,
        ("generation_config.json", "num_beams", "five"),
    ),
    "decoding out of range": (
        lambda f: (f / "generation_config.json").write_text('{"num_beams": 0}'),
        False,
        ("generation_config.json", "num_beams = 0"),
    ),
    "a size of nothing": (lambda f: change(f, heads=0), False, ("config.json", "heads = 0")),
    "an empty folder": (lambda f: [file.unlink() for file in f.iterdir()], False, ("config.json", "not found")),
}


@pytest.mark.parametrize(("spoil", "whole", "said"), CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("verb", ["run", "inspect"])
def test_a_bad_checkpoint_is_an_error(
    verb: str, spoil, whole: bool, said: tuple[str, ...], call: Call, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "spoiled"
    shutil.copytree(trained / "checkpoint-6", folder)
    if not whole:
        (folder / "manifest.json").unlink()
    spoil(folder)
    refused(call(verb, folder, *(["1 2"] if verb == "run" else [])), (*said, str(folder)))


def test_a_checkpoint_without_tokenizer_takes_token_ids_only(call: Call, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    shutil.copytree(trained / "checkpoint-6", folder)
    (folder / "manifest.json").unlink()
    (folder / "tokenizer.json").unlink()
    refused(call("run", folder, "1 2"), (f"{folder}: no tokenizer files", "tokenizer.json", "model.generate(ids)"))
    assert call("inspect", folder)[0] == 0


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("harm", [truncate, alter])
@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors"])
def test_resume_names_a_damaged_checkpoint_and_uses_the_one_before(name: str, harm, call: Call, run: Path) -> None:
    damaged = run / "checkpoint-6" / name
    expected = damaged.read_bytes()
    harm(damaged)
    code, _, err = call("resume", run)
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("warning:") and str(damaged) in line]
    assert "Traceback" not in err
    assert damaged.read_bytes() == expected


def test_load_names_a_damaged_best_checkpoint_and_uses_the_newest_complete_one(call: Call, run: Path) -> None:
    best = run / f"checkpoint-{json.loads((run / 'best.json').read_text())['step']}"
    code, _, err = call("inspect", run, "--json")
    assert (code, err) == (0, "")
    damaged = {best, run / "checkpoint-6"}
    for folder in damaged:
        alter(folder / "model.safetensors")
    code, out, err = call("inspect", run, "--json")
    assert code == 0
    assert json.loads(out)["folder"] == str(run / "checkpoint-4")
    assert len(err.splitlines()) == len(damaged)
    for folder in damaged:
        assert f"warning: {folder / 'model.safetensors'}: altered" in err
    assert "checkpoint-4 is used instead" in err


def test_a_run_without_a_complete_checkpoint_is_an_error(call: Call, run: Path) -> None:
    for folder in run.glob("checkpoint-*"):
        truncate(folder / "model.safetensors")
    refused(call("inspect", run), ("no complete checkpoint", "checkpoint-4/model.safetensors", "bytes instead of"))


def test_an_evaluation_of_bad_input_is_an_error(call: Call, run: Path, folder: Path) -> None:
    refused(call("evaluate", run, "nowhere.tsv"), ("'nowhere.tsv' not found",))
    Path("t.a").write_text("1\n2\n")
    Path("t.b").write_text("1\n")
    Path("t.csv").write_text("german,english\na,b\n")
    refused(
        call("evaluate", run, "t.csv", "--source", "germn", "--target", "english"), ("mean 'german'? ", "--source N")
    )
    refused(call("evaluate", run, "t.{a,b}"), ("t.a has 2 lines", "t.b has 1 lines"))
    refused(call("evaluate", run, "--num-beans", "3"), ("--num-beams",), code=2)
    refused(call("evaluate", run, "--device", "gpu"), ("'gpu'", "cuda"))
    refused(call("evaluate", run, "--precision", "float8"), ("'float8'", "'float32'"))
    refused(call("evaluate", "nowhere"), ("'nowhere'", "REGARD_WEIGHTS"))
    refused(call("resume", "nowhere"), ("nowhere", "recipe.toml"))


# ── language models ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model's folder."""
    return language_folder(tmp_path_factory.mktemp("letters") / "model")


@pytest.fixture(scope="module")
def written(letters: Path) -> Model:
    return load(letters)


DECODING = {  # arguments of run and chat, the exit code, options in Python, what the error there contains
    "no mass": (["--top-p", "0"], 2, {"top_p": 0.0}, "top_p = 0.0: must be above 0 and at most 1"),
    "too much mass": (["--top-p", "1.5"], 2, {"top_p": 1.5}, "top_p = 1.5"),
    "negative temperature": (["--temperature", "-1"], 2, {"temperature": -1}, "temperature = -1: must be 0 or more"),
    "no number": (["--temperature", "hot"], 2, {"temperature": "hot"}, "temperature = 'hot' does not fit"),
    "not finite": (["--temperature", "inf"], 2, {"temperature": float("inf")}, "temperature = inf: must be finite"),
    "unknown": (["--temprature", "1"], 2, {"temprature": 1}, "did you mean 'temperature'?"),
    "an empty text to stop at": (["--stop", ""], 2, {"stop": ""}, "stop contains an empty string"),
    "no length": (["--max-new-tokens", "0"], 2, {"max_new_tokens": -1}, "max_new_tokens = -1: must be 0 or more"),
    "no room for the least": (
        ["--min-new-tokens", "9", "--max-new-tokens", "3"],
        1,
        {"min_new_tokens": 9, "max_new_tokens": 3},
        "min_new_tokens = 9 is more than decode.max_new_tokens = 3",
    ),
    "a bias of nothing": (["--logit-bias", "13"], 2, {"logit_bias": {"a": 1.0}}, "expected a token's id and a number"),
    "a bias without end": (["--logit-bias", "13=inf"], 2, {"logit_bias": {13: float("inf")}}, "logit_bias"),
    "a bias for no token": (["--logit-bias", "9999=1"], 1, {"logit_bias": {9999: 1.0}}, "id 9999 is not in"),
    "a beam that draws": (
        ["--num-beams", "2", "--temperature", "1"],
        1,
        {"num_beams": 2, "temperature": 1.0},
        "num_beams = ",
    ),
}


@pytest.mark.parametrize(("given", "code", "options", "said"), DECODING.values(), ids=DECODING)
def test_bad_decode_options_are_errors(
    given: list[str], code: int, options: dict, said: str, call: Call, letters: Path, written: Model
) -> None:
    words = (said if code == 1 else given[0],)
    refused(call("run", letters, "Once", *given), words, code)
    refused(call("run", letters, "Once", "Twice", *given, "--json"), words, code)
    if given[0] == "--num-beams":  # not an option of chat
        words, code = given[:1], 2
    refused(call("chat", letters, *given, "--quiet"), tuple(words), code)
    for ask in (written.run, written.stream, lambda text, **more: written.generate([5, 6], **more)):
        with pytest.raises(UserError) as told:
            list(ask("Once", **options))
        assert said in str(told.value)
        assert "\n" not in str(told.value)


OPTIONS = {
    "types of Python": ({"stop": [1]}, "stop contains 1, which does not fit; expected str"),
    "a token that is text": ({"suppress_tokens": ["a"]}, "suppress_tokens contains 'a'"),
    "a token that is not there": ({"suppress_tokens": [-1]}, "id -1 is not in the vocabulary"),
    "a list for a number": ({"top_k": [3]}, "top_k = [3] does not fit; expected int"),
    "an option of another task": ({"alignments": True}, "a causal language model; it is for task translate"),
    "a spelling": ({"lookups": True}, "did you mean 'lookup'"),
}


@pytest.mark.parametrize(("options", "said"), OPTIONS.values(), ids=OPTIONS)
def test_bad_options_in_python_are_errors(options: dict, said: str, written: Model) -> None:
    with pytest.raises(UserError) as told:
        written.run("Once", **options)
    assert said in str(told.value)


def test_bad_prompts_are_errors(call: Call, letters: Path, written: Model, run: Path) -> None:
    refused(call("run", letters, ""), ("input 1 is empty: a prompt needs",))
    refused(call("run", letters, "x" * (LIMIT + 1)), (f"{LIMIT + 1} tokens", f"at most {LIMIT}", "--truncate"))
    refused(call("run", letters, "Once", "--task", "translate"), ("cannot do task = 'translate'", "generate"))
    refused(call("run", letters, "Once", "--log-probabilities"), ("--json",), code=2)
    refused(call("run", letters, "Once", "--draft-model", "nowhere"), ("'nowhere'", "REGARD_WEIGHTS"))
    refused(
        call("run", letters, "a", "--prompt-lookup", "--temperature", "1"), ("for greedy search", "temperature = 1")
    )
    refused(call("run", letters, "Once", "--draft-model", run), ("the draft model must be a causal language model",))
    refused(
        call("run", run, "1 2", "--lookup"), ("--prompt-lookup is for task generate; this is an encoder–decoder model",)
    )
    refused(call("run", run, "1 2", "--stop", "3"), ("stop = ['3']", "language model"))
    refused(call("chat", run), ("chat needs a language model", "translate"))
    refused(call("chat", "nowhere"), ("'nowhere'", "REGARD_WEIGHTS"))
    refused(call("chat", letters, "--num-beams", "2"), ("--num-beams",), code=2)
    for ask in (written.run, written.stream):
        with pytest.raises(UserError, match="input 1 is empty: a prompt needs"):
            ask("")
    with pytest.raises(UserError, match=rf"at most {LIMIT}"):
        written.generate([5] * (LIMIT + 1))
    with pytest.raises(UserError, match=r"prompt has no token"):
        written.stream([])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--best", "3"), "--best is for task answer or fill"),
        (("--context", "validation.tsv"), "--context is for task answer"),
        (("--threshold", "0.5"), "--threshold is for task answer or classify"),
        (("--log-probabilities", "--json"), "--log-probabilities is for task generate"),
    ],
)
def test_an_option_of_another_task_is_an_error(given: tuple[str, ...], said: str, call: Call, run: Path) -> None:
    refused(call("run", run, "1 2", *given), (f"{said}; this is an encoder–decoder model (task translate)",))


@pytest.mark.parametrize("verb", ["run", "chat", "inspect"])
def test_a_tokenizer_of_another_model_is_an_error(verb: str, call: Call, letters: Path, tmp_path: Path) -> None:
    folder = tmp_path / "spoiled"
    shutil.copytree(letters, folder)
    vocabulary(41).save(folder)
    refused(call(verb, folder, *(["Once"] if verb == "run" else [])), ("41 tokens", "rows", "different models"))


def test_an_unreadable_chat_template_is_an_error(
    call: Call, letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Once\n"))
    shutil.copytree(letters, tmp_path / "spoiled")
    (tmp_path / "spoiled" / "chat_template.jinja").write_text("{% for %}")
    refused(call("chat", tmp_path / "spoiled"), ("chat template is invalid",))
    (tmp_path / "spoiled" / "chat_template.jinja").write_bytes(b"\xff")
    refused(call("chat", tmp_path / "spoiled"), ("chat_template.jinja", "UTF-8"))
