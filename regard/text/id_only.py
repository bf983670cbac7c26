"""What stands for a tokenizer where a folder has none: a model can still be asked about ids."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import UserError
from regard.text.tokenizer import MISSING, ROLES, Tokenizer


class Wordless(Tokenizer):
    """Tokens are numbers: texts are refused."""

    def __init__(self, folder: Path, size: int):
        self.folder, self.literal, self.byte_level = folder, True, False
        self._added: dict[int, Any] = {}
        self._set({f"<{number}>": number for number in range(size)}, dict.fromkeys(ROLES, MISSING))

    @property
    def inner(self) -> NoReturn:  # type: ignore[override]
        raise UserError(
            f"{self.folder}: there is no tokenizer beside the weights, so no text can be read or written; put its "
            "tokenizer.json there, or work on ids: model.module(input_ids=…)"
        )

    def name(self, token: int) -> str:
        return f"<{token}>"

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.pieces(ids))

    def content(self) -> str:
        return f"no tokenizer, {self.size}"
