"""Small language models of the reference library, and their folders, for the tests of checkpoints."""

import warnings
from pathlib import Path
from typing import Any

import torch
from checkpoints import vocabulary
from torch import Tensor

from regard.text.vocabulary import Vocabulary

SMALL: dict[str, dict[str, Any]] = {  # sizes of which no two are alike where that is possible
    "gpt2": {"n_embd": 22, "n_head": 2, "n_layer": 3, "n_positions": 41},
    "openai-gpt": {"n_embd": 22, "n_head": 2, "n_layer": 3, "n_positions": 41},
    "gpt_neo": {
        "hidden_size": 22,
        "num_heads": 2,
        "num_layers": 3,
        "max_position_embeddings": 41,
        "window_size": 5,
        "attention_types": [[["global", "local", "local"], 1]],
    },
    "llama": {
        "hidden_size": 30,
        "intermediate_size": 37,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_hidden_layers": 2,
        "max_position_embeddings": 41,
    },
}
TOKENS = 53


@torch.no_grad()
def language_model(kind: str, **fields: Any) -> Any:
    """transformers' model with random weights, also where a new one has zeros or ones."""
    from transformers import AutoConfig, AutoModelForCausalLM

    specials = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": TOKENS, "initializer_range": 0.3, **specials, **SMALL[kind], **fields}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name or "bias" in name:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def write(model: Any, folder: Path, words: Vocabulary | None = None) -> Path:
    """As transformers saves it, with a tokenizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        model.save_pretrained(folder)
    (words or vocabulary(TOKENS)).save(folder)
    return folder


def open_in_transformers(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, report = loaded
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def text(length: int = 37, rows: int = 3, tokens: int = TOKENS) -> Tensor:
    return torch.randint(3, tokens, (rows, length))


@torch.no_grad()
def logits_of(model: Any, tokens: Tensor) -> Tensor:
    return model(input_ids=tokens).logits
