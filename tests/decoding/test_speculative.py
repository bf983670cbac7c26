"""Guessing ahead on real weights: the answers are those of plain greedy search, in fewer steps where text repeats."""

import pytest
import torch
from needs import need_weights

import regard
from regard.model import Model

NEAR = 1e-4  # of the two best logits: there rounding may decide either way


@pytest.fixture(scope="module")
def stories() -> Model:
    return regard.load(need_weights("stories15M"), device="cpu")


def beginnings(model: Model, count: int) -> list[list[int]]:
    """Prompts of 5 to 40 tokens: the heads of stories the model makes up."""
    story = model.run("Once upon a time", temperature=1.2, max_new_tokens=40, num_return_sequences=count, seed=7)
    prompt = model.processor.target.prompt("Once upon a time")
    return [[*prompt, *each.tokens][: 5 + index % 36] for index, each in enumerate((story, *story.alternatives))]


@torch.no_grad()
def margin(model: Model, tokens: list[int]) -> float:
    """By how much the best next token is ahead of the second."""
    first, second = model.network(torch.tensor([tokens]))[0, -1].topk(2).values.tolist()
    return first - second


def differences(model: Model, prompts: list[list[int]], **options: object) -> tuple[int, int]:
    """On how many prompts the answers differ after a near tie, and on how many for no such reason."""
    near = wrong = 0
    for prompt in prompts:
        plain, guessed = (model.generate(prompt, max_new_tokens=48, **ways) for ways in ({}, options))
        if plain != guessed:
            same = next(index for index, pair in enumerate(zip(plain, guessed, strict=False)) if pair[0] != pair[1])
            tie = margin(model, prompt + plain[:same]) <= NEAR
            near, wrong = near + tie, wrong + (not tie)
    return near, wrong


@pytest.mark.parametrize("way", ["lookup", "draft"])
@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_the_answers_are_those_of_plain_search(stories: Model, way: str, count: int) -> None:
    draft = regard.load(need_weights("stories15M"), device="cpu", precision="int8") if way == "draft" else None
    near, wrong = differences(
        stories, beginnings(stories, count), **({"lookup": True} if not draft else {"draft": draft})
    )
    print(f"{way}: {count} prompts, {near} differ after a near tie")
    assert wrong == 0


def test_text_that_repeats_itself_takes_fewer_steps(stories: Model) -> None:
    """Prompt lookup suits a model that copies: its output occurs in its prompt."""
    from regard.config.recipe import DecodeOptions

    sentence = "Tom has a red ball. Tom has a red ball. Tom has a red ball. Tom has a red"
    prompt = stories.processor.target.prompt(sentence)
    result = (
        stories.predictor()
        .text_generator(lookup=True)
        .speculate(prompt, DecodeOptions(max_new_tokens=60, repetition_penalty=0.7))
    )
    assert len(result.answer.tokens) == 60
    assert result.steps < 30
