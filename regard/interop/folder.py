"""A checkpoint folder in Hugging Face's shape, written and read.

    config.json · model.safetensors (or shards + index) · tokenizer.json · generation_config.json · README.md

Where a network is exactly a published family's mathematics, `model_type` says so and that family's readers take the
folder as it is; otherwise it is one of ours.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError, nearest
from regard.inputs.text import FILES, Tokenizer, Vocabulary
from regard.interop import generation as decoding
from regard.interop import marian, own
from regard.interop.card import card_of
from regard.interop.weights import INDEX, SHARDS, Names, fill, read_json, read_weights, write_json, write_weights
from regard.models import FAMILIES


class Loaded(NamedTuple):
    """A folder's contents; `generation` and `config` as they stand in the files, so that saving again keeps them."""

    network: nn.Module
    vocabulary: Vocabulary
    generation: dict[str, Any]
    config: dict[str, Any]


class Layout(NamedTuple):
    """How one model_type is read: its config, its tensors' names, and what becomes of tensors that need care."""

    read: Callable[[dict[str, Any]], nn.Module]
    names: Callable[[Any], Names]
    receive: Callable[[dict[str, Tensor], dict[str, Any]], dict[str, Tensor]] = lambda tensors, config: tensors


LAYOUTS = {own.PREFIX + family: Layout(own.read, own.names) for family in FAMILIES}
LAYOUTS["marian"] = Layout(marian.read, marian.names, marian.receive)


def save(
    folder: Path,
    network: nn.Module,
    vocabulary: Vocabulary,
    generation: dict[str, Any],
    card: str | None = None,
    config: dict[str, Any] | None = None,
) -> None:
    """Writes the folder. `config` is the one that was loaded, if any: what it says beyond our fields is kept."""
    foreign = config if config and config["model_type"] == "marian" else {}
    ids = _ids(vocabulary.target, foreign)
    if marian.speaks(network):
        network = marian.in_halves(network)
        written, names, shapes = marian.describe(network, foreign), marian.names(network), marian.shapes(network)
    else:
        written, names, shapes = own.describe(network), own.names(network), {}
    written |= ids | {"dtype": "float32"}
    with _replaced(folder) as place:
        write_weights(place, network, names, shapes)
        vocabulary.save(place)
        write_json(place / "generation_config.json", decoding.written(generation) | ids)
        write_json(place / "config.json", written)
        (place / "README.md").write_text(card or card_of(network, vocabulary, written), encoding="utf-8")


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A place for a model's files, which take the place of another model's once all are written.

    config.json is the first to go and the last to come: in between there is no model, never a mix of two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".saving-", dir=folder) as place:
        yield Path(place)
        for path in (folder / "config.json", folder / INDEX, *(folder / name for name in FILES), *folder.glob(SHARDS)):
            path.unlink(missing_ok=True)
        for path in sorted(Path(place).iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)


def load(folder: Path, device: str | torch.device = "cpu") -> Loaded:
    """The network (in float32, ready to answer), its vocabulary and settings; whatever does not fit is refused."""
    folder = Path(folder)
    path = folder / "config.json"
    config = read_json(path)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise UserError(f"{path}: model_type = '{kind}' is unknown{nearest(str(kind), LAYOUTS)}")
    layout = LAYOUTS[kind]
    with _told(path), torch.device("meta"):
        outline = layout.read(config)
    tensors = read_weights(folder)
    with _told(folder):
        tensors = layout.receive(tensors, config)
    fill(outline, layout.names(outline), tensors, folder)  # no memory for sizes that the file does not have
    with torch.random.fork_rng(devices=[]):  # a new network draws numbers, but not the caller's
        network = layout.read(config)
    fill(network, layout.names(network), tensors, folder)
    vocabulary = _agree(Vocabulary.load(folder), config, network, folder)
    settings = folder / "generation_config.json"
    generation = read_json(settings) if settings.exists() else decoding.of_config(config)
    decoding.check(generation, str(settings if settings.exists() else path), vocabulary.target.size)
    return Loaded(network.to(device).eval(), vocabulary, generation, config)


def as_saved(loaded: Loaded) -> Loaded:
    """The network in the form that `save` writes and `load` gives back, so that training can go on from either."""
    network = loaded.network
    return loaded._replace(network=marian.in_halves(network) if marian.speaks(network) else network)


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """An error from inside also says which file or folder it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def _ids(target: Tokenizer, foreign: dict[str, Any]) -> dict[str, Any]:
    """The special tokens under their published keys; a loaded config's own choice stands."""
    ids = {"pad_token_id": target.pad, "bos_token_id": target.begin, "eos_token_id": target.end}
    return ids | {key: foreign[key] for key in ids if key in foreign} | {"decoder_start_token_id": target.begin}


def _agree(vocabulary: Vocabulary, config: dict[str, Any], network: Any, folder: Path) -> Vocabulary:
    """The vocabulary with the begin token that config.json names; sizes and the end token must agree."""
    sides = {"source": vocabulary.source, "target": vocabulary.target}
    for side, tokenizer in sides.items():
        rows = getattr(network.config, f"{side}_vocabulary")
        if tokenizer.size != rows:
            raise UserError(
                f"{folder}: the {side} tokenizer has {tokenizer.size} tokens, but the embedding in config.json has "
                f"{rows} rows; tokenizer and weights are of different models"
            )
    ends = config.get("eos_token_id", vocabulary.target.end)
    if vocabulary.target.end not in (ends if isinstance(ends, list) else [ends]):
        raise UserError(
            f"{folder / 'config.json'}: eos_token_id = {ends}, but the tokenizer ends with {vocabulary.target.end}"
        )
    begin = config.get("decoder_start_token_id", vocabulary.target.begin)
    if not isinstance(begin, int) or not 0 <= begin < vocabulary.target.size:
        raise UserError(f"{folder / 'config.json'}: decoder_start_token_id = {begin} is no token of the vocabulary")
    if begin == vocabulary.target.begin:
        return vocabulary
    target = _begin_with(vocabulary.target, begin)
    return Vocabulary(target if vocabulary.source is vocabulary.target else vocabulary.source, target)


def _begin_with(tokenizer: Tokenizer, begin: int) -> Tokenizer:
    changed = copy(tokenizer)
    changed.begin = begin
    return changed
