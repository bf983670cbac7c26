"""In-context learning: every document shows examples of one random task, which can only be learned from the prompt.

    DATASETS["mappings"].documents(seed=1, split="train", count=1)
        gub sleeps → red          a word's colour holds in this document and no other;
        zaf sings → blue          the verb is a distractor
        gub runs → red

A stream is a pure function of its arguments. Which split a task belongs to is a hash of its key and does not depend on
the seed, so two splits never share one. A prompt ends before a label, and prompt(shots, text) + completion(label) is
exactly the document of the shots and that pair. Installed packages may declare further datasets:

    [project.entry-points."regard.synthetic"]
    sql = "road.text_to_sql.dataset:DATASET"              # an InContextDataset

Only what an installed package declares is imported, never code that a recipe names.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from operator import attrgetter, eq
from pathlib import Path
from typing import NamedTuple

from regard.data.synthetic.pairs import drawn, random_generator
from regard.errors import UserError, nearest

TEMPLATE = "{text} → {label}\n"  # of training documents and evaluation prompts

GROUP = "regard.synthetic"  # entry points of packages that declare further datasets

PAIRS = 12  # of a document: more than the 8 shots of an evaluation

WORDS = (
    *("bem", "bix", "bof", "buv", "dag", "dez", "dif", "dov", "dul", "fap", "feb", "fim", "fon", "fuz", "gan", "gep"),
    *("gid", "gol", "gub", "hax", "hef", "hib", "hob", "huz", "jad", "jem", "jik", "jop", "jux", "kav", "keb", "kif"),
    *("kol", "kuz", "lan", "lef", "lim", "lor", "luv", "mab", "mez", "mib", "mof", "mul", "naf", "nep", "niv", "nol"),
    *("nuz", "paf", "pev", "pid", "pom", "pux", "rab", "ref", "riz", "rol", "ruv", "sab", "sev", "sif", "sok", "suz"),
    *("tal", "tef", "tiv", "tov", "tul", "vad", "vem", "vib", "vok", "vur", "wab", "wef", "wiz", "wom", "wux", "yad"),
    *("yef", "yim", "yol", "yun", "zaf", "zeb", "zim", "zod", "zul", "zyn"),
)

LABELS = ("red", "blue", "green", "gold")

VERBS = (
    *("sleeps", "sings", "runs", "eats", "swims", "jumps", "reads", "waits", "smiles", "cooks", "falls", "digs"),
    *("paints", "writes", "listens", "dances", "climbs", "hides", "laughs", "rests", "grows", "drinks", "walks"),
    "talks",
)

MODULUS = 11  # prime, so that two different points determine a line


class Pair(NamedTuple):
    """A row of labelled text."""

    text: str
    label: str


class Task(NamedTuple):
    """A task to be inferred from examples: the key that must not leak, and every question with its answer."""

    key: str
    pairs: tuple[Pair, ...]


class Question(NamedTuple):
    """A prompt with shots of a task, the correct answer, and all possible answers."""

    prompt: str
    label: str
    labels: tuple[str, ...]


class FewShotItem(NamedTuple):
    """A question, what decides whether an answer to it is correct, and the category in which it is scored."""

    question: Question
    is_correct: Callable[[str], bool]
    category: str = ""


@dataclass(frozen=True)
class InContextDataset:
    """Documents to train on, and few-shot questions about held-out tasks. A split never shares a task with another."""

    documents: Callable[[int, str, int], Iterator[str]]  # of seed, split and count
    items: Callable[[int, str, int, int], Iterator[FewShotItem]]  # of seed, split, count and shots
    ideal: Callable[[int], dict[str, float]]  # Bayes-optimal accuracy by shots: of all items (""), of each category
    template: str = TEMPLATE
    categories: tuple[str, ...] = ()
    has_labels: bool = True  # answers are chosen from labels; otherwise they are generated


class Lesson(NamedTuple):
    """How a task is drawn, and the Bayes-optimal accuracy with independent shots."""

    draw: Callable[[random.Random], Task]
    ideal: Callable[[int], float]
    template: str = TEMPLATE


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def document(pairs: Iterable[Pair], template: str = TEMPLATE) -> str:
    """The pairs one after another, each with its answer."""
    return "".join(template.format(text=pair.text, label=pair.label) for pair in pairs)


def prompt(shots: Iterable[Pair], text: str, template: str = TEMPLATE) -> str:
    """The shots with their answers, then the question without one."""
    return document(shots, template) + _halves(template)[0].format(text=text)


def completion(label: str, template: str = TEMPLATE) -> str:
    """The expected continuation of a prompt, with its line break: no label is a prefix of another one."""
    return _halves(template)[1].format(label=label)


def _halves(template: str) -> tuple[str, str]:
    """Split before the space: tokenizers join a space with the word after it."""
    head = template.partition("{label}")[0].rstrip(" ")
    return head, template[len(head) :]


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_mapping(rng: random.Random, words: Sequence[str] = WORDS, verbs: Sequence[str] = VERBS) -> Task:
    """Four made-up words, each with a colour; the words are the key, so another split has no colouring of them."""
    chosen = rng.sample(words, len(LABELS))
    texts = [(f"{word} {verb}".strip(), label) for word, label in zip(chosen, LABELS, strict=True) for verb in verbs]
    return Task(" ".join(sorted(chosen)), tuple(Pair(*text) for text in texts))


def ideal_mapping(shots: int) -> float:
    """Of m different words seen, each is known; an unseen one has one of the colours left: (m + 1) / 4 in all."""
    size = len(LABELS)
    seen = [1.0] + [0.0] * size  # probability of each m
    for _ in range(shots):
        new = [0.0, *(share * (size - m) / size for m, share in enumerate(seen[:-1]))]
        seen = [share * m / size + fresh for (m, share), fresh in zip(enumerate(seen), new, strict=True)]
    return sum(share * min(m + 1, size) / size for m, share in enumerate(seen))


def draw_linear(rng: random.Random) -> Task:
    """y = a·x + b modulo 11, a ≠ 0: seen points can be copied, the others need arithmetic."""
    a, b = rng.randrange(1, MODULUS), rng.randrange(MODULUS)
    pairs = (Pair(str(x), str((a * x + b) % MODULUS)) for x in range(MODULUS))
    return Task(f"{a} {b}", tuple(pairs))


def ideal_linear(shots: int) -> float:
    """Two different points determine the line. One point gives itself and excludes its value for the others."""
    if shots == 0:
        return 1 / MODULUS
    one_point = MODULUS ** (1 - shots)
    return 1 - one_point * (1 - 2 / MODULUS)


LESSONS = {
    # Few words and no distractors: one induction head suffices.
    "colours": Lesson(partial(draw_mapping, words=WORDS[:12], verbs=("",)), ideal_mapping, "{text} {label}\n"),
    "mappings": Lesson(draw_mapping, ideal_mapping),
    "linear": Lesson(draw_linear, ideal_linear),
}


def tasks(name: str, seed: int, split: str, count: int) -> Iterator[Task]:
    """Tasks of this split; no other split has them."""
    rng = random_generator(name, seed, split)
    return drawn(lambda: LESSONS[name].draw(rng), attrgetter("key"), split, count)


def documents(name: str, seed: int, split: str, count: int) -> Iterator[str]:
    """A document for each task: pairs drawn with replacement."""
    for task, rng in _seeded_tasks(name, seed, split, count):
        yield document(rng.choices(task.pairs, k=PAIRS), LESSONS[name].template)


def questions(name: str, seed: int, split: str, count: int, shots: int) -> Iterator[Question]:
    """A question for each task; with more shots the questions are the same, and so are their first shots."""
    for task, rng in _seeded_tasks(name, seed, split, count):
        query, *shown = rng.choices(task.pairs, k=1 + shots)
        labels = tuple(sorted({pair.label for pair in task.pairs}))
        yield Question(prompt(shown, query.text, LESSONS[name].template), query.label, labels)


def items(name: str, seed: int, split: str, count: int, shots: int) -> Iterator[FewShotItem]:
    """The questions, whose answers are correct where they are the label."""
    for question in questions(name, seed, split, count, shots):
        yield FewShotItem(question, partial(eq, question.label))


def _seeded_tasks(name: str, seed: int, split: str, count: int) -> Iterator[tuple[Task, random.Random]]:
    """Each task with its own random generator, so that what is drawn for one does not change the next."""
    for index, task in enumerate(tasks(name, seed, split, count)):
        yield task, random.Random(f"{name} {seed} {split} {index}")


def rows(task: Task, seed: int = 1) -> list[Pair]:
    """Every pair of a task once, in random order: a labelled dataset with every label."""
    return random.Random(f"{seed} {task.key}").sample(task.pairs, len(task.pairs))


def write_rows(path: Path, pairs: Iterable[Pair]) -> None:
    """A labelled file: one JSON object a line, with `text` and `label`."""
    lines = (json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs)
    path.write_text("".join(lines), encoding="utf-8")


DATASETS = {
    name: InContextDataset(
        partial(documents, name),
        partial(items, name),
        lambda shots, ideal=lesson.ideal: {"": ideal(shots)},
        lesson.template,
    )
    for name, lesson in LESSONS.items()
}


def dataset_names() -> list[str]:
    """All that `data.synthetic` may name for a language model."""
    return sorted({*DATASETS, *entry_points(group=GROUP).names})


def in_context_dataset(name: str) -> InContextDataset:
    """The dataset of this name; a built-in one cannot be replaced."""
    if name in DATASETS:
        return DATASETS[name]
    declared = entry_points(group=GROUP, name=name)
    if not declared:
        raise UserError(f"data.synthetic = '{name}' is not an in-context dataset{nearest(name, dataset_names())}")
    entry = next(iter(declared))
    try:
        dataset = entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"data.synthetic = '{name}': {entry.value} cannot be imported: {error}") from None
    if not isinstance(dataset, InContextDataset):
        raise UserError(
            f"data.synthetic = '{name}': {entry.value} is a {type(dataset).__name__}, expected an InContextDataset"
        )
    return dataset
