"""A network with the call signature of transformers: `module(input_ids=…, attention_mask=…)`.

Encoder–decoders also take `decoder_input_ids`, encoders `token_type_ids`. Image encoders: `module(pixel_values=…)`.
Whisper: `module(input_features=…, decoder_input_ids=…)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.layers.inputs import AudioBatch, ImageBatch, TokenBatch
from regard.layers.patches import GridPositions
from regard.layers.pytree import State
from regard.models.deit import DistilledClassifier
from regard.models.heads.mlm import Pretraining
from regard.models.registry import FAMILIES, family_of
from regard.models.transformer import Transformer
from regard.models.vit import ViT
from regard.models.whisper import Whisper

Scatter = Callable[[Tensor], Tensor]  # (real tokens, width) → (batch, length, width), zeros at padding


@dataclass(frozen=True)
class Output:
    """The outputs under the names of transformers: logits (batch, length, vocabulary), of a classifier (batch, labels).

    Hidden states are zero at padding.
    """

    logits: Any = None  # a Tensor, except for bare encoders and heads with several outputs
    encoder_last_hidden_state: Tensor | None = None
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None  # sop_logits in ALBERT
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    cls_logits: Tensor | None = None  # of DeiT's two heads; `logits` are their mean
    distillation_logits: Tensor | None = None


class HFModule(nn.Module):
    """A network with the call signature of transformers; its parameters are those of `network`, under that prefix.

    Padding may be anywhere in a row: positions count real tokens only.
    """

    network: Any

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(
        self,
        input_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        input_features: Tensor | None = None,
    ) -> Output:
        takes_images = self.network.input_type is ImageBatch
        inputs = {
            TokenBatch: ("input_ids", input_ids, "tokens"),
            ImageBatch: ("pixel_values", pixel_values, "images"),
            AudioBatch: ("input_features", input_features, "features of recordings"),
        }
        name, value, kind = inputs[self.network.input_type]
        if value is None:
            raise UserError(f"{name} is missing: this model takes {kind}")
        if isinstance(self.network, Whisper):
            return speech_outputs(self.network, value, decoder_input_ids)
        if self.network.input_type is AudioBatch:
            raise UserError("of models of recordings only Whisper has this call: use model.run, or model.network")
        if takes_images and self.network.task == "caption":
            return caption_outputs(self.network, value, decoder_input_ids, interpolate_pos_encoding)
        if takes_images:
            return image_outputs(self.network, value, interpolate_pos_encoding)
        return self._from_tokens(value, decoder_input_ids, attention_mask, token_type_ids)

    def _from_tokens(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
    ) -> Output:
        _check_shape("input_ids", input_ids)
        real = _real(attention_mask, input_ids)
        lengths = real.sum(1)
        text = TokenBatch(input_ids.new_zeros(len(input_ids), int(lengths.max())), lengths)
        text.tokens[text.real] = input_ids[real]  # real tokens first, in their order
        if token_type_ids is not None:
            text = self._with_segments(text, token_type_ids, real)

        def scatter(values: Tensor) -> Tensor:
            rows = values.new_zeros(*real.shape, values.size(-1))
            rows[real] = values
            return rows

        network = self.network
        if network.task == "translate":
            return self._translate(text, decoder_input_ids, scatter)
        if decoder_input_ids is not None:
            raise UserError("decoder_input_ids is not supported: not an encoder–decoder model; pass input_ids only")
        _check_ids("input_ids", text.tokens, network.config.vocabulary)
        if text.tokens.size(1) > network.max_positions:
            raise UserError(
                f"input_ids has {text.tokens.size(1)} real tokens, but the model's context is "
                f"{network.max_positions} tokens"
            )
        return _outputs(network, text, scatter)

    def _with_segments(self, text: TokenBatch, types: Tensor, real: Tensor) -> TokenBatch:
        if not FAMILIES[family_of(self.network)].is_encoder:
            raise UserError("token_type_ids is not supported: only encoders have segments")
        count = max(self.network.config.token_types, 1)
        if types.shape != real.shape:
            raise UserError(f"token_type_ids is {tuple(types.shape)}, input_ids {tuple(real.shape)}")
        _check_ids("token_type_ids", types, count, "segments")
        segments = torch.zeros_like(text.tokens)
        segments[text.real] = types[real].to(segments.dtype)
        return text._replace(segments=segments if count > 1 else None)

    def _translate(self, source: TokenBatch, target: Tensor | None, scatter: Scatter) -> Output:
        network = self.network
        if target is None:
            raise UserError("decoder_input_ids is missing: this is an encoder–decoder model")
        _check_ids("input_ids", source.tokens, network.config.source_vocabulary)
        _check_shape("decoder_input_ids", target)
        _check_ids("decoder_input_ids", target, network.config.target_vocabulary)
        if len(source.tokens) != len(target):
            raise UserError(f"input_ids has {len(source.tokens)} rows, decoder_input_ids {len(target)}")
        if not isinstance(network, Transformer):
            return Output(network(source, target))
        states = network.encode(source)
        logits, _ = network.step(target, State(network.decoder.remember(states, source.real), ()))
        return Output(logits, scatter(states[source.real]))


def _outputs(network: Any, text: TokenBatch, scatter: Scatter) -> Output:
    """What a network without a decoder of its own computes, by its task."""
    if network.task == "classify":  # `label` reads the segments of a document once, for states and logits
        states, logits, _ = network.label(text)
        return Output(logits, last_hidden_state=scatter(states[text.real]))
    states = network.encode(text)
    real = states[text.real]
    output = Output(last_hidden_state=scatter(real))
    match network.task:
        case "embed":
            return replace(output, pooler_output=None if network.pooler is None else network.pooled(states))
        case "generate":
            return replace(output, logits=scatter(network.output(real)))
        case "tag":
            return replace(output, logits=scatter(network.logits_from_states(real)))
        case "answer":
            start, end = scatter(network.logits_from_states(real)).unbind(-1)
            return replace(output, start_logits=start, end_logits=end)
    logits = scatter(network.lm_head(real))
    if not isinstance(network, Pretraining):
        return replace(output, logits=logits)
    related = network.nsp_logits(states, text)
    return replace(output, prediction_logits=logits, seq_relationship_logits=related)


def image_outputs(network: Any, pixels: Tensor, interpolate: bool) -> Output:
    """What an image encoder computes, with or without a classification head."""
    _check_pixels(getattr(network, "body", network), pixels, interpolate)
    if network.task == "embed":
        states = network.encode(ImageBatch(pixels))
        pooled = None if isinstance(network, ViT) and network.pooler is None else network.pooled(states)
        return Output(last_hidden_state=states, pooler_output=pooled)
    states, logits, _ = network.label(ImageBatch(pixels))
    output = Output(logits, last_hidden_state=states)
    if not isinstance(network, DistilledClassifier):
        return output
    first, second = network.both_logits(states)
    return replace(output, cls_logits=first, distillation_logits=second)


def caption_outputs(network: Any, pixels: Tensor, target: Tensor | None, interpolate: bool) -> Output:
    """The logits of a caption's next tokens."""
    _check_pixels(network.encoder, pixels, interpolate)
    if target is None:
        raise UserError("decoder_input_ids is missing: this is an encoder–decoder model")
    _check_shape("decoder_input_ids", target)
    _check_ids("decoder_input_ids", target, network.config.vocabulary)
    if len(pixels) != len(target):
        raise UserError(f"pixel_values has {len(pixels)} images, decoder_input_ids {len(target)} rows")
    return Output(network(ImageBatch(pixels), target))


