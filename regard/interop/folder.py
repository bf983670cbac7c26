"""A checkpoint folder in Hugging Face's shape, written and read.

    config.json · model.safetensors (or shards + index) · tokenizer.json · generation_config.json · README.md
    in place of the weights, an adapter's, which name the folder they are to be added to

Where a network is exactly a published family's mathematics, `model_type` says so and that family's readers take the
folder as it is; otherwise it is one of ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.errors import UserError, nearest
from regard.interop import generation_config as decoding
from regard.interop import peft as adapters
from regard.interop.bert import Albert, Bert, Camembert, DistilBert, Roberta
from regard.interop.classifier_heads import Labelled, is_labelled
from regard.interop.deberta import Deberta, DebertaV2
from regard.interop.gpt import GPT1, GPT2, GPTNeo
from regard.interop.heads import Headed
from regard.interop.layout import Layout
from regard.interop.llama import Llama
from regard.interop.marian import Marian
from regard.interop.model_card import card_of
from regard.interop.native import PREFIX, Own
from regard.interop.peft import Base
from regard.interop.safetensors import (
    INDEX,
    SHARDS,
    WHOLE,
    Names,
    SkipInit,
    fill,
    on_meta,
    read_json,
    read_weights,
    write_json,
    write_weights,
)
from regard.interop.sentence_transformers import Pooling
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, family_of
from regard.text.id_only import IdOnlyTokenizer
from regard.text.vocabulary import FILES, MISSING, Tokenizer, Vocabulary

TOKENIZERS = ("tokenizer.json", "source.spm", "merges.txt", "vocab.txt")
SPARE = 1023  # rows of a language model's tables that may stand for no token


class Loaded(NamedTuple):
    """A folder's contents; `generation` and `config` as they stand in the files, so that saving again keeps them."""

    network: nn.Module
    vocabulary: Vocabulary
    generation: dict[str, Any]
    config: dict[str, Any]
    base: Base | None = None  # what an adapter was or is to be added to
    pooling: Pooling | None = None  # how an encoder's texts are to become vectors, if that was asked and said


ENCODERS = (Bert(), Roberta(), Camembert(), DistilBert(), Albert(), Deberta(), DebertaV2())
PUBLISHED: tuple[Layout, ...] = (Marian(), GPT1(), GPT2(), GPTNeo(), Llama(), *map(Headed, ENCODERS))


def _own(family: str) -> Layout:
    return Headed(Own(family)) if FAMILIES[family].is_encoder else Own(family)


LAYOUTS: dict[str, Layout] = {each.model_type: each for each in (*PUBLISHED, *map(_own, FAMILIES))}


def layout_of(network: nn.Module, kind: str = "") -> Layout:
    """The published layout whose mathematics the network is, else our own; of several, the one it was loaded from."""
    if isinstance(network, Classifier) and not FAMILIES[family_of(network)].is_encoder:
        return Labelled(layout_of(network.body))
    first = [LAYOUTS[kind]] if kind in LAYOUTS else []
    return next(layout for layout in (*first, *LAYOUTS.values()) if layout.speaks(network))


def save(
    folder: Path,
    network: nn.Module,
    vocabulary: Vocabulary,
    generation: dict[str, Any],
    card: str | None = None,
    config: dict[str, Any] | None = None,
    base: Base | None = None,
) -> None:
    """Writes the folder. `config` is the one that was loaded, if any: what it says beyond our fields is kept.

    With a `base`, only the adapter that the network has on it.
    """
    layout = layout_of(network, _model_type(config))
    network = layout.form(network)
    foreign = config if config and config["model_type"] == layout.model_type else {}
    written = layout.describe(network, foreign)
    written |= _ids(vocabulary.target, written["is_encoder_decoder"], foreign | written) | {"dtype": "float32"}
    ids = _ids(vocabulary.target, written["is_encoder_decoder"], foreign | generation)
    with _replaced(folder) as place:
        if base is None:
            write_weights(place, network, layout.names(network))
        else:
            adapters.write(place, network, _plain_names(layout, written), base, _task(written))
            write_json(place / adapters.BASE, base.told(folder))
        vocabulary.save(place)
        if not isinstance(layout, Headed):  # an encoder writes nothing
            write_json(place / "generation_config.json", decoding.written(generation) | ids)
        write_json(place / "config.json", written)
        card = card or card_of(network, vocabulary, written, str(base.folder) if base else "")
        (place / "README.md").write_text(card, encoding="utf-8")


