"""Tokenizers as encoders have them, for the tests of their data."""

import gzip
import os
from pathlib import Path

import tokenizers
from needs import need
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.text.tokenizer import Tokenizer

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONFIG = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}


def wordpiece(pieces: list[str], lowercase: bool = True) -> Tokenizer:
    """BERT's manner: [CLS] a [SEP] b [SEP], pieces inside a word begin with ##."""
    table = {piece: number for number, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.WordPiece(table, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)  # type: ignore[assignment]
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    inner.post_processor = processors.BertProcessing(  # type: ignore[assignment]
        ("[SEP]", table["[SEP]"]), ("[CLS]", table["[CLS]"])
    )
    inner.decoder = decoders.WordPiece()  # type: ignore[assignment]
    inner.add_special_tokens([name for name in SPECIALS if name in table])
    return Tokenizer.of(inner, CONFIG)


def letters() -> Tokenizer:
    """A word is its letters: hello → h ##e ##l ##l ##o; capitals are small."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    marks = ".,!?;:()'-"
    return wordpiece([*SPECIALS, *alphabet, *(f"##{letter}" for letter in alphabet), *marks])


def bert_vocabulary() -> list[str]:
    """The 30,522 pieces of bert-base-uncased."""
    path = Path(os.environ.get("REGARD_DATA", "nowhere")) / "tokenizers" / "bert-base-uncased" / "vocab.txt.gz"
    need(path.is_file(), "set REGARD_DATA to a folder with tokenizers/bert-base-uncased/vocab.txt.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()
