"""The splits of a causal language model's data as token streams."""

import json
from collections.abc import Iterator
from pathlib import Path

from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe
from regard.data.synthetic.registry import in_context_dataset
from regard.data.token_stream import TokenStream, prepare_documents, prepare_stream
from regard.text.tokenizer import Tokenizer


def prepare_split(recipe: Recipe, split: str, tokenizer: Tokenizer, cache: Path) -> TokenStream | None:
    """A split as tokens; None where the recipe names none."""
    data = DocumentOptions.of(recipe)
    source = getattr(data, split)
    if not source:
        return None
    if not data.synthetic:
        return prepare_stream(data, split, tokenizer, cache, Path(recipe.origin))
    key = json.dumps([data.synthetic, recipe.seed, split, source])
    return prepare_documents(synthetic_documents(recipe, split), key, tokenizer, cache)


def synthetic_documents(recipe: Recipe, split: str) -> Iterator[str]:
    data = DocumentOptions.of(recipe)
    return in_context_dataset(data.synthetic).documents(recipe.seed, split, int(getattr(data, split)))
