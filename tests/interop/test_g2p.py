"""The published weights of g2p_en give their expected phonemes through our seq2seq, also from a saved folder."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import need

import regard
from regard.errors import UserError
from regard.interop.g2p import VOCABULARY, WEIGHTS

FOLDER = Path(os.environ.get("REGARD_WEIGHTS", "")) / "g2p-en-gru"


def published() -> list[tuple[str, list[str]]]:
    need((FOLDER / WEIGHTS).is_file(), "set REGARD_WEIGHTS to a folder with g2p-en-gru (from the wheel g2p-en==2.1.0)")
    return json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def test_the_published_weights_give_their_expected_phonemes() -> None:
    expected = published()
    model: Any = regard.load(FOLDER)
    words = [word for word, _ in expected]
    assert [answer.text.split() for answer in model.run(words)] == [phonemes for _, phonemes in expected]
    assert model.run(words[0].upper()).text.split() == expected[0][1]


def test_a_saved_folder_gives_the_same(tmp_path: Path) -> None:
    expected = published()
    regard.load(FOLDER).save(tmp_path / "model")
    model: Any = regard.load(tmp_path / "model")
    assert [model.run(word).text.split() for word, _ in expected] == [phonemes for _, phonemes in expected]


# ── any weights ──────────────────────────────────────────────────────────────────────────────────────────────────────

WIDTH, LETTERS, PHONEMES = 11, ["<pad>", "<unk>", "</s>", *"abc"], ["<pad>", "<unk>", "<s>", "</s>", "AA0", "B", "K"]


def write(folder: Path) -> dict[str, np.ndarray]:
    """A checkpoint with random weights."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {"enc_emb": (6, 7), "dec_emb": (7, 7), "fc_w": (7, WIDTH), "fc_b": (7,)}
    for side in ("enc", "dec"):
        shapes |= {f"{side}_w_ih": (3 * WIDTH, 7), f"{side}_w_hh": (3 * WIDTH, WIDTH)}
        shapes |= {f"{side}_b_ih": (3 * WIDTH,), f"{side}_b_hh": (3 * WIDTH,)}
    shapes["fc_w"] = (7, WIDTH)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(folder / WEIGHTS, **arrays)  # type: ignore[arg-type]
    (folder / VOCABULARY).write_text(json.dumps({"graphemes": LETTERS, "phonemes": PHONEMES}))
    return arrays


def step(arrays: dict[str, np.ndarray], side: str, x: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """One step of a GRU, gate by gate. Cho et al. 2014, with the reset gate as in cuDNN."""
    inputs = arrays[f"{side}_w_ih"] @ x + arrays[f"{side}_b_ih"]
    states = arrays[f"{side}_w_hh"] @ hidden + arrays[f"{side}_b_hh"]
    gates = 1 / (1 + np.exp(-(inputs + states)[: 2 * WIDTH]))
    reset, update = gates[:WIDTH], gates[WIDTH:]
    candidate = np.tanh(inputs[2 * WIDTH :] + reset * states[2 * WIDTH :])
    return (1 - update) * candidate + update * hidden


@torch.no_grad()
def test_logits_are_those_of_the_equations(tmp_path: Path) -> None:
    """With embeddings as wide as the states, as in the published weights; else there is one more layer."""
    arrays = write(tmp_path)
    rng = np.random.default_rng(2)
    for side, rows in (("enc", 6), ("dec", 7)):
        arrays[f"{side}_emb"] = rng.normal(size=(rows, WIDTH)).astype(np.float32)
        arrays[f"{side}_w_ih"] = rng.normal(size=(3 * WIDTH, WIDTH)).astype(np.float32)
    np.savez(tmp_path / WEIGHTS, **arrays)  # type: ignore[arg-type]
    model: Any = regard.load(tmp_path)
    hidden = np.zeros(WIDTH)
    for token in (3, 4, 5, 2):  # a b c </s>
        hidden = step(arrays, "enc", arrays["enc_emb"][token], hidden)
    state = model.network.start(model.predictor().network.input_type(torch.tensor([[3, 4, 5, 2]]), torch.tensor([4])))
    for token in (2, 4, 6):
        hidden = step(arrays, "dec", arrays["dec_emb"][token], hidden)
        logits, state = model.network.step(torch.tensor([[token]]), state)
        np.testing.assert_allclose(logits[0, 0].numpy(), arrays["fc_w"] @ hidden + arrays["fc_b"], atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / WEIGHTS).write_bytes(b"PK\3\4 no archive"), "not a complete archive of arrays"),
        (lambda folder: np.savez(folder / WEIGHTS, enc_emb=np.zeros((6, 7))), "lacks dec_b_hh"),
        (lambda folder: (folder / VOCABULARY).write_text("{}"), "graphemes should be the list"),
        (lambda folder: (folder / VOCABULARY).unlink(), "not found"),
        (lambda folder: np.savez(folder / WEIGHTS, enc_emb=np.array(["text"], object)), "not a complete archive"),
    ],
)
def test_a_damaged_checkpoint_is_an_error(spoil: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UserError, match=message):
        regard.load(tmp_path)
    shutil.rmtree(tmp_path)
