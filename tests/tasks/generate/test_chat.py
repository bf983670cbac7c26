"""Conversations: what the model is shown, what is kept, and how a terminal and a pipe are answered."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chatting import CHATML, LIMIT, Screen, language_folder
from needs import need

from regard.cli.chat import COMMANDS, Terminal, answer_lines, read_turn
from regard.errors import UserError
from regard.model import Model, load
from regard.tasks.generate.chat import Conversation


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(language_folder(tmp_path_factory.mktemp("plain") / "model"))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(language_folder(tmp_path_factory.mktemp("chatty") / "model", CHATML))


@pytest.fixture(params=["plain", "chatty"])
def model(request: pytest.FixtureRequest) -> Model:
    return request.getfixturevalue(request.param)


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """What somebody types, Ctrl-C and Ctrl-D included; at the end Ctrl-D."""
    waiting: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read(prompt: str) -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    return read


# ── what is typed ────────────────────────────────────────────────────────────────────────────────────────────────────

TURNS = {
    "a line": (["hello there"], "hello there", False),
    "lines that go on": (["one\\", "two\\", "three"], "one\ntwo\nthree", False),
    "a block": (['"""', "one", "", "two", '"""'], "one\n\ntwo", True),
    "a block with text beside its marks": (['"""one', 'two"""  '], "one\ntwo", True),
    "a block in a line": (['"""/quit"""'], "/quit", True),
    "an empty block": (['"""', '"""'], "", True),
    "a block that keeps its strokes": (['"""', "a\\", '"""'], "a\\", True),
    "marks inside": (['say """ twice'], 'say """ twice', False),
}


@pytest.mark.parametrize(("lines", "text", "block"), TURNS.values(), ids=TURNS)
def test_a_turn_is_read_until_it_is_complete(lines: list[str], text: str, block: bool) -> None:
    assert read_turn(typed(*lines)) == (text, block)


# ── what the model is shown ──────────────────────────────────────────────────────────────────────────────────────────


def said(*contents: str, system: str = "") -> list[dict[str, str]]:
    """Messages in turn, the user's first."""
    turns = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(contents)]
    return [{"role": "system", "content": system}] * bool(system) + turns


def test_without_a_template_the_conversation_is_one_text(plain: Model) -> None:
    form, tokenizer = Conversation(plain).format, plain.processor.target
    assert form.tokens(said("Once", " upon a time", "The end")) == tokenizer.prompt("Once upon a time\nThe end")
    assert form.tokens(said("a\n", "b\n", "c", system="s")) == tokenizer.prompt("s\na\nb\nc")


def test_a_template_gives_the_tokens_that_the_reference_gives(chatty: Model) -> None:
    from transformers import AutoTokenizer

    messages = said("Who?", "I, the model.", "Why?", system="Be kind.")
    theirs = AutoTokenizer.from_pretrained(chatty.folder).apply_chat_template(messages, add_generation_prompt=True)
    assert Conversation(chatty).format.tokens(messages) == theirs["input_ids"]


def test_every_answer_equals_that_without_a_cache(model: Model) -> None:
    talk = Conversation(model, "Be brief.", temperature=0.8, seed=5)
    for text in ("Once upon a time", "and then", "why?"):
        before = list(talk.messages)
        answer = talk.answer(text)
        fresh = Conversation(model, temperature=0.8, seed=5)
        fresh.messages = before
        again = fresh.answer(text)
        assert again == answer
        assert fresh.prefix_cache.read >= talk.prefix_cache.read
        assert talk.messages == [*before, *said(text, answer.content)]
    assert talk.messages[0] == {"role": "system", "content": "Be brief."}


def test_an_answer_is_streamed_completely_and_ends_at_its_stop(model: Model) -> None:
    pieces: list[str] = []
    talk = Conversation(model, max_new_tokens=13)
    answer = talk.answer("Once", pieces.append)
    assert ("".join(pieces), answer.finish_reason, len(answer.tokens)) == (answer.content, "length", 13)
    assert len(pieces) > 3
    middle = answer.content[4:6]
    talk = Conversation(model, max_new_tokens=13, stop=middle)
    stopped = talk.answer("Once")
    assert (stopped.content, stopped.finish_reason) == (answer.content[: answer.content.index(middle)], "stop")
    assert (stopped.stop_reason, answer.stop_reason) == (middle, None)
    rest = Conversation(model).answer("Once")  # by default, what is left of the context
    assert (rest.finish_reason, rest.stop_reason) == ("stop", None) or rest.prompt_tokens + len(rest.tokens) == LIMIT


