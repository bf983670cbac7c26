"""DeBERTa as a family: its published sizes, its texts, what it refuses, and training as others train."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import vocabulary
from encoders import letters

import regard
from regard.errors import UserError
from regard.interop import folder
from regard.layers.inputs import TokenBatch
from regard.layers.lora import AdapterOptions, adapt, adapters
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, build
from regard.runtime.linear import DynamicInt8Linear, WeightOnlyInt8Linear
from regard.runtime.optimize import optimize_for_inference
from regard.text.vocabulary import Vocabulary
from tests.tasks.classify.test_task import goes_on_to_the_same_bits, lay_out

COUNTS = {  # of the published models without a head
    "base": 138_601_728,
    "large": 405_163_008,
    "xlarge": 757_804_032,
    "v2-xlarge": 884_593_152,
    "v2-xxlarge": 1_564_549_632,
    "v3-xsmall": 70_682_112,
    "v3-small": 141_304_320,
    "v3-base": 183_831_552,
    "v3-large": 434_012_160,
}


def test_presets_have_their_published_sizes() -> None:
    assert set(COUNTS) == set(FAMILIES["deberta"].presets)
    for preset, count in COUNTS.items():
        with torch.device("meta"):
            network = build(
                {"family": "deberta", "preset": preset}, vocabulary=128100 if preset.startswith("v") else 50265
            )
        assert sum(parameter.numel() for parameter in network.parameters()) == count, preset


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"width": 22, "heads": 4}, "multiple of heads"),
    "nothing asks": ({"c2p": False, "p2c": False}, "need c2p or p2c"),
    "too many buckets": ({"position_buckets": 100, "max_positions": 50}, "twice max_relative_positions"),
    "too few buckets": ({"position_buckets": 2}, "at least 4"),
    "even kernel": ({"kernel": 4}, "odd"),
    "endless kernel": ({"kernel": (1 << 24) - 1}, r"model\.kernel = 16777215 should be at most 1000"),
    "groups": ({"kernel": 3, "kernel_groups": 5}, "kernel_groups"),
    "activation": ({"kernel_activation": "mish"}, "kernel_activation"),
}


@pytest.mark.parametrize(("fields", "word"), PROBLEMS.values(), ids=PROBLEMS)
def test_contradicting_options_are_errors(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word), torch.device("meta"):
        build({"family": "deberta", "width": 24, "heads": 3, **fields}, vocabulary=31)


FIRST = {"share_att_key": False, "norm_rel_embeddings": False, "key_bias": False}
SMALL = {"family": "deberta", "width": 22, "heads": 2, "depth": 2, "max_positions": 41, "dropout": 0.0}
VERSIONS: dict[str, dict[str, Any]] = {"first": SMALL | FIRST, "second": SMALL | {"position_buckets": 6, "kernel": 3}}


def text(rows: int = 3, length: int = 13) -> TokenBatch:
    return TokenBatch(torch.randint(4, 53, (rows, length)), torch.tensor([length, 5, 9])[:rows])


@pytest.mark.parametrize("targets", ["query value", "query key value output"])
@pytest.mark.parametrize("version", VERSIONS)
@torch.no_grad()
def test_adapted_and_loaded_are_the_same(version: str, targets: str, tmp_path: Path) -> None:
    """Also where queries, keys and values take turns in one tensor, head by head."""
    folder.save(tmp_path / "base", Classifier(build(VERSIONS[version], vocabulary=53), ["a", "b"]), vocabulary(53), {})
    loaded, given = folder.load(tmp_path / "base"), text()
    adapt(loaded.network, AdapterOptions(3, 5.0, tuple(targets.split())))
    for each in adapters(loaded.network).values():
        torch.nn.init.normal_(each.lora_b, std=0.3)
    folder.save(tmp_path / "made", *loaded[:3], config=loaded.config, base=folder.base_at(tmp_path / "base", loaded))
    found, before = (folder.load(tmp_path / name).network for name in ("made", "base"))
    assert (loaded.network(given) - found(given)).abs().max() <= 1e-5
    assert not torch.allclose(found(given), before(given), atol=1e-4)


def test_dropout_is_on_distances_too() -> None:
    """While training two passes differ; afterwards they do not."""
    network: Any = build(VERSIONS["second"] | {"dropout": 0.5}, vocabulary=53)
    first, last = network.train().distances(0, 11), network.distances(0, 11)
    assert not torch.equal(first, last) and (first == 0).any()
    assert torch.equal(network.eval().distances(0, 11), network.distances(0, 11))


def test_merges_in_berts_spelling_tokenize_as_in_transformers(tmp_path: Path) -> None:
    """Version 1's tokenizer: bytes merged, between [CLS] and [SEP]; a second text is in segment 1."""
    from transformers import DebertaTokenizer

    letters = [chr(number) for number in range(33, 127)] + ["Ġ", "Ċ"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *letters, *(a + b for a, b in merges), "[MASK]"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges) + "\n")
    ours, theirs = Vocabulary.load(tmp_path).target, DebertaTokenizer.from_pretrained(tmp_path)
    for words in ("hello world", "hello", " a  b", "tabs and\nlines", "x[MASK]y [SEP] z"):
        assert ours.inner.encode(words).ids == theirs(words)["input_ids"], words
        one, other, pair = (ours.inner.encode(words), ours.inner.encode("other"), ours.inner.encode(words, "other"))
        assert pair.ids == one.ids + other.ids[1:]  # one [SEP] between them, as it was trained
        assert pair.type_ids == [0] * len(one.ids) + [1] * (len(other.ids) - 1)
    assert (ours.pad, ours.begin, ours.end) == (0, 1, 2)


