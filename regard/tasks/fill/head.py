"""The heads of masked language modelling: tokens, and with a pair task also next sentence or sentence order."""

from typing import Any

from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.tasks.base import reject_classifier
from regard.tasks.fill.options import FillData
from regard.text.special_tokens import mask_token_of


def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
    """An encoder with the heads that the recipe needs; a fitting head is kept. An unused pooler is frozen."""
    network: Any = reject_classifier(loaded, recipe).network
    pair_task = FillData.of(recipe).pair_task
    kind = MaskedLM if pair_task == "none" else Pretraining
    body = getattr(network, "body", network)
    if kind is Pretraining and body.pooler is None:
        if hasattr(body.config, "pooler"):
            raise UserError(
                f"data.pair_task = '{pair_task}' needs a pooler, and the model has none: give pair_task = 'none', or "
                "model.pooler = true where the model is new"
            )
        if getattr(body.config, "token_types", 0) < 2:
            raise UserError(
                f"data.pair_task = '{pair_task}': the model has no token types for two segments: give pair_task = "
                "'none', or model.token_types = 2 where the model is new"
            )
    mask_token_of(loaded.vocabulary.target)
    if recipe.model.get("lora_rank") and not isinstance(network, kind):
        raise UserError(
            f"model.lora_rank = {recipe.model['lora_rank']}: the model has no masked LM head yet, and an adapter would "
            "not keep a new one: remove lora_rank, or start from a masked language model"
        )
    headed: Any = network if type(network) is kind else kind(body)
    if isinstance(network, MaskedLM) and headed is not network:
        headed.words = network.words
    if kind is MaskedLM and body.pooler is not None:
        body.pooler.requires_grad_(False)
    return loaded._replace(network=headed)
