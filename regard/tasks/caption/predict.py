"""Captions of images, with the attention of each word over the image."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.attention.trace import Axes, Axis, Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.candidates import key_of
from regard.layers.inputs import ImageBatch
from regard.models.vision import ImageToText
from regard.tasks.generation import GenerationPredictor
from regard.tasks.images import (
    COLUMNS,
    image_of_row,
    images_of_arguments,
    is_single_image,
    picture_of,
    read_pixels,
)
from regard.tasks.predictor import Inference, Options, RunInput
from regard.tasks.seq2seq import check_output, decode, record_target
from regard.text.tokenizer import Tokenizer

MAX_NEW_TOKENS = 64  # default length of a caption


@dataclass(frozen=True)
class Caption:
    """One caption. `score` is the length-normalised log-probability; `alternatives` are the next best, on request."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()  # without the end token
    finished: bool = True  # False: max_new_tokens was reached
    truncated: bool = False
    alternatives: tuple["Caption", ...] = ()


class CaptionPredictor(GenerationPredictor):
    """`run` and `trace` of captioning models."""

    task = "caption"
    description = "a captioning model"
    text_columns = COLUMNS

    def is_single(self, inputs: Any) -> bool:
        return is_single_image(inputs)

    def is_empty(self, value: Any) -> bool:
        return isinstance(value, str) and not value.strip()

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Caption]:
        decoding = self.decode_options(**options)
        captions: list[Caption] = []
        for start in range(0, len(inputs), inference.batch_size):
            values = inputs[start : start + inference.batch_size]
            batch = self._batch([read_pixels(value, index) for index, value in enumerate(values, start)])
            captions += caption_images(self.network, batch, self.tokenizer, decoding)
            inference.progress(batch.batch_size)
        return captions

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        pixels = read_pixels(value)
        image = self._batch([pixels])
        if target is None:
            (caption,) = caption_images(self.network, image, self.tokenizer, self.decode_options(**options))
            output = list(caption.tokens)
        else:
            output = self.tokenizer.encode(target)
        check_output(self.network, output)
        trace = trace_caption(self.network, image, self.tokenizer, output, prove)
        trace.picture = picture_of(pixels, value, self.processor.source)
        return trace

    def _batch(self, images: list[np.ndarray]) -> ImageBatch:
        return self.processor.source(images).to(self.model.device)

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput]:
        return images_of_arguments(arguments)

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        return image_of_row(text, location)


def caption_images(
    network: ImageToText, images: ImageBatch, tokenizer: Tokenizer, options: DecodeOptions
) -> list[Caption]:
    """A caption for each image, with its alternatives."""
    images = images.to(next(network.parameters()).device)
    limit = min(options.max_new_tokens or MAX_NEW_TOKENS, network.max_positions - 1)
    keys = [key_of(image.cpu().numpy().view(np.int32)) for image in images.pixels] if options.temperature else ()
    captions = []
    for hypotheses in decode(network, images, tokenizer, options, limit, keys):
        best, *rest = (
            Caption(tokenizer.decode(each.tokens), each.score, tuple(each.tokens), each.finished) for each in hypotheses
        )
        captions.append(replace(best, alternatives=tuple(rest)))
    return captions


def trace_caption(
    network: ImageToText, image: ImageBatch, tokenizer: Tokenizer, output: list[int], prove: bool = False
) -> Trace:
    """The attention of one teacher-forced pass: words × patches at each cross-attention site."""
    recorder = record_target(network, image, tokenizer, output, prove)
    size = image.pixels.shape[-2:]
    source = network.encoder.state_geometry(*size).axis(*size)
    target = Axis(tokenizer.pieces([tokenizer.begin, *output]))
    words = Axis(tokenizer.pieces([*output, tokenizer.end]))
    sites = network.encoder.axes(*size) | {"*cross": (words, source), "decoder.*": (target, target)}
    return Trace(recorder, Axes(sites, source, target, words), tokenizer.decode(output))
