"""Tokenizers of Marian folders: pieces from SentencePiece models, whose ids are in vocab.json."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from regard.data.small_files import MAX_TOKENIZER, read_bytes
from regard.errors import UserError
from regard.text.detokenizer import Detokenizer, PieceDetokenizer
from regard.text.tokenizer import SPACE, Tokenizer
from regard.text.vocab_files import read_table

LANGUAGE = re.compile(r"^>>.+?<<")  # the target language of a multilingual model, one token at the start of the source


class SentencePieceTokenizer(Tokenizer):
    """One side of a Marian folder; both sides share the ids of vocab.json unless the target has its own."""

    def __init__(self, model: bytes, table: dict[str, int]):
        try:
            import sentencepiece
        except ImportError:
            raise UserError('this tokenizer needs SentencePiece: pip install "regard[sentencepiece]"') from None
        self.model = model
        self.literal = True
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError, TypeError) as error:
            raise UserError(f"not a valid SentencePiece model ({error})") from None
        self._names = {index: piece for piece, index in table.items()}
        pad = table["<pad>"]  # Marian's decoder starts from padding
        self._set(table, {"pad": pad, "begin": pad, "end": table["</s>"], "unknown": table["<unk>"]})

    def normalise(self, text: str) -> str:
        return self.processor.normalize(text)

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        languages = [match.group() if (match := LANGUAGE.match(text)) else "" for text in texts]
        bare = [text.removeprefix(language) for text, language in zip(texts, languages, strict=True)]
        pieces = self.processor.encode(bare, out_type=str)
        rows = [[language, *row] if language else row for language, row in zip(languages, pieces, strict=True)]
        return [[self.table.get(piece, self.unknown) for piece in row] for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        return self.processor.decode([self._names[token] for token in ids if self.shows(token)])

    def incremental(self) -> Detokenizer:
        return PieceDetokenizer(self)

    def shows(self, token: int) -> bool:
        return token in self._names and token not in (self.pad, self.begin, self.end, self.unknown)

    def name(self, token: int) -> str:
        return self._names.get(token, f"<{token}>")

    def _piece(self, token: int) -> str:
        return self.name(token).replace(SPACE, " ")

    def content(self) -> str:
        return self.model.hex() + json.dumps(self.table, sort_keys=True)

    def save(self, path: Path) -> None:
        """The SentencePiece model; `save_marian` writes the complete folder."""
        path.write_bytes(self.model)


def _table(path: Path) -> dict[str, int]:
    table = read_table(path, "a Marian folder")
    missing = [special for special in ("<pad>", "</s>", "<unk>") if special not in table]
    if missing:
        raise UserError(f"{path}: has no {', '.join(missing)}; a Marian vocabulary needs <pad>, </s> and <unk>")
    return table


def load_marian(folder: Path) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """The source's and the target's tokenizer of a folder with source.spm, target.spm and vocab.json."""
    table = _table(folder / "vocab.json")
    target_vocab = folder / "target_vocab.json"
    target_table = _table(target_vocab) if target_vocab.exists() else table
    return _load(folder / "source.spm", table), _load(folder / "target.spm", target_table)


def _load(path: Path, table: dict[str, int]) -> SentencePieceTokenizer:
    try:
        return SentencePieceTokenizer(read_bytes(path, MAX_TOKENIZER), table)
    except OSError as error:
        expected = "a Marian folder has source.spm, target.spm and vocab.json"
        raise UserError(f"{path}: cannot be read ({error}); {expected}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def save_marian(source: SentencePieceTokenizer, target: SentencePieceTokenizer, folder: Path) -> None:
    """Writes the folder as transformers' MarianTokenizer reads it."""
    separate = source.table != target.table
    source.save(folder / "source.spm")
    target.save(folder / "target.spm")
    config: dict = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    config |= {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    contents = {"vocab.json": source.table, "tokenizer_config.json": config}
    if separate:
        contents["target_vocab.json"] = target.table
    for name, value in contents.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
