"""AdamW, the learning rate as a pure function of the step, and the EMA of the weights."""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from regard.config.recipe import TrainOptions
from regard.training.layerwise import lr_multipliers

PEAK_SHARE = 0.1  # of the steps: where the slanted triangular schedule has its peak,
PEAK_RATIO = 32  # and how much higher that is than its lowest rate. Howard & Ruder 2018, section 3.2


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW (Loshchilov & Hutter 2019), with layer-wise learning rates.

    Weight decay is for matrices only, not for biases, norms and embeddings.
    """

    def __init__(self, network: nn.Module, options: TrainOptions):
        embeddings = [module for module in network.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
        tables = {id(embedding.weight) for embedding in embeddings}
        multipliers = lr_multipliers(network, options.layer_decay)
        groups = defaultdict(list)
        for parameter in network.parameters():
            if parameter.requires_grad:
                decays = parameter.ndim >= 2 and id(parameter) not in tables
                groups[multipliers[parameter], options.weight_decay if decays else 0.0].append(parameter)
        settings = [
            {"params": parameters, "lr_multiplier": multiplier, "weight_decay": decay}
            for (multiplier, decay), parameters in sorted(groups.items(), key=lambda group: group[0], reverse=True)
        ]
        super().__init__(settings, betas=options.betas, eps=1e-9, fused=True)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def gradient_norm(self) -> float:
        """The L2 norm of all gradients together."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return float(nn.utils.get_total_norm(gradients))

    def update(self, learning_rate: float, norm: float = 0.0, max_norm: float = math.inf) -> None:
        """One step, with gradients of this norm clipped to `max_norm` (Pascanu et al. 2013)."""
        if norm > max_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, max_norm, torch.tensor(norm))
        for group in self.param_groups:
            group["lr"] = learning_rate * group["lr_multiplier"]
        self.step()


def learning_rate(step: int, options: TrainOptions, max_steps: int) -> float:
    """The rate of the update that makes step `step` (from 1); `max_steps` 0 = not known yet, then it only warms up.

    inverse_sqrt is Vaswani et al. 2017, eq. 3, scaled so that its peak is `learning_rate`; cosine and linear end at 0.
    These two, and all schedules of a run by minutes, warm up in the first quarter of a run at most. slanted_triangular
    is Howard & Ruder 2018, eq. 3: up in the first tenth of the steps, then down, from and to peak / 32.
    """
    peak = options.learning_rate
    if options.schedule == "slanted_triangular":
        top = max(1, math.floor(PEAK_SHARE * max_steps))
        height = step / top if step <= top else 1 - (step - top) / (max_steps - top)
        return peak * (1 + height * (PEAK_RATIO - 1)) / PEAK_RATIO
    warmup = options.warmup_steps
    decays_to_zero = options.schedule in ("cosine", "linear")
    if max_steps and (decays_to_zero or options.minutes):
        warmup = min(warmup, -(-max_steps // 4))
    if step <= warmup:
        return peak * step / warmup
    if options.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if not decays_to_zero or not max_steps:
        return peak
    progress = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    return peak * (1 - progress) if options.schedule == "linear" else peak * (1 + math.cos(math.pi * progress)) / 2


class EMA:
    """Exponential moving average of the trained weights; the decay grows with the step, so that the start fades."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = network
        self.decay = decay
        trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        self.weights = {name: parameter.detach().clone() for name, parameter in trained} if decay else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """average ← decay · average + (1 − decay) · weights."""
        if self.weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            parameters = dict(self.network.named_parameters())
            average = get_ema_multi_avg_fn(decay)
            average(list(self.weights.values()), [parameters[name] for name in self.weights], step)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network with the averaged weights: what is evaluated and saved as the model."""
        trained: dict[str, Tensor] = {}
        parameters = dict(self.network.named_parameters())
        for name, average in self.weights.items():
            trained[name] = parameters[name].data
            parameters[name].data = average
        try:
            yield
        finally:
            for name, weights in trained.items():
                parameters[name].data = weights
