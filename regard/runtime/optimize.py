"""A loaded network, rewritten for inference: packed projections, weights in another order or as int8, no padding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import nn

from regard.attention.core import Attention
from regard.kernels import onednn, ops
from regard.layers.autoregressive import TransformerLM
from regard.layers.blocks import Block, FeedForward, Stack
from regard.layers.encoder import Encoder
from regard.layers.image_encoder import ImageEncoder
from regard.layers.inputs import AudioBatch, ImageBatch
from regard.runtime import fused_decoder, unpadded
from regard.runtime.fused_decoder import FusedDecoder
from regard.runtime.linear import (
    MIN_WEIGHTS,
    DynamicInt8Linear,
    FbgemmInt8Linear,
    OneDNNLinear,
    PackedLinear,
    PackedQKV,
    PackedWeights,
    SmallBatchLinear,
    WeightOnlyInt8Linear,
    concatenated_bias,
    packable,
    require_int8,
    store_column_major,
)
from regard.runtime.unpadded import Unpadded

Network = TypeVar("Network", bound=nn.Module)
Int8Linear = type[WeightOnlyInt8Linear | FbgemmInt8Linear | DynamicInt8Linear]

MINIMUM: dict[type, float] = {nn.GELU: -0.1701, nn.ReLU: 0.0}  # of what activations return


def optimize_for_inference(network: Network, precision: str = "float32") -> Network:
    """The network in place, with the same results faster; "int8" is nearly the same, and cannot be saved."""
    if precision == "int8":
        require_int8()
        network.requires_grad_(False)  # int8 layers have no gradients
    with torch.no_grad():
        for encoder in [module for module in network.modules() if isinstance(module, Encoder)]:
            optimize_encoder(encoder, precision)
        decoder = optimize_decoder(network, precision)
        if precision == "int8":
            int8_linear = small_batch_int8()
            replace_linears(network, lambda linear: int8_linear(linear.weight, linear.bias))
        elif decoder is not None and ops.available():
            replace_linears(network, SmallBatchLinear, skip=getattr(network, "encoder", None))
        if decoder is not None and fused_decoder.is_supported(decoder):
            network.decoder = FusedDecoder(decoder)  # type: ignore[assignment]
    return network


@contextmanager
def optimized_for_training(network: nn.Module) -> Iterator[None]:
    """Linear layers of image models are computed by oneDNN within, where that is faster; parameters stay."""
    suitable = onednn.is_faster() and getattr(network, "input_type", None) is ImageBatch
    linears = use_onednn(network) if suitable else []
    try:
        yield
    finally:
        for linear in linears:
            linear.__class__ = nn.Linear


def use_onednn(network: nn.Module) -> list[nn.Linear]:
    """Compute the linear layers by oneDNN, which keeps about a megabyte for each size of input; gives the layers."""
    linears = [module for module in network.modules() if type(module) is nn.Linear]
    for linear in linears:
        linear.__class__ = OneDNNLinear
    return linears


def optimize_decoder(network: nn.Module, precision: str) -> Stack | None:
    """The blocks that read one token at a time, of a language model or of one that reads recordings; else None.

    The encoder of the latter has many positions, as have the keys and values of its states.
    """
    if isinstance(network, TransformerLM):
        for attention in [module for module in network.modules() if isinstance(module, Attention)]:
            pack_qkv(attention, precision, small_batch_int8())
        return network.decoder
    if not reads_recordings(network):
        return None
    encoder, decoder = cast(Stack, network.encoder), cast(Stack, network.decoder)
    network.encoder = Unpadded(encoder) if unpadded.is_supported(encoder) else encoder
    optimize_layers(encoder, precision)
    for block in cast(list[Block], list(decoder.blocks)):
        pack_qkv(block.self_attention, precision, small_batch_int8())
        for name in ("key", "value"):
            setattr(block.cross, name, many_rows(getattr(block.cross, name), precision))
    return decoder


def reads_recordings(network: nn.Module) -> bool:
    """Whether it is an encoder–decoder of Transformer blocks whose source is a recording."""
    stacks = all(isinstance(getattr(network, side, None), Stack) for side in ("encoder", "decoder"))
    return stacks and getattr(network, "input_type", None) is AudioBatch


def small_batch_int8() -> type[WeightOnlyInt8Linear | FbgemmInt8Linear]:
    """The int8 layer for a few rows."""
    return WeightOnlyInt8Linear if ops.available() else FbgemmInt8Linear


def optimize_encoder(encoder: Encoder, precision: str) -> None:
    """Its blocks, over real tokens alone where that is supported."""
    blocks: nn.Module = getattr(encoder, "encoder", encoder)
    if isinstance(encoder, ImageEncoder) and precision != "int8" and onednn.is_faster():
        use_onednn(encoder)
    elif unpadded.is_supported(blocks):
        optimize_layers(blocks, precision)
        encoder.encoder = Unpadded(blocks)
    elif isinstance(encoder, ImageEncoder):
        optimize_layers(blocks, precision)
    elif precision == "int8" and torch.backends.mkldnn.is_available():
        replace_linears(blocks, lambda linear: DynamicInt8Linear(linear.weight, linear.bias))


def optimize_layers(blocks: nn.Module, precision: str) -> None:
    """The attention and linear layers of an encoder's blocks, for many positions at a time."""
    for attention in [module for module in blocks.modules() if isinstance(module, Attention)]:
        pack_qkv(attention, precision, many_rows_int8(), many_rows=True)
    for module, name, child in _linears(blocks):
        activation = module.activation if isinstance(module, FeedForward) and name == "down" else None
        setattr(module, name, many_rows(child, precision, MINIMUM.get(type(activation))))


