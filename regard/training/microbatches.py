"""The gradient of a batch: of the batch itself, or the sum over micro-batches that several threads work on.

batch ─┬─▶ every second sample ─▶ loss ─▶ gradient ─┬─▶ sum
       └─▶ the others          ─▶ loss ─▶ gradient ─┘
"""

import hashlib
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.dropout import dropout_generator
from regard.layers.recurrent import recurs
from regard.runtime.threads import WORKERS, run_parallel, threads_divide_evenly, torch_threads
from regard.training.objective import Objective

TORCH_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class Gradients:
    """Adds the gradients of batches to a network's. Random numbers depend on the seed and the batch's index alone."""

    def __init__(
        self, network: nn.Module, task: Objective, seed: int, autocast: AbstractContextManager[object], workers: int
    ) -> None:
        self.network = network
        self.task = task
        self.seed = seed
        self.autocast = autocast
        self.workers = workers

    def add(self, batch: Any, index: int, targets: int) -> Tensor:
        """The loss of batch `index` over `targets`, all targets of an update; its gradient is added."""
        microbatches = self.task.split(batch, self.workers)
        jobs = [partial(self._backward, microbatches[0], index, targets)]
        jobs += [partial(self._separate, rest, f"{index} {i}", targets) for i, rest in enumerate(microbatches[1:], 1)]
        with torch_threads(torch.get_num_threads() * self.workers // len(microbatches)):  # a batch of one is not split
            (loss, _), *others = run_parallel(jobs)
        for other_loss, gradients in others:
            loss = loss + other_loss
            for parameter, gradient in gradients.items():
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return loss

    def _backward(self, batch: Any, index: int, targets: int) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """The first micro-batch, whose gradients go to the parameters; it draws from torch's own generator."""
        if batch.indices.device.type == "cpu":
            torch.default_generator.manual_seed(_seed(self.seed, index))
        else:
            torch.manual_seed(_seed(self.seed, index))
        loss = self._loss(batch, targets)
        loss.backward()
        return loss.detach(), {}

    def _separate(self, batch: Any, name: str, targets: int) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """Another micro-batch: its gradients are returned by parameter; dropout has a generator of its own."""
        with dropout_generator(torch.Generator().manual_seed(_seed(self.seed, name))):
            loss = self._loss(batch, targets)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        gradients = zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True)
        return loss.detach(), {parameter: gradient for parameter, gradient in gradients if gradient is not None}

    def _loss(self, batch: Any, targets: int) -> Tensor:
        with self.autocast:
            return self.task.loss(self.network, batch) / targets


def choose_workers(network: nn.Module, device: torch.device) -> int:
    """How many threads work on a batch: one where there are no cores for more, or where they would not help.

    Recurrent networks are limited by Python's overhead. torch's dropout layers share one generator among threads.
    """
    unsuitable = recurs(network) or any(isinstance(module, TORCH_DROPOUT) for module in network.modules())
    return WORKERS if device.type == "cpu" and threads_divide_evenly() and not unsuitable else 1


def _seed(seed: int, name: int | str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little") >> 1
