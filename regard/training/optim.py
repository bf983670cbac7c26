"""AdamW, the learning rate as a pure function of the step, and the moving average of the weights."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.recipe import TrainOptions
from regard.training.levels import rates


def adamw(network: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) that shrinks matrices only: no biases, norms or embeddings.

    A group's `scale` is what its learning rate is multiplied by: all are 1, or each layer has its own.
    """
    embeddings = {id(each.weight) for each in network.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
    scales, found = rates(network, options.layer_decay), defaultdict(list)
    for parameter in network.parameters():
        if parameter.requires_grad:
            shrinks = parameter.ndim >= 2 and id(parameter) not in embeddings
            found[scales[parameter], options.weight_decay if shrinks else 0.0].append(parameter)
    groups = [
        {"params": found[scale, decay], "scale": scale, "weight_decay": decay}
        for scale, decay in sorted(found, reverse=True)
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, eps=1e-9, fused=True)


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], most: float) -> float:
    """Shorten all gradients together where their norm is over `most`; gives the norm they had. Pascanu et al. 2013."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch._foreach_norm(gradients) if gradients else ()  # pyright: ignore[reportPrivateImportUsage]
    norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
    if norm > most:
        torch._foreach_mul_(gradients, most / (norm + 1e-6))  # pyright: ignore[reportPrivateImportUsage]
    return norm


def learning_rate(step: int, options: TrainOptions, max_steps: int) -> float:
    """The rate of the update that makes step `step` (from 1); `max_steps` 0 = not known yet, then it only warms up.

    inverse_sqrt is Vaswani et al. 2017, eq. 3, scaled so that its peak is `learning_rate`; cosine and linear end at 0.
    These two warm up in the first quarter of a run at most, since they know its end.
    """
    peak, warmup, ends = options.learning_rate, options.warmup_steps, options.schedule in ("cosine", "linear")
    if ends and max_steps:
        warmup = min(warmup, -(-max_steps // 4))
    if step <= warmup:
        return peak * step / warmup
    if options.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if not ends or not max_steps:
        return peak
    progress = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    return peak * (1 - progress) if options.schedule == "linear" else peak * (1 + math.cos(math.pi * progress)) / 2


class Average:
    """An exponential moving average of the parameters; young averages forget faster, so the start does not linger."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.decay = network, decay
        trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        self.weights = {name: parameter.detach().clone() for name, parameter in trained} if decay else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """average ← decay · average + (1 − decay) · weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in self.network.named_parameters() if self.weights else ():
            if name in self.weights:  # what is frozen is its own average
                self.weights[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network with the averaged weights inside; what is evaluated and written as the model."""
        raw: dict[str, Tensor] = {}
        parameters = dict(self.network.named_parameters())
        for name, average in self.weights.items():
            raw[name] = parameters[name].data
            parameters[name].data = average
        try:
            yield
        finally:
            for name, weights in raw.items():
                parameters[name].data = weights
