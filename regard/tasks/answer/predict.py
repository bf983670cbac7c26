"""Replies to questions from texts of any length: the best spans of their windows, with their places in the text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.attention.trace import Axes, Axis, Trace, record
from regard.errors import UserError
from regard.models.heads.span import SpanClassifier
from regard.tasks.answer.spans import Told, best_apart, best_of, tell
from regard.tasks.answer.task import BATCH, LONGEST, find, look
from regard.tasks.answer.windows import Ask, live_windows
from regard.text.vocabulary import Tokenizer

AT_ONCE = 256  # questions whose windows are cut together

CHOICES = 20  # spans among which a reply's probability is told


@dataclass(frozen=True)
class Reply:
    """An answer that stands in a text, from character `start` up to `end`; without text, the text does not say.

    `score` is its probability among all that was found, a softmax that nothing has calibrated.
    """

    text: str
    score: float
    start: int
    end: int
    others: tuple["Reply", ...] = ()  # next best ones elsewhere in the text

    @property
    def truncated(self) -> bool:
        """Never: a long text is read in windows."""
        return False


def reply(
    network: SpanClassifier,
    tokenizer: Tokenizer,
    asks: Sequence[Ask],
    size: tuple[int, int] = (0, 0),
    batch_size: int = BATCH,
    best: int = 1,
    threshold: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Reply]:
    """An answer to each question, with the next best up to `best` of them; `size` is the windows' length and stride.

    With a threshold, none is one of the answers: it is the best where its score, a sum of logits, is above that of the
    best span by more than the threshold.
    """
    choose = partial(best_apart, best=max(best, CHOICES))
    answers: list[Reply] = []
    for some in (asks[start : start + AT_ONCE] for start in range(0, len(asks), AT_ONCE)):
        length = size[0] or min(LONGEST, network.max_positions)
        asking = live_windows(some, tokenizer, length, size[1], before=len(answers))
        found = find(network, asking, range(len(some)), batch_size, choose)
        for number, (ask, each) in enumerate(zip(some, found, strict=True)):
            answers.append(_reply(tell(each, asking.spans(number), ask.context, threshold)[:best]))
        progress(len(some))
    return answers


def _reply(told: list[Told]) -> Reply:
    first, *others = told
    return Reply(*first, tuple(Reply(*each) for each in others))


def asked(given: Any, number: int, context: str | None = None) -> Ask:
    """A question with its text as a caller gives it: two texts, or {"question", "context"}, or a tab between them.

    Where all questions have one `context`, each is given alone.
    """
    if context is not None:
        return Ask(given, context)
    if isinstance(given, Mapping):
        if given.keys() != {*Ask._fields}:
            raise UserError(f"input {number} has the keys {', '.join(map(str, given))}; expected question and context")
        return Ask(given["question"], given["context"])
    parts = given.split("\t", 1) if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise UserError(
            f"input {number} should be a question and its text, a tab between, or give the text with --context FILE "
            f"(context=…): {given!r:.60}"
        )
    return Ask(*parts)


@torch.no_grad()
def look_for(
    network: SpanClassifier, tokenizer: Tokenizer, ask: Ask, truncate: bool = False, prove: bool = False
) -> Trace:
    """What is attended to while an answer is looked for in a text, which must fit into one window."""
    asking = live_windows([ask], tokenizer, network.max_positions)
    if len(asking) > 1 and not truncate:
        size = asking.frame.size + len(tokenizer.encode(ask.question)) + len(asking.spans(0))
        raise UserError(
            f"question and text have {size} tokens, the model sees at most {network.max_positions} at once: give less "
            "of the text, or cut it with truncate=True"
        )
    with record(prove) as recorder:
        seen = look(network, asking, [0])[0]
    threshold = 0.0 if network.silent else None
    answer = tell(best_of([seen]), asking.spans(0), ask.context, threshold=threshold)[0].text
    pieces = Axis(tokenizer.pieces(asking.row(0).tokens.tolist()))
    return Trace(recorder, Axes.encoder(pieces, answer), answer)
