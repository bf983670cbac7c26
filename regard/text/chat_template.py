"""A conversation as one prompt, by the template that a chat model's tokenizer brings: as transformers renders it.

A template is a program from a stranger. It runs in jinja2's sandbox, where it can neither reach Python nor change what
it is given, and its size, its time and what it writes are bounded.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from regard.errors import UserError
from regard.text.tokenizer import MISSING, ROLES, Tokenizer

Message = dict[str, str]  # role and content

LARGEST = 1 << 17  # characters of a template

LONGEST = 1 << 22  # characters that one may write

SECONDS = 5.0  # that it may take, asked at every turn of a loop and every call


class Template:
    """A chat template and the special tokens that it may name, such as bos_token."""

    def __init__(self, source: str, specials: dict[str, str]):
        if len(source) > LARGEST:
            raise UserError(f"the chat template has {len(source):,} characters, more than the {LARGEST:,} that are run")
        self.specials = specials
        self._until = 0.0
        self._program = self._compiled(source)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks the model for the next answer."""
        self._until = time.monotonic() + SECONDS
        given = [dict(message) for message in messages]
        written, length = [], 0
        try:
            for piece in self._program.generate(messages=given, add_generation_prompt=True, **self._context()):
                written.append(piece)
                length += len(piece)
                if length > LONGEST:
                    raise UserError(f"the chat template writes more than {LONGEST:,} characters")
        except UserError:
            raise
        except Exception as error:  # whatever a stranger's program does
            raise UserError(f"the chat template fails: {error or type(error).__name__}") from None
        return "".join(written)

    def _context(self) -> dict[str, Any]:
        return {"tools": None, "documents": None, **self.specials}

    def _compiled(self, source: str) -> Any:
        environment = self._environment()
        from jinja2 import TemplateError, nodes

        try:
            tree = environment.parse(source)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "timed", [], [], None, None, lineno=loop.lineno)
            return environment.from_string(tree)
        except (TemplateError, RecursionError, ValueError) as error:
            raise UserError(f"the chat template cannot be read: {error or type(error).__name__}") from None

    def _environment(self) -> Any:
        """A sandbox with what templates expect: what transformers gives them."""
        try:
            from jinja2 import ext, sandbox, utils
        except ImportError:
            raise UserError('this model\'s chat template needs jinja2: pip install "regard[chat]"') from None
        hurry = self._hurry

        class Environment(sandbox.ImmutableSandboxedEnvironment):
            intercepted_binops = frozenset(("*", "**"))  # of two short words, what fills the memory

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                sizes = [len(each) if isinstance(each, str | list | tuple) else abs(each) for each in (left, right)]
                if sizes[0] * sizes[1] > LONGEST or (operator == "**" and max(sizes) > 64):
                    raise UserError(f"the chat template may not compute {left!r:.20} {operator} {right!r:.20}")
                return super().call_binop(context, operator, left, right)

            def call(self, *arguments: Any, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
                hurry()
                return super().call(*arguments, **named)

        class Namespace(utils.Namespace):
            """Its names are the template's own, never those by which Python looks into an object."""

            def __setitem__(self, name: str, value: Any) -> None:
                if name.startswith("_"):
                    raise UserError(f"the chat template may not set '{name}'")
                super().__setitem__(name, value)

        class Generation(ext.Extension):
            """{% generation %} marks what the model wrote; that is of use in training alone."""

            tags = {"generation"}

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def namespace(*given: Any, **named: Any) -> Namespace:
            made = Namespace()
            for name, value in dict(*given, **named).items():
                made[name] = value
            return made

        environment = Environment(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[Generation, ext.loopcontrols]
        )
        environment.filters |= {"timed": self._timed, "tojson": _to_json}
        environment.globals |= {"namespace": namespace, "raise_exception": _refuse, "strftime_now": _now}
        return environment

    def _hurry(self) -> None:
        if time.monotonic() > self._until:
            raise UserError(f"the chat template takes more than {SECONDS:.0f} seconds")

    def _timed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._hurry()
            yield item


def template_of(tokenizer: Tokenizer) -> Template | None:
    """The tokenizer's chat template, if it brings one."""
    found = tokenizer.settings.get("chat_template")
    if isinstance(found, list):  # several, for several uses
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if found is None:
        return None
    if not isinstance(found, str):
        raise UserError(f"chat_template should be text, not a {type(found).__name__}")
    return Template(found, _specials(tokenizer))


def _specials(tokenizer: Tokenizer) -> dict[str, str]:
    """Special tokens by the names of tokenizer_config.json."""
    said = {key: each.get("content") if isinstance(each, dict) else each for key, each in tokenizer.settings.items()}
    named = {key: each for key, each in said.items() if key.endswith("_token") and isinstance(each, str)}
    roles = {key: getattr(tokenizer, role) for role, (key, _) in ROLES.items()}
    return {key: tokenizer.name(token) for key, token in roles.items() if token != MISSING} | named


def _refuse(message: str) -> None:
    raise UserError(f"the chat template refuses this conversation: {message}")


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """Without the escapes for web pages that jinja2's own puts in."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)
