"""The command line's contract: exit codes, one clean message, JSON that parses, and help without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from calling import Call
from chatting import CHATML, LIMIT, Screen, language_folder

from regard import __version__
from regard.cli.main import OWN_DATA, app
from regard.text.vocabulary import Vocabulary

VERBS = ["train", "resume", "evaluate", "run", "search", "chat", "inspect", "convert", "list", "doctor", "demo"]
VERBS += ["tokenizer"]


@pytest.fixture
def regard(call: Call) -> Call:
    return call


def process(*arguments: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regard", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # pyright: ignore


def test_every_command_exists_and_has_help(regard: Call) -> None:
    code, out, _ = regard("--help")
    assert code == 0
    listed = [
        line.split()[0]
        for line in out.split("Commands:")[1].splitlines()
        if line.startswith("  ") and line[2:3].strip()
    ]
    assert set(VERBS) <= set(listed)
    for verb in VERBS:
        code, out, _ = regard(verb, "--help")
        assert code == 0
        assert f"Usage: regard {verb}" in out


def test_options_that_commands_share_have_sections(regard: Call) -> None:
    _, out, _ = regard("run", "--help")
    sections = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections[:2] == ["Arguments:", "Options:"]
    assert {"Generation:", "Task-specific options:", "Device and precision:", "Output:", "Examples:"} <= set(sections)
    assert out.index("Generation:") < out.index("--num-beams") < out.index("Task-specific") < out.index("--context")


def test_chat_lists_no_option_of_beam_search(regard: Call) -> None:
    _, chat, _ = regard("chat", "--help")
    _, run, _ = regard("run", "--help")
    for option in ("--num-beams", "--num-return-sequences", "--length-penalty"):
        assert option in run and option not in chat
    assert "--temperature" in chat


def test_help_loads_no_torch_and_is_fast() -> None:
    program = (
        "import sys; sys.argv = ['regard', '--help']; import regard.cli.main\n"
        "try: regard.cli.main.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        after = os.times()  # of the processor: a busy machine counts for nothing
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
        loaded = set(done.stderr.split())
        assert "regard.cli.main" in loaded
        assert not loaded & {"torch", "numpy", "tokenizers", "sacrebleu", "transformers"}
    assert min(seconds) < 0.5


def test_version(regard: Call) -> None:
    assert regard("--version") == (0, f"regard {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "train"),
        (["train"], "RECIPE"),
        (["run", "model", "--num-beans", "5"], "--num-beams"),
        (["run", "model", "--num-beams", "0"], "--num-beams"),
        (["run", "model", "--num-beams", "five"], "--num-beams"),
        (["tokenizer", "encoed"], "encode"),
        (["predict", "model"], "did you mean `regard run MODEL TEXT`?"),
        (["trace", "model"], "--explore FILE.html"),
        (["eval", "model"], "did you mean `regard evaluate MODEL`?"),
        (["train", "classify", "--epochs", "3"], "No such option: --epochs; did you mean train.epochs=3?"),
        (["train", "classify", "--lr=1e-3"], "did you mean train.learning_rate=1e-3?"),
        (["doctor", "classify", "--output", "here"], "did you mean output=here?"),
        (["train", "classify", "--nothing", "3"], "No such option: --nothing"),
    ],
)
def test_wrong_usage_leaves_with_2_and_names_what_is_possible(regard: Call, arguments: list[str], said: str) -> None:
    code, out, err = regard(*arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("name", OWN_DATA)
def test_a_recipe_for_own_data_says_which_file_it_needs(regard: Call, name: str) -> None:
    code, out, err = regard("train", name)
    assert (code, out) == (1, "")
    assert f"recipe {name} needs your file: data.train=FILE ({OWN_DATA[name]})" in err


@pytest.mark.parametrize("verb", ["train", "doctor"])
def test_failed_work_leaves_with_1_and_one_message(regard: Call, tmp_path: Path, verb: str) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('task = "translate"\n[train]\nmax_stepz = 3\n')
    code, out, err = regard(verb, str(recipe))
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "max_steps" in err
    assert f"{recipe}:3" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["run", "nowhere", "x"], ["inspect", "nowhere"], ["resume", "nowhere"]])
def test_a_missing_folder_is_named(regard: Call, arguments: list[str]) -> None:
    code, out, err = regard(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "nowhere" in err


def test_a_tokenizer_of_bytes_learns_line_breaks(regard: Call, tmp_path: Path) -> None:
    corpus, saved = tmp_path / "code.py", tmp_path / "tokenizer.json"
    corpus.write_text("def a():\n    return 1\n\n\n" * 100)
    options = ["-o", str(saved), "--kind", "byte_bpe", "--vocab-size", "300"]
    assert regard("tokenizer", "train", str(corpus), *options)[0] == 0
    code, out, _ = regard("tokenizer", "encode", str(saved), "--pieces", "def a():\n    return 1")
    assert (code, out.split()) == (0, ["def", "▁a", "():", "⏎▁▁▁", "▁return", "▁1"])


def test_tokenizer_round_trip(regard: Call, tmp_path: Path) -> None:
    corpus, saved = tmp_path / "text.txt", tmp_path / "tokenizer.json"
    text = "a red bike by the sea"
    corpus.write_text(f"{text}\nthe sea by a red wall\n" * 7, encoding="utf-8")
    code, out, _ = regard("tokenizer", "train", str(corpus), "-o", str(saved), "--vocab-size", "61", "--json")
    assert code == 0
    assert json.loads(out)["size"] <= 61
    code, ids, _ = regard("tokenizer", "encode", str(saved), text)
    assert code == 0
    assert regard("tokenizer", "decode", str(saved), *ids.split()) == (0, f"{text}\n", "")
    code, out, _ = regard("tokenizer", "encode", str(saved), "--json", text, "the wall")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["text"] for line in lines] == [text, "the wall"]
    assert lines[0]["ids"] == [int(number) for number in ids.split()]
    code, _, err = regard("tokenizer", "decode", str(saved), "61000")
    assert code == 1
    assert "61000" in err
    code, _, err = regard("tokenizer", "train", str(corpus), "-o", str(saved))
    assert code == 1
    assert str(saved) in err


def test_stdin_is_answered_a_line_each(tmp_path: Path, regard: Call) -> None:
    corpus, saved = tmp_path / "text.txt", tmp_path / "tokenizer.json"
    corpus.write_text("one two three\nthree two one\n" * 5)
    regard("tokenizer", "train", str(corpus), "-o", str(saved), "--kind", "words", "--vocab-size", "11")
    running = process("tokenizer", "encode", str(saved), "--pieces", stdin=subprocess.PIPE)
    out, err = running.communicate("two one\n\nthree\n")
    assert (running.returncode, err) == (0, "")
    assert out.splitlines() == ["▁two ▁one", "", "▁three"]


def test_a_closed_pipe_is_no_traceback(tmp_path: Path, regard: Call) -> None:
    corpus, saved = tmp_path / "text.txt", tmp_path / "tokenizer.json"
    corpus.write_text("one two three\n" * 5)
    regard("tokenizer", "train", str(corpus), "-o", str(saved), "--kind", "words", "--vocab-size", "11")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "regard", "tokenizer", "encode", str(saved)]
    done = subprocess.run(command, input="one two\n" * 20_000, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


def test_interrupt_leaves_with_130(monkeypatch: pytest.MonkeyPatch, regard: Call) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.cli.list.overview", interrupted)
    code, out, err = regard("list")
    assert (code, out) == (130, "")
    assert "Traceback" not in err


def test_the_commands_are_the_documented_ones() -> None:
    assert set(typer.main.get_command(app).commands) == set(VERBS)  # type: ignore[attr-defined]


# ── language models ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that writes letters."""
    return str(language_folder(tmp_path_factory.mktemp("letters") / "model", CHATML))


