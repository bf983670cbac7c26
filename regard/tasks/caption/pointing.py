"""Pointing accuracy: whether the patch that a word attends to most shows the object that it names. Zhang et al. 2016.

    caption   a   red   circle   left of   a   blue   square
    object        1     1                      2      2

Of synthetic images, whose objects have masks. Chance is the share of patches on the object.

Shapes: mask (height, width), weights (tokens, positions).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.attention.trace import Trace
from regard.data.synthetic.shapes import COLOURS, SHAPES, Scene, scene
from regard.image.processor import ImageProcessor
from regard.image.sources import SYNTHETIC
from regard.layers.image_encoder import SiteGeometry
from regard.models.vision import ImageToText
from regard.tasks.caption.predict import trace_caption
from regard.text.tokenizer import Tokenizer


class Pointing(NamedTuple):
    """Of one image: the share of its words that point to their objects, at each site, and that of random patches."""

    hits: dict[str, float]
    random_rate: float


def named_objects(pieces: Sequence[str]) -> dict[int, int]:
    """Which object each token of a caption names: token index → object index; an object ends with its shape."""
    named = {}
    current = 0
    for index, piece in enumerate(pieces):
        word = piece.strip(" Ġ▁").lower()
        if word in COLOURS or word in SHAPES:
            named[index] = current
        current += word in SHAPES
    return named


def on_object(mask: np.ndarray, geometry: SiteGeometry) -> np.ndarray:
    """Whether the centre of each cell is on an object, row by row."""
    height, width = mask.shape
    rows = np.minimum((np.arange(geometry.rows) + 0.5) * geometry.cell, height - 1).astype(int)
    columns = np.minimum((np.arange(geometry.columns) + 0.5) * geometry.cell, width - 1).astype(int)
    return mask[rows[:, None], columns].ravel()


def scene_of(name: str) -> Scene | None:
    """The scene of a synthetic image; None for other images."""
    match = SYNTHETIC.fullmatch(name)
    return scene(int(match[1]), match[2], int(match[3])) if match else None


def seen_mask(mask: np.ndarray, processor: ImageProcessor) -> np.ndarray:
    """The mask over the pixels that the model is given: resized and cropped as the image is."""
    resized = processor.resize(np.where(mask, 255, 0).astype(np.uint8)[..., None])
    return processor.centre(resized)[..., 0] >= 128


@torch.no_grad()
def pointing(network: ImageToText, processor: Any, drawn: Scene) -> Pointing | None:
    """Over the words of the reference caption; None if the tokenizer splits all of them."""
    tokenizer: Tokenizer = processor.target
    images: ImageProcessor = processor.source
    named = named_objects(tokenizer.pieces(tokens := tokenizer.encode(drawn.caption)))
    if not named:
        return None
    image = images([drawn.image]).to(next(network.parameters()).device)
    trace = trace_caption(network, image, tokenizer, tokens)
    geometry = network.encoder.state_geometry(*image.pixels.shape[-2:])
    objects = [on_object(seen_mask(each.mask, images), geometry) for each in drawn.objects]
    sites = [site for site in trace.sites if site.endswith("cross")]
    hits = {site: _hit_rate(trace, site, named, objects, len(geometry.tokens)) for site in sites}
    return Pointing(hits, float(np.mean([objects[index].mean() for index in named.values()])))


def _hit_rate(trace: Trace, site: str, named: dict[int, int], objects: list[np.ndarray], skipped: int) -> float:
    """The share of words whose largest weight, mean over the heads, is on their object; [CLS] is left out."""
    cells = trace.weights(site).mean(0)[:, skipped:].argmax(-1).tolist()
    return float(np.mean([objects[each][cells[word]] for word, each in named.items()]))
