"""Checkpoint folders without tokenizer files load and accept token ids; text is an error that names the files."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import MODELS, alike, batch, change, reference, reference_logits, vocabulary, write_reference
from language_checkpoints import TOKENS, language_model, logits_of, text, write

import regard
from regard.errors import UserError
from regard.interop.folder import save
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from regard.tasks.generate.likelihood import log_probabilities
from regard.text.vocabulary import FILES

GPT = {"family": "gpt", "width": 22, "heads": 2, "depth": 1, "max_positions": 41, "bias": False}
MISSING_FILES = r"no tokenizer files.*tokenizer\.json.*source\.spm.*merges\.txt.*vocab\.txt.*input_ids"


def without_tokenizer(folder: Path) -> Path:
    """A copy of the folder that has weights and configs only."""
    bare = folder.with_name(folder.name + "-bare")
    shutil.copytree(folder, bare)
    for name in FILES:
        (bare / name).unlink(missing_ok=True)
    return bare


def rejects_text(model: Any) -> None:
    for use in (model.run, model.trace, model.embed):
        with pytest.raises(UserError, match=MISSING_FILES) as error:
            use("w3 w4")
        assert str(model.folder) in str(error.value)


@pytest.mark.parametrize("kind", ["gpt2", "openai-gpt", "gpt_neo", "llama"])
def test_a_language_model_without_tokenizer_files(kind: str, tmp_path: Path) -> None:
    reference = language_model(kind)
    full: Any = regard.load(write(reference, tmp_path / "full"))
    model: Any = regard.load(without_tokenizer(tmp_path / "full"))
    prompts = text(rows=3, length=5).tolist()
    options = {"max_new_tokens": 11, "num_beams": 2}
    assert model.generate(prompts, **options) == full.generate(prompts, **options)
    assert model.predictor().eos_ids == full.predictor().eos_ids == (2,)
    ids = text()
    with torch.no_grad():
        assert alike(model.module(input_ids=ids).logits, logits_of(reference, ids))
    assert torch.equal(log_probabilities(model.network, ids), log_probabilities(full.network, ids))  # perplexity
    stream = model.stream(prompts[0], max_new_tokens=7)
    assert "".join(stream) == "".join(f" <{token}>" for token in stream.answer.tokens)
    rejects_text(model)
    model.save(tmp_path / "again")
    assert not any((tmp_path / "again" / name).exists() for name in FILES)
    assert regard.load(tmp_path / "again").generate(prompts, **options) == full.generate(prompts, **options)


@pytest.mark.parametrize("target", [None, 47], ids=["one vocabulary", "two vocabularies"])
def test_marian_without_tokenizer_files(target: int | None, tmp_path: Path) -> None:
    fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": target} if target else {}
    theirs = reference(**fields)
    write_reference(theirs, tmp_path / "full", vocabulary(53, target))
    full: Any = regard.load(tmp_path / "full")
    model: Any = regard.load(without_tokenizer(tmp_path / "full"))
    source, prefix = batch(53, target or 53)
    rows = [row[:length].tolist() for row, length in zip(source.tokens, source.lengths, strict=True)]
    assert model.generate(rows, num_beams=3) == full.generate(rows, num_beams=3)
    with torch.no_grad():
        out = model.module(input_ids=source.tokens, attention_mask=source.real, decoder_input_ids=prefix)
    assert alike(out.logits, reference_logits(theirs, source, prefix))
    rejects_text(model)


@pytest.mark.parametrize("name", ["transformer", "seq2seq", "convs2s", "bytenet"])
def test_our_own_encoder_decoders_without_tokenizer_files(name: str, tmp_path: Path) -> None:
    network = build(MODELS[name], source_vocabulary=53, target_vocabulary=53)
    save(tmp_path / "full", network, vocabulary(), {})
    rows = [[5, 6, 7], [11]]
    model: Any = regard.load(without_tokenizer(tmp_path / "full"))
    full: Any = regard.load(tmp_path / "full")
    assert model.generate(rows, max_new_tokens=9) == full.generate(rows, max_new_tokens=9)
    rejects_text(model)


def test_our_own_language_models_and_classifiers_without_tokenizer_files(tmp_path: Path) -> None:
    save(tmp_path / "lm", build(GPT, vocabulary=TOKENS), vocabulary(TOKENS), {})
    rows = [[5, 6, 7], [11]]
    model: Any = regard.load(without_tokenizer(tmp_path / "lm"))
    full: Any = regard.load(tmp_path / "lm")
    assert model.generate(rows, max_new_tokens=9) == full.generate(rows, max_new_tokens=9)
    rejects_text(model)
    save(tmp_path / "labels", Classifier(build(GPT, vocabulary=TOKENS), ["x", "y"]), vocabulary(TOKENS), {})
    model, full = regard.load(without_tokenizer(tmp_path / "labels")), regard.load(tmp_path / "labels")
    with torch.no_grad():
        assert torch.equal(model.module(torch.tensor(rows[:1])).logits, full.module(torch.tensor(rows[:1])).logits)
    with pytest.raises(UserError, match=MISSING_FILES):
        model.run("w3 w4")


def test_a_missing_end_token_matters_only_to_generation(tmp_path: Path) -> None:
    """Its id is in neither file: the network can still be called."""
    write_reference(reference(), tmp_path / "full", vocabulary())
    folder = without_tokenizer(tmp_path / "full")
    change(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    model: Any = regard.load(folder)
    model.module(input_ids=torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[0, 7]]))
    with pytest.raises(UserError, match="'end'"):
        model.generate([5, 6])