def test_a_lone_prompt_is_continued_with_its_line_breaks(regard: Call, letters: str) -> None:
    (line_break,) = Vocabulary.load(Path(letters)).target.encode("\n")
    options = ["--max-new-tokens", "60", "--temperature", "2", "--logit-bias", f"{line_break}=6"]
    code, out, err = regard("run", letters, "Once", *options, "--json")
    (answer,) = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert "\n" in answer["text"]
    assert answer.keys() >= {"text", "score", "tokens", "finish_reason", "stop_reason", "prompt_tokens", "truncated"}
    assert answer.keys() >= {"context_shifted", "alternatives"}
    assert regard("run", letters, "Once", *options) == (0, answer["text"] + "\n", "")
    code, out, _ = regard("run", letters, "Once", "Twice", *options)
    assert code == 0
    assert out.splitlines()[0] == " ".join(answer["text"].splitlines())
    assert len(out.splitlines()) == 2
    assert regard("run", letters, "Once", *options, "--num-return-sequences", "3")[1].count("\n") == 3


def test_a_terminal_shows_the_same_text_while_it_is_generated(letters: str) -> None:
    command = [sys.executable, "-m", "regard", "run", letters, "Once", "--max-new-tokens", "60"]
    whole = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    screen = Screen(*command)
    try:
        shown = screen.until(r"\r\n$")
        assert screen.program.wait(60) == 0
    finally:
        screen.program.kill()
        screen.program.wait()
        os.close(screen.master)
    assert (shown + screen.text).replace("\r\n", "\n") == whole


