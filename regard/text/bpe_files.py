"""Tokenizers of folders without tokenizer.json: pieces in vocab.json, the order of merges in merges.txt.

GPT-2     byte-level: every text is bytes, nothing is unknown, nothing is changed       "Ġworld"
RoBERTa   the same, with <s> text </s>, or <s> text </s> </s> other </s>
GPT       words in lower case by BERT's rules; a suffix marks the last piece of a word  "world</w>"
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.data.small_files import read_text
from regard.errors import UserError
from regard.text.tokenizer import MISSING, Tokenizer, read_config
from regard.text.wordpiece import set_template

WORD_END = "</w>"

ROBERTA = ("<s>", "</s>", "<mask>")  # before a text, after it, mask

BERT = ("[CLS]", "[SEP]", "[MASK]")


def load_merges(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with vocab.json and merges.txt, GPT-2's or openai-gpt's."""
    table = read_table(folder / "vocab.json", "a folder with merges.txt")
    merges = _read_merges(folder / "merges.txt", table)
    config = read_config(folder / "tokenizer_config.json")
    words = any(piece.endswith(WORD_END) for piece in table)
    inner = _words(table, merges) if words else _byte_level(table, merges, config)
    plain = Tokenizer.of(inner, config)
    special = {plain.name(token) for token in plain.ids.values() if token != MISSING}
    inner.add_special_tokens([AddedToken(name, normalized=False) for name in sorted(special)])
    encoder_tokens = {} if words else _add_encoder_tokens(inner, table)
    return Tokenizer.of(inner, encoder_tokens | config)


def _add_encoder_tokens(inner: tokenizers.Tokenizer, table: dict[str, int]) -> dict[str, str]:
    """The special tokens of an encoder, which has a mask in RoBERTa's spelling or in BERT's, by their config keys."""
    for first, last, mask in (ROBERTA, BERT):
        if not {first, last, mask} <= set(table):
            continue
        inner.add_special_tokens([AddedToken(name, normalized=False) for name in (first, last)])
        inner.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False)])
        if (first, last, mask) == BERT:
            set_template(inner, first, last)
        else:
            prefixed = bool(getattr(inner.pre_tokenizer, "add_prefix_space", False))
            inner.post_processor = processors.RobertaProcessing(  # pyright: ignore[reportAttributeAccessIssue]
                (last, table[last]), (first, table[first]), add_prefix_space=prefixed
            )
        return {"cls_token": first, "sep_token": last, "mask_token": mask}
    return {}


def _byte_level(table: dict[str, int], merges: list[tuple[str, str]], config: dict) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(table, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space") is True)
    inner.decoder = decoders.ByteLevel()
    return inner


def _words(table: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(table, merges, unk_token="<unk>", end_of_word_suffix=WORD_END))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.BPEDecoder(suffix=WORD_END)
    return inner


def read_table(path: Path, needed_by: str) -> dict[str, int]:
    """A vocab.json: piece → id."""
    try:
        table = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: {needed_by} needs this file, piece → id as JSON ({error})") from None
    if not isinstance(table, dict) or not all(type(index) is int and index >= 0 for index in table.values()):
        raise UserError(f"{path}: should hold a JSON object piece → id")
    return table


def _read_merges(path: Path, table: dict[str, int]) -> list[tuple[str, str]]:
    """Two pieces a line, the most frequent pair first; each, and what they make, must be a piece of vocab.json."""
    try:
        lines = read_text(path).split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not text that can be read ({error})") from None
    merges: list[tuple[str, str]] = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip() or (line_number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise UserError(f"{path}:{line_number}: {line!r}, but a merge is two pieces with one space between them")
        left, right = pair
        for piece in (left, right, left + right):
            if piece not in table:
                raise UserError(f"{path}:{line_number}: '{piece}' is no piece of {path.with_name('vocab.json')}")
        merges.append((left, right))
    return merges
