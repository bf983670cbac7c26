"""Running text in sliding windows: the figures are those of a loop by hand, and the bootstrap draws windows."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from regard.cli.main import main
from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe, TokenizerOptions
from regard.data.token_stream import TokenStream
from regard.errors import UserError
from regard.layers.autoregressive import TransformerLM
from regard.tasks.generate.evaluate import evaluate, scores, select
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary
from tests.models.test_language_models import GPT, LIMIT, TOKENS, made

TEXT = np.random.default_rng(5).integers(0, TOKENS, 307)
WORDS = train_tokenizer(iter(["a word and another word\n"] * 3), TokenizerOptions(kind="byte_bpe", vocab_size=300))


def text(tokens: np.ndarray = TEXT) -> tuple[str, TokenStream]:
    """A text in memory, of three bytes a token."""
    found = SimpleNamespace(tokens=tokens, bytes=3 * len(tokens), __len__=lambda: len(tokens))
    return "text", cast(TokenStream, type("Text", (), {**vars(found), "__len__": lambda self: len(tokens)})())


def model(network: TransformerLM, length: int = 0) -> Any:
    data = DocumentOptions(train=1, synthetic="mappings", max_length=length)
    recipe = Recipe(task="generate", output="", data=data)
    return SimpleNamespace(network=network, recipe=recipe, processor=Vocabulary(WORDS, WORDS))


@torch.no_grad()
def by_hand(network: TransformerLM, length: int, stride: int) -> float:
    """The sum over tokens of −log p, each in the window that first reaches it: one token at a time."""
    total = 0.0
    for place in range(1, len(TEXT)):
        if place <= length:  # the first window
            begin = 0
        else:
            end = min(len(TEXT), length + 1 + stride * math.ceil((place - length) / stride))
            begin = end - length - 1
        logits = network(torch.tensor(TEXT[begin:place])[None])[0, -1]
        total -= float(logits.log_softmax(-1)[int(TEXT[place])])
    return total


@pytest.mark.parametrize(("length", "stride"), [(LIMIT, 20), (LIMIT, 7), (LIMIT, LIMIT), (16, 5)])
def test_sliding_windows_equal_a_loop_over_tokens(length: int, stride: int) -> None:
    network = made(GPT)
    found = evaluate(model(network, length), text(), stride, batch_size=5)
    loss, perplexity, bits = (score.value for score in found["scores"])
    expected = by_hand(network, length, stride)
    assert loss == pytest.approx(expected / (len(TEXT) - 1), rel=1e-5)
    assert perplexity == pytest.approx(math.exp(loss))
    assert bits == pytest.approx(expected / math.log(2) / (3 * len(TEXT)), rel=1e-2)  # the first token is not predicted


@torch.no_grad()
def test_a_stride_of_the_full_context_gives_disjoint_blocks() -> None:
    network, length = made(GPT), LIMIT
    whole = len(TEXT) // length * length + 1
    found = evaluate(model(network), text(TEXT[:whole]), stride=length)
    blocks = torch.tensor(np.stack([TEXT[begin : begin + length + 1] for begin in range(0, whole - 1, length)]))
    logits = network(blocks[:, :-1]).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, blocks[:, 1:].flatten())
    assert found["windows"] == len(blocks)
    assert found["scores"][0].value == pytest.approx(float(expected), rel=1e-5)


def test_the_default_stride_is_half_the_context_and_in_the_signature() -> None:
    found = evaluate(model(made(GPT)), text())
    assert f"tokens:BPE.{WORDS.size}." in found["scores"][0].signature
    assert f"|context:{LIMIT}|stride:{LIMIT // 2}|" in found["scores"][0].signature
    with pytest.raises(UserError, match=f"--stride 99: must be at most {LIMIT}, the tokens"):
        evaluate(model(made(GPT)), text(), stride=99)


def test_another_tokenizer_has_another_name() -> None:
    other = train_tokenizer(iter(["other words\n"] * 3), TokenizerOptions(kind="byte_bpe", vocab_size=300))
    assert other.signature != WORDS.signature == WORDS.signature


def test_intervals_are_those_of_the_windows() -> None:
    draws = np.random.default_rng(3).normal(-50, 5, 401)
    found = {score.name: score for score in scores([(total, 25) for total in draws], 20_000, "")}
    loss = found["loss"]
    assert loss.value == pytest.approx(-draws.mean() / 25)
    assert loss.interval == pytest.approx(1.96 * draws.std() / 25 / 401**0.5, rel=0.1)
    assert found["perplexity"].interval == pytest.approx(loss.interval * math.exp(loss.value), rel=0.05)
    assert found["bits_per_byte"].value == pytest.approx(loss.value * 401 * 25 / 20_000 / math.log(2))
    assert found["bits_per_byte"].interval / found["bits_per_byte"].value == pytest.approx(loss.interval / loss.value)
    assert all(score.interval == 0 for score in scores([(-50.0, 25)], 100, ""))


def test_a_model_without_text_asks_for_some() -> None:
    with pytest.raises(UserError, match="give a FILE of text"):
        select(None, None, "", WORDS)
    with pytest.raises(UserError, match=r"neither data\.test nor data\.validation"):
        select(model(made(GPT)).recipe, None, "", WORDS)


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────

RECIPE = """
task = "generate"
[data]
generate = "mappings"
train = 60
validation = 10
test = 7
[tokenizer]
vocab_size = 400
[model]
family = "gpt"
width = 8
heads = 2
depth = 2
max_positions = 70
[train]
batch_size = 2
max_steps = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.toml").write_text(RECIPE)
    with pytest.raises(SystemExit) as left:
        main(["train", str(folder / "small.toml"), f"output={folder / 'small'}", "--quiet"])
    assert not left.value.code
    return folder / "small"


