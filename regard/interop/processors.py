"""The processor of a checkpoint folder, and its agreement with config.json.

text             tokenizer files                          Vocabulary
images, audio    preprocessor_config.json + tokenizer     FeatureProcessor
"""

from copy import copy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from regard.data.processor import InputProcessor, Processor
from regard.errors import UserError
from regard.interop.config_keys import Json
from regard.layers.inputs import AudioBatch, Batch, ImageBatch, TokenBatch
from regard.models.heads.ctc import CTC
from regard.models.registry import FAMILIES, family_of
from regard.text.tokenizer import MISSING, IdOnlyTokenizer, Tokenizer
from regard.text.vocabulary import FILES as TOKENIZER_FILES
from regard.text.vocabulary import Vocabulary

TOKENIZERS = ("tokenizer.json", "source.spm", "merges.txt", "vocab.txt")

MAX_PADDING = 1023  # rows of a language model's embedding beyond the tokenizer's tokens

FILES = (*TOKENIZER_FILES, "preprocessor_config.json", "processor_config.json")  # of all processors

INPUT_PROCESSORS: dict[type[Batch], str] = {  # imported when used: their libraries are optional
    ImageBatch: "regard.image.processor:ImageProcessor",
    AudioBatch: "regard.audio.processor:AudioProcessor",
}


@dataclass(frozen=True)
class FeatureProcessor:
    """The processor of a model of images or audio; `target` is the tokenizer of its output, if that is text."""

    source: InputProcessor
    target: Tokenizer | None = None
    files: ClassVar[tuple[str, ...]] = FILES

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.target is not None:
            Vocabulary(self.target, self.target).save(folder)
        self.source.save(folder)

    def content(self) -> str:
        return f"{self.source.content()} {self.target.content() if self.target is not None else ''}"


def read_processor(folder: Path, input_type: type[Batch]) -> Processor:
    """The processor in a folder, for networks with this input."""
    if input_type is TokenBatch:
        return Vocabulary.load(folder)
    module, _, name = INPUT_PROCESSORS[input_type].partition(":")
    source = getattr(import_module(module), name).load(folder)
    return FeatureProcessor(source, Vocabulary.load(folder).target if _has_tokenizer(folder) else None)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZERS)


def load_processor(folder: Path, config: Json, generation: Json, network: Any) -> Processor:
    """A folder's processor; what config.json says about its tokens must match."""
    if network.input_type is TokenBatch:
        return load_vocabulary(folder, config, generation, network)
    processor = read_processor(folder, network.input_type)
    if network.input_type is ImageBatch:
        _check_channels(processor, network, folder)
    if isinstance(network, CTC) and processor.target is not None and processor.target.size != network.vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has {processor.target.size} tokens, but the CTC head in config.json has "
            f"{network.vocabulary}; tokenizer and weights are of different models"
        )
    if not FAMILIES[family_of(network)].vocabularies:
        return processor
    return FeatureProcessor(processor.source, load_vocabulary(folder, config, generation, network).target)


def _check_channels(processor: Processor, network: Any, folder: Path) -> None:
    channels = network.dummy_inputs[0].pixels.size(1)
    if processor.source.channels != channels:
        raise UserError(
            f"{folder}: image_mean of the image processor has {processor.source.channels} values, but num_channels in "
            f"config.json is {channels}: give image_mean and image_std {channels}"
        )


def load_vocabulary(folder: Path, config: Json, generation: Json, network: Any) -> Vocabulary:
    """A folder's tokenizers, with the special tokens that config.json names; their sizes must match the network.

    Without tokenizer files the model accepts token ids only.
    """
    if not _has_tokenizer(folder):
        vocabulary = _id_only(folder, generation | config, network)
    else:
        vocabulary = Vocabulary.load(folder)
        _check_sizes(vocabulary, network, folder)
    family = FAMILIES[family_of(network)]
    if family.is_causal_lm and network.task == "classify":
        padding = config.get("pad_token_id")
        tokenizer = _with(vocabulary.target, pad=padding if type(padding) is int else MISSING)
        return Vocabulary(tokenizer, tokenizer)  # transformers finds a text's last token by its padding
    return _with_begin(vocabulary, config, generation, folder) if family.is_encoder_decoder else vocabulary


