"""Checkpoints of the project's own model types from before config keys and tensors were renamed still load.

The folders in `old_checkpoints` were written by that version, with the outputs of its networks for the first of two
sequences.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.interop import folder
from regard.layers.inputs import pad

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
