"""The gradient of a batch: of the whole, or of pieces that the cores work on abreast, summed.

batch ─┬─▶ every second sample ─▶ loss ─▶ gradient ─┬─▶ sum
       └─▶ the others          ─▶ loss ─▶ gradient ─┘
"""

import hashlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from regard.layers.dropout import dropout_generator
from regard.layers.recurrent import recurs
from regard.runtime.threads import PIECES, abreast, divisible, spread, with_threads
from regard.training.objective import Objective

Found = dict[Tensor, Tensor]  # parameter → gradient


class Gradients:
    """Adds the gradients of batches to a network's. What is drawn for a piece depends on the batch's number alone."""

    def __init__(self, network: nn.Module, task: Objective, seed: int, autocast: Any, pieces: int) -> None:
        self.network, self.task, self.seed = network, task, seed
        self.autocast, self.pieces = autocast, pieces

    def add(self, batch: Any, number: int, count: int) -> Tensor:
        """Batch `number`, whose loss is a part of that over `count` targets; gives that part."""
        first, *others = pieces = self.task.split(batch, self.pieces)
        aside = [partial(self._aside, piece, f"{number} {place}", count) for place, piece in enumerate(others, 1)]
        with with_threads(torch.get_num_threads() * self.pieces // len(pieces)):  # of one sample there is one piece
            (loss, _), *found = abreast([partial(self._own, first, number, count), *aside])
        for part, gradients in found:
            loss = loss + part
            spread(list(gradients), self.pieces, partial(_sum, gradients))
        return loss

    def _own(self, batch: Any, number: int, count: int) -> tuple[Tensor, Found]:
        """The first piece's goes where torch puts it, and torch's own numbers are drawn for it."""
        if batch.index.device.type == "cpu":
            torch.default_generator.manual_seed(_seed(self.seed, number))
        else:
            torch.manual_seed(_seed(self.seed, number))
        loss = self._loss(batch, count)
        loss.backward()
        return loss.detach(), {}

    def _aside(self, batch: Any, number: str, count: int) -> tuple[Tensor, Found]:
        with dropout_generator(torch.Generator().manual_seed(_seed(self.seed, number))):
            loss = self._loss(batch, count)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        found = zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True)
        return loss.detach(), {parameter: gradient for parameter, gradient in found if gradient is not None}

    def _loss(self, batch: Any, count: int) -> Tensor:
        with self.autocast:
            return self.task.loss(self.network, batch) / count


def pieces_for(network: nn.Module, device: torch.device) -> int:
    """In how many pieces a batch is worked on: one where there are no cores for more, or nothing to win.

    What steps from token to token waits for Python, not for products; and torch's own layers that drop elements draw
    their numbers where all threads do.
    """
    alone = recurs(network) or any(isinstance(module, _DropoutNd) for module in network.modules())
    return PIECES if device.type == "cpu" and divisible() and not alone else 1


@torch.no_grad()
def _sum(gradients: Found, parameters: list[Tensor]) -> None:
    have = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
    if have:
        torch._foreach_add_(list(have.values()), [gradients[each] for each in have])  # pyright: ignore
    for parameter in parameters:
        if parameter not in have:
            parameter.grad = gradients[parameter]


def _seed(seed: int, number: int | str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "little") >> 1