def speech_outputs(network: Whisper, features: Tensor, target: Tensor | None) -> Output:
    """The logits of a transcript's next tokens, and the encoder's states. Features are (batch, bins, frames)."""
    bins, positions = network.config.bins, network.config.source_positions
    if features.dim() != 3 or not features.is_floating_point() or features.size(1) != bins or not len(features):
        expected = f"(batch, {bins}, frames)"
        raise UserError(f"input_features should be floats {expected}, not {features.dtype} {tuple(features.shape)}")
    if not 0 < features.size(2) <= 2 * positions:
        raise UserError(f"input_features has {features.size(2)} frames, but the model reads 1 … {2 * positions}")
    if target is None:
        raise UserError("decoder_input_ids is missing: this is an encoder–decoder model")
    _check_shape("decoder_input_ids", target)
    _check_ids("decoder_input_ids", target, network.config.vocabulary)
    if len(features) != len(target):
        raise UserError(f"input_features has {len(features)} recordings, decoder_input_ids {len(target)} rows")
    frames = features.mT
    lengths = torch.full((len(frames),), frames.size(1), device=frames.device)
    encoded = network.listen(AudioBatch(frames, lengths))
    logits, _ = network.step(target, network.start_from(encoded))
    return Output(logits, encoded.states)


def _check_pixels(encoder: Any, pixels: Tensor, interpolate: bool) -> None:
    config = encoder.config
    if pixels.dim() != 4 or not pixels.is_floating_point() or pixels.size(1) != config.channels or not len(pixels):
        expected = f"(batch, {config.channels}, height, width)"
        raise UserError(f"pixel_values should be floats {expected}, not {pixels.dtype} {tuple(pixels.shape)}")
    height, width = pixels.shape[2:]
    if not encoder.state_geometry(height, width).rows * encoder.state_geometry(height, width).columns:
        raise UserError(f"pixel_values has {height} × {width} pixels, less than one patch")
    has_positions = any(isinstance(module, GridPositions) for module in encoder.modules())
    if has_positions and not interpolate and (height, width) != config.image_shape:
        expected = "{} × {}".format(*config.image_shape)
        raise UserError(
            f"pixel_values has {height} × {width} pixels, but the model's positions are for {expected}: resize the "
            "images, or pass interpolate_pos_encoding=True"
        )


def _check_shape(name: str, ids: Tensor) -> None:
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise UserError(f"{name} should be integers (batch, length), not {ids.dtype} {tuple(ids.shape)}")


def _check_ids(name: str, ids: Tensor, count: int, what: str = "vocabulary's ids") -> None:
    low = int(ids.min())
    high = int(ids.max())
    if low < 0 or high >= count:
        raise UserError(f"{name} holds {low if low < 0 else high}, but the {what} are 0 … {count - 1}")


def _real(mask: Tensor | None, ids: Tensor) -> Tensor:
    """The attention mask as booleans, True for real tokens."""
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.shape != ids.shape:
        raise UserError(f"attention_mask is {tuple(mask.shape)}, input_ids {tuple(ids.shape)}; they should be equal")
    if not ((mask == 0) | (mask == 1)).all():
        raise UserError("attention_mask should be 1 for real tokens and 0 for padding, nothing else")
    empty = (mask == 0).all(1).nonzero().flatten().tolist()
    if empty:
        raise UserError(f"attention_mask: row {empty[0]} has no real token")
    return mask.bool()
