"""Renders a chat template in a process of its own. A template is untrusted code: it runs in jinja2's sandbox, where it
can neither reach Python nor change its arguments, and the operating system limits the memory and time of the process.

Requests and replies are lines of JSON. The first request is the template, each other one a conversation:

    {"source", "specials", "seconds", "memory", "characters"} → {"index"}
    {"messages"}                                              → {"index", "text"}, each also {"index", "error"}
"""

import json
import math
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import ext, sandbox, utils

MAX_ERROR = 500  # characters


class Rejected(Exception):
    """What a template may not do, or `raise_exception` of the template itself."""


class Namespace(utils.Namespace):
    """Its names are the template's own, never Python's special attributes."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise Rejected(f"fails: it may not set '{name}'")
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


def raise_exception(message: str) -> NoReturn:
    raise Rejected(f"rejects this conversation: {message}")


def compiled(source: str) -> Any:
    """The template, with the functions that templates expect: those of transformers."""
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # jinja2's own escapes HTML
    environment.globals |= {"namespace": namespace, "raise_exception": raise_exception}
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def render(template: Any, messages: list[dict[str, str]], specials: dict[str, str], characters: int) -> str:
    pieces = []
    length = 0
    context = {"tools": None, "documents": None, **specials}
    for piece in template.generate(messages=messages, add_generation_prompt=True, **context):
        pieces.append(piece)
        length += len(piece)
        if length > characters:
            raise Rejected(f"fails: its output exceeds {characters:,} characters")
    return "".join(pieces)


def limit(name: str, amount: int) -> None:
    """Set a limit of the operating system, where it has it: of "AS", the memory in bytes, or "CPU", the seconds."""
    with suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))


def limit_time(seconds: float) -> None:
    """CPU time, after which the system ends the process; 0: no limit. RLIMIT_CPU counts from the process's start."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
    if seconds:
        limit("CPU", math.ceil(time.process_time() + seconds) + 1)


def accept_time_signals() -> None:
    """A program that ignores or blocks them passes this on to the processes that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF, signal.SIGXCPU))


def main() -> None:
    accept_time_signals()
    template: Any = None
    setup: dict[str, Any] = {}
    for index, line in enumerate(sys.stdin):
        reply: dict[str, Any] = {"index": index}
        try:
            if template is None:
                setup = json.loads(line)
                limit("AS", setup["memory"])
                limit_time(setup["seconds"])
                template = compiled(setup["source"])
            else:
                limit_time(setup["seconds"])
                messages = json.loads(line)["messages"]
                reply["text"] = render(template, messages, setup["specials"], setup["characters"])
        except MemoryError:
            reply["error"] = f"needs more than {setup['memory'] >> 20} MB"
        except Rejected as error:
            reply["error"] = str(error)[:MAX_ERROR]
        except Exception as error:  # whatever untrusted code does
            problem = "is invalid" if template is None else "fails"
            reply["error"] = f"{problem}: {str(error) or type(error).__name__}"[:MAX_ERROR]
        limit_time(0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
