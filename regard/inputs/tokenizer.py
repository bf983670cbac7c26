"""A tokenizer: one side's text → token ids and back; trained here or read from any tokenizer.json."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import tokenizers
from tokenizers import decoders

from regard.errors import UserError

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 1 2 3 in every tokenizer trained here
ROLES = {  # our word: the key of tokenizer_config.json, common spellings
    "pad": ("pad_token", ("<pad>", "[PAD]", "<|endoftext|>", "</s>")),
    "begin": ("bos_token", ("<s>", "[CLS]", "<|startoftext|>", "<|endoftext|>", "<pad>")),
    "end": ("eos_token", ("</s>", "[SEP]", "<|endoftext|>")),
    "unknown": ("unk_token", ("<unk>", "[UNK]", "<|endoftext|>")),
}
SPACE = "▁"  # stands for a space inside a piece


class Coverage(NamedTuple):
    """How well a tokenizer fits a text: many tokens a word or many unknowns mean it does not."""

    words: int
    tokens: int
    unknown: int

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        return self.unknown / max(self.tokens, 1)


class Tokenizer:
    """One side's text ↔ ids. `decode(encode(text)) == normalise(text)` for tokenizers trained here, unknowns aside."""

    def __init__(self, inner: tokenizers.Tokenizer, ids: Mapping[str, int], literal: bool = True):
        """`literal`: a "</s>" typed by a user is four characters of text, never the special token."""
        self.inner = inner
        self.literal = literal
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = literal
        self._set(inner.get_vocab(with_added_tokens=True), ids)

    def _set(self, table: dict[str, int], ids: Mapping[str, int]) -> None:
        self.table = table
        self.size = max(table.values()) + 1
        self.pad, self.begin, self.end, self.unknown = (ids[role] for role in ROLES)

    @property
    def ids(self) -> dict[str, int]:
        """The special ids by role."""
        return {role: getattr(self, role) for role in ROLES}

    def normalise(self, text: str) -> str:
        """What `decode(encode(text))` gives back: NFC, spaces collapsed, lowercase if so trained."""
        normalizer = self.inner.normalizer
        normal = normalizer.normalize_str(text) if normalizer else text
        spaced = isinstance(self.inner.decoder, decoders.Metaspace)
        return normal.removeprefix(" ") if spaced else normal

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0]

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Ids without begin or end; a batch of texts uses all cores."""
        return [encoding.ids for encoding in self.inner.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One readable label a token: a word's first piece begins with a space, a piece of spaces alone is ␣."""
        return [piece if piece.strip() else "␣" * len(piece) for piece in map(self._piece, ids)]

    def _piece(self, token: int) -> str:
        if isinstance(self.inner.decoder, decoders.ByteLevel):
            return self.inner.decode([token], skip_special_tokens=False)
        return (self.inner.id_to_token(token) or f"<{token}>").replace(SPACE, " ")

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """Words, tokens and unknown tokens over these texts."""
        words = tokens = unknown = 0
        for text in texts:
            ids = self.encode(text)
            words += len(text.split())
            tokens += len(ids)
            unknown += ids.count(self.unknown)
        return Coverage(words, tokens, unknown)

    def content(self) -> str:
        """Everything that decides how text is cut, as one string: the key of what was prepared with it."""
        return self.inner.to_str() + json.dumps([self.ids, self.literal])

    @classmethod
    def load(cls, path: Path, ids: Mapping[str, int] | None = None) -> Self:
        """A tokenizer.json, ours or foreign; special ids as given, else by tokenizer_config.json, else by name."""
        try:
            inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except Exception as error:  # the library raises bare Exceptions
            raise UserError(f"{path}: not a tokenizer.json that can be read ({error})") from None
        config = _read_config(path.parent / "tokenizer_config.json")
        table = inner.get_vocab(with_added_tokens=True)
        found = {role: _special(role, table, config, path) for role in ROLES if role not in (ids or {})}
        return cls(inner, {**found, **(ids or {})}, literal=config.get("split_special_tokens", not config))

    def save(self, path: Path) -> None:
        path.write_text(self.inner.to_str(pretty=True), encoding="utf-8")


def _read_config(path: Path) -> dict:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON that can be read ({error})") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: should hold a JSON object {{…}}, not a {type(found).__name__}")
    return found


def _special(role: str, table: dict[str, int], config: dict, path: Path) -> int:
    """The id of a special token: by the config's word for it, else by the common spellings."""
    key, spellings = ROLES[role]
    named = config.get(key)
    named = named.get("content") if isinstance(named, dict) else named
    for name in (named, *spellings):
        if name in table:
            return table[name]
    raise UserError(
        f"{path}: no token for '{role}' found (looked for {', '.join(spellings)}); give its id: ids={{'{role}': …}}"
    )