def many_rows_int8() -> Int8Linear:
    """The int8 layer for many rows."""
    return DynamicInt8Linear if torch.backends.mkldnn.is_available() else small_batch_int8()


def many_rows(linear: nn.Linear, precision: str, minimum: float | None = None) -> nn.Module:
    """A linear layer for many positions at a time; `minimum` is that of its input, if it is known."""
    if precision == "int8":
        int8_linear = many_rows_int8()
        return (
            int8_linear(linear.weight, linear.bias, minimum)
            if int8_linear is DynamicInt8Linear
            else int8_linear(linear.weight, linear.bias)
        )
    if ops.use_packed_gemm():
        return PackedLinear(linear)
    store_column_major(linear)
    return linear


def pack_qkv(attention: Attention, precision: str, int8_linear: Int8Linear, many_rows: bool = False) -> None:
    """Compute queries, keys and values by one matrix product."""
    layers = packable(attention)
    if not layers:
        return
    attention.sizes = tuple(layer.out_features for layer in layers)
    if precision == "int8":
        attention.qkv = int8_linear(torch.cat([layer.weight for layer in layers]), concatenated_bias(layers))
        attention.query = attention.key = attention.value = nn.Identity()  # never called
    elif many_rows and ops.use_packed_gemm():
        attention.qkv = PackedWeights(layers)
    else:
        attention.qkv = PackedQKV(layers, row_major=not many_rows)


def replace_linears(network: nn.Module, build: Callable[[nn.Linear], nn.Module], skip: nn.Module | None = None) -> None:
    """Replace every other linear layer, except small ones and those inside `skip`."""
    skipped = set() if skip is None else set(skip.modules())
    for module, name, child in _linears(network):
        if child.weight.numel() >= MIN_WEIGHTS and module not in skipped:
            setattr(module, name, build(child))


def _linears(network: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The linear layers that are not part of a packed product: (parent module, name, layer)."""
    return [
        (module, name, child)
        for module in network.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
        and not (isinstance(module, Attention) and module.qkv is not None and name in ("query", "key", "value"))
    ]
