"""The classification head of a model of text, new or kept."""

from pathlib import Path
from typing import Any

from regard.config.recipe import Recipe
from regard.errors import UserError
from regard.interop.folder import Loaded
from regard.interop.sentence_transformers import Pooling
from regard.layers.encoder import Encoder
from regard.models.heads.hierarchical import Documents
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, family_of
from regard.tasks.classify.files import TextTable
from regard.tasks.classify.head import check_problem_type, training_labels
from regard.tasks.classify.options import ClassifyData, ClassifyTrain
from regard.text.special_tokens import special_tokens_of, with_end_token
from regard.text.vocabulary import Vocabulary


def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
    """A causal LM or an encoder with a new head for the labels of the training split; a classifier keeps its head.

    Texts of a causal LM get an end token, at which the label is predicted.
    """
    network: Any = loaded.network
    vocabulary: Any = loaded.processor
    config = loaded.config
    data = ClassifyData.of(recipe)
    assert isinstance(recipe.train, ClassifyTrain)
    lm_loss = recipe.train.lm_loss_weight
    pooling = recipe.model.get("pooling", "") if "from" in recipe.model else ""  # of a loaded encoder
    if not isinstance(network, Classifier):
        is_encoder = FAMILIES[family_of(network)].is_encoder
        body = getattr(network, "body", network)
        network = _new_head(body, data, Path(recipe.origin), _mean_pooled(body, pooling, loaded.pooling))
        network = network if lm_loss else network.drop_lm_head()
        if not is_encoder:
            tokenizer = with_end_token(vocabulary.target)
            vocabulary = Vocabulary(tokenizer, tokenizer)
            config = config | {"pad_token_id": tokenizer.pad} if config else {}
    elif pooling and (pooling == "mean") != network.mean_pooled:
        raise UserError(f"model.pooling = '{pooling}' is for a new head, but the model has one already: remove it")
    _check(network, vocabulary, data)
    network.paired = bool(data.text_pair)  # published checkpoints do not say so
    if lm_loss and not network.has_lm_head:
        raise UserError(
            f"train.lm_loss_weight = {lm_loss}, but the model has no language modelling head left: start from the "
            "language model, or set it to 0"
        )
    return loaded._replace(network=network, processor=vocabulary, config=config)


def _check(network: Classifier, vocabulary: Vocabulary, data: ClassifyData) -> None:
    """Reject data options that contradict the model."""
    check_problem_type(network, data)
    segmented = isinstance(network, Documents)
    if (network.segment if segmented else 0) != data.segment_length:
        reads = f"in segments of {network.segment} tokens" if segmented else "as a whole"
        raise UserError(f"data.segment_length = {data.segment_length}, but the model reads texts {reads}")
    if segmented and [*map(len, special_tokens_of(vocabulary.target, 1).specials)] != [1, 1]:
        raise UserError(
            f"data.segment_length = {data.segment_length}: a segment needs one special token before and one after it, "
            "as [CLS] … [SEP], but this tokenizer adds others: use that of an encoder such as BERT"
        )
    if network.paired and not data.text_pair:
        raise UserError("data.text_pair is missing: the model was trained on pairs of texts: name the second column")


def _mean_pooled(body: Any, pooling: str, folder: Pooling | None) -> bool:
    """Whether a new head reads the mean of the hidden states: as in the recipe, else as in the folder."""
    is_encoder = isinstance(body, Encoder)
    has_pooling = hasattr(body.config, "pooling")
    if pooling and (has_pooling or not is_encoder):
        why = f"the model has its own, '{body.config.pooling}'" if has_pooling else "the model is a causal LM"
        raise UserError(f"model.pooling = '{pooling}' is for encoders such as bert, but {why}: remove it")
    return is_encoder and not has_pooling and (pooling or (folder.kind if folder else "cls")) == "mean"


def _new_head(body: Any, data: ClassifyData, base_dir: Path, mean_pooled: bool) -> Classifier:
    """A head for the labels of the training split, on texts or on documents in segments."""
    if data.synthetic:
        raise UserError(f"data.synthetic = '{data.synthetic}' has no labels: name a file in data.train")
    labels, mean, scale = training_labels(data, base_dir, TextTable)
    body = body.unpooled() if mean_pooled else body
    if not data.segment_length:
        network = Classifier(body, labels, bool(data.text_pair), data.problem_type, scale, mean_pooled=mean_pooled)
    elif not isinstance(body, Encoder):
        raise UserError(f"data.segment_length = {data.segment_length}: segments need an encoder, such as bert")
    elif data.segment_length > body.max_positions:
        raise UserError(
            f"data.segment_length = {data.segment_length}, but the encoder reads at most {body.max_positions} tokens"
        )
    else:
        size = (data.segment_length, data.segment_stride)
        network = Documents(body, labels, *size, data.problem_type, scale, mean_pooled)
    if data.problem_type == "regression":
        network.init_bias(mean)
    return network
