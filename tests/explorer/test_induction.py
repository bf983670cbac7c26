"""Scores of heads: exact on attention made by hand, and found in a network that was built to have an induction head."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention.recording import record
from regard.cli.main import main
from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe, TokenizerOptions
from regard.data.synthetic.in_context import DATASETS
from regard.explorer.induction import answer_scores, attention_share, head_scores, induction_scores, text_tokens
from regard.interop import folder as folders
from regard.models.registry import build, sizes
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary
from tests.models.test_language_models import GPT, LLAMA, TOKENS, made


def test_a_share_is_the_mean_over_queries_that_have_something_to_find() -> None:
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.2, 0.3, 0.5]]])[None]  # one row, one head
    other = torch.full_like(weights, 1 / 3)
    seen = torch.zeros(1, 3, 3, dtype=torch.bool)
    seen[0, 1, 0] = seen[0, 2, 0] = seen[0, 2, 1] = True
    shares = attention_share(torch.cat([weights, other], 1), seen)
    assert shares.tolist() == pytest.approx([(0.3 + 0.5) / 2, (1 / 3 + 2 / 3) / 2])


class Planted:
    """A stand-in for a network: at one site each head's attention is given by `look(tokens)`."""

    max_positions = 40

    def __init__(self, attend: Any):
        self.attend = attend

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def __call__(self, tokens: Tensor) -> None:
        from regard.attention.recording import recorder

        watching = recorder()
        assert watching is not None
        watching.records["decoder.blocks.0.self"] = [SimpleNamespace(weights=lambda: self.attend(tokens))]  # pyright: ignore


def planted(attend: Any) -> Any:
    return Planted(attend)


def induction(tokens: Tensor) -> Tensor:
    """Head 0 attends to the token after the last occurrence, head 1 to that occurrence, head 2 to the previous one."""
    rows, length = tokens.shape
    weights = torch.zeros(rows, 3, length, length)
    for row, line in enumerate(tokens.tolist()):
        for position, token in enumerate(line):
            earlier = [each for each in range(position) if line[each] == token]
            weights[row, 0, position, earlier[-1] + 1 if earlier else 0] = 1
            weights[row, 1, position, earlier[-1] if earlier else position] = 1
            weights[row, 2, position, max(0, position - 1)] = 1
    return weights


def test_prefix_matching_is_one_for_an_induction_head_and_nothing_else() -> None:
    shares = induction_scores(planted(induction), range(100), rows=5, length=17)
    assert shares["decoder.blocks.0.self"].tolist() == [1, 0, 0]


def test_a_uniform_head_matches_in_proportion_to_positions() -> None:
    def uniform(tokens: Tensor) -> Tensor:
        length = tokens.size(1)
        weights = torch.ones(length, length).tril()
        return (weights / weights.sum(-1, keepdim=True)).expand(tokens.size(0), 1, -1, -1)

    (shares,) = induction_scores(planted(uniform), range(100), rows=3, length=10).values()
    assert float(shares) == pytest.approx(sum(1 / position for position in range(11, 21)) / 10)


def test_answers_are_scored_from_the_last_token_of_each_prompt() -> None:
    def attend(tokens: Tensor) -> Tensor:
        weights = torch.zeros(tokens.size(0), 1, tokens.size(1), tokens.size(1))
        weights[0, 0, 4, 1], weights[0, 0, 4, 3], weights[0, 0, 4, 4] = 0.5, 0.2, 0.3
        weights[1, 0, 2, 1] = 1.0
        weights[1, 0, 4, 0] = 1.0  # padding looks, which is nobody's business
        return weights

    (shares,) = answer_scores(planted(attend), [[9, 7, 9, 7, 8], [3, 4, 5]], [7, 3]).values()
    assert float(shares) == pytest.approx((0.7 + 0.0) / 2)


@pytest.mark.parametrize("family", [GPT, LLAMA], ids=["gpt", "llama"])
def test_of_real_networks_every_site_and_head_has_a_share(family: dict[str, Any]) -> None:
    network = made(family)
    shares = induction_scores(network, range(TOKENS), rows=3, length=11)
    with record() as recorder:
        network(torch.zeros(1, 2, dtype=torch.long))
    assert list(shares) == list(recorder.records)
    for scores in shares.values():
        assert scores.shape == (family["heads"],)
        assert ((scores >= 0) & (scores <= 1)).all()


def test_heads_of_a_model_with_questions_of_its_own() -> None:
    words = train_tokenizer(
        DATASETS["mappings"].documents(1, "train", 50), TokenizerOptions(kind="byte_bpe", vocab_size=400)
    )
    torch.manual_seed(1)
    shape: dict[str, Any] = GPT | dict(max_positions=90)
    network = build(shape, vocabulary=words.size).eval()
    recipe = Recipe(task="generate", output="", data=DocumentOptions(train=1, synthetic="mappings"))
    model: Any = SimpleNamespace(network=network, processor=Vocabulary(words, words), recipe=recipe)
    rows = head_scores(model)
    assert len(rows) == shape["heads"] * shape["depth"]
    assert list(rows[0]) == ["site", "head", "prefix_matching", "answers"]
    model.recipe = None
    without = head_scores(model)
    assert "answers" not in without[0]
    assert not {words.begin, words.end, words.pad, words.unknown} & set(text_tokens(words))


def test_inspect_names_the_heads_of_a_language_model_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = train_tokenizer(
        DATASETS["colours"].documents(1, "train", 50), TokenizerOptions(kind="byte_bpe", vocab_size=340)
    )
    across: dict[str, Any] = dict(family="transformer", width=8, heads=2, depth=1, feedforward=8)
    back: dict[str, Any] = GPT | dict(depth=2)
    for name, model in {"back": back, "across": across}.items():
        vocabulary = Vocabulary(words, words)
        folders.save(tmp_path / name, build(model, **sizes(model["family"], words.size, words.size)), vocabulary, {})
    with pytest.raises(SystemExit) as left:
        main(["inspect", str(tmp_path / "back"), "--heads", "--json"])
    assert not left.value.code
    assert len(json.loads(capfd.readouterr().out)["heads"]) == back["heads"] * back["depth"]
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "across"), "--heads"])
    assert "--heads is for causal language models" in capfd.readouterr().err
