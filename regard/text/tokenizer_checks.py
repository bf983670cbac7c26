"""What a foreign tokenizer.json may do: its failures are UserErrors, and it cannot make a long text of a short one."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tokenizers

from regard.errors import UserError

MAX_GROWTH = 256  # characters or tokens made of one


@contextmanager
def library_errors(problem: str = "the tokenizer fails") -> Iterator[None]:
    """The library raises bare Exceptions, and PanicException, which is not even one."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise UserError(f"{problem} ({error})") from None
        raise


def check_growth(inner: tokenizers.Tokenizer) -> None:
    """Three normalizers that replace a → aaa…a, of a few kB, could fill any memory."""
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        component = getattr(inner, name)
        growth = _growth(json.loads(component.__getstate__())) if component else 1
        if growth > MAX_GROWTH:
            raise UserError(f"its {name} may make {growth:,.0f} characters of one; at most {MAX_GROWTH} are accepted")


def _growth(component: Any) -> float:
    """How much longer a component makes a text at most: the product over all that it consists of."""
    if isinstance(component, list):
        component = dict(enumerate(component))
    if not isinstance(component, dict):
        return 1
    growth = 1.0
    match component:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": content} if pattern:
            growth = max(1, len(content) / len(pattern))
        case {"type": "Replace", "content": content}:  # also between two characters
            growth = 1 + len(content)
        case {"type": "Prepend", "prepend": prefix}:
            growth = 1 + len(prefix)
        case {"type": "Precompiled", "precompiled_charsmap": str(blob)}:  # a trie, then the strings it refers to
            data = base64.b64decode(blob)
            strings = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
            growth = max(1, *(len(string.decode(errors="replace")) for string in strings))
        case {"type": "TemplateProcessing", "single": single, "pair": pair}:
            growth = max(1, *(sum("Sequence" in piece for piece in pieces) for pieces in (single, pair)))
    for value in component.values():
        growth = min(growth * _growth(value), 1e18)
    return growth
