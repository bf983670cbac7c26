"""Weights that others trained give the answers that others published, through our core."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import need
from safetensors.torch import load_file
from torch import nn

from regard.attention.recording import record, scope
from regard.attention.variants import bahdanau
from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.interop.folder import Loaded, load, save
from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import pad
from regard.layers.pytree import State
from regard.layers.recurrent import RNNEncoder
from regard.models.transformer import Transformer, TransformerConfig

FOLDER = Path(os.environ.get("REGARD_WEIGHTS", "")) / "arabic-diacritizer-bahdanau"
GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Diacritizer(nn.Module):
    """Letters → vowel marks: each state of a bidirectional LSTM attends to all of them; the context is classified."""

    def __init__(self, config: dict):
        super().__init__()
        width = 2 * config["hidden"]
        self.letters = nn.Embedding(len(config["vocab"]), config["embed_dim"])
        self.reader = RNNEncoder("lstm", config["embed_dim"], config["hidden"], config["layers"], True, 0.0)
        self.attend = bahdanau(width, width, width)
        self.classify = nn.Linear(width, len(config["labels"]))

    def forward(self, letters: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states = self.reader(self.letters(letters), lengths).states
        real = torch.arange(letters.size(1)) < lengths[:, None]
        with scope("encoder"), scope("self"):
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
            ours[f"reader.forwards.{layer}.layers.{gate}_l0"] = f"lstm.{gate}_l{layer}"
            ours[f"reader.backwards.{layer}.layers.{gate}_l0"] = f"lstm.{gate}_l{layer}_reverse"
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
        (look,) = recorder.records["encoder.self"]
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


LETTERS = Path(os.environ.get("REGARD_WEIGHTS", "")) / "ct2-aren-transliteration"
BLANK, BEGIN, END = 0, 1, 2  # of both vocabularies
LONGEST = 40
ROUNDING = 1e-6  # theirs: the published numbers are float32's
OUTSIDE = {
    "encoder.embeddings": "source.table",
    "encoder.layer_norm": "encoder.final",
    "decoder.embeddings": "target.table",
    "decoder.layer_norm": "decoder.final",
    "decoder.projection": "output",
}
INSIDE = {  # what they keep in one matrix, we keep in several
    "self_attention.layer_norm": ("self_attention_residual.norm",),
    "self_attention.linear_0": ("self_attention.query", "self_attention.key", "self_attention.value"),
    "self_attention.linear_1": ("self_attention.output",),
    "attention.layer_norm": ("cross_residual.norm",),
    "attention.linear_0": ("cross.query",),
    "attention.linear_1": ("cross.key", "cross.value"),
    "attention.linear_2": ("cross.output",),
    "ffn.layer_norm": ("feedforward_residual.norm",),
    "ffn.linear_0": ("feedforward.up",),
    "ffn.linear_1": ("feedforward.down",),
}
KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
# CTranslate2 stops when four hypotheses have ended, ours when no other can come among the best four. What theirs finds
# too with patience=20:
LATER = {"آزا": [("azzza", -0.8038856983184814)]}


class Transliterator(Transformer):
    """Nothing may be empty: CTranslate2 takes the end out of the first softmax, and the rest share its probability."""

    def step(self, tokens: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        logits, known = super().step(tokens, state)
        if not state.hypothesis:
            logits[:, 0, END] = -torch.inf
        return logits, known


def waves(length: int, width: int) -> torch.Tensor:
    """As in tensor2tensor: sines before cosines, positions from 1, the last wavelength exactly 10000 times longer."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10000.0) / (width // 2 - 1)))
    angles = torch.arange(1, length + 1)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def transliterator() -> tuple[Transliterator, list[str], list[str], list[dict]]:
    """The network in float64, the letters it reads and writes, and what CTranslate2 made of seven names."""
    need(
        (LETTERS / "model.safetensors").exists(),
        "set REGARD_WEIGHTS to a folder with ct2-aren-transliteration (from OpenNMT/CTranslate2, tests/data/models/v2)",
    )
    theirs = load_file(LETTERS / "model.safetensors")
    (sources, width), (targets, _) = (theirs[f"{side}.embeddings.weight"].shape for side in ("encoder", "decoder"))
    config = TransformerConfig(
        sources, targets, width, heads=8, depth=6, feedforward=4 * width,
        norm="pre", positions="learned", tied="none", max_positions=LONGEST,
    )  # fmt: skip
    ours = {f"{side}.positions.table.weight": waves(LONGEST, width) for side in ("source", "target")}
    for name, tensor in theirs.items():
        module, kind = name.rsplit(".", 1)
        block = re.fullmatch(r"(\w+)\.layer_(\d+)\.(.+)", module)
        parts = [f"{block[1]}.blocks.{block[2]}.{part}" for part in INSIDE[block[3]]] if block else [OUTSIDE[module]]
        for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
            ours[f"{part}.{KINDS[kind]}"] = piece
    network = Transliterator(config)
    network.load_state_dict(ours)
    read, written = (
        (LETTERS / f"{side}_vocabulary.txt").read_text(encoding="utf-8").splitlines() for side in ("source", "target")
    )
    assert (len(read) + 1, len(written) + 1) == (sources, targets)  # the last row of each is for the unknown
    expected = json.loads((LETTERS / "expected_ctranslate2.json").read_text(encoding="utf-8"))
    return network.double().eval(), read, written, expected


