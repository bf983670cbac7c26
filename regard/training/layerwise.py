"""How deep a weight lies, and what follows from it: slower rates further down, frozen layers, one thawed after another.

    embeddings ─▶ layer 1 ─▶ … ─▶ layer n ─▶ head         Howard & Ruder 2018, section 3.3
        0            1               n        n + 1

In an encoder–decoder the encoder's layers lie below the decoder's. Layers that share weights count as one. A table
that is embedding and output at once lies at the bottom.
"""

from collections.abc import Iterable
from itertools import zip_longest

from torch import nn

from regard.config.recipe import TrainOptions
from regard.errors import UserError
from regard.layers.blocks import Stack
from regard.layers.encoder import Encoder
from regard.layers.lora import adapters
from regard.layers.recurrent import RNNEncoder
from regard.models import registry as models

Levels = list[list[nn.Parameter]]  # from the embeddings up to the head


def levels(network: nn.Module) -> Levels:
    """Every parameter once, by how deep it lies."""
    body = getattr(network, "body", network)
    found: dict[nn.Parameter, int] = {}

    def lies(modules: Iterable[nn.Module], number: int) -> None:
        for parameter in (each for module in modules for each in module.parameters()):
            found.setdefault(parameter, number)

    top = 0
    for child in body.children():
        if isinstance(child, Stack):
            for block in dict.fromkeys(child.blocks):
                top += 1
                lies([block], top)
            lies([child.final], top)
            lies([child], 0)
        elif isinstance(child, RNNEncoder) and isinstance(body, Encoder):
            for directions in zip_longest(child.forwards, child.backwards):
                top += 1
                lies(filter(None, directions), top)
        elif top == 0:
            lies([child], 0)
    if top == 0:
        raise UserError(f"a {models.family_of(network)} has no layers that lie one on another")
    lies([network], top + 1)
    return [[each for each, number in found.items() if number == level] for level in range(top + 2)]


def settle(network: nn.Module, options: TrainOptions) -> None:
    """Freeze what the recipe freezes; whatever it says of layers that this network does not have is refused here."""
    said = {"layer_decay": options.layer_decay, "freeze": options.freeze, "unfreeze_steps": options.unfreeze_steps}
    for name, value in said.items():
        if value != getattr(TrainOptions, name):
            try:
                found = levels(network)
            except UserError as error:
                raise UserError(f"train.{name} = {value}: {error}") from None
            if name == "freeze":
                _freeze(network, found, options.freeze)


def _freeze(network: nn.Module, found: Levels, what: str | int) -> None:
    if what == "body" and not hasattr(network, "body"):
        raise UserError("train.freeze = 'body': the model has no head beside it; freeze a number of its layers")
    if what == "body" and adapters(network):
        raise UserError("train.freeze = 'body' leaves nothing to adapt: remove it, or model.lora_rank")
    layers = len(found) - 2
    count = {"embeddings": 0, "body": layers}[what] if isinstance(what, str) else what
    if count > layers:
        raise UserError(f"train.freeze = {what}: the model has {layers} layers with weights of their own")
    frozen = {parameter for level in found[: count + 1] for parameter in level}
    for parameter in frozen:
        parameter.requires_grad_(False)
    for adapter in adapters(network).values():
        if adapter.down in frozen:  # drawn, but never to be trained: none is written
            nn.init.zeros_(adapter.down)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"train.freeze = {what} leaves nothing to train")


def rates(network: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """What each parameter's learning rate is multiplied by: decay^(its distance from the head)."""
    if decay == 1.0:
        return dict.fromkeys(network.parameters(), 1.0)
    found = levels(network)
    return {each: decay ** (len(found) - 1 - number) for number, level in enumerate(found) for each in level}


class GradualUnfreezing:
    """Gradual unfreezing: what lies highest is trained first, and every `steps` steps what lies below it too.

    A function of the step alone, so that a run goes on as if it had never been stopped.
    """

    def __init__(self, network: nn.Module, steps: int):
        trained = [[each for each in level if each.requires_grad] for level in levels(network)] if steps else []
        self.levels, self.steps = [level for level in reversed(trained) if level], steps

    def __call__(self, step: int) -> None:
        """As it is to be for the update after `step` of them."""
        for number, level in enumerate(self.levels):
            for parameter in level:
                parameter.requires_grad_(number <= step // self.steps)
