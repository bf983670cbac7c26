"""A stand-in for a tokenizer, for checkpoint folders without tokenizer files: the model still accepts token ids."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import UserError
from regard.text.tokenizer import MISSING, ROLES, Tokenizer


class IdOnlyTokenizer(Tokenizer):
    """Knows the number of tokens and the special ids. Encoding text is an error."""

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
