"""A conversation as one prompt, by the chat template of a model's tokenizer, rendered as transformers does.

A template is untrusted code. It is rendered by `template_worker.py`, a process whose memory and time are limited.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer

from regard.data.files import is_text
from regard.errors import UserError
from regard.text.tokenizer import MISSING, ROLES, Tokenizer, token_name

Message = dict[str, str]  # role and content

MAX_TEMPLATE = 1 << 17  # characters of a template

MAX_PROMPT = 1 << 22  # characters of its output

MAX_REPLY = 12 * MAX_PROMPT + 1000  # characters of JSON, which writes some as \ud83d\ude00

MEMORY = 1 << 29  # bytes of the process that renders it, where the system can limit them

SECONDS = 5.0  # of its CPU time

WAITING_SECONDS = 30.0  # for a reply: a busy machine is slower, and some systems do not limit CPU time

TIME_SIGNALS = [-getattr(signal, name) for name in ("SIGPROF", "SIGXCPU") if hasattr(signal, name)]

WORKER = Path(__file__).with_name("template_worker.py")


class Worker:
    """A process that renders one template. It is ended by `close`, by any error here, and with the object."""

    def __init__(self) -> None:
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C interrupts the answer, not this
            )
        except OSError as error:
            raise UserError(f"the process that renders the chat template could not be started ({error})") from None
        self.close = weakref.finalize(self, _end, self.process, os.getpid())
        self.owner = os.getpid()
        self.replies = 0
        self.expired = False

    @property
    def available(self) -> bool:
        """Whether it can be asked: a fork of this program needs its own."""
        return self.owner == os.getpid() and self.close.alive and self.process.poll() is None

    def ask(self, request: str) -> dict[str, str]:
        """The reply to a request, both of them JSON. Where there is none, a later one would be taken for it: close."""
        timer = Timer(WAITING_SECONDS, self._expire)
        timer.daemon = True
        try:
            timer.start()
            assert self.process.stdin is not None and self.process.stdout is not None
            with suppress(OSError):  # it has ended
                self.process.stdin.write(request + "\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline(MAX_REPLY)
            if not line.endswith("\n"):
                raise self._failure()
            reply = json.loads(line)
            if reply["index"] != self.replies:
                raise UserError("the chat template fails: its process replied to another request")
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
        self.replies += 1
        return reply

    def _expire(self) -> None:
        self.expired = True
        self.process.kill()

    def _failure(self) -> UserError:
        """Why a process ended, by its exit code."""
        try:
            _, printed = self.process.communicate(timeout=1)
        except subprocess.TimeoutExpired:  # it still writes
            return UserError(f"the chat template fails: its reply exceeds {MAX_REPLY:,} characters")
        if self.expired or self.process.returncode in TIME_SIGNALS:
            return UserError(f"the chat template takes more than {SECONDS:g} seconds")
        details = f"exit code {self.process.returncode} {printed.strip()[-200:]}".strip()
        if self.replies:
            return UserError(f"the chat template fails: its process ended ({details})")
        return UserError(f"the process that renders the chat template could not be started ({details})")


def _end(process: subprocess.Popen[str], owner: int) -> None:
    """End a process, unless it belongs to the program that this one was forked from."""
    if os.getpid() != owner:
        return
    process.kill()
    process.communicate()


class Template:
    """A chat template and the special tokens that it may use, such as bos_token. Its process starts when it is used."""

    def __init__(self, source: str, specials: dict[str, str]):
        if len(source) > MAX_TEMPLATE:
            raise UserError(f"the chat template is too long: {len(source):,} characters, at most {MAX_TEMPLATE:,}")
        if find_spec("jinja2") is None:
            raise UserError('this model\'s chat template needs jinja2: pip install "regard[chat]"')
        self.source = source
        self.specials = specials
        self._lock = Lock()
        self._worker: Worker | None = None

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks the model for the next answer."""
        try:
            request = json.dumps({"messages": list(messages)})
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"messages: expected text as role and content ({error})") from None
        with self._lock:
            if self._worker is None or not self._worker.available:
                self._worker = self._start()
            reply = self._worker.ask(request)
        if "error" in reply:
            raise UserError(f"the chat template {reply['error']}")
        if not is_text(reply["text"]):
            raise UserError("the chat template fails: its output is not valid Unicode text")
        return reply["text"]

    def _start(self) -> Worker:
        """A process that has compiled the template."""
        limits = {"seconds": SECONDS, "memory": MEMORY, "characters": MAX_PROMPT}
        worker = Worker()
        reply = worker.ask(json.dumps({"source": self.source, "specials": self.specials, **limits}))
        if "error" in reply:
            worker.close()
            raise UserError(f"the chat template {reply['error']}")
        return worker


TEMPLATES: weakref.WeakKeyDictionary[Tokenizer, Template] = weakref.WeakKeyDictionary()  # one process each


def template_of(tokenizer: Tokenizer) -> Template | None:
    """The tokenizer's chat template, if it has one."""
    source = tokenizer.settings.get("chat_template")
    if isinstance(source, list):  # several, for several uses
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[-1].get("template") if named else None
    if source is None:
        return None
    if not isinstance(source, str):
        raise UserError(f"chat_template: expected a string, found a {type(source).__name__}")
    by_role = {ROLES[role][0]: tokenizer.name(token) for role, token in tokenizer.ids.items() if token != MISSING}
    configured = {key: token_name(tokenizer.settings, key) for key in tokenizer.settings if key.endswith("_token")}
    specials = by_role | {key: name for key, name in configured.items() if name is not None}
    template = TEMPLATES.get(tokenizer)
    if template is None or (template.source, template.specials) != (source, specials):
        template = TEMPLATES[tokenizer] = Template(source, specials)
    return template
