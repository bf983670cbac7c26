"""What classification heads of all modalities have in common: the labels of the training split, and their check."""

from pathlib import Path
from typing import NamedTuple

from regard.config.recipe import Recipe
from regard.errors import UserError, listed
from regard.interop.folder import Loaded
from regard.models.deit import DeiT, DistilledClassifier
from regard.models.heads.sequence import Classifier
from regard.tasks.classify.files import Reader, learn_labels, learn_scale
from regard.tasks.classify.options import ClassifyData


class Labels(NamedTuple):
    """The outputs of a new head; for regression its bias is the mean of the targets, in units of `scale`."""

    names: tuple[str, ...]
    mean: float = 0.0
    scale: float = 1.0


def training_labels(data: ClassifyData, base_dir: Path, reader: type[Reader]) -> Labels:
    """The labels of the training split."""
    if data.problem_type == "regression":
        return Labels((data.label or "label",), *learn_scale(data, base_dir, reader))
    return Labels(learn_labels(data, base_dir, reader))


def check_problem_type(network: Classifier, data: ClassifyData) -> None:
    if network.problem_type != data.problem_type:
        raise UserError(
            f"data.problem_type = '{data.problem_type}', but the model was trained for '{network.problem_type}': give "
            "that, or start from the model without its head"
        )


def attach_classifier(loaded: Loaded, recipe: Recipe, reader: type[Reader]) -> Loaded:
    """An encoder of images or recordings with a new head for the labels of the training split; a classifier keeps its
    head."""
    data = ClassifyData.of(recipe)
    network = loaded.network
    if not isinstance(network, Classifier):
        labels = training_labels(data, Path(recipe.origin), reader)
        head = DistilledClassifier if isinstance(network, DeiT) else Classifier
        network = head(network, labels.names, problem_type=data.problem_type, scale=labels.scale)  # type: ignore[arg-type]
        if data.problem_type == "regression":
            network.init_bias(labels.mean)
    check_problem_type(network, data)
    if "from" in recipe.model and data.problem_type != "regression":
        _check_labels(network, training_labels(data, Path(recipe.origin), reader), recipe)
    return loaded._replace(network=network)


def _check_labels(network: Classifier, labels: Labels, recipe: Recipe) -> None:
    """Reject labels that a head of the checkpoint does not have."""
    if unknown := [name for name in labels.names if name not in network.labels]:
        raise UserError(
            f"the classifier '{recipe.model['from']}' has no label {listed(map(repr, unknown))}; its labels: "
            f"{listed(network.labels)}. For a new head with the labels of your data, give model.new_head=true"
        )
