"""Text → token ids and back: the processor of text models.

train_tokenizer(texts, options) → Tokenizer ┐
a folder with tokenizer.json                ├─▶ Vocabulary(source, target)
a Marian folder with source.spm, target.spm │
a folder with vocab.json, merges.txt        │
a BERT folder with vocab.txt                ┘
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.errors import UserError
from regard.text.sentencepiece import SentencePieceTokenizer, load_marian, save_marian
from regard.text.tokenizer import MISSING, ROLES, IdOnlyTokenizer, Tokenizer
from regard.text.vocab_files import load_merges, load_wordpiece

FILES = ("tokenizer.json", "tokenizer_target.json", "tokenizer_config.json", "source.spm", "target.spm", "vocab.json",
         "merges.txt", "vocab.txt", "target_vocab.json", "special_tokens_map.json", "added_tokens.json",
         "chat_template.jinja")  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both sides; the same one if joint. A `Processor` of text."""

    source: Tokenizer
    target: Tokenizer
    files: ClassVar[tuple[str, ...]] = FILES

    @property
    def joint(self) -> bool:
        """Whether an id means the same piece on both sides, so that embeddings may be shared."""
        return self.source is self.target or self.source.table == self.target.table

    def content(self) -> str:
        """All that determines how text is tokenized."""
        return json.dumps([self.source.content(), self.target.content()])

    def save(self, folder: Path) -> None:
        """Writes a folder that transformers' AutoTokenizer opens too; another vocabulary's files are removed."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        if isinstance(self.source, IdOnlyTokenizer):
            return
        if isinstance(self.source, SentencePieceTokenizer) and isinstance(self.target, SentencePieceTokenizer):
            save_marian(self.source, self.target, folder)
            return
        self.source.save(folder / "tokenizer.json")
        if self.source is not self.target:
            self.target.save(folder / "tokenizer_target.json")
        foreign = {key: value for key, value in self.source.settings.items() if key != "auto_map"}  # refers to code
        config: dict = foreign | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": self.source.literal,
        }
        for role, (key, _) in ROLES.items():
            if (special := getattr(self.source, role)) != MISSING:
                config[key] = self.source.name(special)
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """From a folder with tokenizer.json (and tokenizer_target.json), Marian's .spm files, or GPT's merges."""
        if (folder / "tokenizer.json").exists():
            source = Tokenizer.load(folder / "tokenizer.json")
            separate = folder / "tokenizer_target.json"
            return cls(source, Tokenizer.load(separate) if separate.exists() else source)
        if (folder / "source.spm").exists():
            return cls(*load_marian(folder))
        for name, load in (("merges.txt", load_merges), ("vocab.txt", load_wordpiece)):
            if (folder / name).exists():
                both = load(folder)
                return cls(both, both)
        raise UserError(
            f"{folder}: no tokenizer found; expected tokenizer.json, source.spm + target.spm + vocab.json, "
            "vocab.json + merges.txt, or vocab.txt"
        )
