"""Checkpoints of the project's own model types from before config keys and tensors were renamed still load.

The folders in `old_checkpoints` were written by that version, with the outputs of its networks for the first of two
sequences.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.config.options import TrainOptions
from regard.interop import folder
from regard.layers.inputs import pad
from regard.models.registry import build
from regard.training import resume
from regard.training.optim import EMA, AdamW

FOLDERS = sorted(path for path in (Path(__file__).parent / "old_checkpoints").iterdir() if path.is_dir())


@torch.no_grad()
@pytest.mark.parametrize("path", FOLDERS, ids=[path.name for path in FOLDERS])
def test_an_old_checkpoint_computes_what_it_did(path: Path, tmp_path: Path) -> None:
    network: Any = folder.load(path).network.eval()
    text = pad([[4, 5, 6, 4], [5, 4]], 0)
    if network.task == "translate":
        output = network(text, torch.tensor([[1, 4, 5], [1, 6, 4]]))
    elif network.task == "generate":
        output = network(text.tokens)
    elif network.task == "embed":
        output = network.encode(text)
    else:
        output = network(text)
    output = output[0] if isinstance(output, tuple) else output  # of pre-training: the masked tokens
    expected = torch.tensor(json.loads((path / "expected.json").read_text()))
    torch.testing.assert_close(output[0].flatten(), expected, atol=2e-5, rtol=1e-5)
    assert FOLDERS and not {"limit", "embedding", "inform"} & vars(network.config).keys()


def test_the_training_state_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """Its parameters have their earlier names; moments and averages are those of the same parameters."""
    torch.manual_seed(5)
    config = {"family": "seq2seq", "cell": "lstmn", "bidirectional": False, "embedding_width": 5, "width": 6}

    def state() -> tuple[Any, AdamW, EMA]:
        network: Any = build(config, source_vocabulary=7, target_vocabulary=7)
        return network, AdamW(network, TrainOptions()), EMA(network, 0.9)

    network, optimizer, ema = state()
    text = pad([[4, 5, 6, 4], [5, 4]], 0)
    network(text, text.tokens).square().mean().backward()
    optimizer.update(1e-3)
    resume.save(tmp_path, resume.Progress(step=1), network, optimizer, ema)
    path = tmp_path / "training.safetensors"
    renamed = {
        re.sub(r"^(\w+)/encoder\.", r"\1/reader.", name)
        .replace("input_gates", "see")
        .replace("hidden_gates", "recall")
        .replace("/down.", "/narrow."): tensor
        for name, tensor in load_file(path).items()
    }
    assert "weights/reader.forwards.0.layers.0.see.weight" in renamed
    save_file(renamed, path)
    again = state()
    assert resume.load(tmp_path, *again) == resume.Progress(step=1)
    for name, parameter in network.named_parameters():
        resumed = dict(again[0].named_parameters())[name]
        assert torch.equal(resumed, parameter)
        moments = again[1].state[resumed]
        assert all(torch.equal(moments[key], value) for key, value in optimizer.state[parameter].items())
