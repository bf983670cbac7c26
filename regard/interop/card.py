"""The model card: what a folder holds and how to open it."""

from typing import Any

from torch import nn

from regard.inputs.text import Vocabulary

TRANSFORMERS = """
Or, with transformers (the source ends with the end token):

    from transformers import AutoTokenizer, MarianMTModel
    tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), MarianMTModel.from_pretrained("FOLDER")
    inputs = tokenizer("…" + tokenizer.eos_token, return_tensors="pt", split_special_tokens=False)
    print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))
"""


def card_of(network: nn.Module, vocabulary: Vocabulary, config: dict[str, Any]) -> str:
    """A short README.md: what it is, how large, how to open it."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    sides = f"{vocabulary.source.size:,} tokens for both sides"
    if not vocabulary.joint:
        sides = f"{vocabulary.source.size:,} source and {vocabulary.target.size:,} target tokens"
    return f"""---
library_name: regard
---

# {type(network).__name__} ({config["model_type"]})

A sequence-to-sequence model with {parameters:,} parameters; {sides}. Its shape is in `config.json`, how it decodes in
`generation_config.json`.

    import regard
    model = regard.load("FOLDER")
    print(model.run("…"))
    model.trace("…").explore()          # what every head looked at
{TRANSFORMERS if config["model_type"] == "marian" else ""}"""
