"""How a network stands in a folder: the keys of its config and the names of its tensors."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from regard.interop.config_keys import Keys, fields_of, keys_of, refuse_others
from regard.interop.safetensors import NOTHING, Names, TensorSpec
from regard.models.registry import FAMILIES, build, family_of

INSIDE = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)\.(weight|bias)")


class Layout:
    """One model_type. Configs are config.json's keys, tensors go by the file's names."""

    model_type: str
    ignored: re.Pattern[str] = NOTHING  # tensors that say nothing, such as masks kept as buffers
    prefix: str = ""  # of names in a file; a model without its output leaves it out

    def speaks(self, network: nn.Module) -> bool:
        """Whether the network is this model_type's mathematics, if need be after `form`."""
        raise NotImplementedError

    def form(self, network: nn.Module) -> nn.Module:
        """The same function as it is written."""
        return network

    def read(self, config: dict[str, Any]) -> nn.Module:
        """A network from config.json, its weights still random."""
        raise NotImplementedError

    def describe(self, network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
        """config.json from a network, over what a loaded one said beyond it."""
        raise NotImplementedError

    def names(self, network: nn.Module) -> Names:
        """Where each parameter stands in the file."""
        raise NotImplementedError

    def completed(self, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """config.json with what it leaves for a file's tensors to say."""
        return config

    def receive(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
        """A file's tensors with what may be left out filled in, and without what is only to be checked."""
        return tensors


class Published(Layout):
    """A model_type that others know, as tables."""

    architecture: str
    family: str
    keys: Keys
    fixed: Mapping[str, Any] = {}  # what our config must say to be this mathematics
    only: Mapping[str, Any]  # keys that others use for other mathematics: the one value that is known
    aliases: Mapping[str, str] = {}  # another word for a key: it goes before the key, as in transformers
    block: str  # before what is inside a block, with {side} and {number}
    inside: Mapping[str, str]  # a block's parts, ours: theirs

    def outside(self, config: Any) -> Mapping[str, tuple[str, ...]]:
        """Our parameters outside the blocks: their name, and those of its copies."""
        raise NotImplementedError

    def speaks(self, network: nn.Module) -> bool:
        if family_of(network) != self.family:
            return False
        fields = self.said(network.config)
        said = [fields[key.ours] in key.values.values() for key in self.keys.values() if key.values is not None]
        return all(said) and all(fields[name] == value for name, value in self.fixed.items())

    def read(self, config: dict[str, Any]) -> nn.Module:
        refuse_others(config, self.only)
        meant = config | {key: config[alias] for alias, key in self.aliases.items() if alias in config}
        return build({"family": self.family, **self.fixed, **self.fields(meant)})

    def fields(self, config: dict[str, Any]) -> dict[str, Any]:
        """What config.json says of our config."""
        return fields_of(config, self.keys)

    def describe(self, network: nn.Module, foreign: dict[str, Any]) -> dict[str, Any]:
        return {
            **self.unsaid(network.config),
            **{key: value for key, value in foreign.items() if key != "torch_dtype"},
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "is_encoder_decoder": FAMILIES[self.family].is_encoder_decoder,
            **keys_of(self.said(network.config), self.keys, foreign),
        }

    def said(self, config: Any) -> dict[str, Any]:
        """The fields of our config, where one is another's size in full."""
        return vars(config)

    def unsaid(self, config: Any) -> dict[str, Any]:
        """Keys whose defaults are not ours, for where no loaded config says them."""
        return {}

    def names(self, network: nn.Module) -> Names:
        found, outside = {}, self.outside(network.config)
        for name, _ in network.named_parameters():
            part, kind = name.rsplit(".", 1)
            theirs = outside.get(name, ())
            if not theirs and (match := INSIDE.fullmatch(name)):
                side, number, part, kind = match.groups()
                theirs = (f"{self.block_of(network.config, side, int(number))}{self.inside[part]}.{kind}",)
            bare = (each.removeprefix(self.prefix) for each in theirs)
            found[name] = self.slot(part, kind, tuple(dict.fromkeys([*theirs, *bare])))
        return found

    def block_of(self, config: Any, side: str, number: int) -> str:
        """What stands before the names inside a block."""
        return self.block.format(side=side, number=number)

    def slot(self, part: str, kind: str, names: tuple[str, ...]) -> TensorSpec:
        """Where the weight or bias of a part of ours stands among tensors of these names."""
        return TensorSpec(names)


def tables(embedding: str, tied: bool) -> dict[str, tuple[str, ...]]:
    """A language model's embedding and output, which may share a table."""
    if tied:
        return {"embed.table.weight": (embedding, "lm_head.weight")}
    return {"embed.table.weight": (embedding,), "output.weight": ("lm_head.weight",)}