def _id_only(folder: Path, config: Json, network: Any) -> Vocabulary:
    family = FAMILIES[family_of(network)]
    begin = "decoder_start_token_id" if family.is_encoder_decoder else "bos_token_id"
    ids = {}
    for role, key in {"pad": "pad_token_id", "begin": begin, "end": "eos_token_id"}.items():
        value = config.get(key)
        token = value[0] if isinstance(value, list) and value else value
        ids[role] = token if type(token) is int and token >= 0 else MISSING
    sizes = dict.fromkeys(getattr(network.config, name) for name in family.vocabularies)
    tokenizers = [IdOnlyTokenizer(folder, size, ids) for size in sizes]
    return Vocabulary(tokenizers[0], tokenizers[-1])


def _check_sizes(vocabulary: Vocabulary, network: Any, folder: Path) -> None:
    family = FAMILIES[family_of(network)]
    for name in family.vocabularies:
        side = name.removesuffix("vocabulary").replace("_", " ")
        size = (vocabulary.source if side == "source " else vocabulary.target).size
        rows = getattr(network.config, name)
        is_padded = rows % 8 == 0 and 0 <= rows - size <= MAX_PADDING
        is_open = family.is_encoder or family.input_type is AudioBatch  # timestamps may have no text
        fits = size == rows or (family.is_causal_lm and is_padded) or (is_open and size < rows)
        if not fits:
            raise UserError(
                f"{folder}: the {side}tokenizer has {size} tokens, but the embedding in config.json has "
                f"{rows} rows; tokenizer and weights are of different models"
            )


def _with_begin(vocabulary: Vocabulary, config: Json, generation: Json, folder: Path) -> Vocabulary:
    """With the first token of the decoder; the tokenizer's end token must be the one that ends a generated text."""
    target = vocabulary.target
    eos_ids, file = _token_id("eos_token_id", target.end, generation, config)
    known = eos_ids if isinstance(eos_ids, list) else [eos_ids]
    if target.end not in known and not isinstance(target, IdOnlyTokenizer):
        raise UserError(f"{folder / file}: eos_token_id = {eos_ids}, but the tokenizer ends with {target.end}")
    begin, file = _token_id("decoder_start_token_id", target.begin, generation, config)
    if not isinstance(begin, int) or not 0 <= begin < target.size:
        raise UserError(f"{folder / file}: decoder_start_token_id = {begin} is no token of the vocabulary")
    if begin == target.begin:
        return vocabulary
    changed = _with(target, begin=begin)
    return Vocabulary(changed if vocabulary.source is target else vocabulary.source, changed)


def _token_id(key: str, default: int, generation: Json, config: Json) -> tuple[Any, str]:
    """A token id (or several) of the decoder, and the file that has it."""
    decoder = config.get("decoder")  # of a vision-encoder-decoder
    for keys, file in ((generation, "generation_config.json"), (config, "config.json"), (decoder, "config.json")):
        if isinstance(keys, dict) and keys.get(key) is not None:
            return keys[key], file
    return default, "config.json"


def _with(tokenizer: Tokenizer, **ids: int) -> Tokenizer:
    """The tokenizer with other special tokens."""
    changed = copy(tokenizer)
    vars(changed).update(ids)
    return changed


def special_token_keys(target: Tokenizer, is_encoder_decoder: bool, foreign: Json) -> Json:
    """The ids of the special tokens, null where there is none; a loaded file's values are kept.

    Without a key, other libraries would use the default of the published vocabulary.
    """
    ids = {"pad_token_id": target.pad, "bos_token_id": target.begin, "eos_token_id": target.end}
    keys = {key: foreign.get(key, None if token == MISSING else token) for key, token in ids.items()}
    return keys | ({"decoder_start_token_id": target.begin} if is_encoder_decoder else {})
