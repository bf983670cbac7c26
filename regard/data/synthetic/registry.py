"""In-context datasets by name: the built-in ones, and those that installed packages declare as entry points.

    [project.entry-points."regard.synthetic"]
    sql = "road.text_to_sql.dataset:DATASET"              # an InContextDataset

Only what an installed package declares is imported, never code that a recipe names.
"""

from importlib.metadata import entry_points

from regard.data.synthetic.in_context import DATASETS, InContextDataset
from regard.errors import UserError, nearest

GROUP = "regard.synthetic"


def dataset_names() -> list[str]:
    """All that `data.synthetic` may name for a language model."""
    return sorted({*DATASETS, *entry_points(group=GROUP).names})


def in_context_dataset(name: str) -> InContextDataset:
    """The dataset of this name; a built-in one cannot be replaced."""
    if name in DATASETS:
        return DATASETS[name]
    declared = entry_points(group=GROUP, name=name)
    if not declared:
        raise UserError(f"data.synthetic = '{name}' makes no documents{nearest(name, dataset_names())}")
    entry = next(iter(declared))
    try:
        dataset = entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"data.synthetic = '{name}': {entry.value} cannot be imported: {error}") from None
    if not isinstance(dataset, InContextDataset):
        raise UserError(f"data.synthetic = '{name}': {entry.value} is a {type(dataset).__name__}, no InContextDataset")
    return dataset
