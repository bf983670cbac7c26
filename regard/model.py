"""What `regard.load` returns: one object that runs, generates, embeds, traces and saves."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.trace import Trace, record
from regard.errors import UserError, nearest
from regard.inputs.batch import collate
from regard.inputs.text import Vocabulary
from regard.interop import folder as folders
from regard.interop.generation import decode_fields
from regard.interop.module import Module
from regard.recipe import DecodeOptions, Recipe
from regard.tasks.translate import Translation, generate, translate
from regard.training.distributed import choose_device
from regard.training.run import find_model, open_run

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DECODING = {field.name for field in fields(DecodeOptions)}


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
        batching = {name: options.pop(name) for name in ("batch_size", "truncate") if name in options}
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        answers = translate(self.network, self.vocabulary, texts, self.decoding(**options), **batching)
        if alignments:
            answers = [
                replace(each, alignment=self.align(text, each.text)) for text, each in zip(texts, answers, strict=True)
            ]
        return answers[0] if isinstance(inputs, str) else answers

    def generate(self, ids: Any, **options: Any) -> Any:
        """New ids for source ids: a list for a list, a list of lists for several, nested as given."""
        rows = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else list(ids)
        single = not rows or isinstance(rows[0], int)
        found = [
            best.tokens
            for best, *_ in generate(
                self.network, self.vocabulary, [rows] if single else rows, self.decoding(**options)
            )
        ]
        return found[0] if single else found

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The mean of the encoder's states of each text: float32 (texts, width)."""
        source = collate(self.vocabulary.source.encode_many(list(texts)), None, self.vocabulary).to(self.device)
        states, real = self.network.encode(source).float(), source.real[:, :, None]
        return ((states * real).sum(1) / real.sum(1)).cpu().numpy()

    @torch.inference_mode()
    def trace(self, text: str, target: str | None = None, prove: bool = False, **options: Any) -> Trace:
        """What is attended to while `target`, or the model's own answer, is written: one pass over all of it."""
        tokenizer = self.vocabulary.target
        row = self.vocabulary.source.encode(text)
        if target is None:
            answer = generate(self.network, self.vocabulary, [row], self.decoding(**options))[0][0].tokens
        else:
            answer = tokenizer.encode(target)
        source = collate([row], None, self.vocabulary).to(self.device)
        with record(prove) as recorder:
            self.network(source, torch.tensor([[tokenizer.begin, *answer]], device=self.device))
        return Trace(
            recorder,
            source=self.vocabulary.source.pieces(source.tokens[0].tolist()),
            target=tokenizer.pieces([tokenizer.begin, *answer]),
            output=tokenizer.pieces([*answer, tokenizer.end]),
            answer=tokenizer.decode(answer),
        )

    def align(self, text: str, target: str) -> tuple[tuple[int, int], ...]:
        """(source token, target token) pairs: for each target token the source token it looked at most.

        Of a stack it is the mean of the heads in the block before the last, where alignments are clearest
        (Garg et al. 2019); of a recurrent model its one attention.
        """
        trace = self.trace(text, target)
        sites = [site for site in trace.sites if site.endswith("cross")]
        if not sites:
            raise UserError("this model has no attention over its source, so it has no alignments")
        weights = trace.weights(sites[max(0, len(sites) - 2)]).mean(0)[:-1]  # the last row writes the end
        if weights.size(-1) != len(trace.source):
            raise UserError("this model sees its source as one state, so it has no alignments")
        return tuple((int(place), row) for row, place in enumerate(weights.argmax(-1)))

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
        for name in options:
            if name not in DECODING:
                raise UserError(f"unknown option '{name}'{nearest(name, DECODING)}")
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
