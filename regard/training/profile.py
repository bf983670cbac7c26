"""What a training step costs, measured on real batches: seconds, and the memory that the backward pass waits with."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.pytree import to_device
from regard.runtime.threads import with_threads
from regard.training.loop import Loop

LOOKED = 256  # batches among which the largest is looked for: a window or more, of each of which lengths are sorted


@dataclass(frozen=True)
class Cost:
    """Of one step: median seconds, targets seen in it, and the most bytes of activations it held."""

    parameters: int
    weight_bytes: int
    trained_bytes: int  # of the weights that are not frozen
    activation_bytes: int
    seconds: float
    targets: float
    gradients: int = 1  # as many of each as there are pieces of a batch

    def state_bytes(self, averaged: bool) -> int:
        """Weights, AdamW's two moments and the moving average."""
        return self.weight_bytes + self.trained_bytes * (3 if averaged else 2)

    def checkpoint_bytes(self, averaged: bool, adapted: bool = False) -> int:
        """On disk: the model to use, frozen weights too (or its adapter alone), and the state to go on from."""
        model = self.trained_bytes if adapted else self.weight_bytes
        return model + self.trained_bytes * (4 if averaged else 3)

    def memory_bytes(self, averaged: bool) -> int:
        """What the run holds at its peak: the state, gradients and activations."""
        return self.state_bytes(averaged) + self.gradients * self.trained_bytes + self.activation_bytes


def measure(loop: Loop, steps: int, warm: int = 2) -> Cost:
    """Take `warm + steps` real steps; the network is not the same afterwards."""
    loop.network.train()
    batches = loop.task.batches(0, 0, 1)
    seconds, targets = [], 0
    with with_threads(loop.threads // loop.pieces):
        for number in range(warm + steps):
            part = list(islice(batches, loop.options.gradient_accumulation_steps))
            start = time.perf_counter()
            _step(loop, part)
            if number >= warm:
                seconds.append(time.perf_counter() - start)
                targets += sum(loop.task.num_targets(batch) for batch in part)
    parameters = list(loop.network.parameters())
    return Cost(
        parameters=sum(each.numel() for each in parameters),
        weight_bytes=sum(each.nbytes for each in parameters),
        trained_bytes=sum(each.nbytes for each in parameters if each.requires_grad),
        activation_bytes=max(_held(loop, batch) for batch in _largest(loop)),
        seconds=median(seconds),
        targets=targets / steps,
        gradients=loop.pieces,
    )


def _largest(loop: Loop) -> list[Any]:
    """The batch with the most targets and that with the longest rows, among the first: logits and attention peak."""
    first = list(islice(loop.task.batches(0, 0, 1), min(LOOKED, loop.task.batches_per_epoch)))
    return [max(first, key=loop.task.num_targets), max(first, key=_length)]


def _length(value: Any) -> int:
    """Of the longest row in a nest of tuples."""
    if isinstance(value, Tensor):
        return value.shape[1] if value.ndim > 1 else 0
    return max(map(_length, value), default=0) if isinstance(value, tuple) else 0


def _step(loop: Loop, batches: list[Any]) -> None:
    """One update over these batches, by a rate of nothing."""
    count = sum(loop.task.num_targets(batch) for batch in batches)
    for number, batch in enumerate(batches):
        loss = loop.gradients.add(to_device(batch, loop.group.device), number, count)
        loss.item()  # waits for the device
    loop.optimizer.step(0.0)
    loop.optimizer.forget()


def _held(loop: Loop, batch: Any) -> int:
    """The bytes of activations that a batch leaves for its backward pass."""
    with activations(loop.network) as kept, loop.autocast:
        loop.task.loss(loop.network, to_device(batch, loop.group.device))
    return sum(kept.values())


@contextmanager
def activations(network: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes by storage of all that autograd keeps for the backward pass, the weights themselves left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        yield kept