def regard(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["evaluate", *words, "--json"])
    out, err = capfd.readouterr()
    return (json.loads(out) if not left.value.code else None), err


def test_the_command_evaluates_a_file_or_the_test_split(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.txt").write_text("gub sleeps → red\n" * 30, encoding="utf-8")
    file, _ = regard(capfd, str(run), str(tmp_path / "some.txt"), "--stride", "9")
    assert file["bytes"] == len("gub sleeps → red\n".encode()) * 30
    assert [score["name"] for score in file["scores"]] == ["loss", "perplexity", "bits_per_byte"]
    split, _ = regard(capfd, str(run))
    assert (split["split"], split["windows"]) == ("test", math.ceil((split["tokens"] - 1 - 70) / 35) + 1)


def test_the_command_evaluates_with_shots(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found, _ = regard(capfd, str(run), "--shots", "0,2", "--seeds", "2", "--plot", str(tmp_path / "shots.svg"))
    assert [(row["shots"], row["answers"]) for row in found["shots"]] == [(0, 14), (2, 14)]
    assert "small: 0 →" in (tmp_path / "shots.svg").read_text(encoding="utf-8")
    lines = [{"text": f"{name} runs", "label": label} for name, label in zip("abcd", ("red", "blue") * 2, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = (str(run), str(tmp_path / "rows.jsonl"), "--shots", "1", "--template", "{text}: {label}\\n")
    for way in ("likelihood", "generation"):
        found, _ = regard(capfd, *words, "--by", way)
        assert (found["rows"], found["shots"][0]["answers"], found["chance"]) == (4, 12, 50)
        assert f"by:{way}|template:'{{text}}: {{label}}\\n'" in found["signature"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-beams", "2"], "--num-beams is not an option of the evaluation of text by a causal language model"),
        (["--by-length"], "--by-length is not an option of the evaluation of text by a causal language model"),
        (["--limit", "3"], "--limit is not an option of the evaluation of text by a causal language model"),
        (["--plot", "a.svg"], "--plot is not an option of the evaluation of text by a causal language model"),
        (["--shots", "1", "--stride", "3"], "--stride is not an option of the evaluation of few-shot prompts"),
        (["--shots", "40"], r"context is 70; --shots \d+ fits"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    run: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert re.search(said, regard(capfd, str(run), *words)[1])