@torch.no_grad()
def test_a_folder_fills_embeds_and_is_traced(tmp_path: Path) -> None:
    """From a saved folder, by the one call that loads everything."""
    body: Any = build(VERSIONS["second"], vocabulary=letters().size)
    network = MaskedLM(body)
    folder.save(tmp_path, network, Vocabulary(letters(), letters()), {})
    model = regard.load(tmp_path)
    assert model.task == "fill"
    assert len(model.run("a [MASK] b").candidates[0]) == 5
    assert model.embed(["a text", "another one"]).shape == (2, 22)
    trace = model.trace("hide and seek", prove=True)
    assert trace.sites == ["encoder.blocks.0.self", "encoder.blocks.1.self"]
    for site in trace.sites:
        mixed, used = trace.proof(site)
        assert (mixed - used).abs().max() <= 1e-5


@pytest.mark.parametrize("version", VERSIONS)
@torch.no_grad()
def test_optimized_outputs_are_equal_and_nearly_equal_in_int8(version: str) -> None:
    """Distances go through the same products as contents, whatever those were rewritten to."""
    plain, given = build(VERSIONS[version] | {"width": 66}, vocabulary=53).eval(), text()
    expected = plain(given)[given.real]
    assert (optimize_for_inference(deepcopy(plain))(given)[given.real] - expected).abs().max() <= 1e-5
    rounded = optimize_for_inference(deepcopy(plain), "int8")
    assert any(isinstance(module, WeightOnlyInt8Linear | DynamicInt8Linear) for module in rounded.modules())
    apart = (rounded(given)[given.real] - expected).norm() / expected.norm()
    assert 0 < apart < 0.05


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Layer by layer, with the distances at the bottom among the embeddings."""
    model = 'family = "deberta"\nwidth = 24\nheads = 2\ndepth = 2\nlimit = 40\nbuckets = 8'
    options = ("train.ema_decay=0.8", "train.eval_steps=100", "train.layer_decay=0.7", "train.unfreeze_steps=1")
    goes_on_to_the_same_bits(lay_out(tmp_path), model, *options)
