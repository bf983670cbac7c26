"""BERT's tokenizer from a vocab.txt alone: a piece a line, whose index is its id; "##" begins one inside a word.

Wu et al. 2016; Devlin et al. 2019, section 3. Text is split at spaces, punctuation and Chinese characters, and each
word into the longest pieces of the vocabulary, from its left.
"""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.data.small_files import read_text
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, read_config

MAX_WORD = 100  # characters; a longer word is unknown

SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def load_wordpiece(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with vocab.txt; tokenizer_config.json may set how text is normalised."""
    config = read_config(folder / "tokenizer_config.json")
    table = _read_vocabulary(folder / "vocab.txt")
    names = {key: _configured_name(config.get(key), usual) for key, usual in SPECIAL_TOKENS.items()}
    unknown = names["unk_token"]
    if unknown not in table:
        raise UserError(f"{folder / 'vocab.txt'}: has no '{unknown}', the token of unknown words")
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


def _configured_name(value: object, default: str) -> str:
    """The name of a special token in tokenizer_config.json."""
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else default


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        lines = read_text(path).split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not text that can be read ({error})") from None
    return {line.rstrip("\r"): index for index, line in enumerate(lines[:-1] if not lines[-1] else lines)}
