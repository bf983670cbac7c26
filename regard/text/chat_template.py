"""A conversation as one prompt, by the chat template of a model's tokenizer, rendered as transformers does.

A template is untrusted code. It runs in jinja2's sandbox, where it can neither reach Python nor change its arguments,
and its size, its time and its output are limited.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from regard.errors import UserError
from regard.text.tokenizer import MISSING, ROLES, Tokenizer, token_name

Message = dict[str, str]  # role and content

MAX_TEMPLATE = 1 << 17  # characters of a template

MAX_PROMPT = 1 << 22  # characters of its output

SECONDS = 5.0  # of its run time, checked at every iteration of a loop and every call


class Template:
    """A chat template and the special tokens that it may use, such as bos_token."""

    def __init__(self, source: str, specials: dict[str, str]):
        if len(source) > MAX_TEMPLATE:
            raise UserError(f"the chat template is too long: {len(source):,} characters, at most {MAX_TEMPLATE:,}")
        self.specials = specials
        self._deadline = 0.0
        self._program = self._compile(source)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks the model for the next answer."""
        self._deadline = time.monotonic() + SECONDS
        context = {"tools": None, "documents": None, **self.specials}
        copies = [dict(message) for message in messages]
        pieces = []
        length = 0
        try:
            for piece in self._program.generate(messages=copies, add_generation_prompt=True, **context):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_PROMPT:
                    raise UserError(f"the chat template's output exceeds {MAX_PROMPT:,} characters")
        except UserError:
            raise
        except Exception as error:  # whatever untrusted code does
            raise UserError(f"the chat template fails: {error or type(error).__name__}") from None
        return "".join(pieces)

    def _compile(self, source: str) -> Any:
        environment = self._environment()
        from jinja2 import TemplateError, nodes

        try:
            tree = environment.parse(source)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "timed", [], [], None, None, lineno=loop.lineno)
            return environment.from_string(tree)
        except (TemplateError, RecursionError, ValueError) as error:
            raise UserError(f"the chat template is invalid: {error or type(error).__name__}") from None

    def _environment(self) -> Any:
        """A sandbox with the functions that templates expect: those of transformers."""
        try:
            from jinja2 import ext, sandbox, utils
        except ImportError:
            raise UserError('this model\'s chat template needs jinja2: pip install "regard[chat]"') from None
        check_time = self._check_time

        class Environment(sandbox.ImmutableSandboxedEnvironment):
            intercepted_binops = frozenset(("*", "**"))  # a short expression could fill the memory

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                sizes = [len(value) if isinstance(value, str | list | tuple) else abs(value) for value in (left, right)]
                if sizes[0] * sizes[1] > MAX_PROMPT or (operator == "**" and max(sizes) > 64):
                    raise UserError(f"the chat template may not compute {left!r:.20} {operator} {right!r:.20}")
                return super().call_binop(context, operator, left, right)

            def call(self, *arguments: Any, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
                check_time()
                return super().call(*arguments, **named)

        class Namespace(utils.Namespace):
            """Its names are the template's own, never Python's special attributes."""

            def __setitem__(self, name: str, value: Any) -> None:
                if name.startswith("_"):
                    raise UserError(f"the chat template may not set '{name}'")
                super().__setitem__(name, value)

        class Generation(ext.Extension):
            """{% generation %} encloses the assistant's turns, which matters in training only."""

            tags = {"generation"}

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def namespace(*args: Any, **kwargs: Any) -> Namespace:
            result = Namespace()
            for name, value in dict(*args, **kwargs).items():
                result[name] = value
            return result

        environment = Environment(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[Generation, ext.loopcontrols]
        )
        to_json = partial(json.dumps, ensure_ascii=False)  # without the HTML escapes of jinja2's own filter
        environment.filters |= {"timed": self._timed, "tojson": to_json}
        environment.globals |= {"namespace": namespace, "raise_exception": _reject}
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise UserError(f"the chat template takes more than {SECONDS:.0f} seconds")

    def _timed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._check_time()
            yield item


def template_of(tokenizer: Tokenizer) -> Template | None:
    """The tokenizer's chat template, if it has one."""
    source = tokenizer.settings.get("chat_template")
    if isinstance(source, list):  # several, for several uses
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise UserError(f"chat_template: expected a string, found a {type(source).__name__}")
    by_role = {ROLES[role][0]: tokenizer.name(token) for role, token in tokenizer.ids.items() if token != MISSING}
    configured = {key: token_name(tokenizer.settings, key) for key in tokenizer.settings if key.endswith("_token")}
    return Template(source, by_role | {key: name for key, name in configured.items() if name is not None})


def _reject(message: str) -> None:
    raise UserError(f"the chat template rejects this conversation: {message}")
