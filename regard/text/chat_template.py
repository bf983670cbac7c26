"""A conversation as one prompt, by the chat template of a model's tokenizer, rendered as transformers does.

A template is untrusted code. It is rendered by `template_worker.py`, a process whose memory and time are limited.
"""

import json
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from regard.data.files import is_text
from regard.errors import UserError
from regard.text.tokenizer import MISSING, ROLES, Tokenizer, token_name

Message = dict[str, str]  # role and content

MAX_TEMPLATE = 1 << 17  # characters of a template

MAX_PROMPT = 1 << 22  # characters of its output

MEMORY = 1 << 29  # bytes of the process that renders it

SECONDS = 5.0  # of its CPU time

WORKER = Path(__file__).with_name("template_worker.py")


class Template:
    """A chat template and the special tokens that it may use, such as bos_token."""

    def __init__(self, source: str, specials: dict[str, str]):
        if len(source) > MAX_TEMPLATE:
            raise UserError(f"the chat template is too long: {len(source):,} characters, at most {MAX_TEMPLATE:,}")
        if find_spec("jinja2") is None:
            raise UserError('this model\'s chat template needs jinja2: pip install "regard[chat]"')
        limits = {"seconds": SECONDS, "memory": MEMORY, "characters": MAX_PROMPT}
        self._setup = {"source": source, "specials": specials, **limits}
        self._lock = Lock()
        self._process = self._start()

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks the model for the next answer."""
        with self._lock:
            if self._process.poll() is not None:  # ended by an earlier conversation
                self._process = self._start()
            text = self._request({"messages": list(messages)})["text"]
        if not is_text(text):
            raise UserError("the chat template fails: its output is not valid Unicode text")
        return text

    def _start(self) -> subprocess.Popen[str]:
        """The process that renders this template; it ends when its input is closed."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C interrupts the answer, not this
        )
        weakref.finalize(self, self._process.communicate)
        self._request(self._setup)
        return self._process

    def _request(self, request: dict[str, Any]) -> dict[str, str]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            process.communicate()
            raise UserError(f"the chat template takes more than {SECONDS:g} seconds or {MEMORY >> 20} MB")
        reply = json.loads(line)
        if "error" in reply:
            raise UserError(f"the chat template {reply['error']}")
        return reply


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
    return Template(source, by_role | {key: name for key, name in configured.items() if name is not None})
