"""`regard chat`: a conversation at a terminal, or lines in and answers out."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.cli.options import Output, given_texts
from regard.cli.output import document, harmless
from regard.errors import UserError, nearest
from regard.tasks.generate.chat import Answer, Conversation, Running

PROMPT, MORE, BLOCK = "> ", "… ", '"""'

COMMANDS = {
    "/help": "this list",
    "/reset": "begin again; the system message stays",
    "/undo": "take back the last turn",
    "/system TEXT": "tell the model how to be; without TEXT, nothing",
    "/set KEY=VALUE": "decode otherwise, such as /set temperature=0.8; without VALUE, as the model came",
    "/save FILE": "write the messages as JSON",
    "/quit": "leave, as Ctrl-D does",
}

LINES = 'A line that ends in \\ goes on in the next; """ opens and closes a block of lines. Ctrl-C stops an answer.'


def chat(model: Any, system: str, options: dict[str, Any], output: Output) -> None:
    """Talk at a terminal, or answer each line of stdin."""
    conversation = Conversation(model, system, **options)
    by_hand = sys.stdin.isatty() and sys.stdout.isatty() and not output.json
    if not output.quiet:
        for line in _greeting(conversation, by_hand):
            print(line, file=sys.stderr)
    if not by_hand:
        answer_lines(conversation, given_texts(None), output.json)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  input() then edits lines, and knows those before
    Terminal(conversation, input, _show).run()


def _show(text: str) -> None:
    print(harmless(text), end="", flush=True)


def _greeting(conversation: Conversation, by_hand: bool) -> Iterator[str]:
    if by_hand:
        yield f"A context of {conversation.limit} tokens. /help lists the commands, Ctrl-D leaves."
    if isinstance(conversation.form, Running):
        yield "No chat template: what is typed and what the model writes are one running text, which it goes on with."


def read_turn(read: Callable[[str], str]) -> tuple[str, bool]:
    """What is typed until it is whole, and whether it is a block, which is never a command."""
    line = read(PROMPT)
    if not line.startswith(BLOCK):
        while line.endswith("\\"):
            line = line[:-1] + "\n" + read(MORE)
        return line, False
    lines = [line.removeprefix(BLOCK)]
    while not lines[-1].rstrip().endswith(BLOCK):
        lines.append(read(MORE))
    lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
    first, last = lines[0] == "", len(lines) > 1 and lines[-1] == ""
    return "\n".join(lines[first : len(lines) - last]), True


def answer_lines(conversation: Conversation, lines: Iterator[str], as_json: bool) -> None:
    """Each line, or block of lines, is a turn; answers go to stdout, as text or as an object a line."""

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
            print(document(answer, indent=None), flush=True)
        else:
            print(answer.content, flush=True)
            if answer.left_out:
                print(f"warning: {left_out(conversation, answer)}", file=sys.stderr)
        if answer.finish == "interrupt":
            raise KeyboardInterrupt


def left_out(conversation: Conversation, answer: Answer) -> str:
    """What the model was not shown of a conversation that has become too long for it."""
    return (
        f"the conversation has outgrown the context of {conversation.limit} tokens: "
        f"its oldest {answer.left_out} {conversation.form.unit} were left out"
    )


class Terminal:
    """A conversation by hand: `read` gives a line, or raises what Ctrl-C and Ctrl-D raise; `show` prints at once."""

    def __init__(self, conversation: Conversation, read: Callable[[str], str], show: Callable[[str], None]):
        self.conversation, self.read, self.show = conversation, read, show
        self.saved: set[Path] = set()  # files that may be written again

    def run(self) -> None:
        """Turn after turn, until somebody wants to leave."""
        leaving = False  # Ctrl-C came, and nothing since
        while True:
            try:
                text, block = read_turn(self.read)
                leaving = False
                if text.startswith("/") and not block:
                    if text.strip() == "/quit":
                        return
                    self.obey(text.strip())
                elif text.strip():
                    self.turn(text)
            except KeyboardInterrupt:
                if leaving:
                    self.show("\n")
                    return
                leaving = True
                self.show("\n(Ctrl-C once more, Ctrl-D or /quit leaves)\n")
            except EOFError:
                self.show("\n")
                return
            except (UserError, UnicodeError) as error:
                self.show(f"error: {error}\n")

    def turn(self, text: str) -> None:
        """A message and its answer."""
        answer = self.conversation.answer(text, self.show)
        self.show("" if answer.content.endswith("\n") else "\n")
        for note in self._notes(answer):
            self.show(f"({note})\n")

    def _notes(self, answer: Answer) -> Iterator[str]:
        if answer.left_out:
            yield left_out(self.conversation, answer)
        if answer.finish == "interrupt":
            yield "stopped"
        if answer.finish == "length":
            full = answer.prompt_tokens + len(answer.tokens) >= self.conversation.limit
            yield "the context is full" if full else f"cut off after {len(answer.tokens)} tokens: max_new_tokens"

    def obey(self, line: str) -> None:
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
        yield "nothing was said"

    def _undo(self, rest: str) -> Iterator[str]:
        taken = self.conversation.undo()
        yield "the last turn is taken back" if taken else "there is no turn to take back"

    def _system(self, rest: str) -> Iterator[str]:
        self.conversation.system = rest
        yield f"system: {rest}" if rest else "no system message"

    def _set(self, rest: str) -> Iterator[str]:
        options = dict(self.conversation.options)
        if rest:
            name, sign, value = rest.partition("=")
            if not sign:
                raise UserError(f"/set {rest}: expected KEY=VALUE, such as /set temperature=0.8")
            if value.strip():
                options[name.strip()] = _value(value.strip())
            elif options.pop(name.strip(), None) is None:
                raise UserError(f"{name.strip()} was not set")
            self.conversation.choose(**options)
        yield ", ".join(f"{name}={value}" for name, value in options.items()) or "all as the model came"

    def _save(self, rest: str) -> Iterator[str]:
        if not rest:
            raise UserError("/save needs the name of a file")
        path = Path(rest).expanduser()
        if path.exists() and path not in self.saved:
            raise UserError(f"{path} exists already; choose another name")
        try:
            path.write_text(document(self.conversation.messages) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        self.saved.add(path)
        yield f"{len(self.conversation.messages)} messages in {path}"


def _value(text: str) -> Any:
    """A number, a list or a text, as typed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
