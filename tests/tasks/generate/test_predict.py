"""Corner cases of writing: what stops it, what limits it, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import change
from needs import need_weights

import regard
from regard.config.recipe import DecodeOptions, TokenizerOptions, load_recipe
from regard.decoding.speculative import PromptLookup, speculate
from regard.errors import UserError
from regard.explorer.page import map_of
from regard.model import Model
from regard.models.registry import build
from regard.tasks.generate.text_generator import TextGenerator, _split
from regard.text.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def stories() -> Model:
    return regard.load(need_weights("stories260K"), device="cpu")


def writer(**options: object) -> TextGenerator:
    """A model that repeats the same characters, by tokens of a byte each."""
    tokenizer = train_tokenizer(["a"], TokenizerOptions(kind="bytes"), append_eos=False)
    torch.manual_seed(3)
    network: Any = build(
        {"family": "gpt", "width": 8, "heads": 1, "depth": 1, "max_positions": 64}, vocabulary=tokenizer.size
    )
    return TextGenerator(network.eval(), tokenizer, -1)


def test_a_stop_sequence_may_have_many_tokens() -> None:
    """Cyrillic letters are two bytes each."""
    stopped = writer()._stop_condition(DecodeOptions(stop=("Конец истории",)))
    tokens = writer().tokenizer.encode("Вот и всё. Конец истории")
    assert stopped is not None and stopped(tokens) and not stopped(tokens[:-1])


def test_a_special_token_as_a_stop_sequence_ends_the_text(stories: Model) -> None:
    made = stories.predictor("generate").text_generator()
    (name, token) = next(iter(made.tokenizer.special.items()))
    assert token in made._eos_ids(DecodeOptions(stop=(name,)))


def test_the_earliest_of_several_stop_sequences_counts() -> None:
    assert _split("xab", ["b", "a"]) == ("x", "ab")
    assert _split("xa", ["ab"]) == ("x", "a")


def test_speculative_decoding_ends_if_no_token_is_allowed_or_finite() -> None:
    made = writer()
    size = made.tokenizer.size
    options = DecodeOptions(suppress_tokens=tuple(range(size)), max_new_tokens=8)
    found = speculate(made.network, torch.tensor([[5, 6]]), (), options, 8, PromptLookup())
    assert found.answer.tokens == [] and not found.answer.finished
    for weight in made.network.output.parameters():
        torch.nn.init.constant_(weight, math.nan)
    guessing = TextGenerator(made.network, made.tokenizer, -1, PromptLookup)
    with pytest.raises(UserError, match="not finite"):
        guessing.search([[5, 6]], DecodeOptions(max_new_tokens=4))


def test_a_published_limit_that_counts_the_prompt_is_none_of_new_tokens(tmp_path: Path, stories: Model) -> None:
    stories.save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"max_length": 512, "min_length": 100}')
    change(tmp_path, bos_token_id=1)
    options = regard.load(tmp_path, device="cpu").predictor().decode_options()
    assert (options.max_new_tokens, options.min_new_tokens) == (0, 0)


def test_ids_of_numpy_are_one_prompt(stories: Model) -> None:
    ids = np.array([1, 5, 9])
    expected = stories.generate([1, 5, 9], max_new_tokens=3)
    assert stories.generate(list(ids), max_new_tokens=3) == stories.generate(ids, max_new_tokens=3) == expected
    with pytest.raises(UserError, match="list of whole numbers"):
        stories.generate(5)


REFUSED = {
    "a batch of none": (dict(batch_size=0), "batch_size = 0"),
    "a batch of words": (dict(batch_size="4"), "batch_size = '4'"),
    "two who guess": (dict(lookup=True, draft="x"), "one of draft and lookup"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_impossible_options_are_errors(stories: Model, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        stories.run("Once", **options)


def test_an_option_of_another_command_is_named(stories: Model) -> None:
    with pytest.raises(UserError, match="'batch_size' is not an option here; `run` has it"):
        stories.generate([1, 5], batch_size=4)


def test_int8_has_no_speculative_decoding() -> None:
    small = regard.load(need_weights("stories260K"), device="cpu", precision="int8")
    with pytest.raises(UserError, match="rounded differently"):
        small.run("Once", lookup=True)


def test_only_its_own_score_is_taken(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abc " * 200)
    recipe = load_recipe("write", [f"data.train={tmp_path}/t.txt", "train.score=bleu", "tokenizer.kind=characters"])
    from regard.training.build import start

    with pytest.raises(UserError, match=r"train\.score = 'bleu' is not a metric of task = 'generate'"):
        start(recipe)


def test_an_input_that_is_not_text_is_an_error(stories: Model) -> None:
    with pytest.raises(UserError, match="one input or a list of them, not None"):
        stories.run(None)  # type: ignore[arg-type]


def test_rows_of_a_trace_are_the_tokens_that_attend(stories: Model) -> None:
    trace = stories.trace("Once upon a time", target=" there was")
    rows, columns = trace.labels(trace.sites[0])
    assert rows == columns == trace.target
    assert trace.output[:-1] == trace.target[1:]
    weights = trace.weights(trace.sites[0], head=0)
    assert torch.equal(weights, weights.tril()) and len(rows) == len(weights)
    shown = map_of(trace, "model", "name")["sites"][0]
    assert shown.get("rows") == trace.target == shown.get("columns")
