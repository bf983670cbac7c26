"""Data-parallel training in the processes that torchrun starts; with one process every function does nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed
from torch import Tensor, nn

PATIENCE = timedelta(hours=6)  # the others wait while the first process evaluates


@dataclass(frozen=True)
class Group:
    """This process among `world` of them; rank 0 writes, displays and evaluates."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            torch.distributed.all_reduce(values)
        return values

    def agree(self, *values: float) -> list[float]:
        """The largest of each value over all processes, so that all take the same branch."""
        if self.world == 1:
            return list(values)
        largest = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return largest.tolist()

    def share_weights(self, network: nn.Module) -> None:
        """All start from the weights of rank 0."""
        if self.world > 1:
            for tensor in [*network.parameters(), *network.buffers()]:
                torch.distributed.broadcast(tensor.data, src=0)

    def sum_gradients(self, network: nn.Module) -> None:
        """Every gradient becomes the sum over all processes, in one message per dtype."""
        if self.world == 1:
            return
        gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        for dtype in sorted({gradient.dtype for gradient in gradients}, key=str):
            same = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = self.total(torch.cat([gradient.flatten() for gradient in same]))
            for gradient, summed in zip(same, flat.split([gradient.numel() for gradient in same]), strict=True):
                gradient.copy_(summed.view_as(gradient))


def rank() -> int:
    """This process's rank as torchrun set it; known before the group is."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """Join the processes that torchrun started, inside the context."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Group(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Group(device, rank(), world)
    finally:
        torch.distributed.destroy_process_group()
