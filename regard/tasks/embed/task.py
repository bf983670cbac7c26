"""Sentence embeddings: a task of any model with hidden states, without training."""

from regard.models.registry import Family
from regard.tasks.base import Split, Task
from regard.tasks.embed.evaluate import evaluate_task
from regard.tasks.embed.predict import EmbedPredictor


class Embed(Task[Split]):
    """Embeddings; models are trained for them on other tasks."""

    name = "embed"
    trainable = False
    predictor = EmbedPredictor
    evaluate = staticmethod(evaluate_task)

    @staticmethod
    def supports(family: Family) -> bool:
        return False
