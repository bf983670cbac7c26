"""What a foreign tokenizer.json may do: its failures are UserErrors, and it cannot make a long text of a short one."""

import base64
import json
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, NamedTuple
from unicodedata import normalize

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from regard.errors import UserError

MAX_GROWTH = 256  # characters or tokens made of one

MAX_STEPS = 256  # of a normalizer, pre-tokenizer, post-processor or decoder

MAX_COMPONENT = 1 << 22  # characters of such a component as JSON

BYTES = frozenset(ByteLevel.alphabet())  # the characters that represent bytes

TRANSFORMS: dict[str, Callable[[str], str]] = {  # of a character
    "NFC": lambda character: normalize("NFC", character),
    "NFD": lambda character: normalize("NFD", character),
    "NFKC": lambda character: normalize("NFKC", character),
    "NFKD": lambda character: normalize("NFKD", character),
    "Lowercase": str.lower,
    "BertNormalizer": lambda character: f" {normalize('NFD', character)} ",
}


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
    for names in (("normalizer", "pre_tokenizer", "post_processor"), ("decoder",)):
        growth = 1.0
        for name in names:
            component = getattr(inner, name)
            state = component.__getstate__() if component else b""
            if len(state) > MAX_COMPONENT:
                raise UserError(f"its {name} has {len(state):,} characters; at most {MAX_COMPONENT:,} are accepted")
            growth *= _growth(json.loads(state)) if state else 1
        if growth > MAX_GROWTH:
            problem = f"its {', '.join(names)} may make {growth:,.0f} characters or tokens of one"
            raise UserError(f"{problem}; at most {MAX_GROWTH} are accepted")


class Effect(NamedTuple):
    """What a step does: how many characters or tokens it makes of one at most, and which characters it may write."""

    growth: float
    written: Set[str] = frozenset()
    pattern: Set[str] = frozenset()  # of a string: only these characters are replaced, by nothing but `written`


def _growth(component: Any) -> float:
    """How many characters or tokens the steps of a component make of one at most.

    What step i has written grows in each later step j that can match it: g(i) = max(1, max over j of growth(j) g(j)).
    """
    steps = list(_steps(component))
    if len(steps) > MAX_STEPS:
        raise UserError(f"a Sequence of it has {len(steps):,} steps; at most {MAX_STEPS} are accepted")
    effects: list[Effect] = []
    written: Set[str] = frozenset()
    for step in steps:
        effects.append(_effect(step, written))
        written |= effects[-1].written
    growth = [1.0] * (len(steps) + 1)  # of a character of the text, then of one that each step has written
    for index in reversed(range(len(steps))):
        last = effects[index - 1] if index else Effect(1)
        for j, effect in enumerate(effects[index:], index):
            if not (last.pattern and effect.pattern and last.written.isdisjoint(effect.pattern)):
                growth[index] = max(growth[index], effect.growth * growth[j + 1])
    return growth[0]


def _steps(component: Any) -> Iterator[dict[str, Any]]:
    """The components of a Sequence, at any depth."""
    if component["type"] != "Sequence":
        yield component
        return
    for value in component.values():
        for child in value if isinstance(value, list) else ():
            yield from _steps(child)


def _effect(step: dict[str, Any], written: Set[str]) -> Effect:
    """The effect of a step after steps that may have written these characters.

    What Unicode makes of a character of the text is not counted: it happens once, and 18 characters are the most.
    """
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": content} if pattern:
            return Effect(max(1, len(content) / len(pattern)), set(content), set(pattern))
        case {"type": "Replace", "content": content} | {"type": "Prepend", "prepend": content}:
            return Effect(1 + len(content), set(content))  # a regular expression also matches between two characters
        case {"type": "Precompiled", "precompiled_charsmap": str(blob)}:  # a trie, then the strings it refers to
            data = base64.b64decode(blob)
            strings = data[4 + int.from_bytes(data[:4], "little") :].decode(errors="replace").split("\0")
            return Effect(max(1, *map(len, strings)), set("".join(strings)))
        case {"type": "ByteLevel"}:
            return Effect(max((len(character.encode()) for character in written), default=1), BYTES)
        case {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}:
            return Effect(max(1, _tokens(single, special), _tokens(pair, special)))
        case {"type": kind} if kind in TRANSFORMS:
            transformed = [TRANSFORMS[kind](character) for character in written]
            return Effect(max(map(len, transformed), default=1), set("".join(transformed)))
    return Effect(1)


def _tokens(template: list[dict[str, Any]], special: dict[str, Any]) -> int:
    """How many tokens a template makes of a text of one: it may repeat the text, and it adds special tokens."""
    texts = [piece["Sequence"]["id"] for piece in template if "Sequence" in piece]
    added = [special[piece["SpecialToken"]["id"]]["ids"] for piece in template if "SpecialToken" in piece]
    return max(map(texts.count, set(texts)), default=0) + sum(map(len, added))
