"""What `regard.load` returns: a network with its processor, which runs, generates, embeds, traces and saves by task."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import Trace
from regard.config.recipe import Recipe
from regard.data.processor import Processor
from regard.errors import UserError, nearest
from regard.interop import folder as folders
from regard.interop.hf_module import HFModule
from regard.interop.model_card import Training
from regard.interop.sentence_transformers import Pooling, pooling_of, write_pooling
from regard.models.registry import FAMILIES, family_of
from regard.runtime.machine import choose_device, use_huge_pages
from regard.runtime.optimize import optimize_for_inference
from regard.tasks.predictor import Predictor
from regard.tasks.registry import TASKS, canonical, task_of
from regard.training.metrics_log import validation_metrics
from regard.training.run_folder import find_model, open_run

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}  # int8: of the weights
LARGE = 1 << 26  # bytes of weights: more than caches hold


@dataclass(repr=False)
class Model:
    """A network with its processor and generation settings; what it can do is defined by its task."""

    network: Any
    processor: Processor
    generation: dict[str, Any]
    config: dict[str, Any]
    recipe: Recipe | None = None
    folder: Path | None = None
    precision: str = "float32"
    pooling: Pooling | None = None  # of its checkpoint, if it says
    num_parameters: int = field(init=False)  # of the loaded network; in int8 most are no `nn.Parameter` any more

    def __post_init__(self) -> None:
        self.num_parameters = sum(weight.numel() for weight in self.network.parameters())

    def __repr__(self) -> str:
        facts = [family_of(self.network), self.task, f"{_rounded(self.num_parameters)} parameters", self.precision]
        folder = [f"'{self.folder}'"] if self.folder else []
        return f"Model({', '.join([*facts, str(self.device), *folder])})"

    @property
    def task(self) -> str:
        """The task it was trained for, else that of its architecture."""
        return self.recipe.task if self.recipe is not None else self.network.task

    @property
    def is_causal_lm(self) -> bool:
        return self.network.task == "generate"

    @property
    def is_encoder(self) -> bool:
        return FAMILIES[family_of(self.network)].is_encoder

    def predictor(self, task: str = "") -> Any:
        """How the model does a task: its own, or another that it can do, such as "embed"."""
        name = canonical(task) if task else self.task
        kind: type[Predictor] = task_of(name).predictor
        if not kind.accepts(self):
            able = [each for each in TASKS if task_of(each).predictor.accepts(self)]
            raise UserError(f"this model cannot do task = '{name}'; possible tasks: {', '.join(able)}")
        return kind(self)

    def run(self, inputs: Any, *, task: str = "", **options: Any) -> Any:
        """A prediction for one input, or a list of them, where an empty input has an empty prediction.

        Generation takes the keys of a recipe's [decode].
        """
        predictor = self.predictor(task)
        if not predictor.is_single(inputs) and not isinstance(inputs, Iterable):
            raise UserError(f"expected one input or a list of them, not {inputs!r:.60}")
        return predictor.run(inputs, options)

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Any:
        """A continuation while it is generated: iterate for its text; then it has an `answer`."""
        predictor = self.predictor()
        if not predictor.streams:
            raise UserError(f"stream() is for language models, but this model's task is '{self.task}': use run()")
        return predictor.stream(prompt, **options)

    def generate(self, ids: Any, **options: Any) -> Any:
        """New ids for prompt ids, or for an encoder–decoder's source ids; nested as given, without the end token."""
        rows = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids
        if not isinstance(rows, Sequence) or isinstance(rows, str):
            raise UserError(f"ids should be a list of whole numbers, or of such lists, not {ids!r}")
        single = not rows or isinstance(rows[0], int | np.integer)
        outputs = self.predictor().generate([rows] if single else rows, options)
        return outputs[0] if single else outputs

    def embed(
        self,
        inputs: Any,
        batch_size: int = 64,
        truncate: bool = False,
        pooling: str = "",
        normalise: bool | None = None,
    ) -> np.ndarray:
        """One vector per text or image: float32 (inputs, width), or (width,) for one input.

        By default hidden states are pooled as the checkpoint says, else averaged.
        """
        predictor = self.predictor("embed")
        single = predictor.is_single(inputs)
        rows = predictor.encode_inputs([inputs] if single else list(inputs), truncate)
        vectors = predictor.embed(rows, batch_size, pooling, normalise)
        return vectors[0] if single else vectors

    def trace(self, text: Any, target: str | None = None, prove: bool = False, **options: Any) -> Trace:
        """The attention while `target`, or the model's own prediction, is computed: one teacher-forced pass."""
        truncate = options.pop("truncate", False)
        return self.predictor().trace(text, target, prove, truncate, options)

    def save(self, folder: str | Path) -> None:
        """A checkpoint folder: config, weights, tokenizer, model card."""
        if self.precision == "int8":
            raise UserError("int8 weights are not saved: load the model in float32 and save that")
        training = Training(self.recipe, *validation_metrics(self.folder)) if self.recipe and self.folder else None
        folders.save(Path(folder), self.network, self.processor, self.generation, self.config, training=training)
        if self.pooling is not None:
            write_pooling(Path(folder), self.pooling, self.network.config.width)

    @cached_property
    def module(self) -> HFModule:
        """The network under Hugging Face's tensor names."""
        return HFModule(self.network)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device


def _rounded(count: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def load(path: str | Path, *, device: str = "auto", precision: str = "float32", model_type: str | None = None) -> Model:
    """A run folder (its best checkpoint), a checkpoint folder, or a Hugging Face folder.

    A `model_type` such as "bert" is for a config.json that says none.
    """
    if precision not in PRECISIONS:
        raise UserError(f"precision = '{precision}' is unknown{nearest(precision, PRECISIONS)}")
    folder, run, refused = find_model(path)
    for reason in refused:
        print(f"warning: {reason}; {folder.name} is used instead", file=sys.stderr)
    recipe = open_run(run) if run else None
    loaded = folders.load(folder, model_type=model_type)
    where = choose_device(device)
    if precision == "int8" and where.type != "cpu":
        raise UserError(f"precision = 'int8' is for CPUs, not for '{where}': use bfloat16 there, or device = 'cpu'")
    size = sum(parameter.nbytes for parameter in loaded.network.parameters())
    network = loaded.network.to(where, PRECISIONS[precision]).eval()
    model = Model(network, loaded.processor, loaded.generation, loaded.config, recipe, folder, precision)
    model.pooling = pooling_of(folder)
    if where.type == "cpu" and precision != "bfloat16":
        model.network = optimize_for_inference(network, precision)
        if size >= LARGE:
            use_huge_pages()
    return model
