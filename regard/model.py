"""What `regard.load` returns: one object that runs, generates, embeds, traces and saves."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.trace import Trace
from regard.errors import UserError, nearest
from regard.inputs.batch import collate
from regard.inputs.text import Vocabulary
from regard.interop import folder as folders
from regard.interop.generation import decode_fields
from regard.interop.module import Module
from regard.recipe import DecodeOptions, Recipe
from regard.tasks.alignment import look
from regard.tasks.translate import Translation, by_length, generate, read, translate
from regard.training.distributed import choose_device
from regard.training.run import find_model, open_run

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DECODING = {  # its options, and the types that each may have
    field.name: (float, int) if isinstance(field.default, float) else (type(field.default),)
    for field in fields(DecodeOptions)
}


@dataclass
class Model:
    """A network with its vocabulary and its way of decoding."""

    network: Any
    vocabulary: Vocabulary
    generation: dict[str, Any]
    config: dict[str, Any]
    recipe: Recipe | None = None
    folder: Path | None = None

    @overload
    def run(self, inputs: str, *, task: str = ..., alignments: bool = ..., **options: Any) -> Translation: ...
    @overload
    def run(
        self, inputs: Sequence[str], *, task: str = ..., alignments: bool = ..., **options: Any
    ) -> list[Translation]: ...
    def run(
        self, inputs: str | Sequence[str], *, task: str = "translate", alignments: bool = False, **options: Any
    ) -> Translation | list[Translation]:
        """An answer to one text, or a list of answers to a list. Options are the words of a recipe's [decode]."""
        if task != "translate":
            raise UserError(f"this model cannot '{task}'; possible: translate")
        ways = {name: options.pop(name) for name in ("batch_size", "truncate", "progress") if name in options}
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        found = self.decoding(**options)
        answers = translate(self.network, self.vocabulary, texts, found, alignments=alignments, **ways)
        return answers[0] if isinstance(inputs, str) else answers

    def generate(self, ids: Any, **options: Any) -> Any:
        """New ids for source ids (their end is added where it is missing), nested as given."""
        rows = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else list(ids)
        single = not rows or isinstance(rows[0], int)
        rows = [self._source_ids(row) for row in ([rows] if single else rows)]
        found = [best.tokens for best, *_ in generate(self.network, self.vocabulary, rows, self.decoding(**options))]
        return found[0] if single else found

    def _source_ids(self, row: Sequence[int]) -> list[int]:
        """Ids as the network is given them, without their end."""
        size, end = self.vocabulary.source.size, self.vocabulary.source.end
        if wrong := [token for token in row if not 0 <= token < size]:
            raise UserError(f"id {wrong[0]} is not in the vocabulary of {size} tokens")
        row = list(row[:-1] if len(row) and row[-1] == end else row)
        if len(row) >= self.network.limit:
            raise UserError(f"{len(row)} ids are more than the {self.network.limit - 1} that the model reads")
        return row

    @torch.inference_mode()
    def embed(self, texts: str | Sequence[str], batch_size: int = 64, truncate: bool = False) -> np.ndarray:
        """The mean of the encoder's states of each text: float32 (texts, width), or (width,) for one text."""
        rows = read(self.network, self.vocabulary, [texts] if isinstance(texts, str) else texts, truncate)
        vectors = np.zeros((len(rows), 0), np.float32)
        for numbers in by_length([len(row.tokens) for row in rows], batch_size):
            source = collate([rows[number].tokens for number in numbers], None, self.vocabulary).to(self.device)
            states, real = self.network.encode(source).float(), source.real[:, :, None]
            found = ((states * real).sum(1) / real.sum(1)).cpu().numpy()
            vectors = vectors if vectors.size else np.zeros((len(rows), found.shape[1]), np.float32)
            vectors[numbers] = found
        return vectors[0] if isinstance(texts, str) else vectors

    def trace(self, text: str, target: str | None = None, prove: bool = False, **options: Any) -> Trace:
        """What is attended to while `target`, or the model's own answer, is written: one pass over all of it."""
        ((row, _),) = read(self.network, self.vocabulary, [text], options.pop("truncate", False))
        if target is None:
            answer = generate(self.network, self.vocabulary, [row], self.decoding(**options))[0][0].tokens
        else:
            answer = self.vocabulary.target.encode(target)
        if len(answer) >= self.network.limit:
            raise UserError(f"the target has {len(answer)} tokens, the model writes at most {self.network.limit - 1}")
        return look(self.network, self.vocabulary, row, answer, prove)

    def save(self, folder: str | Path) -> None:
        """A folder of Hugging Face's shape: config, weights, tokenizer, card."""
        folders.save(Path(folder), self.network, self.vocabulary, self.generation, config=self.config)

    @property
    def module(self) -> Module:
        """The network under Hugging Face's tensor names."""
        return Module(self.network)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def decoding(self, **options: Any) -> DecodeOptions:
        """The checkpoint's own way of decoding, with what is given laid over it."""
        for name, value in options.items():
            if name not in DECODING:
                raise UserError(f"unknown option '{name}'{nearest(name, DECODING)}")
            if type(value) not in DECODING[name]:
                raise UserError(f"{name} = {value!r} does not fit; expected {DECODING[name][0].__name__}")
        return DecodeOptions(**(decode_fields(self.generation) | options))


def load(path: str | Path, *, device: str = "auto", precision: str = "float32") -> Model:
    """A run folder (its best checkpoint), a checkpoint folder, or a Hugging Face folder."""
    if precision not in PRECISIONS:
        raise UserError(f"precision = '{precision}' is unknown{nearest(precision, PRECISIONS)}")
    folder, run, refused = find_model(path)
    for reason in refused:
        print(f"warning: {reason}; {folder.name} is used instead", file=sys.stderr)
    recipe = open_run(run) if run else None
    loaded = folders.load(folder)
    network: nn.Module = loaded.network.to(choose_device(device), PRECISIONS[precision]).eval()
    return Model(network, loaded.vocabulary, loaded.generation, loaded.config, recipe, folder)
