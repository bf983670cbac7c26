"""Small networks, vocabularies and folders for the tests of checkpoints."""

import json
import warnings
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.layers.inputs import TokenBatch
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Vocabulary

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
MODELS = {
    "transformer": {"family": "transformer", "preset": "tiny", "norm": "pre"},
    "marian": {"family": "transformer", "preset": "tiny", "positions": "sinusoid_halves", "norm": "post"},
    "pre-norm, learned": {
        "family": "transformer",
        "preset": "tiny",
        "positions": "learned",
        "norm": "pre",
        "tied": "none",
    },
    "seq2seq": {"family": "seq2seq", "preset": "tiny", "tied": "all"},
    "lstm": {
        "family": "seq2seq",
        "preset": "tiny",
        "cell": "lstm",
        "depth": 2,
        "order": "luong",
        "input_feeding": True,
    },
    "lstmn, local-p": {
        "family": "seq2seq",
        "preset": "tiny",
        "cell": "lstmn",
        "bidirectional": False,
        "order": "luong",
        "focus": "local-p",
    },
    "convs2s": {"family": "convs2s", "preset": "tiny", "tied": "all"},
    "bytenet": {"family": "bytenet", "preset": "tiny"},
    "a lesson": {"family": "transformer", "preset": "tiny", "norm": "no_residual", "feedforward": 0, "score": "dot"},
}


def tokenizer(size: int) -> Tokenizer:
    """Words w0, w1, …, so that a vocabulary can have any size."""
    pieces = [*SPECIALS, *(f"w{number}" for number in range(size - len(SPECIALS)))]
    table = {piece: index for index, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    inner.add_special_tokens(list(SPECIALS))
    inner.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])  # type: ignore[assignment]
    return Tokenizer(inner, {"pad": 0, "begin": 1, "end": 2, "unknown": 3})


def vocabulary(source: int = 53, target: int | None = None) -> Vocabulary:
    first = tokenizer(source)
    return Vocabulary(first, first if target is None else tokenizer(target))


def batch(source: int = 53, target: int = 53) -> tuple[TokenBatch, Tensor]:
    """Five ragged rows and a target of 11 tokens each."""
    lengths = torch.tensor([13, 1, 7, 12, 5])
    tokens = torch.randint(4, source, (5, 13))
    sequences = TokenBatch(tokens, lengths)
    return TokenBatch(tokens.masked_fill(~sequences.real, 0), lengths), torch.randint(4, target, (5, 11))


def reference(**fields: Any) -> Any:
    """transformers' MarianMTModel with random weights, also where a new model has zeros or ones."""
    from transformers import MarianConfig, MarianMTModel

    small = {
        "vocab_size": 53,
        "d_model": 14,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "init_std": 0.3,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 23,
        "decoder_ffn_dim": 23,
        "max_position_embeddings": 61,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    }
    model = MarianMTModel(MarianConfig(**(small | fields))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.final_logits_bias.normal_()
    return model


def write_reference(model: Any, folder: Path, words: Vocabulary) -> None:
    """As transformers saves it, with a tokenizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        model.save_pretrained(folder)
    words.save(folder)


def open_reference(folder: Path) -> Any:
    from transformers import MarianMTModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = MarianMTModel.from_pretrained(folder, output_loading_info=True)
    model, report = loaded
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    assert not report["mismatched_keys"], report
    return model.eval()


@torch.no_grad()
def reference_logits(model: Any, source: TokenBatch, target: Tensor) -> Tensor:
    mask = source.real.long()
    return model(input_ids=source.tokens, attention_mask=mask, decoder_input_ids=target).logits


def alike(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= 1e-5 * theirs.abs().max())


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def retensor(folder: Path, **changed: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of the file."""
    path = folder / "model.safetensors"
    found: dict[str, Any] = load_file(path) | changed
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path)


def shard(folder: Path, place: str = "model-{}-of-2.safetensors") -> None:
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts: list[dict[str, torch.Tensor]] = [{}, {}]
    for number, (name, tensor) in enumerate(found.items()):
        parts[number % 2][name] = tensor
    for number, part in enumerate(parts):
        save_file(part, folder / f"model-{number}-of-2.safetensors")
    places = {name: place.format(number) for number, part in enumerate(parts) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def sentencepiece_folder(folder: Path) -> dict[str, int]:
    """The tokenizer files of a published Marian model, made from a few sentences; gives their vocabulary."""
    import sentencepiece

    folder.mkdir()
    lines = [f"the {animal} saw {number} other {animal}s" for animal in ("cat", "dog", "horse") for number in range(40)]
    pieces: set[str] = set()
    for side in ("source", "target"):
        with (folder / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=file, vocab_size=59, minloglevel=2
            )
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces |= {processor.id_to_piece(number) for number in range(processor.get_piece_size())}
    ordered = ["</s>", "<unk>", *sorted(pieces - {"</s>", "<unk>", "<s>"}), "<pad>"]
    table = {piece: index for index, piece in enumerate(ordered)}
    (folder / "vocab.json").write_text(json.dumps(table))
    return table
