"""Learning from examples in the prompt, measured: questions with shots before them, and how many are answered right.

    rows of a file ─▶ draw ─▶ Question (prompt, label, labels) ─▶ by_likelihood or by_generation ─▶ right or wrong

No weight changes here: what is learnt is learnt from the prompt. Brown et al. 2020, section 2.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

import numpy as np

from regard.config.recipe import DecodeOptions
from regard.data.files import find, rows
from regard.data.synthetic.in_context import Question
from regard.data.synthetic.prompts import TEMPLATE, Pair, completion, prompt
from regard.errors import UserError
from regard.metrics.bootstrap import bootstrap_mean
from regard.tasks.generate.likelihood import of_endings
from regard.tasks.generate.predict import TextGenerator
from regard.text.vocabulary import Tokenizer

Progress = Callable[[int], None]


def read_pairs(file: str, text: str = "", label: str = "") -> list[Pair]:
    """The rows of a labelled file: its columns `text` and `label`, or those named."""
    names = text or "text", label or "label"
    found = []
    for fields, place in rows(find(file), required={"--source": names[0], "--target": names[1]}):
        blank = [name for name in names if not fields[name].strip()]
        if blank:
            raise UserError(f"{place}: '{blank[0]}' is blank; every row needs a text and its label")
        found.append(Pair(*(fields[name].strip() for name in names)))
    if len({pair.label for pair in found}) < 2:
        raise UserError(f"{file}: every row has the label {found[0].label!r}, so there is nothing to tell apart")
    return found


class Draw(NamedTuple):
    """How rows become questions: how many are asked, how often each with other shots, and how they are written."""

    limit: int = 0  # 0: every row
    seeds: int = 1
    template: str = TEMPLATE


def draw(pairs: Sequence[Pair], shots: int, options: Draw) -> Iterator[Question]:
    """Rows with shots from rows of other texts, for each seed; with more shots the first ones stay the same."""
    alike = Counter(pair.text for pair in pairs)
    labels = tuple(sorted({pair.label for pair in pairs}))
    most = len(pairs) - max(alike.values())
    if shots > most:
        raise UserError(f"--shots {shots}: of the {len(pairs)} rows only {most} have another text than the one asked")
    for number in _asked(len(pairs), options.limit):
        text, label = pairs[number]
        for seed in range(1, options.seeds + 1):
            shown = islice(_others(pairs, text, random.Random(f"{seed} {number}")), shots)
            yield Question(prompt(shown, text, options.template), label, labels)


def _others(pairs: Sequence[Pair], text: str, chance: random.Random) -> Iterator[Pair]:
    """Rows of other texts at random, each once: a copy of the question would give its answer away."""
    seen = set()
    while True:
        place = chance.randrange(len(pairs))
        if place not in seen and pairs[place].text != text:
            yield pairs[place]
        seen.add(place)


def _asked(count: int, limit: int) -> list[int]:
    """Which rows are asked: all, or some of them at random, in the order of the file."""
    return sorted(random.Random(count).sample(range(count), min(limit or count, count)))


def by_likelihood(
    network: Any,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    template: str = TEMPLATE,
    batch_size: int = 32,
    progress: Progress = lambda done: None,
) -> list[str]:
    """The label whose completion, line break and all, is the likeliest after each prompt."""
    answers = []
    for begin in range(0, len(questions), batch_size):
        some = questions[begin : begin + batch_size]
        split = [_options(tokenizer, question, template) for question in some]
        prompts = [head for head, endings in split for _ in endings]
        logs = iter(of_endings(network, prompts, [each for _, endings in split for each in endings], batch_size))
        for question in some:
            answers.append(max(zip(islice(logs, len(question.labels)), question.labels, strict=True))[1])
        progress(len(some))
    return answers


def _options(tokenizer: Tokenizer, question: Question, template: str) -> tuple[list[int], list[list[int]]]:
    """A prompt's tokens, and each option's that follow.

    Where one token holds the prompt's last letters and an option's first, all options count from that token on.
    """
    whole = [tokenizer.prompt(question.prompt + completion(label, template)) for label in question.labels]
    places = zip(tokenizer.prompt(question.prompt), *whole, strict=False)
    shared = max(1, sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, places)))
    return whole[0][:shared], [tokens[shared:] for tokens in whole]


def by_generation(
    writer: TextGenerator,
    questions: Sequence[Question],
    template: str = TEMPLATE,
    batch_size: int = 32,
    progress: Progress = lambda done: None,
) -> list[str]:
    """What the model writes after each prompt, greedily, up to what follows a label in the template: a line break."""
    behind = template.partition("{label}")[2] or "\n"
    endings = {completion(label, template) for question in questions for label in question.labels}
    longest = max(map(len, writer.tokenizer.encode_many(sorted(endings))))
    options = DecodeOptions(max_new_tokens=longest, stop=(behind,))
    found = writer.run([question.prompt for question in questions], options, batch_size, progress=progress)
    return [answer.text.strip() for answer in found]


def refuse_long(limit: int, shots: int, needed: Callable[[int], int]) -> None:
    """Refuse shots with which more tokens are `needed` than the model sees at once, and say how many fit."""
    if (tokens := needed(shots)) <= limit:
        return
    fitting = next((few for few in reversed(range(shots)) if needed(few) <= limit), None)
    advice = "even a question alone does not fit" if fitting is None else f"--shots {fitting} fits"
    raise UserError(
        f"--shots {shots}: a prompt with its answer has up to {tokens:,} tokens, the model sees at most {limit:,} at "
        f"once; {advice}"
    )


def longest(tokenizer: Tokenizer, questions: Sequence[Question], template: str) -> int:
    """The tokens of the longest prompt together with the longest of the answers."""
    endings = {completion(label, template) for question in questions for label in question.labels}
    sizes = (
        max(map(len, tokenizer.encode_many(texts)))
        for texts in ([question.prompt for question in questions], sorted(endings))
    )
    return len(tokenizer.head) + sum(sizes)


def accuracy(hits: Sequence[bool], seeds: int = 1) -> tuple[float, float]:
    """Percent right, and half the 95 % bootstrap interval; a row's answers with other shots are drawn together."""
    score = bootstrap_mean("accuracy", 100.0 * np.asarray(hits, float).reshape(-1, seeds).mean(1))
    return score.value, score.interval