def _model_type(config: dict[str, Any] | None) -> str:
    """What a loaded config says it is: where two are the same mathematics, it is written as that again."""
    kind = config.get("model_type") if config else None
    return kind if isinstance(kind, str) and not kind.startswith(PREFIX) else ""


def _plain_names(layout: Layout, config: dict[str, Any]) -> Names:
    """Where the parameters of a network without adapters stand."""
    with on_meta():
        return layout.names(layout.read(config))


def _task(config: dict[str, Any]) -> str:
    """PEFT's word for what a model is for."""
    if is_labelled(config):
        return "SEQ_CLS"
    if isinstance(LAYOUTS[config["model_type"]], Headed):
        return "FEATURE_EXTRACTION"
    return "SEQ_2_SEQ_LM" if config["is_encoder_decoder"] else "CAUSAL_LM"


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A place for a model's files, which take the place of another model's once all are written.

    config.json is the first to go and the last to come: in between there is no model, never a mix of two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".saving-", dir=folder) as place:
        yield Path(place)
        for name in ("config.json", WHOLE, INDEX, *FILES, *adapters.FILES):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob(SHARDS):
            path.unlink()
        for path in sorted(Path(place).iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)


def load(
    folder: Path, device: str | torch.device = "cpu", merged: bool = True, model_type: str | None = None
) -> Loaded:
    """The network (in float32, ready to answer), its vocabulary and settings; whatever does not fit is refused.

    An adapter is added to its base; where it is not to be `merged`, the network is the base's, as it was trained on.
    A `model_type` speaks where config.json says none.
    """
    folder = Path(folder)
    base = adapters.base_of(folder) if adapters.is_adapter(folder) else None
    told = folder if base is None or (folder / "config.json").exists() else base.folder  # PEFT writes no config.json
    path = told / "config.json"
    config = read_json(path)
    with _told(path), on_meta():
        config = _named(config, model_type)
        layout = LAYOUTS[config["model_type"]]
        layout = Labelled(layout) if is_labelled(config) and not isinstance(layout, Headed) else layout
        layout.read(config)
    tensors = read_weights(base.folder if base else folder, layout.ignored)
    if base is not None:
        tensors = adapters.add(tensors, folder, layout.prefix, merged)
    with _told(folder):
        said = layout.completed(config, tensors)
        tensors = layout.receive(tensors, said)
    with _told(path), on_meta():
        outline = layout.read(said)
    fill(outline, layout.names(outline), tensors, folder)  # no memory for sizes that the file does not have
    with torch.random.fork_rng(devices=[]), SkipInit():  # what is drawn all the same is not of the caller's numbers
        network = layout.read(said)
    fill(network, layout.names(network), tensors, folder)
    words = folder if base is None or any((folder / name).exists() for name in FILES) else base.folder
    settings = told / "generation_config.json"
    generation = read_json(settings) if settings.exists() else decoding.of_config(config)
    vocabulary = _agree(_vocabulary(words, generation | config, network), config, network, words)
    decoding.check(generation, str(settings if settings.exists() else path), vocabulary.target.size)
    return Loaded(network.to(device).eval(), vocabulary, generation, config, base)


def _named(config: dict[str, Any], given: str | None) -> dict[str, Any]:
    """A config.json that says which model_type it is, or is told."""
    kind = config.get("model_type")
    if kind is None and given is None:
        raise UserError(
            f"says no model_type; possible: {', '.join(LAYOUTS)}; say which, as in "
            "regard.load(folder, model_type='bert') or --model-type bert"
        )
    if kind is not None and given not in (None, kind):
        raise UserError(f"model_type = '{kind}', but '{given}' was asked for")
    found = given if kind is None else kind
    if not isinstance(found, str) or found not in LAYOUTS:
        raise UserError(f"model_type = '{found}' is unknown{nearest(str(found), LAYOUTS)}")
    return config | {"model_type": found}


