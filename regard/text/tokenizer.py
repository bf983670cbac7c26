"""A tokenizer: one side's text → token ids and back; trained here or read from any tokenizer.json."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import tokenizers
from tokenizers import decoders, processors

from regard.data.small_files import MAX_SETTINGS, MAX_TOKENIZER, read_text
from regard.errors import UserError
from regard.text.detokenizer import FALLBACK, ByteDetokenizer, Detokenizer, PieceDetokenizer, readable, to_bytes
from regard.text.tokenizer_checks import check_growth, library_errors

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 1 2 3 in every tokenizer trained here

ROLES = {  # name: the key of tokenizer_config.json, common spellings
    "pad": ("pad_token", ("<pad>", "[PAD]", "<|endoftext|>", "</s>")),
    "begin": ("bos_token", ("<s>", "[CLS]", "<|startoftext|>", "<|endoftext|>", "<pad>")),
    "end": ("eos_token", ("</s>", "[SEP]", "<|endoftext|>")),
    "unknown": ("unk_token", ("<unk>", "[UNK]", "<|endoftext|>")),
}

TOKEN_KEYS = (*(key for key, _ in ROLES.values()), "cls_token", "sep_token", "mask_token")

SPACE = "▁"  # represents a space inside a piece

MISSING = -1  # the id of a role that a foreign tokenizer has no token for

SHORT_TEXTS = ("a", "A", "0", ".")  # every vocabulary has one of them

VISIBLE = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍"})  # in labels


class Coverage(NamedTuple):
    """How well a tokenizer fits a text: many tokens a word or many unknown ones mean it does not."""

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
    """One side's text ↔ ids. `decode(encode(text)) == normalise(text)` for tokenizers trained here, unknowns aside.

    `pad`, `begin`, `end` and `unknown` are the special ids, MISSING where there is none.
    """

    head: tuple[int, ...] = ()  # the tokens that its own post-processor puts before a text, such as Llama's <s>
    settings: dict[str, Any] = {}  # a foreign tokenizer_config.json, kept for its further keys

    def __init__(self, inner: tokenizers.Tokenizer, ids: Mapping[str, int], literal: bool = True):
        """`literal`: a "</s>" typed by a user is four characters of text, never the special token."""
        self.inner = inner
        self.literal = literal
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = literal
        self.byte_level = isinstance(inner.decoder, decoders.ByteLevel)
        self._added = inner.get_added_tokens_decoder()
        self._set(inner.get_vocab(with_added_tokens=True), ids)
        self.head = self._head()

    def _set(self, table: dict[str, int], ids: Mapping[str, int]) -> None:
        if not table:
            raise UserError("not a valid tokenizer: its vocabulary is empty")
        self.table = table
        self.size = max(table.values()) + 1
        self.pad, self.begin, self.end, self.unknown = (ids[role] for role in ROLES)

    @property
    def ids(self) -> dict[str, int]:
        """The special ids by role."""
        return {role: getattr(self, role) for role in ROLES}

    def normalise(self, text: str) -> str:
        """What `decode(encode(text))` returns: NFC, spaces collapsed, lowercase if so trained."""
        normalizer = self.inner.normalizer
        with library_errors():
            normalised = normalizer.normalize_str(text) if normalizer else text
        return normalised.removeprefix(" ") if isinstance(self.inner.decoder, decoders.Metaspace) else normalised

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0]

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Ids without begin or end; a batch of texts uses all cores."""
        return [encoding.ids for encoding in self.encodings(texts, special_tokens=False, offsets=False)]

    def encodings(
        self, texts: Sequence[Any], special_tokens: bool = True, offsets: bool = True
    ) -> list[tokenizers.Encoding]:
        """Texts, or pairs of texts, with all that the library knows of each token; faster without their characters."""
        encode = self.inner.encode_batch if offsets else self.inner.encode_batch_fast
        with library_errors():
            encodings = encode(list(texts), add_special_tokens=special_tokens)
        for encoding in encodings if special_tokens else ():
            if max(encoding.ids, default=0) >= self.size:
                raise UserError(f"the tokenizer adds id {max(encoding.ids)}, but its vocabulary has {self.size} tokens")
        return encodings

    def _head(self) -> tuple[int, ...]:
        """The ids that the post-processor puts before a text, read off its output for a short one."""
        for text in SHORT_TEXTS:
            (encoding,) = self.encodings([text])
            if 0 in encoding.sequence_ids:  # a token of the text itself
                return tuple(encoding.ids[: encoding.sequence_ids.index(0)])
        return ()

    def prompt(self, text: str) -> list[int]:
        """The ids of a text that a model is to continue, with the tokens that its tokenizer puts before every text."""
        return [*self.head, *self.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        with library_errors():
            return self.inner.decode([token for token in ids if token >= 0], skip_special_tokens=True)

    def decode_with_unknown(self, ids: Iterable[int]) -> str:
        """The same with the unknown token, such as [UNK], where it occurs."""
        shown = [token for token in ids if self.shows(token) or token == self.unknown != MISSING]
        with library_errors():
            return self.inner.decode(shown, skip_special_tokens=False)

    def incremental(self) -> Detokenizer:
        """Streams a text while it is generated: `feed(ids)` returns what is new and complete, `finish()` the rest."""
        return ByteDetokenizer(self) if self.byte_level else PieceDetokenizer(self)

    @property
    def special(self) -> dict[str, int]:
        """The added tokens that `decode` leaves out, by name."""
        return {added.content: token for token, added in self._added.items() if added.special}

    def shows(self, token: int) -> bool:
        """Whether `decode` returns text for it."""
        special = token in self._added and self._added[token].special
        return token >= 0 and not special and self.inner.id_to_token(token) is not None

    def name(self, token: int) -> str:
        """The piece as the vocabulary writes it."""
        return (self.inner.id_to_token(token) if token >= 0 else None) or f"<{token}>"

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """A readable label per token: a word's first token starts with a space, or its others with ##; blanks are ␣."""
        labels = [self._piece(token).translate(VISIBLE) for token in ids]
        return [label if label.strip() else "␣" * len(label) for label in labels]

    def _piece(self, token: int) -> str:
        piece = self.name(token)
        if token in self._added:
            return piece
        if self.byte_level:
            return readable(to_bytes(piece))
        if getattr(self.inner.model, "byte_fallback", False) and (byte := FALLBACK.fullmatch(piece)):
            return readable(bytes.fromhex(byte[1]))
        return piece.replace(SPACE, " ")

    def unknown_words(self, texts: Sequence[str]) -> list[str]:
        """What the unknown tokens of these texts stand for."""
        words = []
        for text, encoding in zip(texts, self.encodings(texts, special_tokens=False), strict=True):
            spans = zip(encoding.ids, encoding.offsets, strict=True)
            words += [text[start:stop] for token, (start, stop) in spans if token == self.unknown]
        return words

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """Words, tokens and unknown tokens over these texts."""
        words = tokens = unknown = 0
        for text in texts:
            ids = self.encode(text)
            words += len(text.split())
            tokens += len(ids)
            unknown += ids.count(self.unknown)  # none where there is no such token
        return Coverage(words, tokens, unknown)

    @property
    def signature(self) -> str:
        """Type, size and content: perplexities are comparable only where these are the same."""
        digest = hashlib.sha256(self.content().encode()).hexdigest()
        return f"{type(self.inner.model).__name__}.{self.size}.{digest[:8]}"

    def content(self) -> str:
        """All that determines how text is tokenized, as one string: a part of the cache keys of prepared datasets."""
        return self.inner.to_str() + json.dumps([self.ids, self.literal])

    @classmethod
    def load(cls, path: Path, ids: Mapping[str, int] | None = None) -> Self:
        """A tokenizer.json, ours or foreign; special ids as given, else by tokenizer_config.json, else by name."""
        text = read_file(path)
        config = read_config(path.parent / "tokenizer_config.json")
        try:
            with library_errors("not a valid tokenizer.json"):
                inner = tokenizers.Tokenizer.from_str(text)
            check_growth(inner)
            return cls.of(inner, config, ids, literal=not config)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def of(
        cls, inner: tokenizers.Tokenizer, config: dict, ids: Mapping[str, int] | None = None, literal: bool = False
    ) -> Self:
        """A foreign tokenizer with its tokenizer_config.json; `literal` is the default of split_special_tokens."""
        table = inner.get_vocab(with_added_tokens=True)
        special_ids = {}
        for role, (key, spellings) in ROLES.items():
            names = (token_name(config, key), *spellings)
            special_ids[role] = next((table[name] for name in names if name in table), MISSING)
        special_ids |= ids or {}
        _apply_template(inner, config, special_ids)
        tokenizer = cls(inner, special_ids, config.get("split_special_tokens", literal))
        tokenizer.settings = config
        return tokenizer

    def save(self, path: Path) -> None:
        path.write_text(self.inner.to_str(pretty=True), encoding="utf-8")


class IdOnlyTokenizer(Tokenizer):
    """For a folder without tokenizer files: knows the number of tokens and the special ids. Text is an error."""

    def __init__(self, folder: Path, size: int, ids: Mapping[str, int]):
        self.folder = folder
        self.literal = True
        self.byte_level = False
        self._added: dict[int, Any] = {}
        self._set({f"<{token}>": token for token in range(size)}, dict.fromkeys(ROLES, MISSING) | dict(ids))

    @property
    def inner(self) -> NoReturn:  # type: ignore[override]
        raise UserError(
            f"{self.folder}: no tokenizer files, so text can be neither encoded nor decoded; expected tokenizer.json, "
            "or source.spm + target.spm + vocab.json (Marian), vocab.json + merges.txt (GPT), vocab.txt (BERT). "
            "Token ids are accepted: model.generate(ids), model.module(input_ids=…)"
        )

    def name(self, token: int) -> str:
        return f"<{token}>"

    def shows(self, token: int) -> bool:
        return 0 <= token < self.size

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self.name(token) for token in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.pieces(ids))

    def content(self) -> str:
        return f"no tokenizer, {self.size}"


