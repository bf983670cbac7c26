"""Words are tagged from end to end: trained, scored by conlleval's rules, asked about texts short and long."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.cli.main import main
from regard.config.recipe import load_recipe
from regard.data.synthetic.entities import names
from regard.errors import UserError
from regard.metrics import entities
from regard.models.heads.mlm import MaskedLM
from regard.models.heads.token import TokenClassifier
from regard.tasks.registry import build
from regard.tasks.scoring import EvaluationRequest
from regard.tasks.tag.evaluate import evaluate_task
from regard.tasks.tag.files import read
from regard.tasks.tag.predict import WORD, word_probabilities
from regard.training.build import prepare_network, resume, start
from regard.training.doctor import examine
from tests.test_model import folder

RECIPE = """
task = "tag"
[data]
{data}
[tokenizer]
lowercase = true
vocab_size = 300
[model]
{model}
[train]
batch_size = 10
max_steps = {steps}
eval_steps = 2
save_steps = 2
learning_rate = 3e-3
warmup_steps = 2
threads = 1
"""
NAMES = 'generate = "names"\ntrain = 60\nvalidation = 12\ntest = 15'
SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 24\ndropout = 0.1'


def made(place: Path, steps: int = 4, *overrides: str, model: str = SCRATCH, data: str = NAMES) -> Any:
    path = place / "recipe.toml"
    path.write_text(RECIPE.format(data=data, model=model, steps=steps))
    return load_recipe(path, [f"output={place / 'run'}", *overrides])


def write(path: Path, sentences: list[tuple[str, str]]) -> Path:
    rows = [
        "\n".join(f"{word} {tag}" for word, tag in zip(words.split(), tags.split(), strict=True))
        for words, tags in sentences
    ]
    path.write_text("\n\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    start(made(place), quiet=True)
    return place / "run"


def test_synthetic_names_occur_in_one_split_only() -> None:
    once, again = (list(names(3, "train", 50)) for _ in range(2))
    assert once == again and once != list(names(4, "train", 50))
    words = {
        part: {
            word
            for sentence in names(1, part, 200)
            for word, tag in zip(sentence.words, sentence.tags, strict=True)
            if tag[2:] in ("PER", "LOC") and word.isalpha()
        }
        for part in ("train", "validation", "test")
    }
    assert all(words.values()) and not words["train"] & (words["validation"] | words["test"])
    kinds = {tag[2:] for sentence in once for tag in sentence.tags if tag != "O"}
    assert kinds == {"PER", "LOC", "ORG", "DAY"}


def test_the_loss_is_over_the_first_tokens_of_words(tmp_path: Path) -> None:
    options = made(tmp_path, 1)
    loaded = prepare_network(options)
    task: Any = build(options, loaded.processor, loaded.network)
    network: Any = loaded.network.eval()
    batch = next(task.batches(0, 0, 1))
    assert task.num_targets(batch) == len(batch.tags) == int(batch.at.sum()) and task.unit == "words"
    logits = network(batch.text)
    expected = -torch.log_softmax(logits[batch.at], -1)[torch.arange(len(batch.tags)), batch.tags].sum()
    torch.testing.assert_close(task.loss(network, batch), expected)


def test_validation_and_evaluate_agree(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model: Any = regard.load(trained)
    events = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    best = json.loads((trained / "best.json").read_text())["step"]
    told = next(event["validation"] for event in events if event["step"] == best and "validation" in event)
    sentences = list(read(model.recipe.data, "validation"))
    answers = model.run([sentence.words for sentence in sentences])
    assert told["f1"] == pytest.approx(entities.f1([a.tags for a in answers], [s.tags for s in sentences]))
    capfd.readouterr()
    told = ["--predictions", str(trained / "told.jsonl")]
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(trained), "--json", "--compare", str(trained), *told])
    found = json.loads(capfd.readouterr().out)
    lines = [json.loads(line) for line in (trained / "told.jsonl").read_text().splitlines()]
    assert left.value.code == 0 and found["split"] == "test" and found["sentences"] == 15
    tested = list(read(model.recipe.data, "test"))
    answers = model.run([sentence.words for sentence in tested])
    hits = [
        one == other for a, s in zip(answers, tested, strict=True) for one, other in zip(a.tags, s.tags, strict=True)
    ]
    assert [line["prediction"] for line in lines] == [list(answer.tags) for answer in answers]
    assert [line["input"] for line in lines] == [list(sentence.words) for sentence in tested]
    assert found["accuracy"] == pytest.approx(100 * np.mean(hits)) and found["words"] == len(hits)
    assert [score["name"] for score in found["scores"]] == ["precision", "recall", "f1"]
    wanted = {tag[2:] for sentence in tested for tag in sentence.tags if tag != "O"}
    assert wanted <= set(found["by_type"]) and found["comparison"]["p"] == 1.0


def test_a_result_at_the_majority_baseline_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start(made(tmp_path, 1, "train.learning_rate=1e-9", "train.score=accuracy"))
    assert "warning: validation accuracy " in (err := capfd.readouterr().err)
    assert "always predicting the most frequent tag (majority baseline): " in err and "train.epochs" in err
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert found["warning"].startswith("f1 ") and 0 < found["majority_baseline"] <= 100


def test_a_run_resumes_bit_identically(tmp_path: Path) -> None:
    for name, steps in (("whole", 4), ("halves", 2)):
        (tmp_path / name).mkdir()
        start(made(tmp_path / name, steps, "train.schedule=constant"), quiet=True)
    resume(tmp_path / "halves" / "run", quiet=True, overrides=["train.max_steps=4"])
    ours, theirs = (regard.load(tmp_path / name / "run/checkpoint-4").network for name in ("whole", "halves"))
    assert isinstance(ours, TokenClassifier)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_predictions_have_character_offsets(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model: Any = regard.load(trained)
    text = "On  3 May 1986,\tDovemi (of Lortal-Zan Ltd) moved to Zanfurt."
    answer = model.run(text)
    assert answer.words == (
        "On",
        "3",
        "May",
        "1986",
        ",",
        "Dovemi",
        "(",
        "of",
        "Lortal-Zan",
        "Ltd",
        ")",
        "moved",
        "to",
        "Zanfurt",
        ".",
    )
    for named in answer.entities:
        assert text[named.start : named.end] == named.text and 0 < named.score <= 1
    listed = model.run([list(answer.words)])[0]
    assert listed.tags == answer.tags and listed.source == " ".join(answer.words)
    with pytest.raises(SystemExit):
        main(["run", str(trained), text, "--json"])
    said = json.loads(capfd.readouterr().out)
    assert [each["label"] for each in said["entities"]] == [each.label for each in answer.entities]
    with pytest.raises(SystemExit):
        main(["run", str(trained), text])
    assert capfd.readouterr().out.rstrip("\n") == " ".join(answer.text.splitlines())
    assert [word.group() for word in WORD.finditer("it's 1,000 U.S. $")] == ["it's", "1,000", "U.S", ".", "$"]
    with pytest.raises(UserError, match="input 1 should be a text, or a list of its words"):
        model.run([["a", 3]])
    assert model.run("").entities == ()


def test_long_texts_and_other_sequences_in_the_batch_change_nothing(trained: Path) -> None:
    """Each word of a long text is predicted once; short texts as if alone."""
    model: Any = regard.load(trained)
    sentences = [list(sentence.words) for sentence in names(5, "test", 9)]
    alone = [word_probabilities(model.network, model.processor.target, [words])[0] for words in sentences]
    together = word_probabilities(model.network, model.processor.target, sentences, 4)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    long = [word for words in sentences for word in words]
    (found,) = word_probabilities(model.network, model.processor.target, [long])
    assert len(found) == len(long) > model.network.max_positions
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    assert len(model.run(" ".join(long)).tags) == len(long)


def test_a_pre_trained_encoder_is_fine_tuned_and_opens_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    place = folder(tmp_path, MaskedLM)
    for name, model in (("whole", f'from = "{place}"'), ("adapter", f'from = "{place}"\nlora_rank = 2')):
        (tmp_path / name).mkdir()
        start(made(tmp_path / name, 2, model=model), quiet=True)
        ours: Any = regard.load(tmp_path / name / "run")
        assert ours.task == "tag" and ours.network.labels[0] == "O"
        ours.save(tmp_path / name / "saved")
        words = ["hello", "the", "quotes"]
        theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / name / "saved").eval()
        encoded = ours.processor.target.inner.encode(" ".join(words))
        logits = theirs(torch.tensor([encoded.ids])).logits[0]
        (chances,) = word_probabilities(ours.network, ours.processor.target, [words])
        firsts = [encoded.char_to_token(begin) for begin in (0, 6, 10)]
        np.testing.assert_allclose(logits.softmax(-1)[firsts].detach().numpy(), chances, atol=1e-5)


def test_parts_of_speech_are_scored_by_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [("w1 w2 w3", "DET NOUN VERB"), ("w2 w3", "NOUN VERB")] * 4
    write(tmp_path / "train.conll", rows)
    write(tmp_path / "test.conll", rows[:2])
    data = 'train = "train.conll"\nvalidation = "test.conll"'
    start(made(tmp_path, 2, data=data), quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert len(model.run("w1 w2").entities) == 2
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), str(tmp_path / "test.conll"), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert [score["name"] for score in found["scores"]] == ["accuracy"] and found["words"] == 5
    with pytest.raises(UserError, match="expected one of: accuracy, loss"):
        start(made(tmp_path, 2, "train.score=f1", f"output={tmp_path}/never", data=data), quiet=True)


def test_impossible_options_are_errors(tmp_path: Path) -> None:
    data = 'train = "train.conll"\nvalidation = "test.conll"'
    write(tmp_path / "train.conll", [("Ada wrote", "B-PER O")] * 3)
    write(tmp_path / "test.conll", [("Ada wrote", "B-PER O"), ("in London", "O B-LOC")])
    cases = [
        (made(tmp_path, data=data), r"test\.conll:4: the tag 'B-LOC' of word 2, 'London', is none of those that"),
        (
            made(tmp_path, model='family = "gpt"\npreset = "tiny"'),
            "does not support task = 'tag'; expected one of: .*bert",
        ),
        (made(tmp_path, 1, "data.synthetic=dates"), "is not a dataset of tagged sentences; did you mean 'names'"),
    ]
    for options, said in cases:
        with pytest.raises(UserError, match=said):
            start(options, quiet=True)
    write(tmp_path / "other.conll", [("Ada wrote", "B-PER O")] * 3)
    start(made(tmp_path, 1, data='train = "other.conll"'), quiet=True)
    model = regard.load(tmp_path / "run")
    with pytest.raises(UserError, match=r"test\.conll:4: the tag 'B-LOC'"):  # nor asked of a model of other tags
        evaluate_task([model], EvaluationRequest(str(tmp_path / "test.conll")))


def test_the_doctor_checks_sentences(tmp_path: Path) -> None:
    found = examine(made(tmp_path))
    assert found.facts["samples"]["train"]["kept"] == 60 and found.facts["time"]["steps"] == 4
