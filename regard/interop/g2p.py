"""Checkpoints of g2p_en (English grapheme-to-phoneme, a GRU encoder–decoder without attention) as a `seq2seq` model.

checkpoint20.npz   the weights under the names of TENSORS
vocab.json         {"graphemes": […], "phonemes": […]}, each in the order of its ids
"""

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np
import torch
from torch import Tensor

from regard.config.options import TokenizerKind, TokenizerOptions
from regard.errors import UserError, listed
from regard.interop.safetensors import TensorSpec, load_tensors, read_json
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.text.train_tokenizer import from_vocabulary
from regard.text.vocabulary import Vocabulary

WEIGHTS = "checkpoint20.npz"
VOCABULARY = "vocab.json"

TENSORS = {  # our parameter → theirs
    "source.weight": "enc_emb",
    "encoder.forwards.0.layers.weight_ih_l0": "enc_w_ih",
    "encoder.forwards.0.layers.weight_hh_l0": "enc_w_hh",
    "encoder.forwards.0.layers.bias_ih_l0": "enc_b_ih",
    "encoder.forwards.0.layers.bias_hh_l0": "enc_b_hh",
    "target.weight": "dec_emb",
    "decoder.layers.weight_ih_l0": "dec_w_ih",
    "decoder.layers.weight_hh_l0": "dec_w_hh",
    "decoder.layers.bias_ih_l0": "dec_b_ih",
    "decoder.layers.bias_hh_l0": "dec_b_hh",
    "output.weight": "fc_w",
    "output.bias": "fc_b",
}


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has such weights, and no config.json of another model."""
    return (folder / WEIGHTS).is_file() and not (folder / "config.json").exists()


def load(folder: Path) -> tuple[Seq2Seq, Vocabulary]:
    """The network, in evaluation mode, and its tokenizers: letters in lower case, and phonemes with their stress."""
    names = read_json(folder / VOCABULARY)
    vocabulary = Vocabulary(
        from_vocabulary(_tokens(names, "graphemes", folder), _options("characters", lowercase=True)),
        from_vocabulary(_tokens(names, "phonemes", folder), _options("words")),
    )
    tensors = _read(folder / WEIGHTS)
    width, embedding_width = tensors["enc_w_hh"].shape[-1], tensors["enc_emb"].shape[-1]
    config = Seq2SeqConfig(
        vocabulary.source.size, vocabulary.target.size, embedding_width, width, bidirectional=False, context="none",
        bridge="copy", readout="state", dropout=0.0,
    )  # fmt: skip
    network = Seq2Seq(config)
    load_tensors(network, {ours: TensorSpec((theirs,)) for ours, theirs in TENSORS.items()}, tensors, folder)
    return network.eval(), vocabulary


def _read(path: Path) -> dict[str, Tensor]:
    if not is_zipfile(path):
        raise UserError(f"{path}: not a complete archive of arrays")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            tensors = {name: torch.from_numpy(np.asarray(file[name], np.float32)) for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"{path}: not a complete archive of arrays ({error})") from None
    if missing := sorted(set(TENSORS.values()) - set(tensors)):
        raise UserError(f"{path}: lacks {listed(missing)}")
    return tensors


def _tokens(names: dict, side: str, folder: Path) -> Sequence[str]:
    tokens = names.get(side)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{folder / VOCABULARY}: {side} should be the list of all {side} in the order of their ids")
    return tokens


def _options(kind: TokenizerKind, lowercase: bool = False) -> TokenizerOptions:
    return TokenizerOptions(kind=kind, lowercase=lowercase)
