"""What a task puts on a network before it trains it: a head, and what its tokenizer must put round a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.layers.encoder import Encoder
from regard.models import registry as models
from regard.models.heads.hierarchical import Documents
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.span import SpanClassifier
from regard.models.heads.token import TokenClassifier
from regard.tasks.classify.dataset import learn_labels, learn_scale, with_end_token
from regard.tasks.tag.files import learn_tags
from regard.text.special_tokens import mask_token_of, special_tokens_of
from regard.text.vocabulary import Vocabulary


def bare(loaded: Loaded, recipe: Recipe) -> Loaded:
    """A network as it is; one that tells labels was made for that alone."""
    if isinstance(loaded.network, Classifier):
        named = f"model.from = '{recipe.model['from']}'" if "from" in recipe.model else "the model"
        raise UserError(f"{named} tells labels: it cannot do task = '{recipe.task}'")
    return loaded


def labelled(loaded: Loaded, recipe: Recipe) -> Loaded:
    """A language model or an encoder with a new head for the labels of the training part; what has one keeps it.

    A language model's texts get an end to tell them from; an encoder's stand between what its tokenizer puts there.
    """
    network, vocabulary, config = loaded.network, loaded.vocabulary, loaded.config
    if not isinstance(network, Classifier):
        is_encoder = models.FAMILIES[models.family_of(network)].is_encoder
        body = getattr(network, "body", network)
        network = _with_head(body, recipe, _averaged(body, loaded, recipe))
        network = network if recipe.train.auxiliary else network.silenced()
        if not is_encoder:
            both = with_end_token(vocabulary.target)
            vocabulary = Vocabulary(both, both)
            config = config | {"pad_token_id": both.pad} if config else {}
    elif (said := _pooling(recipe)) and (said == "mean") != network.averaged:
        raise UserError(f"model.pooling = '{said}' is for a new head, but the model tells labels otherwise: remove it")
    if network.kind != recipe.data.label_kind:
        raise UserError(
            f"data.label_kind = '{recipe.data.label_kind}', but the model tells '{network.kind}': say that, or begin "
            "with the model it was made of"
        )
    if (network.segment if isinstance(network, Documents) else 0) != recipe.data.segment:
        read = f"in segments of {network.segment} tokens" if isinstance(network, Documents) else "whole"
        raise UserError(f"data.segment = {recipe.data.segment}, but the model reads texts {read}")
    if isinstance(network, Documents) and [*map(len, special_tokens_of(vocabulary.target, 1).specials)] != [1, 1]:
        raise UserError(
            f"data.segment = {recipe.data.segment}: a segment stands between two tokens, as [CLS] … [SEP], but this "
            "tokenizer does not put one before and one behind a text: take that of an encoder such as BERT"
        )
    if network.paired and not recipe.data.text2:
        raise UserError("data.text2 = '', but the model was trained on pairs of texts: name the second's column")
    network.paired = bool(recipe.data.text2)  # what others published does not say so
    if recipe.train.auxiliary and not network.tells:
        raise UserError(
            f"train.auxiliary = {recipe.train.auxiliary}, but the model has no output left for what comes next in a "
            "text: begin with the language model, or leave it 0"
        )
    return loaded._replace(network=network, vocabulary=vocabulary, config=config)


def _pooling(recipe: Recipe) -> str:
    """What is said of how the states of a loaded encoder become one."""
    return recipe.model.get("pooling", "") if "from" in recipe.model else ""


def _averaged(body: Any, loaded: Loaded, recipe: Recipe) -> bool:
    """Whether labels are told from the mean of all states: as the recipe says, else as the folder does."""
    said, is_encoder = _pooling(recipe), isinstance(body, Encoder)
    own = is_encoder and hasattr(body.config, "pooling")
    if said and (own or not is_encoder):
        why = f"the model has its own, '{body.config.pooling}'" if own else "the model reads to the end of a text"
        raise UserError(f"model.pooling = '{said}' is for encoders such as bert, but {why}: remove it")
    folder = loaded.pooling.kind if loaded.pooling else "cls"
    return is_encoder and not own and (said or folder) == "mean"


def _with_head(body: Any, recipe: Recipe, averaged: bool) -> Classifier:
    """A new head for the labels of the training part; where they are numbers it begins with their mean."""
    data, beside = recipe.data, Path(recipe.origin)
    if data.generate:
        raise UserError(f"data.generate = '{data.generate}' makes no labels: name a file in data.train")
    if data.label_kind != "number":
        return _reading(body, recipe, averaged, learn_labels(data, beside))
    mean, scale = learn_scale(data, beside)
    network = _reading(body, recipe, averaged, [data.label or "label"], scale)
    network.expect(mean)
    return network


def _reading(body: Any, recipe: Recipe, averaged: bool, labels: Sequence[str], scale: float = 1.0) -> Classifier:
    """A head that reads texts whole, or documents in segments where the recipe cuts them."""
    data, body = recipe.data, body.unpooled() if averaged else body
    if not data.segment:
        return Classifier(body, labels, bool(data.text2), data.label_kind, scale, averaged=averaged)
    if not isinstance(body, Encoder):
        raise UserError(f"data.segment = {data.segment}: segments are read by an encoder, such as bert")
    if data.segment > body.max_positions:
        raise UserError(f"data.segment = {data.segment}, but the encoder reads at most {body.max_positions} tokens")
    return Documents(body, labels, data.segment, data.segment_stride, data.label_kind, scale, averaged)


def masked(loaded: Loaded, recipe: Recipe) -> Loaded:
    """An encoder that finds hidden words, and with pairs also how two texts stand to each other.

    A head that it has is kept. A pooler that no loss reaches stays as it is.
    """
    network: Any = bare(loaded, recipe).network
    kind = MaskedLM if recipe.data.pairs == "none" else Pretraining
    body = getattr(network, "body", network)
    if kind is Pretraining and body.pooler is None and hasattr(body.config, "pooler"):
        raise UserError(
            f"data.pairs = '{recipe.data.pairs}' is told from a pooler, and the model has none: give pairs = 'none', "
            "or model.pooler = true where the model is new"
        )
    if kind is Pretraining and body.pooler is None and getattr(body.config, "segments", 0) < 2:
        raise UserError(
            f"data.pairs = '{recipe.data.pairs}': the model does not tell two texts apart: give pairs = 'none', or "
            "model.segments = 2 where the model is new"
        )
    mask_token_of(loaded.vocabulary.target)
    if recipe.model.get("lora_rank") and not isinstance(network, kind):
        raise UserError(
            f"model.lora_rank = {recipe.model['lora_rank']}: the model has no head for this yet, and an adapter would "
            "not keep a new one: remove lora_rank, or begin with a folder that finds hidden words"
        )
    made: Any = network if type(network) is kind else kind(body)
    if isinstance(network, MaskedLM) and made is not network:
        made.words = network.words
    if kind is MaskedLM and body.pooler is not None:
        body.pooler.requires_grad_(False)
    return loaded._replace(network=made)


def answering(loaded: Loaded, recipe: Recipe) -> Loaded:
    """An encoder with a new head for where an answer begins and ends; what has one keeps it."""
    network: Any = loaded.network
    if isinstance(network, SpanClassifier):
        return loaded
    return loaded._replace(network=SpanClassifier(getattr(network, "body", network).unpooled()))


def tagging(loaded: Loaded, recipe: Recipe) -> Loaded:
    """An encoder with a new head for the tags of the training part; what has one keeps it."""
    network: Any = loaded.network
    if type(network) is TokenClassifier:
        return loaded
    tags = learn_tags(recipe.data, Path(recipe.origin), recipe.seed)
    return loaded._replace(network=TokenClassifier(getattr(network, "body", network).unpooled(), tags))
