"""BERT's tokenizer from a vocab.txt alone: a piece a line, its number the line's; "##" begins one inside a word.

Wu et al. 2016; Devlin et al. 2019, section 3. Text is cut at spaces, punctuation and Chinese characters, and each word
into the longest pieces there are, from its left.
"""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, read_config

LONGEST = 100  # characters of a word; a longer one is unknown

MARKS = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}


def load_wordpiece(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with vocab.txt; tokenizer_config.json may say how text is normalised."""
    config = read_config(folder / "tokenizer_config.json")
    table = _read_vocabulary(folder / "vocab.txt")
    marks = {key: _spelling(config.get(key), usual) for key, usual in MARKS.items()}
    unknown = marks["unk_token"]
    if unknown not in table:
        raise UserError(f"{folder / 'vocab.txt'}: has no '{unknown}', which stands for words it cannot spell")
    inner = tokenizers.Tokenizer(models.WordPiece(table, unk_token=unknown, max_input_chars_per_word=LONGEST))
    inner.normalizer = normalizers.BertNormalizer(  # pyright: ignore[reportAttributeAccessIssue]
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    there = {key: mark for key, mark in marks.items() if mark in table}
    inner.add_special_tokens([AddedToken(mark, normalized=False) for mark in there.values()])
    enclose(inner, marks["cls_token"], marks["sep_token"])
    return Tokenizer.of(inner, config | there)


def enclose(inner: tokenizers.Tokenizer, first: str, last: str) -> None:
    """[CLS] text [SEP], or [CLS] text [SEP] other [SEP] with the second's tokens in segment 1; where it has the two."""
    ids = {mark: inner.token_to_id(mark) for mark in (first, last)}
    if None in ids.values():
        return
    inner.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=list(ids.items()),
    )


def _spelling(said: object, usual: str) -> str:
    """A special token as tokenizer_config.json spells it."""
    said = said.get("content") if isinstance(said, dict) else said
    return said if isinstance(said, str) else usual


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not text that can be read ({error})") from None
    return {line.rstrip("\r"): number for number, line in enumerate(lines[:-1] if not lines[-1] else lines)}