def test_the_oldest_turns_are_dropped_first(model: Model) -> None:
    talk = Conversation(model, "SYSTEM", max_new_tokens=20)
    decode = model.processor.target.inner.decode
    for number in range(9):
        asked = [*talk.messages, *said(f"question {number}")]
        answer = talk.answer(f"question {number}")
        shown = talk.format.fit(asked, LIMIT - 20)
        text = decode(shown.tokens, skip_special_tokens=False)
        dropped = shown.dropped_turns + shown.dropped_tokens
        assert (answer.dropped_turns, answer.dropped_tokens) == (shown.dropped_turns, shown.dropped_tokens)
        assert answer.prompt_tokens == len(shown.tokens)
        assert len(shown.tokens) <= LIMIT - 20
        assert "SYSTEM" in text
        assert f"question {number}" in text
        assert bool(dropped) == ("question 0" not in text)
    assert dropped > 1
    assert len(talk.messages) == 19  # no message is lost


def test_a_message_that_never_fits_is_refused_and_not_kept(model: Model) -> None:
    talk = Conversation(model)
    with pytest.raises(UserError, match=rf"has [\d,]+ tokens, but the model's context of {LIMIT}"):
        talk.answer("x" * LIMIT)
    assert talk.messages == []
    fitting = talk.answer("x" * (LIMIT - 40))
    assert fitting.dropped_turns == fitting.dropped_tokens == 0


