"""AdamW, the learning rate as a pure function of the step, and the moving average of the weights."""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from regard.config.recipe import TrainOptions
from regard.runtime.threads import spread
from regard.training.layerwise import lr_multipliers


@dataclass(frozen=True)
class Rates:
    """Parameters that learn alike: their rate is `scale` times the run's, and `decay` of it shrinks them."""

    parameters: list[nn.Parameter]
    scale: float
    decay: float


class AdamW:
    """AdamW (Loshchilov & Hutter 2019) that shrinks matrices only: no biases, norms or embeddings.

    torch's fused kernel without torch's optimizer around it, whose bookkeeping takes as long as small models' updates.
    """

    def __init__(self, network: nn.Module, options: TrainOptions, pieces: int = 1):
        """In so many `pieces` parameters are worked on abreast."""
        embeddings = {id(each.weight) for each in network.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
        scales, found = lr_multipliers(network, options.layer_decay), defaultdict(list)
        for parameter in network.parameters():
            if parameter.requires_grad:
                shrinks = parameter.ndim >= 2 and id(parameter) not in embeddings
                found[scales[parameter], options.weight_decay if shrinks else 0.0].append(parameter)
        self.groups = [Rates(found[scale, decay], scale, decay) for scale, decay in sorted(found, reverse=True)]
        self.betas, self.pieces = options.betas, pieces
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.groups for parameter in group.parameters]

    def step(self, rate: float, divisor: float = 1.0) -> None:
        """One update by the gradients over `divisor`; what has none stays as it is."""
        trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        for parameter in trained:
            if parameter not in self.state:
                self.begin(parameter)
        spread(trained, self.pieces, partial(self.update, rate, divisor))

    def update(self, rate: float, divisor: float, some: list[Tensor]) -> None:
        """The update of some parameters."""
        chosen = {*some}
        for group in self.groups:
            if trained := [parameter for parameter in group.parameters if parameter in chosen]:
                self.update_group(group, rate, divisor, trained)

    @torch.no_grad()
    def update_group(self, group: Rates, rate: float, divisor: float, trained: list[nn.Parameter]) -> None:
        """The update of some of a group's parameters."""
        states = [self.state[each] for each in trained]
        steps = [each["step"] for each in states]
        torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            list[Tensor](trained),
            [each.grad for each in trained if each.grad is not None],
            [each["exp_avg"] for each in states],
            [each["exp_avg_sq"] for each in states],
            [],
            steps,
            lr=rate * group.scale,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=group.decay,
            eps=1e-9,
            amsgrad=False,
            maximize=False,
            grad_scale=None if divisor == 1.0 else torch.tensor(divisor, device=steps[0].device),
        )

    def begin(self, parameter: Tensor) -> None:
        """Moments of nothing, by the names that torch has for them."""
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        self.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}

    @torch.no_grad()
    def norm(self) -> float:
        """The length of all gradients together."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        found = spread(gradients, self.pieces, torch._foreach_norm)  # pyright: ignore[reportPrivateImportUsage]
        norms = [norm for part in found for norm in part]
        return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0

    def forget(self) -> None:
        """No gradients any more."""
        for parameter in self.parameters:
            parameter.grad = None


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


class EMA:
    """An exponential moving average of the parameters; young averages forget faster, so the start does not linger."""

    def __init__(self, network: nn.Module, decay: float, pieces: int = 1) -> None:
        self.network, self.decay, self.pieces = network, decay, pieces
        trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        self.weights = {name: parameter.detach().clone() for name, parameter in trained} if decay else {}

    def update(self, step: int) -> None:
        """average ← decay · average + (1 − decay) · weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = dict(self.network.named_parameters()) if self.weights else {}
        pairs = {average: parameters[name] for name, average in self.weights.items()}  # what is frozen has none

        def move(averages: list[Tensor]) -> None:
            for average in averages:
                average.lerp_(pairs[average], 1 - decay)

        spread(list(pairs), self.pieces, torch.no_grad()(move))

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
