"""Tokenizers of folders without tokenizer.json: vocab.json with the order of merges in merges.txt, or vocab.txt.

GPT-2     byte-level: every text is bytes, nothing is unknown, nothing is changed            "Ġworld"
RoBERTa   the same, with <s> text </s>, or <s> text </s> </s> other </s>
GPT       words in lower case by BERT's rules; the last token of a word ends in a suffix     "world</w>"
BERT      vocab.txt: a token a line, whose index is its id; "##" begins one inside a word.   "wor" "##ld"
          Words are split at spaces, punctuation and Chinese characters, and each into the longest tokens from its left
          (Wu et al. 2016; Devlin et al. 2019, section 3)
"""

import warnings
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import UserError
from regard.text.tokenizer import MISSING, Tokenizer, read_config, read_file, read_object, token_name

WORD_END = "</w>"

ROBERTA = ("<s>", "</s>", "<mask>")  # before a text, after it, mask

BERT = ("[CLS]", "[SEP]", "[MASK]")

MAX_WORD = 100  # characters; a longer word is unknown

SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def load_merges(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with vocab.json and merges.txt, GPT-2's or openai-gpt's."""
    table = read_table(folder / "vocab.json", "a folder with merges.txt")
    merges = _read_merges(folder / "merges.txt", table)
    config = read_config(folder / "tokenizer_config.json")
    words = any(piece.endswith(WORD_END) for piece in table)
    if words:
        inner = tokenizers.Tokenizer(models.BPE(table, merges, unk_token="<unk>", end_of_word_suffix=WORD_END))
        inner.normalizer = normalizers.BertNormalizer(lowercase=True)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.BPEDecoder(suffix=WORD_END)
    else:
        inner = tokenizers.Tokenizer(models.BPE(table, merges))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space") is True)
        inner.decoder = decoders.ByteLevel()
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


def read_table(path: Path, needed_by: str) -> dict[str, int]:
    """A vocab.json: piece → id."""
    if not path.exists():
        raise UserError(f"{path}: {needed_by} needs this file, a JSON object token → id")
    table = read_object(path)
    if not all(type(index) is int and index >= 0 for index in table.values()):
        raise UserError(f"{path}: expected a JSON object token → id")
    return table


def _read_merges(path: Path, table: dict[str, int]) -> list[tuple[str, str]]:
    """Two tokens a line, the most frequent pair first; each of them and their concatenation must be in vocab.json."""
    merges: list[tuple[str, str]] = []
    for line_number, line in enumerate(read_file(path).split("\n"), 1):
        if not line.strip() or (line_number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise UserError(f"{path}:{line_number}: {line!r}: expected a merge, two tokens separated by one space")
        left, right = pair
        for piece in (left, right, left + right):
            if piece not in table:
                raise UserError(f"{path}:{line_number}: unknown token '{piece}': not in {path.with_name('vocab.json')}")
        merges.append((left, right))
    return merges


# ── BERT's vocab.txt ─────────────────────────────────────────────────────────────────────────────────────────────────


def load_wordpiece(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with vocab.txt; tokenizer_config.json may set how text is normalised."""
    config = read_config(folder / "tokenizer_config.json")
    table = {piece: index for index, piece in enumerate(read_file(folder / "vocab.txt").removesuffix("\n").split("\n"))}
    names = {key: token_name(config, key) or usual for key, usual in SPECIAL_TOKENS.items()}
    unknown = names["unk_token"]
    if unknown not in table:
        raise UserError(
            f"{folder / 'vocab.txt'}: has no unknown token '{unknown}'; set unk_token in tokenizer_config.json"
        )
    is_cased = any(piece != piece.lower() for piece in table if piece not in names.values())
    if is_cased and "do_lower_case" not in config:
        warnings.warn(
            f"{folder / 'vocab.txt'} has upper-case tokens, but text is lower-cased by default: "
            'write {"do_lower_case": false} to tokenizer_config.json, or true if lower case is right',
            stacklevel=2,
        )
    inner = tokenizers.Tokenizer(models.WordPiece(table, unk_token=unknown, max_input_chars_per_word=MAX_WORD))
    inner.normalizer = normalizers.BertNormalizer(  # pyright: ignore[reportAttributeAccessIssue]
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    present = {key: name for key, name in names.items() if name in table}
    inner.add_special_tokens([AddedToken(name, normalized=False) for name in present.values()])
    set_template(inner, names["cls_token"], names["sep_token"])
    return Tokenizer.of(inner, config | present)


def set_template(inner: tokenizers.Tokenizer, first: str, last: str) -> None:
    """[CLS] text [SEP], or [CLS] text [SEP] other [SEP] with the second text in segment 1; if it has both tokens."""
    ids = {name: inner.token_to_id(name) for name in (first, last)}
    if None in ids.values():
        return
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=list(ids.items()),
    )
