"""`data.synthetic = "sql"`: the entry point by which regard finds this dataset (group `regard.synthetic`)."""

from collections.abc import Iterator

from regard.data.synthetic.in_context import FewShotItem, InContextDataset, Question
from road.text_to_sql import items as sql

CATEGORIES = ("own word, shown", "own word, not shown", "plain words")


def few_shot_items(seed: int, split: str, count: int, shots: int) -> Iterator[FewShotItem]:
    """Questions whose answer is correct where its query gives the same rows as the gold query."""
    for item in sql.items(seed, split, count, shots):
        yield few_shot_item(item)


def few_shot_item(item: sql.Item) -> FewShotItem:
    category = CATEGORIES[2] if not item.own else CATEGORIES[0] if item.determined else CATEGORIES[1]
    question = Question(item.prompt, item.gold, (item.gold,))
    return FewShotItem(question, lambda answer: sql.is_correct(sql.statement(answer), item.gold, item.table), category)


def ideal(shots: int) -> dict[str, float]:
    """Bayes-optimal accuracy, of all questions and of each category."""
    overall = sql.OWN_SHARE * sql.ideal(shots) + 1 - sql.OWN_SHARE
    return {"": overall, **dict(zip(CATEGORIES, (1.0, sql.ideal(0), 1.0), strict=True))}


DATASET = InContextDataset(sql.documents, few_shot_items, ideal, categories=CATEGORIES, has_labels=False)
