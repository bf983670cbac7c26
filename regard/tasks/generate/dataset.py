"""The data of causal language modelling: splits as token streams, and a tokenizer trained on them."""

import json
from collections.abc import Iterator
from pathlib import Path

from regard.config.options import DocumentOptions
from regard.config.recipe import Recipe
from regard.data.documents import tokenizer_texts
from regard.data.synthetic.in_context import in_context_dataset
from regard.data.token_stream import TokenStream, prepare_documents, prepare_stream
from regard.errors import UserError
from regard.models.registry import FAMILIES
from regard.text.tokenizer import Tokenizer
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

LOSSLESS = ("byte_bpe", "bytes", "characters")  # kinds of tokenizers that keep all of a text


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


def train_vocabulary(recipe: Recipe) -> Vocabulary:
    """A tokenizer trained on the training split; of models that generate text a lossless one."""
    family = FAMILIES.get(recipe.model.get("family", ""))
    if recipe.tokenizer.kind not in LOSSLESS and (family is None or family.is_causal_lm):
        raise UserError(
            f"tokenizer.kind = '{recipe.tokenizer.kind}' loses line breaks and spaces, which a language model should "
            f"learn; possible: {', '.join(LOSSLESS)}"
        )
    data = DocumentOptions.of(recipe)
    if data.synthetic:
        texts = synthetic_documents(recipe, "train")
    else:
        texts = tokenizer_texts(data, "train", Path(recipe.origin))
    tokenizer = train_tokenizer(texts, recipe.tokenizer, append_eos=False)
    return Vocabulary(tokenizer, tokenizer)