def read_config(path: Path) -> dict:
    """A tokenizer_config.json, empty if there is none; a chat_template.jinja next to it takes precedence."""
    template = path.with_name("chat_template.jinja")
    config = read_object(path, MAX_SETTINGS) if path.exists() else {}
    if not isinstance(config.get("split_special_tokens", False), bool):
        raise UserError(f"{path}: split_special_tokens = {config['split_special_tokens']}: expected true or false")
    for key in TOKEN_KEYS:
        if config.get(key) is not None and token_name(config, key) is None:
            raise UserError(f"{path}: {key} = {config[key]!r:.60}: expected a string, or an object with a 'content'")
    return config | ({"chat_template": read_file(template, MAX_SETTINGS)} if template.exists() else {})


def read_file(path: Path, limit: int = MAX_TOKENIZER) -> str:
    """A text file of a tokenizer."""
    try:
        return read_text(path, limit)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({error})") from None


def read_object(path: Path, limit: int = MAX_TOKENIZER) -> dict:
    """A JSON file of a tokenizer."""
    try:
        value = json.loads(read_file(path, limit))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(value).__name__}")
    return value


def token_name(config: Mapping[str, Any], key: str) -> str | None:
    """The special token under a key of tokenizer_config.json, where it is a string or an object."""
    value = config.get(key)
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else None


def _apply_template(inner: tokenizers.Tokenizer, config: dict, ids: Mapping[str, int]) -> None:
    """add_bos_token and add_eos_token override the post-processor, as in transformers; not an encoder's."""
    if not isinstance(config.get("add_bos_token"), bool) or config.get("mask_token"):
        return
    first, last = (
        [(inner.id_to_token(ids[role]), ids[role])] if config.get(key) and ids[role] != MISSING else []
        for key, role in (("add_bos_token", "begin"), ("add_eos_token", "end"))
    )
    single = [*(token for token, _ in first), "$A", *(token for token, _ in last)]
    with library_errors("add_bos_token and add_eos_token of tokenizer_config.json cannot be applied"):
        inner.post_processor = processors.TemplateProcessing(single=single, pair=None, special_tokens=[*first, *last])