def test_an_empty_line_has_an_empty_answer(letters: str) -> None:
    options = ["--max-new-tokens", "5"]
    running = process("run", letters, *options, stdin=subprocess.PIPE)
    out, err = running.communicate("Once\n\nTwice\n")
    assert (running.returncode, err) == (0, "")
    first, empty, last = out.split("\n")[:3]
    assert first and not empty and last
    running = process("run", letters, *options, "--json", stdin=subprocess.PIPE)
    assert [json.loads(line)["text"] == "" for line in running.communicate("Once\n \n")[0].splitlines()] == [
        False,
        True,
    ]


def test_dropped_and_truncated_text_is_reported(regard: Call, letters: str) -> None:
    long = ["--max-new-tokens", str(LIMIT), "--min-new-tokens", str(LIMIT)]
    code, _, err = regard("run", letters, "Once", *long)
    assert code == 0
    exceeded = f"context full ({LIMIT} tokens): its oldest half was dropped and generation continued"
    assert err == f"warning: {exceeded}\n"
    code, out, err = regard("run", letters, "Once", *long, "--json")
    assert (code, err, json.loads(out)["context_shifted"]) == (0, "", True)
    code, _, err = regard("run", letters, "x" * 500, "--truncate", "--max-new-tokens", "3")
    assert code == 0
    assert err.startswith("warning: truncated to what the model reads")


def test_options_of_decoding_reach_the_search(regard: Call, letters: str) -> None:
    code, out, _ = regard("run", letters, "Once", "--max-new-tokens", "20", "--json", "--log-probabilities")
    plain = json.loads(out)
    assert code == 0
    assert len(plain["log_probabilities"]) == len(plain["tokens"]) == 20
    most = max(plain["tokens"], key=plain["tokens"].count)

    def tokens(*options: str) -> list[int]:
        code, out, _ = regard("run", letters, "Once", "--max-new-tokens", "20", "--json", *options)
        assert code == 0
        return json.loads(out)["tokens"]

    assert most not in tokens("--logit-bias", f"{most}=-1000")
    assert tokens("--logit-bias", "5=1000", "--logit-bias", "6=-9") == [5] * 20
    assert len(set(tokens("--presence-penalty", "1000"))) == len(set(tokens("--frequency-penalty", "1000"))) == 20
    assert tokens("--prompt-lookup") == tokens("--draft-model", letters) == plain["tokens"]
    stop = plain["text"][5:7]
    code, out, _ = regard("run", letters, "Once", "--max-new-tokens", "20", "--stop", stop, "--stop", "never")
    assert (code, out) == (0, plain["text"][: plain["text"].index(stop)] + "\n")


def test_inspect_and_list_know_language_models(regard: Call, letters: str) -> None:
    code, out, err = regard("inspect", letters, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert (told["family"], told["task"], told["context"], told["chat_template"]) == ("llama", "generate", LIMIT, True)
    assert told["sites"] == ["decoder.blocks.0.self", "decoder.blocks.1.self"]
    assert sum(told["parameters_by_part"].values()) == told["parameters"] > 0
    assert regard("inspect", letters)[0] == 0
    listed = json.loads(regard("list", "--json")[1])
    assert {"gpt", "llama"} <= listed["families"].keys()
    assert "generate" in listed["tasks"]
    assert listed["recipes"]["shakespeare-small"]["task"] == "generate"
