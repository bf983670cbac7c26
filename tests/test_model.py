"""What `regard.load` gives of an encoder: embeddings, masked tokens, traces, labels, and errors with a fix."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.errors import UserError
from regard.interop.folder import save
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import build
from regard.text.vocabulary import Vocabulary
from tests.text.test_wordpiece import PIECES

TEXTS = ["the spaces and quotes", "a", "hello, naive quotes!"]


def folder(place: Path, head: Any = lambda body: body, **fields: Any) -> Path:
    """A small BERT with a WordPiece tokenizer."""
    (place / "words").mkdir(parents=True)
    (place / "words/vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    sizes = {"family": "bert", "width": 22, "heads": 2, "depth": 2, "max_positions": 29}
    network = head(build(sizes | fields, vocabulary=len(PIECES) + 3))
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    save(place / "model", network, Vocabulary.load(place / "words"), {})
    return place / "model"


def states(model: Any, text: str) -> np.ndarray:
    ids = model.processor.target.inner.encode(text).ids
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


def test_vectors_are_pooled_as_requested_in_any_batch(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path))
    assert model.task == "embed"
    ways = {"mean": lambda each: each.mean(0), "cls": lambda each: each[0], "max": lambda each: each.max(0)}
    for pooling, expected in ways.items():
        found = model.embed(TEXTS, pooling=pooling, batch_size=2)
        assert found.dtype == np.float32 and found.shape == (3, 22)
        for text, vector in zip(TEXTS, found, strict=True):
            assert np.abs(vector - expected(states(model, text))).max() <= 1e-5
        unit = model.embed(TEXTS, pooling=pooling, normalise=True)
        assert np.allclose(unit, found / np.linalg.norm(found, axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(model.embed(TEXTS), model.embed(TEXTS, pooling="mean"))
    assert model.embed("a").shape == (22,)
    answers = model.run(TEXTS, pooling="cls", truncate=True)
    assert np.array_equal([each.vector for each in answers], model.embed(TEXTS, pooling="cls"))
    with pytest.raises(UserError, match=r"temperature.*pooling"):
        model.run(TEXTS, temperature=1.0)


def test_the_pooling_of_a_folder_survives_save(tmp_path: Path) -> None:
    place = folder(tmp_path)
    modules = [{"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{word}"}
               for number, (word, path) in enumerate(
                   {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}.items())]  # fmt: skip
    (place / "modules.json").write_text(json.dumps(modules))
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    model = regard.load(place)
    expected = model.embed(TEXTS, truncate=True)
    assert np.array_equal(expected, model.embed(TEXTS, truncate=True, pooling="cls", normalise=True))
    with pytest.raises(UserError, match="at most 7"):
        model.embed(TEXTS)
    model.save(tmp_path / "copy")
    assert np.array_equal(regard.load(tmp_path / "copy").embed(TEXTS, truncate=True), expected)
    (place / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    with pytest.raises(UserError, match="pooling_mode_lasttoken"):
        regard.load(place)


def test_folders_of_sentence_transformers_6_have_their_pooling(tmp_path: Path) -> None:
    place = folder(tmp_path)
    modules = [{"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{name}"}
               for index, (name, path) in enumerate({
                   "base.modules.transformer.Transformer": "",
                   "sentence_transformer.modules.pooling.Pooling": "1_Pooling",
                   "base.modules.normalize.Normalize": "2_Normalize"}.items())]  # fmt: skip
    (place / "modules.json").write_text(json.dumps(modules))
    (place / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 22, "pooling_mode": "cls", "include_prompt": True}
    (place / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (place / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "feature-extraction"}))
    settings = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 7}))
    model = regard.load(place)
    expected = model.embed(TEXTS, truncate=True)
    assert np.array_equal(expected, model.embed(TEXTS, truncate=True, pooling="cls", normalise=True))
    with pytest.raises(UserError, match="at most 7"):
        model.embed(TEXTS)
    model.save(tmp_path / "copy")
    assert np.array_equal(regard.load(tmp_path / "copy").embed(TEXTS, truncate=True), expected)
    for modes in ("lasttoken", ["cls", "mean"]):
        (place / "1_Pooling/config.json").write_text(json.dumps(pooling | {"pooling_mode": modes}))
        with pytest.raises(
            UserError, match=r"1_Pooling.config.json: .*(lasttoken|cls, mean).*expected one of: mean, cls"
        ):
            regard.load(place)


def test_masked_tokens_are_predicted_most_probable_first(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path, MaskedLM, pooler=False))
    assert model.task == "fill"
    texts = ["the [MASK] and [MASK]", "hello [MASK]"]
    answers = model.run(texts, best=3)
    for text, answer in zip(texts, answers, strict=True):
        ids = model.processor.target.inner.encode(text).ids
        with torch.no_grad():
            chances = model.module(input_ids=torch.tensor([ids])).logits[0, :, : len(PIECES)].softmax(-1)
        hidden = [place for place, token in enumerate(ids) if token == PIECES.index("[MASK]")]
        for place, words in zip(hidden, answer.candidates, strict=True):
            chances[place][[token for token, piece in enumerate(PIECES) if piece[0] == "[" != piece]] = (
                0  # a word is asked
            )
            best = chances[place].topk(3)
            assert [word.token for word in words] == best.indices.tolist()
            assert [word.score for word in words] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert "[MASK]" not in answer.text
    assert model.run(texts[1], best=3).text == answers[1].text
    printed = CliRunner().invoke(app, ["run", str(model.folder), texts[0], "--best", "2"]).output.splitlines()
    told = ["\t".join(f"{word.text} {word.score:.3f}" for word in words[:2]) for words in answers[0].candidates]
    assert printed == [answers[0].text, *told]
    with pytest.raises(UserError, match=r"input 1 has no mask token: put \[MASK\]"):
        model.run("the spaces")


def test_pairs_have_two_segments(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path))
    pair = model.processor.target.inner.encode("hello", "the quotes")
    assert set(pair.type_ids) == {0, 1}
    with torch.no_grad():
        found = model.module(input_ids=torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids]))
    (vector,) = model.embed([("hello", "the quotes")])
    assert np.abs(vector - found.last_hidden_state[0].mean(0).numpy()).max() <= 1e-5
    blind = model.module(input_ids=torch.tensor([pair.ids])).last_hidden_state[0].mean(0).detach().numpy()
    assert np.abs(vector - blind).max() > 1e-3


@pytest.mark.parametrize("kind", ["single_label", "multi_label", "regression"])
def test_a_trace_has_the_prediction_of_run(kind: str, tmp_path: Path) -> None:
    """A line with a tab is a pair to both, and the answer is of the same kind."""
    names = ["x"] if kind == "regression" else ["x", "y", "z"]
    model: Any = regard.load(folder(tmp_path, lambda body: Classifier(body, names, paired=True, problem_type=kind)))
    line = "hello\tthe quotes"
    trace = model.trace(line)
    assert trace.answer == model.run(line).text == model.trace(("hello", "the quotes")).answer
    pair = model.processor.target.inner.encode(*line.split("\t"))
    assert len(trace.weights(trace.sites[0], head=0)) == len(pair.ids)


def test_an_input_that_is_not_text_is_an_error_with_its_index(tmp_path: Path) -> None:
    vectors: Any = regard.load(folder(tmp_path / "single_label"))
    labels: Any = regard.load(folder(tmp_path / "two", lambda body: Classifier(body, ["x", "y"])))
    for wrong in ("\ud800", 3, ("hello", None), ("a", "b", "c"), None):
        for told in (vectors.embed, labels.run):
            with pytest.raises(UserError, match="input 2 is not text"):
                told(["hello", wrong])


@pytest.mark.parametrize("segments", [0, 1])
def test_without_token_types_a_pair_has_one_segment(segments: int, tmp_path: Path) -> None:
    """Whatever its tokenizer's segments are: as RoBERTa and DistilBERT with BERT's."""
    model: Any = regard.load(
        folder(tmp_path, lambda body: Classifier(body, ["x", "y"], paired=True), segments=segments)
    )
    texts = model.predictor().modality.encoder
    text = texts.sequences(texts.rows([("hello", "the quotes")]))
    assert text.segments is not None and set(text.segments[0].tolist()) == {0, 1}
    with torch.no_grad():
        assert torch.equal(model.network(text), model.network(text._replace(segments=None)))
    assert model.embed([("hello", "the quotes")]).shape == (1, 22)


def test_a_trace_has_the_tokens_of_the_input(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path, lambda body: Classifier(body, ["x", "y"])))
    trace = model.trace("hello quotes", prove=True)
    assert trace.sites == ["encoder.blocks.0.self", "encoder.blocks.1.self"]
    pieces = ["[CLS]", "hel", "##lo", "quotes", "[SEP]"]
    assert trace.labels("encoder.blocks.1.self") == (pieces, pieces)
    assert trace.weights("encoder.blocks.1.self", head=1).shape == (5, 5)
    assert trace.answer == model.run("hello quotes").label


def test_what_an_encoder_cannot_do_is_an_error(tmp_path: Path) -> None:
    model: Any = regard.load(folder(tmp_path))
    for wrong, word in (
        (lambda: model.generate([1, 2]), "not available for task"),
        (lambda: model.embed("a " * 40), "at most 29"),
        (lambda: model.embed("a", pooling="sum"), "mean"),
        (lambda: model.module(input_ids=torch.tensor([[1]]), token_type_ids=torch.tensor([[2]])), "segments"),
        (lambda: regard.load(tmp_path / "model", model_type="albert"), "requested"),
    ):
        with pytest.raises(UserError, match=word):
            wrong()
    assert model.embed("a " * 40, truncate=True).shape == (22,)


@pytest.mark.parametrize("kind", ["single_label", "multi_label", "regression"])
def test_predictions_have_the_type_of_the_problem(kind: str, tmp_path: Path) -> None:
    """Also of pairs, whose second text is in a segment of its own; and by a folder that was saved and loaded."""
    names = ["x"] if kind == "regression" else ["x", "y", "z"]
    model: Any = regard.load(folder(tmp_path, lambda body: Classifier(body, names, problem_type=kind)))
    inputs: list[Any] = [("hello", "the quotes"), *TEXTS]
    for given, answer in zip(inputs, model.run(inputs), strict=True):
        pair = given if isinstance(given, tuple) else (given,)
        encoded = model.processor.target.inner.encode(*pair)
        with torch.no_grad():
            ids, types = torch.tensor([encoded.ids]), torch.tensor([encoded.type_ids])
            (logits,) = model.module(input_ids=ids, token_type_ids=types).logits
        if kind == "regression":
            assert answer.value == pytest.approx(float(logits[0]), abs=1e-5)
            continue
        chances = logits.softmax(-1) if kind == "single_label" else logits.sigmoid()
        assert answer.scores == pytest.approx(dict(zip(names, chances.tolist(), strict=True)), abs=1e-6)
        if kind == "single_label":
            assert answer.label == names[int(logits.argmax())]
        else:
            assert {*answer.labels} == {name for name, logit in zip(names, logits, strict=True) if logit >= 0}


def test_a_model_is_loaded_without_torchs_compiler(tmp_path: Path) -> None:
    """Whose import alone takes seconds: random numbers for an outline would bring it in."""
    place = folder(tmp_path, MaskedLM)
    code = f"import sys, regard; regard.load({str(place)!r}); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


HEADS: dict[str, tuple[Any, Any]] = {
    "embed": (lambda body: body, lambda text: text),
    "fill": (MaskedLM, lambda text: f"{text} [MASK]"),
    "classify": (lambda body: Classifier(body, ("a", "b", "c")), lambda text: text),
    "tag": (lambda body: TokenClassifier(body, ("O", "B-x", "I-x")), lambda text: text),
    "answer": (SpanClassifier, lambda text: ("the quotes", text)),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("task", HEADS)
def test_two_threads_compute_the_same_bits(task: str, precision: str, tmp_path: Path) -> None:
    """Each group of texts has the same result in any thread and any company."""
    head, given = HEADS[task]
    model: Any = regard.load(folder(tmp_path, head), precision=precision)
    texts = [given(" ".join(["hello quotes the spaces"] * (1 + number % 4))) for number in range(150)]
    answers = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        answers.append(model.run(texts))
        assert torch.get_num_threads() == threads
    assert len(answers[0]) == 150 and answers[0] == answers[1]


def test_the_repr_of_a_model_is_one_line(tmp_path: Path) -> None:
    path = folder(tmp_path, lambda body: Classifier(body, ["x", "y"]), width=64, depth=1)
    model = regard.load(path, device="cpu")
    count = sum(parameter.numel() for parameter in model.network.parameters())
    expected = f"Model(bert, classify, {count / 1000:.1f}k parameters, float32, cpu, '{path}')"
    assert repr(model) == expected
    assert repr(regard.load(path, device="cpu", precision="int8")) == expected.replace("float32", "int8")


@pytest.mark.parametrize(("count", "shown"), [(7, "7"), (22_848_000, "22.8M"), (1_100_048_384, "1.1B")])
def test_counts_of_parameters_are_rounded(count: int, shown: str, tmp_path: Path) -> None:
    model = regard.load(folder(tmp_path), device="cpu")
    model.num_parameters = count
    assert f"embed, {shown} parameters" in repr(model)
