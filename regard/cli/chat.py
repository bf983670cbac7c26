"""`regard chat`: a conversation at a terminal, or lines in and answers out."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.cli.options import Output, read_texts
from regard.cli.output import printable, to_json
from regard.errors import UserError, escape_controls, nearest, report
from regard.model import Model
from regard.tasks.generate.chat import Answer, Conversation, PlainFormat

PROMPT = "> "
MORE = "… "
BLOCK = '"""'

COMMANDS = {
    "/help": "this list",
    "/reset": "start a new conversation; the system prompt stays",
    "/undo": "remove the last turn",
    "/system TEXT": "set the system prompt; empty: remove it",
    "/set KEY=VALUE": "set a generation option, e.g. temperature=0.8; empty VALUE: reset to the default",
    "/save FILE": "write the messages as JSON",
    "/quit": "exit, as Ctrl-D does",
}

LINES = 'A line that ends in \\ continues in the next; """ opens and closes a block of lines. Ctrl-C stops an answer.'


def chat(model: Model, system: str, options: dict[str, Any], output: Output) -> None:
    """Chat in a terminal, or answer each line of stdin."""
    conversation = Conversation(model, system, **options)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not output.json
    if not output.quiet:
        if interactive:
            limit = f"A context of {conversation.limit} tokens"
            print(f"{limit}. /help lists the commands, Ctrl-D exits.", file=sys.stderr)
        if isinstance(conversation.format, PlainFormat):
            note = "No chat template: messages and answers form one plain text, which the model continues."
            print(note, file=sys.stderr)
    if not interactive:
        answer_lines(conversation, read_texts(None), output.json)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  input() then has line editing and history
    Terminal(conversation, input, lambda text: print(escape_controls(text), end="", flush=True)).run()


def read_turn(read: Callable[[str], str]) -> tuple[str, bool]:
    """A complete message, and whether it is a block, which is never a command."""
    line = read(PROMPT)
    if not line.startswith(BLOCK):
        while line.endswith("\\"):
            line = line[:-1] + "\n" + read(MORE)
        return line, False
    lines = [line.removeprefix(BLOCK)]
    while not lines[-1].rstrip().endswith(BLOCK):
        lines.append(read(MORE))
    lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
    first = lines[0] == ""
    last = len(lines) > 1 and lines[-1] == ""
    return "\n".join(lines[first : len(lines) - last]), True


def answer_lines(conversation: Conversation, lines: Iterator[str], as_json: bool) -> None:
    """Each line, or block of lines, is a turn; answers go to stdout as text, or as one JSON object per line."""

    def read(prompt: str) -> str:
        line = next(lines, None)
        if line is None and prompt == MORE:
            raise UserError('stdin ends within a turn: a line ended in \\, or """ opened a block, and nothing followed')
        if line is None:
            raise EOFError
        return line

    while True:
        try:
            text, _ = read_turn(read)
        except EOFError:
            return
        if not text.strip():
            continue
        answer = conversation.answer(text)
        if as_json:
            print(to_json(answer, indent=None), flush=True)
        else:
            print(printable(answer.content), flush=True)
            if warning := context_warning(conversation, answer):
                report("warning", warning)
        if answer.finish_reason == "interrupt":
            raise KeyboardInterrupt


def context_warning(conversation: Conversation, answer: Answer) -> str:
    """The warning about turns that no longer fit in the context; empty where all do."""
    if not (answer.dropped_turns or answer.dropped_tokens):
        return ""
    dropped = f"{answer.dropped_turns} turns" if answer.dropped_turns else f"{answer.dropped_tokens} tokens"
    return f"the conversation exceeds the context of {conversation.limit} tokens: its oldest {dropped} were dropped"


class Terminal:
    """An interactive conversation: `read` returns a line, or raises KeyboardInterrupt or EOFError; `show` prints."""

    def __init__(self, conversation: Conversation, read: Callable[[str], str], show: Callable[[str], None]):
        self.conversation = conversation
        self.read = read
        self.show = show
        self.saved: set[Path] = set()  # files that may be written again

    def run(self) -> None:
        """Turns until the user leaves."""
        leaving = False  # the last event was Ctrl-C
        while True:
            try:
                text, block = read_turn(self.read)
                leaving = False
                if text.startswith("/") and not block:
                    if text.strip() == "/quit":
                        return
                    self.run_command(text.strip())
                elif text.strip():
                    self.turn(text)
            except KeyboardInterrupt:
                if leaving:
                    self.show("\n")
                    return
                leaving = True
                self.show("\n(Ctrl-C again, Ctrl-D or /quit exits)\n")
            except EOFError:
                self.show("\n")
                return
            except (UserError, UnicodeError) as error:
                self.show(f"error: {error}\n")

    def turn(self, text: str) -> None:
        """A message and its answer."""
        answer = self.conversation.answer(text, self.show)
        self.show("" if answer.content.endswith("\n") else "\n")
        if warning := context_warning(self.conversation, answer):
            self.show(f"({warning})\n")
        if answer.finish_reason == "interrupt":
            self.show("(stopped)\n")
        if answer.finish_reason == "length":
            count = len(answer.tokens)
            full = answer.prompt_tokens + count >= self.conversation.limit
            self.show(f"({'the context is full' if full else f'stopped after {count} tokens: max_new_tokens'})\n")

    def run_command(self, line: str) -> None:
        """Run a command: a line that starts with a slash."""
        name, _, rest = line.partition(" ")
        known = [command.split()[0] for command in COMMANDS]
        if name not in known:
            raise UserError(f"unknown command '{name}'{nearest(name, known)}")
        self.show("".join(f"({line})\n" for line in getattr(self, f"_{name[1:]}")(rest.strip())))

    def _help(self, rest: str) -> Iterator[str]:
        for command, meaning in COMMANDS.items():
            yield f"{command:<16}{meaning}"
        yield LINES

    def _reset(self, rest: str) -> Iterator[str]:
        self.conversation.reset()
        yield "conversation cleared"

    def _undo(self, rest: str) -> Iterator[str]:
        removed = self.conversation.undo()
        yield "the last turn was removed" if removed else "there is no turn to undo"

    def _system(self, rest: str) -> Iterator[str]:
        self.conversation.system = rest
        yield f"system: {rest}" if rest else "no system prompt"

    def _set(self, rest: str) -> Iterator[str]:
        options = dict(self.conversation.options)
        if rest:
            name, sign, value = rest.partition("=")
            if not sign:
                raise UserError(f"/set {rest}: expected KEY=VALUE, such as /set temperature=0.8")
            if value.strip():
                options[name.strip()] = _value(value.strip())
            elif options.pop(name.strip(), None) is None:
                raise UserError(f"/set {rest}: {name.strip()} was not set")
            self.conversation.choose(**options)
        yield ", ".join(f"{name}={value}" for name, value in options.items()) or "no options set"

    def _save(self, rest: str) -> Iterator[str]:
        if not rest:
            raise UserError("/save needs the name of a file, e.g. /save chat.json")
        path = Path(os.path.expanduser(rest))
        if path.exists() and path not in self.saved:
            raise UserError(f"{path} exists already; choose another name")
        try:
            path.write_text(to_json(self.conversation.messages) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        self.saved.add(path)
        yield f"{len(self.conversation.messages)} messages in {path}"


def _value(text: str) -> Any:
    """JSON, such as a number or a list; else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
