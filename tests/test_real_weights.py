"""Weights that others trained give the answers that others published, through our core."""

import json
import os
from pathlib import Path

import torch
from needs import need
from safetensors.torch import load_file
from torch import nn

from regard.attention.trace import place, record
from regard.attention.variants import bahdanau
from regard.layers.recurrent import Reader

FOLDER = Path(os.environ.get("REGARD_WEIGHTS", "")) / "arabic-diacritizer-bahdanau"
GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Diacritizer(nn.Module):
    """Letters → vowel marks: each state of a bidirectional LSTM looks at all of them; what it saw is classified."""

    def __init__(self, config: dict):
        super().__init__()
        width = 2 * config["hidden"]
        self.letters = nn.Embedding(len(config["vocab"]), config["embed_dim"])
        self.reader = Reader("lstm", config["embed_dim"], config["hidden"], config["layers"], True, 0.0)
        self.attend = bahdanau(width, width, width)
        self.classify = nn.Linear(width, len(config["labels"]))

    def forward(self, letters: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states = self.reader(self.letters(letters), lengths).states
        real = torch.arange(letters.size(1)) < lengths[:, None]
        with place("encoder"), place("self"):
            return self.classify(self.attend(states, self.attend.remember(states, real)))


def diacritizer() -> tuple[Diacritizer, dict, list[dict]]:
    need(
        (FOLDER / "model.safetensors").exists(),
        "set REGARD_WEIGHTS to a folder with arabic-diacritizer-bahdanau (from the wheel arabic-diacritizer==1.0.0)",
    )
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    theirs = load_file(FOLDER / "model.safetensors")
    ours = {
        "letters.weight": "embedding.weight",
        "attend.query.weight": "attention.W.weight",
        "attend.key.weight": "attention.U.weight",
        "attend.score.energy.weight": "attention.v.weight",
        "classify.weight": "classifier.weight",
        "classify.bias": "classifier.bias",
    }
    for layer in range(config["layers"]):
        for gate in GATES:
            ours[f"reader.forwards.{layer}.{gate}_l0"] = f"lstm.{gate}_l{layer}"
            ours[f"reader.backwards.{layer}.{gate}_l0"] = f"lstm.{gate}_l{layer}_reverse"
    assert set(ours.values()) == set(theirs)
    network = Diacritizer(config)
    network.load_state_dict({name: theirs[foreign] for name, foreign in ours.items()})
    expected = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    return network.eval(), config, expected


@torch.no_grad()
def test_the_published_additive_attention_is_reproduced() -> None:
    """In float64. The published numbers are float32's, whose rounding moves these sharp weights by about 1e-5."""
    network, config, expected = diacritizer()
    network = network.double()
    for sample in expected:
        letters = torch.tensor([sample["ids"]])
        with record() as recorder:
            logits = network(letters, torch.tensor([letters.size(1)]))[0]
        (look,) = recorder.looks["encoder.self"]
        attention = torch.tensor(sample["attention"], dtype=torch.float64)
        assert (look.weights()[0, 0] - attention).abs().max() <= 0.5e-6 + 1.5e-5
        row = torch.tensor(sample["logits_row1"], dtype=torch.float64)
        assert (logits[1] - row).abs().max() <= 0.5e-5 + 1e-5 * row.abs().max()
        marks = [config["labels"][label] for label in logits.argmax(-1)[1:-1]]
        assert "".join(letter + mark for letter, mark in zip(sample["text"], marks, strict=True)) == sample["out"]


@torch.no_grad()
def test_in_a_padded_batch_every_sentence_keeps_its_answer() -> None:
    network, config, expected = diacritizer()
    lengths = torch.tensor([len(sample["ids"]) for sample in expected])
    letters = nn.utils.rnn.pad_sequence([torch.tensor(sample["ids"]) for sample in expected], batch_first=True)
    answers = network(letters, lengths).argmax(-1)
    for sample, labels, length in zip(expected, answers, lengths.tolist(), strict=True):
        marks = [config["labels"][label] for label in labels[1 : length - 1]]
        assert "".join(letter + mark for letter, mark in zip(sample["text"], marks, strict=True)) == sample["out"]