def groups(samples: list[dict], together: bool) -> list[list[dict]]:
    return [samples] if together else [[sample] for sample in samples]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "padded"])
@torch.no_grad()
def test_the_published_transformer_has_the_published_outputs_and_weights(together: bool) -> None:
    """Greedy outputs, their scores, and the weights of head 0 of the last block at each output character."""
    network, read, written, expected = transliterator()
    for samples in groups(expected, together):
        sources = pad([[read.index(letter) for letter in sample["input"]] for sample in samples], BLANK)
        found = [best for (best,) in search(network, sources, BEGIN, END, DecodeOptions(), LONGEST)]
        with record() as recorder:
            network(sources, pad([best.tokens for best in found], BLANK, first=[BEGIN]).tokens)
        (look,) = recorder.records["decoder.blocks.5.cross"]
        for sample, best, weights in zip(samples, found, look.weights()[:, 0], strict=True):
            assert [written[token] for token in best.tokens] == sample["greedy"]
            assert best.finished
            assert abs(best.score - sample["greedy_score"]) <= ROUNDING
            attention = torch.tensor(sample["attention"], dtype=torch.float64)
            rows, columns = attention.shape
            assert (rows, columns) == (len(best.tokens), len(sample["input"]))
            assert (weights[:rows, :columns] - attention).abs().max() <= 0.5e-6 + ROUNDING
            assert not weights[:, columns:].any()


@pytest.mark.parametrize("together", [False, True], ids=["alone", "padded"])
@torch.no_grad()
def test_the_published_transformer_gives_all_beams_and_scores(together: bool) -> None:
    network, read, written, expected = transliterator()
    options = DecodeOptions(num_beams=4, num_return_sequences=4)
    for samples in groups(expected, together):
        sources = pad([[read.index(letter) for letter in sample["input"]] for sample in samples], BLANK)
        beams = search(network, sources, BEGIN, END, options, LONGEST)
        for sample, beam in zip(samples, beams, strict=True):
            theirs = list(zip(map("".join, sample["beam4"]), sample["beam4_scores"], strict=True))
            theirs += LATER.get("".join(sample["input"]), [])
            best = sorted(theirs, key=lambda each: -each[1])[:4]
            assert ["".join(written[token] for token in each.tokens) for each in beam] == [text for text, _ in best]
            assert all(abs(each.score - score) <= ROUNDING for each, (_, score) in zip(beam, best, strict=True))


@torch.no_grad()
def test_scores_of_all_hypotheses_equal_one_teacher_forced_pass() -> None:
    """Also what our beam leaves for something better."""
    network, read, written, expected = transliterator()
    for sample in expected:
        source = pad([[read.index(letter) for letter in sample["input"]]], BLANK)
        for text, score in zip(sample["beam4"], sample["beam4_scores"], strict=True):
            tokens = [written.index(letter) for letter in text]
            logits, _ = network.step(torch.tensor([[BEGIN, *tokens]]), network.start(source))
            said = logits[0].log_softmax(-1).gather(1, torch.tensor([*tokens, END])[:, None])
            assert abs(said.mean() - score) <= ROUNDING


def stories(name: str) -> tuple[Loaded, dict]:
    """A published Llama, and its outputs in transformers."""
    folder = Path(os.environ.get("REGARD_WEIGHTS", "")) / name
    need(
        (folder / "model.safetensors").exists(),
        f"set REGARD_WEIGHTS to a folder with {name} (llama2.c's, converted to Hugging Face names)",
    )
    return load(folder), json.loads((folder / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
@torch.no_grad()
def test_a_published_llama_continues_as_published(name: str) -> None:
    """Its tokens, its logits to the printed digits, and its greedy output token by token."""
    loaded, expected = stories(name)
    network: Any = loaded.network
    prompt = expected["prompt_ids"]
    assert loaded.processor.target.prompt(expected["prompt"]) == prompt
    logits, state = network.step(torch.tensor([prompt]), EMPTY)
    first = torch.tensor(expected["last_logits_of_prompt_first16"])
    assert (logits[0, -1, :16] - first).abs().max() <= 1e-4
    story = list(prompt)
    while len(story) < len(expected["greedy_ids"]):
        story.append(int(logits[0, -1].argmax()))
        logits, state = network.step(torch.tensor([story[-1:]]), state)
    assert story == expected["greedy_ids"]
    assert loaded.processor.target.decode(story) == expected["greedy_text"]


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_a_published_llama_is_written_as_it_was_read(name: str, tmp_path: Path) -> None:
    loaded, _ = stories(name)
    save(tmp_path, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    theirs = load_file(Path(os.environ["REGARD_WEIGHTS"]) / name / "model.safetensors")
    ours = load_file(tmp_path / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(ours[tensor], theirs[tensor].float()) for tensor in theirs)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert loaded.config.items() <= written.items()
