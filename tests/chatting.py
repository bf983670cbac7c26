"""Small language models that can be talked with, for the tests of the command line."""

import json
from pathlib import Path

import torch
from torch import nn

from regard.inputs.text import Vocabulary, train_tokenizer
from regard.interop import folder as folders
from regard.models import build
from regard.recipe import TokenizerOptions

LIMIT = 211
CHATML = (
    "{% for message in messages %}{{ '<s>' + message.role + '\n' + message.content + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def language_folder(folder: Path, template: str = "", limit: int = LIMIT) -> Path:
    """A network of letters with random weights, which writes nonsense, but always the same."""
    letters = "".join(chr(code) for code in range(32, 127)) + "\né"
    made = train_tokenizer([letters], TokenizerOptions(kind="characters", min_frequency=1), ends=False)
    made.literal = False  # a foreign folder, whose special tokens may be typed
    torch.manual_seed(3)
    network = build(dict(family="llama", width=24, heads=3, depth=2, limit=limit), vocabulary=made.size).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    folders.save(folder, network, Vocabulary(made, made), {})
    path = folder / "tokenizer_config.json"
    if template:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return folder
