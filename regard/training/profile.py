"""What a training step costs, measured on real batches: seconds, and the memory that activations take."""

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
from regard.runtime.threads import torch_threads
from regard.training.loop import Loop
from regard.training.objective import BatchSource

SEARCHED = 256  # batches among which the largest is searched: a bucket of similar lengths or more


@dataclass(frozen=True)
class Cost:
    """Of one step: median seconds, targets seen in it, and the peak of its activations."""

    parameters: int
    weight_bytes: int
    trained_bytes: int  # of the weights that are not frozen
    activation_bytes: int
    seconds: float
    targets: float
    gradients: int = 1  # copies of the gradients: one per micro-batch

    def state_bytes(self, averaged: bool) -> int:
        """Weights, AdamW's two moments and the EMA."""
        return self.weight_bytes + self.trained_bytes * (3 if averaged else 2)

    def checkpoint_bytes(self, averaged: bool, adapted: bool = False) -> int:
        """On disk: the model with its frozen weights (or its adapter alone), and the state to resume from."""
        model = self.trained_bytes if adapted else self.weight_bytes
        return model + self.trained_bytes * (4 if averaged else 3)

    def memory_bytes(self, averaged: bool) -> int:
        """The peak of a run: the state, gradients and activations."""
        return self.state_bytes(averaged) + self.gradients * self.trained_bytes + self.activation_bytes


def measure(loop: Loop, source: BatchSource, steps: int, warmup: int = 2) -> Cost:
    """Take `warmup + steps` real steps with a learning rate of 0."""
    loop.network.train()
    batches = source.batches(0, 0, 1)
    count = loop.objective.num_targets
    seconds = []
    targets = 0
    with torch_threads(loop.threads // loop.workers):
        for step in range(warmup + steps):
            taken = list(islice(batches, loop.options.gradient_accumulation_steps))
            start = time.perf_counter()
            _step(loop, taken)
            if step >= warmup:
                seconds.append(time.perf_counter() - start)
                targets += sum(map(count, taken))
    first = list(islice(source.batches(0, 0, 1), min(SEARCHED, source.batches_per_epoch)))
    largest = (max(first, key=count), max(first, key=_length))  # logits peak in one, attention in the other
    parameters = list(loop.network.parameters())
    return Cost(
        parameters=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.nbytes for parameter in parameters),
        trained_bytes=sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
        activation_bytes=max(_activation_bytes(loop, batch) for batch in largest),
        seconds=median(seconds),
        targets=targets / steps,
        gradients=loop.workers,
    )


def _length(batch: Any) -> int:
    """The length of the longest row in nested tuples of tensors."""
    if isinstance(batch, Tensor):
        return batch.shape[1] if batch.ndim > 1 else 0
    return max(map(_length, batch), default=0) if isinstance(batch, tuple) else 0


def _step(loop: Loop, batches: list[Any]) -> None:
    """One update over these batches with a learning rate of 0."""
    targets = sum(map(loop.objective.num_targets, batches))
    for index, batch in enumerate(batches):
        loss = loop.gradients.add(to_device(batch, loop.group.device), index, targets)
        loss.item()  # waits for the device
    loop.optimizer.update(0.0)
    loop.optimizer.zero_grad()


def _activation_bytes(loop: Loop, batch: Any) -> int:
    """The bytes that a batch leaves for its backward pass."""
    with saved_activations(loop.network) as saved, loop.autocast:
        loop.objective.loss(loop.network, to_device(batch, loop.group.device))
    return sum(saved.values())


@contextmanager
def saved_activations(network: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes by storage of all that autograd saves for the backward pass, without the weights themselves."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved
