"""Checkpoint folders in the layout of Hugging Face, written and read.

    config.json · model.safetensors (or shards + index) · tokenizer.json · generation_config.json · README.md
    an adapter's folder has the adapter's weights instead, and names the folder of its base model

Where a network computes exactly what a published model_type does, the folder has that model_type, and other libraries
open it; otherwise it is one of ours (`regard-*`). A classifier whose head is not published is `regard-classifier-*`,
with the tensors of the published model_type.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import torch
from torch import nn

from regard.data.processor import Processor
from regard.errors import UserError
from regard.interop import g2p, peft
from regard.interop import generation_config as decoding
from regard.interop.bert import Albert, Bert, Camembert, DistilBert, Roberta
from regard.interop.config_keys import Json, naming, unsupported
from regard.interop.deberta import Deberta, DebertaV2
from regard.interop.gpt import GPT1, GPT2, GPTNeo
from regard.interop.heads import UNPUBLISHED_TYPE, HeadedLayout, is_unpublished
from regard.interop.layout import Layout
from regard.interop.llama import Llama
from regard.interop.marian import Marian
from regard.interop.model_card import Training, card_of
from regard.interop.native import PREFIX, NativeLayout
from regard.interop.peft import Base
from regard.interop.processors import FILES, load_processor, special_token_keys
from regard.interop.safetensors import (
    INDEX,
    SHARDS,
    SINGLE,
    SkipInit,
    load_tensors,
    on_meta,
    read_json,
    read_weights,
    write_json,
    write_weights,
)
from regard.interop.sentence_transformers import Pooling
from regard.interop.vision import DeiT, Swin, ViT
from regard.interop.vision_encoder_decoder import VisionEncoderDecoder
from regard.interop.whisper import Whisper
from regard.layers.protocols import Network
from regard.models.heads.ctc import CTC
from regard.models.registry import FAMILIES

PUBLISHED = (Marian(), GPT1(), GPT2(), GPTNeo(), Llama(), Bert(), Roberta(), Camembert(), DistilBert(), Albert(),
             Deberta(), DebertaV2(), ViT(), DeiT(), Swin(), VisionEncoderDecoder(), Whisper())  # fmt: skip

LAYOUTS: dict[str, Layout] = {
    layout.model_type: HeadedLayout(layout) if layout.head_names else layout
    for layout in (*PUBLISHED, *map(NativeLayout, FAMILIES))
}

PEFT_TASKS = {"classify": "SEQ_CLS", "translate": "SEQ_2_SEQ_LM", "generate": "CAUSAL_LM"}


class Loaded(NamedTuple):
    """The contents of a folder; `generation` and `config` as in its files, so that saving again keeps them."""

    network: nn.Module
    processor: Processor
    generation: Json
    config: Json
    base: Base | None = None  # the base model of an adapter
    pooling: Pooling | None = None  # how an encoder pools its states to one vector, if the folder specifies it


def layout_of(network: nn.Module, config: Json | None = None) -> Layout:
    """The published layout that matches the network, else ours; of several, that of the config it was loaded with."""
    model_type = str(config.get("model_type")) if config else ""
    first = [LAYOUTS[model_type]] if model_type in LAYOUTS and not model_type.startswith(PREFIX) else []
    return next(layout for layout in (*first, *LAYOUTS.values()) if layout.matches(network))


def save(
    folder: Path,
    network: nn.Module,
    processor: Processor,
    generation: Json,
    config: Json | None = None,
    base: Base | None = None,
    training: Training | None = None,
) -> None:
    """Write the folder. `config` is the one that was loaded, if any: its other keys are kept.

    With a `base`, only the network's adapter is written. `training` is for the model card.
    """
    layout = layout_of(network, config)
    network = layout.canonical(network)
    family = FAMILIES[layout.family]
    foreign = config if config and config["model_type"] == layout.model_type else {}
    written = layout.describe(network, foreign)
    if processor.target is not None:
        written |= special_token_keys(processor.target, family.is_encoder_decoder, foreign | written)
    written |= {"dtype": "float32"}
    if is_unpublished(network) and not layout.model_type.startswith(PREFIX):
        written["model_type"] = UNPUBLISHED_TYPE + layout.model_type
    with _replacing(folder) as tmp:
        if base is None:
            write_weights(tmp, network, layout.tensor_specs(network))
        else:
            with on_meta():
                specs = layout.tensor_specs(layout.read(written))  # of the network without adapters
            peft.write(tmp, network, specs, base, PEFT_TASKS.get(network.task, "FEATURE_EXTRACTION"))  # type: ignore[arg-type]
            write_json(tmp / peft.BASE, base.to_json(folder))
        processor.save(tmp)
        if processor.target is not None and (not family.is_encoder or isinstance(network, CTC)):
            ids = special_token_keys(processor.target, family.is_encoder_decoder, foreign | generation)
            write_json(tmp / "generation_config.json", decoding.to_file(generation) | ids)
        write_json(tmp / "config.json", written)
        card = card_of(cast(Network, network), processor, layout.model_type, base.folder.name if base else "", training)
        (tmp / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files replace those of another model once all are written.

    config.json is removed first and added last: in between there is no model, never a mix of two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".saving-", dir=folder) as tmp:
        yield Path(tmp)
        for name in ("config.json", SINGLE, INDEX, *FILES, *peft.FILES):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob(SHARDS):
            path.unlink()
        for path in sorted(Path(tmp).iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)


def load(
    folder: Path, device: str | torch.device = "cpu", merged: bool = True, model_type: str | None = None
) -> Loaded:
    """The network (in float32, in evaluation mode), its processor and settings; any mismatch is an error.

    An adapter is merged into its base model. With `merged` = False the network is the base model, with the adapter's
    head. `model_type` is for a config.json without one.
    """
    folder = Path(folder)
    if g2p.is_checkpoint(folder):
        network, vocabulary = g2p.load(folder)
        return Loaded(network.to(device), vocabulary, {}, {})
    base = peft.base_of(folder) if peft.is_adapter(folder) else None
    config_folder = folder if base is None or (folder / "config.json").exists() else base.folder  # PEFT writes none
    path = config_folder / "config.json"
    config = read_json(path)
    with naming(path), on_meta():
        config = config | {"model_type": _model_type(config, model_type)}
        layout = LAYOUTS[config["model_type"]]
        layout.read(config)
    tensors = read_weights(base.folder if base else folder, layout.ignored)
    if base is not None:
        tensors = peft.add(tensors, folder, layout.prefix, merged)
    with naming(folder):
        full_config = layout.infer_config(config, tensors)
        tensors = layout.adapt_tensors(tensors, full_config)
    with naming(path), on_meta():
        outline = layout.read(full_config)
    load_tensors(outline, layout.tensor_specs(outline), tensors, folder)  # compares sizes before memory is allocated
    with torch.random.fork_rng(devices=[]), SkipInit():  # the caller's random state stays as it is
        network = layout.read(full_config)
    load_tensors(network, layout.tensor_specs(network), tensors, folder)
    settings = config_folder / "generation_config.json"
    generation = read_json(settings) if settings.exists() else decoding.of_config(config)
    processor_folder = folder if base is None or any((folder / name).exists() for name in FILES) else base.folder
    processor = load_processor(processor_folder, config, generation, network)
    if processor.target is not None:
        source = str(settings if settings.exists() else path)
        decoding.check(generation, source, processor.target.size, layout.generation_keys)
        with naming(source):
            layout.check_generation(generation, network, processor.target)
    return Loaded(network.to(device).eval(), processor, generation, config, base)


def _model_type(config: Json, requested: str | None) -> str:
    """The model_type of a config.json, or the requested one where it has none."""
    model_type = config.get("model_type")
    public = [name for name in LAYOUTS if not name.startswith(PREFIX)]
    if isinstance(model_type, str):
        model_type = model_type.removeprefix(UNPUBLISHED_TYPE)
    if model_type is None and requested is None:
        raise UserError(
            f"has no model_type; expected one of: {', '.join(public)}; specify it, as in "
            "regard.load(folder, model_type='bert') or --model-type bert"
        )
    if model_type is not None and requested not in (None, model_type):
        raise UserError(f"model_type = '{model_type}', but '{requested}' was requested")
    model_type = requested if model_type is None else model_type
    if not isinstance(model_type, str) or model_type not in LAYOUTS:
        raise unsupported("model_type", model_type, public)
    return model_type


def as_saved(loaded: Loaded) -> Loaded:
    """The network in the form that `save` writes and `load` returns, so that training can start from either."""
    return loaded._replace(network=layout_of(loaded.network, loaded.config).canonical(loaded.network))


def base_at(folder: Path, loaded: Loaded) -> Base:
    """The folder as the base model of a new adapter; its tensors must have the names that `save` would write."""
    model_type = layout_of(loaded.network, loaded.config).model_type
    if loaded.config["model_type"] != model_type:
        raise UserError(
            f"{folder}: this checkpoint uses an older layout ('{loaded.config['model_type']}', now saved as "
            f"'{model_type}'). Save it again before training a LoRA adapter: regard convert {folder} FOLDER"
        )
    return peft.base_at(folder)
