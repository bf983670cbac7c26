"""Few-shot prompts: questions with examples before them, and how a model answers them. Brown et al. 2020, section 2.

rows of a file ─▶ draw_questions ─▶ Question (prompt, label, labels) ─▶ by_likelihood or by_generation ─▶ answer
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile

import numpy as np

from regard.config.recipe import DecodeOptions
from regard.data import files
from regard.data.synthetic.in_context import TEMPLATE, Pair, Question, completion, prompt
from regard.errors import UserError
from regard.layers.protocols import CausalLM
from regard.metrics.bootstrap import bootstrap_mean
from regard.progress import Progress
from regard.tasks.generate.likelihood import ending_log_probabilities
from regard.tasks.generate.text_generator import TextGenerator
from regard.tasks.predictor import Inference
from regard.text.tokenizer import Tokenizer


def read_pairs(file: str, text: str = "", label: str = "") -> list[Pair]:
    """The rows of a labelled file: its columns `text` and `label`, or those named."""
    names = (text or "text", label or "label")
    pairs = []
    for fields, location in files.rows(files.find(file), required={"--source": names[0], "--target": names[1]}):
        blank = [name for name in names if not fields[name].strip()]
        if blank:
            raise UserError(f"{location}: '{blank[0]}' is blank; every row needs a text and its label")
        pairs.append(Pair(*(fields[name].strip() for name in names)))
    if len({pair.label for pair in pairs}) < 2:
        raise UserError(f"{file}: every row has the label {pairs[0].label!r}: at least two labels are needed")
    return pairs


def draw_questions(
    pairs: Sequence[Pair], shots: int, limit: int = 0, seeds: int = 1, template: str = TEMPLATE
) -> Iterator[Question]:
    """Rows with shots drawn from rows of other texts, for each seed; more shots keep the first ones.

    A `limit` of 0 means every row.
    """
    counts = Counter(pair.text for pair in pairs)
    labels = tuple(sorted({pair.label for pair in pairs}))
    most = len(pairs) - max(counts.values())
    if shots > most:
        raise UserError(
            f"--shots {shots}: not enough examples: only {most} of the {len(pairs)} rows differ from the question; "
            f"give at most --shots {most}, or more rows"
        )
    count = len(pairs)
    rows_asked = sorted(random.Random(count).sample(range(count), min(limit or count, count)))
    for index in rows_asked:
        text, label = pairs[index]
        for seed in range(1, seeds + 1):
            examples = islice(_examples(pairs, text, random.Random(f"{seed} {index}")), shots)
            yield Question(prompt(examples, text, template), label, labels)


def _examples(pairs: Sequence[Pair], text: str, rng: random.Random) -> Iterator[Pair]:
    """Rows of other texts in random order: a copy of the question would contain its answer."""
    seen = set()
    while True:
        index = rng.randrange(len(pairs))
        if index not in seen and pairs[index].text != text:
            yield pairs[index]
        seen.add(index)


def by_likelihood(
    network: CausalLM,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    template: str = TEMPLATE,
    batch_size: int = 32,
    progress: Progress = lambda done: None,
) -> list[str]:
    """The label whose completion, with its line break, is most likely after each prompt."""
    answers = []
    for begin in range(0, len(questions), batch_size):
        batch = questions[begin : begin + batch_size]
        prompts: list[list[int]] = []
        endings: list[list[int]] = []
        for question in batch:
            rows = [tokenizer.prompt(question.prompt + completion(label, template)) for label in question.labels]
            # Where a token spans the end of the prompt and the start of an option, all options count from it on.
            columns = zip(tokenizer.prompt(question.prompt), *rows, strict=False)
            shared = max(1, sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, columns)))
            prompts += [row[:shared] for row in rows]
            endings += [row[shared:] for row in rows]
        logs = iter(ending_log_probabilities(network, prompts, endings, batch_size))
        for question in batch:
            answers.append(max(zip(islice(logs, len(question.labels)), question.labels, strict=True))[1])
        progress(len(batch))
    return answers


def by_generation(
    generator: TextGenerator,
    questions: Sequence[Question],
    template: str = TEMPLATE,
    batch_size: int = 32,
    progress: Progress = lambda done: None,
) -> list[str]:
    """The greedy continuation of each prompt, up to what follows a label in the template, such as a line break."""
    suffix = template.partition("{label}")[2] or "\n"
    options = DecodeOptions(max_new_tokens=_max_label_tokens(generator.tokenizer, questions, template), stop=(suffix,))
    inference = Inference(batch_size, progress=progress)
    outputs = generator.run([question.prompt for question in questions], options, inference)
    return [output.text.strip() for output in outputs]


def reject_long(limit: int, shots: int, needed: Callable[[int], int]) -> None:
    """Reject shots with which more tokens are `needed` than fit in the context; the error says how many fit."""
    if (tokens := needed(shots)) <= limit:
        return
    fitting = next((few for few in reversed(range(shots)) if needed(few) <= limit), None)
    advice = "even a question alone does not fit" if fitting is None else f"--shots {fitting} fits"
    raise UserError(
        f"--shots {shots}: a prompt with its answer has up to {tokens:,} tokens, the model's context is {limit:,}; "
        f"{advice}"
    )


def max_tokens(tokenizer: Tokenizer, questions: Sequence[Question], template: str) -> int:
    """The number of tokens of the longest prompt and the longest answer together."""
    prompt_tokens = max(map(len, tokenizer.encode_many([question.prompt for question in questions])))
    return len(tokenizer.head) + prompt_tokens + _max_label_tokens(tokenizer, questions, template)


def _max_label_tokens(tokenizer: Tokenizer, questions: Sequence[Question], template: str) -> int:
    endings = {completion(label, template) for question in questions for label in question.labels}
    return max(map(len, tokenizer.encode_many(sorted(endings))))


def accuracy(hits: Sequence[bool], seeds: int = 1) -> tuple[float, float]:
    """Percent correct, and half the 95 % bootstrap interval; the answers to one row are resampled together."""
    score = bootstrap_mean("accuracy", 100.0 * np.asarray(hits, float).reshape(-1, seeds).mean(1))
    return score.value, score.interval
