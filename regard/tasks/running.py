"""Behind `model.run`: how a model answers, by its task. Each takes texts, the ways of reading, and a task's options."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from regard.decoding.options import WAYS
from regard.errors import UserError
from regard.tasks.answer.predict import asked, reply
from regard.tasks.classify.answers import LIKELY
from regard.tasks.classify.predict import apart, classify
from regard.tasks.embed.predict import BATCH, Vector
from regard.tasks.fill.predict import MOST, fill
from regard.tasks.tag.predict import tag
from regard.tasks.translate.predict import translate

if TYPE_CHECKING:
    from regard.model import Model

Options = dict[str, Any]


def _translate(model: "Model", texts: list[str], ways: Options, options: Options) -> list[Any]:
    alignments = options.pop("alignments", False)
    found = model.decoding(**options)
    return translate(model.network, model.vocabulary, texts, found, alignments=alignments, **ways)


def _generate(model: "Model", texts: list[str], ways: Options, options: Options) -> list[Any]:
    logs = options.pop("log_probabilities", False)
    writer = model.writer(options.pop("draft", None), options.pop("lookup", False))
    return writer.run(texts, model.decoding(**options), logs=logs, **ways)


def _answer(model: "Model", inputs: list[Any], ways: Options, options: Options) -> list[Any]:
    _allow(options, ("context", "best", "threshold"), "a model that answers questions")
    best, context = _best(options, 1), options.get("context")
    threshold = options.get("threshold", 0.0 if model.network.silent else None)
    if threshold is not None and type(threshold) not in (int, float):
        raise UserError(f"threshold = {threshold!r} should be a number: by how much no answer must be better than one")
    ways.pop("truncate", None)  # a long text is read whole, in windows
    asks = [asked(each, number, context) for number, each in enumerate(inputs, 1)]
    data: Any = model.recipe.data if model.recipe else None
    size = (data.max_length, data.stride) if model.recipe else (0, 0)
    tokenizer = model.vocabulary.target
    return reply(model.network, tokenizer, asks, size, best=best, threshold=threshold, **ways)


def _classify(model: "Model", texts: list[Any], ways: Options, options: Options) -> list[Any]:
    known = ("threshold",) if model.network.problem_type == "multi_label" else ()
    _allow(options, known, "a model that tells several labels" if known else "a model that tells labels")
    threshold = options.get("threshold", LIKELY)
    if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
        raise UserError(f"threshold = {threshold!r} should lie within 0 … 1: how likely a label must be to hold")
    texts = [apart(each, model.network.paired) for each in texts]
    return classify(model.network, model.texts, texts, threshold=threshold, **ways)


def _fill(model: "Model", texts: list[Any], ways: Options, options: Options) -> list[Any]:
    _allow(options, ("best",), "a model that fills in words")
    return fill(model.network, model.vocabulary.target, texts, best=_best(options, MOST), **ways)


def _embed(model: "Model", texts: list[Any], ways: Options, options: Options) -> list[Any]:
    _allow(options, ("pooling", "normalise"), "embedding")
    done, size = ways.pop("progress", lambda done: None), ways.pop("batch_size", BATCH)
    rows = model.readings(texts, ways.get("truncate", False))
    vectors = model.vectors(rows, size, **options, progress=done)
    return [Vector(vector.tolist(), row.cut) for vector, row in zip(vectors, rows, strict=True)]


def _tag(model: "Model", texts: list[Any], ways: Options, options: Options) -> list[Any]:
    _allow(options, (), "a model that tags words")
    return tag(model.network, model.vocabulary.target, texts, **ways)


def _best(options: Options, default: int) -> int:
    best = options.get("best", default)
    if type(best) is not int or best < 1:
        raise UserError(f"best = {best!r} should be a number of answers, 1 or more")
    return best


def _allow(options: Iterable[str], known: tuple[str, ...], what: str) -> None:
    """Refuse an option that a task does not know, by its name."""
    for name in options:
        if name not in known:
            raise UserError(f"'{name}' is no option of {what}; possible: {', '.join((*known, *WAYS))}")


Runner = Callable[["Model", list[Any], Options, Options], list[Any]]

RUNNERS: dict[str, Runner] = {
    "answer": _answer,
    "classify": _classify,
    "embed": _embed,
    "fill": _fill,
    "generate": _generate,
    "tag": _tag,
    "translate": _translate,
}


def is_one(inputs: Any, task: str) -> bool:
    """Whether this is one input and not several: a text, a question with its text under their names, or as a pair."""
    pair = task == "answer" and isinstance(inputs, tuple) and len(inputs) == 2
    return isinstance(inputs, str | Mapping) or (pair and all(isinstance(each, str) for each in inputs))
