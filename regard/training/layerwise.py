"""Training by depth: discriminative learning rates, frozen layers and gradual unfreezing.

    embeddings ─▶ layer 1 ─▶ … ─▶ layer n ─▶ head         Howard & Ruder 2018, section 3.3
        0            1               n        n + 1

In an encoder–decoder the encoder's layers are below the decoder's. Layers that share weights count as one. A table that
is both embedding and output belongs to the embeddings.
"""

from collections.abc import Iterable
from itertools import chain, zip_longest

from torch import nn

from regard.config.recipe import TrainOptions
from regard.errors import UserError
from regard.layers.blocks import Stack
from regard.layers.encoder import TextEncoder
from regard.layers.lora import adapters
from regard.layers.recurrent import RNNEncoder
from regard.models import registry as models
from regard.models.elmo import BidirectionalLSTM

LayerGroups = list[list[nn.Parameter]]  # from the embeddings up to the head


def layer_groups(network: nn.Module) -> LayerGroups:
    """Every parameter once, by the depth of its layer."""
    body = getattr(network, "body", network)
    depths: dict[nn.Parameter, int] = {}

    def assign(modules: Iterable[nn.Module], depth: int) -> None:
        for parameter in chain.from_iterable(module.parameters() for module in modules):
            depths.setdefault(parameter, depth)

    top = 0
    for child in body.children():
        for layer in _layers(child, body):
            top += 1
            assign(layer, top)
        if isinstance(child, Stack):
            assign([child.final], top)
            assign([child], 0)
        elif top == 0:
            assign([child], 0)
    if top == 0:
        raise UserError(f"a {models.family_of(network)} model has no stack of layers")
    assign([network], top + 1)
    return [[parameter for parameter, depth in depths.items() if depth == group] for group in range(top + 2)]


def _layers(child: nn.Module, body: nn.Module) -> list[list[nn.Module]]:
    """The layers of a stack, each as its modules; none if it is not one. Blocks that occur twice count once."""
    if isinstance(child, Stack):
        return [[block] for block in dict.fromkeys(child.blocks)]
    if isinstance(child, RNNEncoder | BidirectionalLSTM) and isinstance(body, TextEncoder):
        return [[*filter(None, directions)] for directions in zip_longest(child.forwards, child.backwards)]
    if isinstance(child, nn.ModuleList) and all(isinstance(layer, nn.RNNBase) for layer in child):
        return [[layer] for layer in child]
    return []


def apply_freezing(network: nn.Module, options: TrainOptions) -> None:
    """Freeze what the recipe freezes; options about layers that it does not have are errors."""
    for name in ("layer_decay", "freeze", "unfreeze_steps"):
        value = getattr(options, name)
        if value == getattr(TrainOptions, name):
            continue
        try:
            groups = layer_groups(network)
        except UserError as error:
            raise UserError(f"train.{name} = {value}: {error}") from None
        if name == "freeze":
            _freeze(network, groups, options.freeze)


def _freeze(network: nn.Module, groups: LayerGroups, what: str | int) -> None:
    if what == "body" and not hasattr(network, "body"):
        raise UserError("train.freeze = 'body': the model has no head; freeze a number of its layers")
    if what == "body" and adapters(network):
        raise UserError("train.freeze = 'body' leaves nothing to adapt with LoRA: remove it, or model.lora_rank")
    layers = len(groups) - 2
    count = {"embeddings": 0, "body": layers}[what] if isinstance(what, str) else what
    if count > layers:
        raise UserError(f"train.freeze = {what}: the model has only {layers} layers (shared ones count once)")
    frozen = {parameter for group in groups[: count + 1] for parameter in group}
    for parameter in frozen:
        parameter.requires_grad_(False)
    for adapter in adapters(network).values():
        if adapter.lora_a in frozen:  # initialised, but never trained: none is written
            nn.init.zeros_(adapter.lora_a)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"train.freeze = {what} leaves no weights to train: freeze fewer layers")


def lr_multipliers(network: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """The factor of each parameter's learning rate: decay^(layers between it and the head)."""
    if decay == 1.0:
        return dict.fromkeys(network.parameters(), 1.0)
    groups = layer_groups(network)
    top = len(groups) - 1
    return {parameter: decay ** (top - depth) for depth, group in enumerate(groups) for parameter in group}


class GradualUnfreezing:
    """The head is trained first, and after each `steps` steps one more layer below it.

    A function of the step alone, so that a resume is exact.
    """

    def __init__(self, network: nn.Module, steps: int):
        self.steps = steps
        groups = layer_groups(network) if steps else []
        trained = ([parameter for parameter in group if parameter.requires_grad] for group in reversed(groups))
        self.groups = [group for group in trained if group]

    def __call__(self, step: int) -> None:
        """Set `requires_grad` for the update that follows `step`."""
        for index, group in enumerate(self.groups):
            for parameter in group:
                parameter.requires_grad_(index <= step // self.steps)