def _vocabulary(folder: Path, config: dict[str, Any], network: Any) -> Vocabulary:
    """A folder's tokenizers. Without tokenizer files the model accepts ids alone; `config` has the special ids."""
    if any((folder / name).exists() for name in TOKENIZERS):
        return Vocabulary.load(folder)
    family = FAMILIES[family_of(network)]
    begin = "decoder_start_token_id" if family.is_encoder_decoder else "bos_token_id"
    ids = {}
    for role, key in {"pad": "pad_token_id", "begin": begin, "end": "eos_token_id"}.items():
        value = config.get(key)
        token = value[0] if isinstance(value, list) and value else value
        ids[role] = token if type(token) is int and token >= 0 else MISSING
    sizes = {getattr(network.config, name): None for name in family.vocabularies}
    tokenizers = [IdOnlyTokenizer(folder, size, ids) for size in sizes]
    return Vocabulary(tokenizers[0], tokenizers[-1])


def as_saved(loaded: Loaded) -> Loaded:
    """The network in the form that `save` writes and `load` gives back, so that training can go on from either."""
    return loaded._replace(network=layout_of(loaded.network, _model_type(loaded.config)).form(loaded.network))


def base_at(folder: Path, loaded: Loaded) -> Base:
    """The folder as what an adapter is to be added to; its tensors must be named as ours would be."""
    kind = layout_of(loaded.network, _model_type(loaded.config)).model_type
    if loaded.config["model_type"] != kind:
        raise UserError(
            f"{folder}: a {loaded.config['model_type']} that is now written as {kind}: write it anew before an adapter "
            f"is trained on it (regard convert {folder} FOLDER)"
        )
    return adapters.base_at(folder)


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """An error from inside also says which file or folder it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def _ids(target: Tokenizer, begins: bool, foreign: dict[str, Any]) -> dict[str, Any]:
    """The special tokens under their published keys, null where there is none; a loaded file's own choice stands.

    Left out, a key would mean a token of the published vocabulary. Only an answer to a source `begins`.
    """
    ids = {"pad_token_id": target.pad, "bos_token_id": target.begin, "eos_token_id": target.end}
    known = {key: None if token == MISSING else token for key, token in ids.items()}
    start = {"decoder_start_token_id": target.begin} if begins else {}
    return known | {key: foreign[key] for key in ids if key in foreign} | start


def _agree(vocabulary: Vocabulary, config: dict[str, Any], network: Any, folder: Path) -> Vocabulary:
    """The vocabulary with the begin token that config.json names; sizes must agree, and where an answer ends.

    A language model's may end with the tokenizer's own token and with those that the folder names.
    """
    family = FAMILIES[family_of(network)]
    for name in family.vocabularies:
        side = name.removesuffix("vocabulary").replace("_", " ")
        tokenizer = vocabulary.source if side == "source " else vocabulary.target
        rows = getattr(network.config, name)
        spare = _padded(tokenizer.size, rows) if family.is_causal_lm else family.is_encoder and tokenizer.size < rows
        if tokenizer.size != rows and not spare:
            raise UserError(
                f"{folder}: the {side}tokenizer has {tokenizer.size} tokens, but the embedding in config.json has "
                f"{rows} rows; tokenizer and weights are of different models"
            )
    if isinstance(network, Classifier) and family.is_causal_lm:
        padding = config.get("pad_token_id")
        both = _with(vocabulary.target, pad=padding if type(padding) is int else MISSING)
        return Vocabulary(both, both)  # others find a text's last token by this one
    if not family.is_encoder_decoder:
        return vocabulary
    target, place = vocabulary.target, folder / "config.json"
    ends = config.get("eos_token_id", target.end)
    known = ends if isinstance(ends, list) else [ends]
    if target.end not in known and not isinstance(target, IdOnlyTokenizer):
        raise UserError(f"{place}: eos_token_id = {ends}, but the tokenizer ends with {target.end}")
    begin = config.get("decoder_start_token_id", target.begin)
    if not isinstance(begin, int) or not 0 <= begin < target.size:
        raise UserError(f"{place}: decoder_start_token_id = {begin} is no token of the vocabulary")
    if begin == target.begin:
        return vocabulary
    changed = _with(target, begin=begin)
    return Vocabulary(changed if vocabulary.source is target else vocabulary.source, changed)


def _padded(tokens: int, rows: int) -> bool:
    """Whether a table has more rows than tokens only to be of a size that machines like."""
    return rows % 8 == 0 and 0 <= rows - tokens <= SPARE


def _with(tokenizer: Tokenizer, **ids: int) -> Tokenizer:
    """The tokenizer with other special tokens."""
    changed = copy(tokenizer)
    vars(changed).update(ids)
    return changed
