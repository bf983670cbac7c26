"""Short trainings of image tasks, and a published checkpoint to start from."""

from pathlib import Path
from typing import Any

import torch

from regard.config.recipe import Recipe, load_recipe
from regard.training.build import prepare_network, prepare_task

RECIPE = """
task = "{task}"
output = "{output}"
{tables}
[train]
batch_size = 7
max_steps = {steps}
eval_steps = 4
save_steps = 4
learning_rate = 3e-3
warmup_steps = 2
threads = 1
{more}
"""


def write_recipe(path: Path, task: str, tables: str, more: str, steps: int) -> Recipe:
    """A recipe whose run folder is beside it; `more` are further keys of [train], and tables after it."""
    output = path.with_suffix("")
    path.write_text(RECIPE.format(task=task, output=output, tables=tables, more=more, steps=steps))
    return load_recipe(path)


def task_of(recipe: Recipe) -> Any:
    return prepare_task(recipe, prepare_network(recipe))


def publish_vit(folder: Path, labels: int, **processing: Any) -> Path:
    """A ViT classifier with random weights and its image processor, as transformers saves them."""
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "image_size": 18, "patch_size": 6, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 40, "num_labels": labels,
    }  # fmt: skip
    ViTForImageClassification(ViTConfig(**sizes)).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 18, "width": 18}, **processing).save_pretrained(folder)
    return folder
