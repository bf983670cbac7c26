"""Documents longer than an encoder's context: overlapping segments, classification from all of them, save and load."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.cli.main import main
from regard.errors import UserError
from regard.layers.inputs import TokenBatch, pad
from regard.models.heads.hierarchical import SEGMENTS_AT_ONCE, Documents
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from regard.training.build import resume, start
from tests.tasks.classify.test_task import recipe
from tests.test_model import folder

SCRATCH = 'family = "bert"\npreset = "tiny"\nwidth = 24\nheads = 2\nlimit = 16\ndropout = 0.0'
LENGTHS = [23, 2, 10, 11, 31, 16, 17, 3, 19]
SEGMENT = ("data.segment_length=10", "data.stride=6", "tokenizer.kind=words")


def network(segment: int = 10, stride: int = 6, **fields: Any) -> Any:
    torch.manual_seed(1)
    sizes = {"family": "bert", "preset": "tiny", "width": 22, "max_positions": 12, "dropout": 0.0}
    made = Documents(build(sizes | fields, vocabulary=61), ("early", "late"), segment, stride).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def documents() -> list[list[int]]:
    chance = random.Random(1)
    return [[1, *(chance.randrange(3, 61) for _ in range(length - 2)), 2] for length in LENGTHS]


def plainly(row: list[int], segment: int, stride: int) -> list[list[int]]:
    """Split one document as in the paper."""
    inside, found, begin = row[1:-1], [], 0
    while not found or begin + segment - 2 - stride < len(inside):
        found.append([row[0], *inside[begin : begin + segment - 2], row[-1]])
        begin += stride
    return found


@pytest.mark.parametrize(("segment", "stride"), [(10, 6), (10, 8), (5, 1), (12, 3)])
def test_a_document_is_split_into_all_its_segments(segment: int, stride: int) -> None:
    rows = documents()
    cut = network(segment, stride).split_into_segments(pad(rows, 0))
    expected = [plainly(row, segment, stride) for row in rows]
    assert cut.counts.tolist() == [len(each) for each in expected]
    found = [row[:length] for row, length in zip(cut.text.tokens.tolist(), cut.text.lengths.tolist(), strict=True)]
    assert found == [one for each in expected for one in each]
    assert not cut.text.tokens[~cut.text.real].any()


def test_a_text_of_one_token_is_one_token() -> None:
    """As `module` may be given it, without what a tokenizer puts round a text."""
    cut = network().split_into_segments(pad([[7], [1, 5, 2]], 0))
    assert cut.text.lengths.tolist() == [1, 3] and cut.text.tokens.tolist() == [[7, 0, 0], [1, 5, 2]]
    assert cut.last.sum(1).tolist() == [1, 3]


@torch.no_grad()
def test_it_is_an_lstm_over_the_encoders_output_for_each_segment() -> None:
    found, rows = network(), documents()
    together = found(pad(rows, 0))
    for row, logits in zip(rows, together, strict=True):
        vectors = [found.body.pooled(found.body.encode(pad([each], 0))) for each in plainly(row, 10, 6)]
        _, (last, _) = found.rnn.forwards[0].layers(torch.cat(vectors)[None])
        torch.testing.assert_close(found.head(last[0, 0]), logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_every_position_has_a_hidden_state_from_the_last_segment_that_contains_it() -> None:
    found, rows = network(), documents()
    text = pad(rows, 0)
    states = found.encode(text)
    assert states.shape == (len(rows), 31, 22) and not states[~text.real].any()
    for row, each in zip(rows, states, strict=True):
        segments = plainly(row, 10, 6)
        expected: dict[int, Tensor] = {}
        for number, segment in enumerate(segments):
            read = found.body.encode(pad([segment], 0))[0]
            expected.setdefault(0, read[0])
            expected |= {number * 6 + place: read[place] for place in range(1, len(segment) - 1)}
            expected[len(row) - 1] = read[-1]
        for place, state in expected.items():
            torch.testing.assert_close(each[place], state, atol=1e-5, rtol=0)


@torch.no_grad()
def test_many_segments_are_encoded_in_batches() -> None:
    found, rows = network(), documents()
    many = [rows[0]] * SEGMENTS_AT_ONCE
    alone, together = found(pad([rows[0]], 0)), found(pad(many, 0))
    torch.testing.assert_close(together, alone.expand_as(together), atol=1e-5, rtol=0)


def lay_out(place: Path) -> Path:
    """Documents that end with w0 or w1, which whoever reads as much as the encoder can never comes to."""
    chance = random.Random(3)
    for name, size in (("train", 120), ("validation", 40), ("test", 40)):
        rows = []
        for _ in range(size):
            words = [f"w{chance.randrange(2, 9)}" for _ in range(chance.randint(18, 30))]
            late = chance.random() < 0.5
            rows.append(f"{'late' if late else 'early'}\t{' '.join(words)} {'w0 w0' if late else 'w1 w1'}")
        (place / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    return place


def test_it_learns_from_text_beyond_the_encoders_limit_and_its_folder_loads(tmp_path: Path, capfd: Any) -> None:
    options = ("train.learning_rate=3e-3", "train.eval_steps=80", "train.save_steps=80", "data.test=test.tsv")
    start(recipe(lay_out(tmp_path), SCRATCH, 80, *SEGMENT, *options), quiet=True)
    assert json.loads((tmp_path / "run/best.json").read_text())["score"] > 90
    model: Any = regard.load(tmp_path / "run")
    told = json.loads((model.folder / "config.json").read_text())
    assert told["architectures"] == ["BertForDocumentClassification"]
    assert (told["segment"], told["segment_stride"]) == (10, 6)
    texts = [line.split("\t")[1] for line in (tmp_path / "test.tsv").read_text().splitlines()[1:]]
    model.save(tmp_path / "again")
    again: Any = regard.load(tmp_path / "again")
    assert again.task == "classify" and again.run(texts) == model.run(texts)
    assert model.embed(texts[:3]).shape == (3, 24)
    ids = torch.tensor([model.processor.target.inner.encode(texts[0]).ids])
    out = model.module(input_ids=ids)
    assert out.logits.shape == (1, 2) and out.last_hidden_state.shape == (1, ids.size(1), 24)
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(tmp_path / "run"), "--json", "--threads", "1"])
    assert left.value.code == 0
    assert json.loads(capfd.readouterr().out)["scores"][0]["value"] > 90


def test_every_segment_is_seen(tmp_path: Path) -> None:
    start(recipe(lay_out(tmp_path), SCRATCH, 2, *SEGMENT), quiet=True)
    model: Any = regard.load(tmp_path / "run")
    text = " ".join(f"w{number % 7}" for number in range(17))  # 8 + 8 + 5
    trace = model.trace(text, prove=True)
    assert len(trace.sites) == 3 * 2 and trace.answer == model.run(text).label
    for site in trace.sites:
        weights, (rows, columns) = trace.weights(site), trace.labels(site)
        assert weights.shape[1:] == (len(rows), len(columns))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5, rtol=0)
        mixed, used = trace.proof(site)
        torch.testing.assert_close(mixed, used, atol=1e-5, rtol=0)
    last = trace.sites[-1]
    assert trace.labels(last)[0][1:-1] == trace.source[13:-1] and len(trace.labels(last)[0]) == 7
    alone = model.network.body.eval()
    cut = model.network.split_into_segments(pad([model.processor.target.inner.encode(text).ids], 0)).text
    with record() as recorder, torch.no_grad():
        alone.encode(TokenBatch(cut.tokens[2:, :7], cut.lengths[2:]))
    expected = Trace(recorder).weights("encoder.blocks.1.self")
    torch.testing.assert_close(trace.weights(last), expected, atol=1e-5, rtol=0)
    assert torch.equal(trace.weights(last, 1, slice(2, 4)), trace.weights(last)[1, 2:4])
    assert trace.explore(tmp_path / "page.html").is_file()
    with pytest.raises(UserError, match="no attention at 'encoder"):
        trace.weights("encoder.blocks.0.self")


@pytest.mark.parametrize("adapter", [False, True])
def test_published_weights_are_used_and_an_interrupted_run_resumes(adapter: bool, tmp_path: Path) -> None:
    place = folder(tmp_path)
    lay_out(tmp_path)
    model = f'from = "{place}"' + ("\nlora_rank = 2" if adapter else "")
    options = ("data.segment_length=12", "train.ema_decay=0.8", "train.eval_steps=100", "train.unfreeze_steps=2")
    start(recipe(tmp_path, model, 6, *options, f"output={tmp_path / 'whole'}"), quiet=True)
    start(recipe(tmp_path, model, 4, *options), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=6"])
    for name in ("adapter_model.safetensors" if adapter else "model.safetensors", "training.safetensors"):
        one, two = (tmp_path / run / "checkpoint-6" / name for run in ("whole", "run"))
        assert one.read_bytes() == two.read_bytes(), name
    opened: Any = regard.load(tmp_path / "run/checkpoint-6").network
    assert isinstance(opened, Documents) and (opened.segment, opened.stride) == (12, 9)
    state = load_file(tmp_path / "run/checkpoint-6/training.safetensors")
    name = "rnn.forwards.0.layers.weight_hh_l0"
    assert torch.equal(dict(opened.named_parameters())[name], state[f"average/{name}"])


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "albert"])
def test_relatives_without_their_own_pooler_are_written_too(kind: str, tmp_path: Path) -> None:
    fields = {
        "roberta": dict(token_types=1, position_offset=2, epsilon=1e-5, output_activation="gelu", pooler=False),
        "distilbert": dict(token_types=0, pooler=False, pooler_activation="relu"),
        "albert": dict(hidden_groups=1, embedding_width=14, activation="gelu_tanh"),
    }[kind]
    place = folder(tmp_path, lambda body: Documents(body, ("early", "late"), 9, 5), **fields)
    opened: Any = regard.load(place)
    assert json.loads((place / "config.json").read_text())["model_type"] == f"regard-classifier-{kind}"
    again = tmp_path / "again"
    opened.save(again)
    assert (again / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()
    assert type(opened.network) is Documents and opened.run("hello the quotes " * 9).label in ("early", "late")


@pytest.mark.parametrize(
    ("model", "option", "said"),
    [
        (SCRATCH, "data.segment_length=17", "data.segment_length = 17, but the encoder reads at most 16 tokens"),
        (SCRATCH, "data.segment_length=2", "must be more than the two special tokens of a segment"),
        (SCRATCH, "data.stride=9", "a segment of 10 tokens has 8 of the text, and none may be passed over"),
        (SCRATCH, "data.text_pair=label", "a document is one text"),
        ('family = "gpt"\npreset = "tiny"', "seed=1", "segments need an encoder"),
    ],
)
def test_impossible_options_are_errors(model: str, option: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        start(recipe(lay_out(tmp_path), model, 2, *SEGMENT, option), quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_must_put_a_token_on_either_side(tmp_path: Path) -> None:
    """Else the first and the last word of a document would surround each of its segments."""
    lay_out(tmp_path)
    options = ("data.segment_length=0", "data.stride=0", f"output={tmp_path / 'other'}", "tokenizer.kind=words")
    start(recipe(tmp_path, 'family = "gpt"\npreset = "tiny"\nwidth = 24\nheads = 2', 1, *options), quiet=True)
    with pytest.raises(UserError, match="one special token before and one after it"):
        start(
            recipe(tmp_path, SCRATCH, 2, "data.segment_length=10", f"tokenizer.folder={tmp_path / 'other'}"), quiet=True
        )


def test_a_loaded_model_segments_documents_as_in_training(tmp_path: Path) -> None:
    whole = folder(tmp_path / "a", lambda body: Classifier(body, ("early", "late")))
    cut = folder(tmp_path / "b", lambda body: Documents(body, ("early", "late"), 9, 5))
    lay_out(tmp_path)
    for place, option, said in (
        (whole, "data.segment_length=9", "reads texts as a whole"),
        (cut, "seed=1", "in segments of 9"),
    ):
        with pytest.raises(UserError, match=said):
            start(recipe(tmp_path, f'from = "{place}"', 2, option), quiet=True)