def test_an_interrupted_answer_is_kept_as_far_as_it_was_shown(model: Model) -> None:
    pieces: list[str] = []

    def show(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 5:
            raise KeyboardInterrupt

    talk = Conversation(model, min_new_tokens=30)
    answer = talk.answer("Once", show)
    assert (answer.finish_reason, answer.content) == ("interrupt", "".join(pieces))
    assert talk.messages == said("Once", answer.content)
    assert talk.answer("and").prompt_tokens > answer.prompt_tokens


def test_only_a_language_model_chats(tmp_path: Path) -> None:
    from checkpoints import MODELS, vocabulary

    from regard.interop.folder import save
    from regard.models.registry import build

    network = build(MODELS["transformer"], source_vocabulary=41, target_vocabulary=41)
    save(tmp_path, network, vocabulary(41), {})
    with pytest.raises(UserError, match=r"chat needs a language model .*task is 'translate'"):
        Conversation(load(tmp_path))


def test_a_message_is_text(model: Model) -> None:
    message: Any = b"Once"
    with pytest.raises(UserError, match="the message of the user is not text: b'Once'"):
        Conversation(model).answer(message)
    with pytest.raises(UserError, match="the message of the system is not text: b'Once'"):
        Conversation(model, system=message).answer("Once")


def test_a_failing_template_is_an_error(tmp_path: Path) -> None:
    broken = load(language_folder(tmp_path, "{{ raise_exception('never') }}"))
    with pytest.raises(UserError, match="rejects this conversation: never"):
        Conversation(broken).answer("hello")


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def at_terminal(model: Model, *lines: str | type[BaseException], **options: object) -> tuple[Conversation, str]:
    """A session: the conversation as it was left, and all that was shown."""
    talk, shown = Conversation(model, **{"max_new_tokens": 7, **options}), []
    Terminal(talk, typed(*lines), shown.append).run()
    return talk, "".join(shown)


def test_a_session_shows_answers_and_leaves(model: Model) -> None:
    talk, shown = at_terminal(model, "Once", "", "  ", "upon\\", "a time", "/quit", "never")
    assert [message["content"] for message in talk.messages[::2]] == ["Once", "upon\na time"]
    for message in talk.messages[1::2]:
        assert message["content"] in shown
    assert shown.count("(stopped after 7 tokens: max_new_tokens)") == 2


def test_ctrl_c_clears_the_line_and_twice_leaves(model: Model) -> None:
    talk, shown = at_terminal(model, KeyboardInterrupt, "Once", '"""', KeyboardInterrupt, KeyboardInterrupt, "never")
    assert shown.count("Ctrl-D or /quit exits") == 2
    assert [message["content"] for message in talk.messages[::2]] == ["Once"]
    assert at_terminal(model, EOFError, "never")[0].messages == []


def test_commands_change_the_conversation(model: Model, tmp_path: Path) -> None:
    talk, shown = at_terminal(model, "Once", "/undo", "/undo", "/system Be kind.", "Twice", "/reset")
    assert talk.messages == [{"role": "system", "content": "Be kind."}]
    for words in ("the last turn was removed", "no turn to undo", "system: Be kind.", "conversation cleared"):
        assert f"({words})\n" in shown or words in shown
    talk, shown = at_terminal(model, "/system A.", "/system", "/set temperature=0.7", "/set stop=###", "/set")
    assert talk.messages == []
    assert talk.options == {"max_new_tokens": 7, "temperature": 0.7, "stop": "###"}
    assert "(max_new_tokens=7, temperature=0.7, stop=###)" in shown
    talk, shown = at_terminal(model, "/set temperature=0.7", "/set temperature=", "/set max_new_tokens=", "/set")
    assert (talk.options, shown.splitlines()[-2]) == ({}, "(no options set)")
    file = tmp_path / "talk.json"
    talk, shown = at_terminal(model, "/system Ä.", "Once", f"/save {file}", "again", f"/save {file}")
    assert json.loads(file.read_text(encoding="utf-8")) == talk.messages
    assert f"(5 messages in {file})" in shown


def test_an_error_is_reported_and_the_session_continues(model: Model, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    mistakes = {
        "/halp": "unknown command '/halp'; did you mean '/help'?",
        "/set temprature=1": "unknown option 'temprature'; did you mean 'temperature'?",
        "/set temperature=-1": "decode.temperature = -1: must be 0 or more",
        "/set temperature=hot": "temperature = 'hot' does not fit",
        "/set top_p=0": "decode.top_p = 0: must be above 0",
        "/set temperature": "expected KEY=VALUE",
        "/set seed=": "seed was not set",
        "/set num_beams=3": "num_beams = 1",
        "/save": "needs the name of a file",
        f"/save {tmp_path / 'there'}": "exists already",
        f"/save {tmp_path / 'no' / 'where'}": "No such file",
        "x" * LIMIT: "shorten it",
    }
    talk, shown = at_terminal(model, *mistakes, "Once")
    for line, words in zip([each for each in shown.splitlines() if "error: " in each], mistakes.values(), strict=True):
        assert words in line
    assert (len(talk.messages), talk.options) == (2, {"max_new_tokens": 7})
    assert (tmp_path / "there").read_text() == "mine"
    assert "/halp" in at_terminal(model, '"""/halp"""')[0].messages[0]["content"]  # a block is no command


def test_help_names_every_command(model: Model) -> None:
    _, shown = at_terminal(model, "/help")
    assert all(command in shown for command in COMMANDS)


# ── lines in, answers out ────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_are_turns_and_answers_objects(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(model, max_new_tokens=7)
    answer_lines(talk, iter(["Once", "", '"""', "/quit", '"""', "a\\", "b"]), as_json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [message["content"] for message in talk.messages[::2]] == ["Once", "/quit", "a\nb"]
    assert [each["content"] for each in found] == [message["content"] for message in talk.messages[1::2]]
    for each in found:
        assert each.keys() == {
            *("role", "content", "finish_reason", "stop_reason", "tokens", "prompt_tokens"),
            *("dropped_turns", "dropped_tokens"),
        }
        assert (each["role"], len(each["tokens"])) == ("assistant", 7)
    answer_lines(Conversation(model, max_new_tokens=7), iter(["Once"]), as_json=False)
    assert capsys.readouterr().out == found[0]["content"] + "\n"
    with pytest.raises(UserError, match="stdin ends within a turn"):
        answer_lines(talk, iter(['"""', "Once"]), as_json=True)


def test_a_pipe_is_answered_without_prompts(plain: Model) -> None:
    command = [sys.executable, "-m", "regard", "chat", str(plain.folder), "--max-new-tokens", "60", "--json"]
    lines = "one\ntwo\nthree\nfour\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 4
    assert found[-1]["dropped_tokens"] > 0
    assert done.stderr.count("one plain text") == 1
    done = subprocess.run([*command[:-1], "--quiet"], input=lines, capture_output=True, text=True, timeout=120)
    assert done.stdout == "".join(each["content"] + "\n" for each in found)
    assert done.stderr.startswith(f"warning: the conversation exceeds the context of {LIMIT} tokens")


# ── a real terminal ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_terminal_is_streamed_to_stopped_and_left() -> None:
    folder = Path(os.environ.get("REGARD_WEIGHTS", "nowhere").split(os.pathsep)[0]) / "stories260K"
    need(folder.is_dir(), "set REGARD_WEIGHTS to a folder with stories260K")
    screen = Screen(sys.executable, "-m", "regard", "chat", str(folder), "--threads", "1")
    try:
        assert "one plain text" in screen.until("> ")
        screen.type("/set max_new_tokens=9\n")
        screen.until(r"\(max_new_tokens=9\)\r\n.*> ")
        screen.type("Once upon a time\n")
        assert ", there was" in screen.until(r"stopped after 9 tokens.*\r\n.*> ")
        screen.type("/set max_new_tokens=\n/set min_new_tokens=450\n/reset\n")
        screen.until(r"conversation cleared\)\r\n.*> ")
        screen.type("Once upon a time\n")
        screen.until("there was")  # it is still being written
        screen.type("\x03")
        assert "context is full" not in screen.until(r"\(stopped\)\r\n.*> ")
        screen.type("half a line")
        screen.until("half a line")
        time.sleep(1)  # readline may not hear what comes while it draws
        screen.type("\x03")
        screen.until(r"Ctrl-D or /quit exits\)\r\n.*> ")
        screen.type("/quit\n")
        assert screen.program.wait(60) == 0
    finally:
        screen.program.kill()
        screen.program.wait()
        os.close(screen.master)
