"""Our kernels in C, where they were built and this processor runs them; elsewhere torch's do the work.

They are built when regard is installed, if there is a C compiler that knows OpenMP. They are given pointers: that
tensors are float32, on the CPU and, where a shape does not say otherwise, contiguous is for callers to see to.
"""

import ctypes
import warnings
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_long, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch  # before the kernels are opened: they share its threads
from torch import Tensor, nn

from regard.kernels.amx import limit_onednn

FEW = 64  # rows of inputs, up to which weights are read as they are,

ROOM = 1 << 18  # and numbers in them

MANY = 128  # rows, from which on weights are laid out for a single product

LANES, PANEL = 8, 16  # numbers at once, outputs of a panel: as in numbers.h and tiles.h

QUERIES, LENGTH = 6, 2048  # with fewer queries or more keys, torch's attention is the faster


class Product(ctypes.Structure):
    """Weights, as numbers or as bytes with scales, and a bias or none."""

    _fields_ = [
        ("weight", c_void_p), ("scale", c_void_p), ("bias", c_void_p), ("outputs", c_int), ("inputs", c_int),
    ]  # fmt: skip


class Norm(ctypes.Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float), ("centred", c_int)]


class Block(ctypes.Structure):
    _fields_ = [
        ("norm", Norm), ("other_norm", Norm),
        ("together", Product), ("output", Product), ("gate", Product), ("widen", Product), ("narrow", Product),
        ("heads", c_int), ("key_heads", c_int), ("width", c_int), ("window", c_int), ("pre", c_int), ("bend", c_int),
        ("scale", c_float),
    ]  # fmt: skip


class Room(ctypes.Structure):
    """Where keys and values are, and for how many places there is room."""

    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("room", c_long)]


class Angles(ctypes.Structure):
    _fields_ = [("cosine", c_void_p), ("sine", c_void_p), ("apart", c_int)]


class View(ctypes.Structure):
    """Numbers of (texts, heads, places, width), and how far apart they lie."""

    _fields_ = [("data", c_void_p), ("text", c_long), ("head", c_long), ("step", c_long)]


class Look(ctypes.Structure):
    """Queries that look at keys and values."""

    _fields_ = [
        ("query", View), ("key", View), ("value", View), ("lengths", c_void_p), ("starts", c_void_p),
        ("texts", c_long), ("queries", c_long), ("length", c_long),
        ("heads", c_int), ("key_heads", c_int), ("width", c_int), ("causal", c_int), ("scale", c_float),
    ]  # fmt: skip


class Back(ctypes.Structure):
    """What was found, the gradient of it, and where the others go."""

    _fields_ = [
        ("context", c_void_p), ("sums", c_void_p), ("gradient", View),
        ("query", c_void_p), ("key", c_void_p), ("value", c_void_p),
    ]  # fmt: skip


def _opened() -> Any:
    """The library, or nothing where there is none for this machine; one of another state of the sources is left."""
    for suffix in EXTENSION_SUFFIXES:
        place = Path(__file__).with_name(f"_built{suffix}")
        if not place.is_file():
            continue
        try:
            library = ctypes.CDLL(str(place))
            if not library.regard_runs_here():
                return None
            sizes = library.regard_size_of_block(), library.regard_size_of_look(), library.regard_size_of_back()
            if sizes == tuple(map(ctypes.sizeof, (Block, Look, Back))) and not _outdated(place):
                return _declared(library)
            problem = "it was built from other sources"
        except (OSError, AttributeError) as error:
            problem = str(error)
        warnings.warn(f"{place.name} cannot be used, install regard anew: {problem}", RuntimeWarning, stacklevel=2)
    return None


def _outdated(library: Path) -> bool:
    """Whether sources beside it have changed since."""
    sources = [*library.parent.glob("*.c"), *library.parent.glob("*.h")]
    return any(source.stat().st_mtime > library.stat().st_mtime for source in sources)


def _declared(library: Any) -> Any:
    library.regard_lay_out.argtypes = [c_void_p] * 2 + [c_long] * 2 + [c_int]
    library.regard_lay_bytes.argtypes = [c_void_p] * 2 + [c_long] * 2
    library.regard_product.argtypes = [c_void_p] * 5 + [c_long] * 3 + [c_int] * 2
    library.regard_few.argtypes = [c_void_p] * 3 + [c_int] * 2
    library.regard_step.argtypes = [c_void_p] * 2 + [c_int, c_void_p, c_int, c_int, c_long, c_void_p, c_int]
    library.regard_bend.argtypes = [c_void_p] * 3 + [c_long] + [c_int] * 2
    library.regard_look.argtypes = [c_void_p] * 3 + [c_int]
    library.regard_look_back.argtypes = [c_void_p] * 2 + [c_int]
    for name in ("regard_lay_out", "regard_lay_bytes", "regard_product", "regard_few", "regard_bend"):
        getattr(library, name).restype = None
    return library


KERNELS = _opened()
limit_onednn(KERNELS)


def built() -> bool:
    """Whether they are there."""
    return KERNELS is not None


def panelled() -> bool:
    """Whether those for many rows are the faster ones: where vectors have sixteen numbers, torch's are."""
    return built() and "AVX512" not in torch.backends.cpu.get_cpu_capability()


def exact(x: Tensor) -> bool:
    """Whether x is what kernels take, and nobody wants another precision or to see what is called."""
    kept = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return x.dtype == torch.float32 and x.device.type == "cpu" and not kept and not torch.is_autocast_enabled("cpu")


def plain(x: Tensor) -> bool:
    """Whether x is such, and nobody wants gradients."""
    return exact(x) and not torch.is_grad_enabled()


def few(x: Tensor) -> bool:
    """Whether x is such, and of a few rows."""
    return built() and plain(x) and x.numel() <= min(FEW * x.size(-1), ROOM)


def product(weight: Tensor, bias: Tensor | None) -> Product:
    """Pointers to these, which must outlive it."""
    return Product(weight.data_ptr(), None, _place(bias), *weight.shape)


def byte_product(laid: Tensor, scale: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> Product:
    """The same for bytes, which do not tell their (outputs, inputs): both were rounded up."""
    return Product(laid.data_ptr(), scale.data_ptr(), _place(bias), *shape)


def norm(module: nn.LayerNorm | nn.RMSNorm) -> Norm:
    epsilon = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    bias = getattr(module, "bias", None)
    return Norm(_place(module.weight), _place(bias), epsilon, isinstance(module, nn.LayerNorm))


def multiplied(x: Tensor, by: Product) -> Tensor:
    """x · weightᵀ + bias, for a few rows."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], by.outputs)
    rows = x.numel() // by.inputs
    KERNELS.regard_few(byref(by), x.data_ptr(), y.data_ptr(), rows, torch.get_num_threads())
    return y


def stepped(blocks: Any, rooms: Any, x: Tensor, length: int, angles: Angles) -> None:
    """x (rows, width) through the blocks, in place; what they remember of it is written behind `length` places."""
    rows, width = x.shape
    _done(KERNELS.regard_step, blocks, rooms, len(blocks), x.data_ptr(), rows, width, length, byref(angles))


def laid_bytes(rounded: Tensor) -> Tensor:
    """Weights of bytes (outputs, inputs) as the kernels read them: (outputs, inputs), both rounded up."""
    outputs, inputs = rounded.shape
    laid = rounded.new_empty(-(-outputs // LANES) * LANES, -(-inputs // LANES) * LANES)
    rounded = rounded.contiguous()
    KERNELS.regard_lay_bytes(rounded.data_ptr(), laid.data_ptr(), outputs, inputs)
    return laid


def laid_back(laid: Tensor) -> Tensor:
    """The bytes of some eights of outputs as (outputs, inputs) again."""
    return laid.view(-1, laid.size(1) // LANES, LANES, LANES).transpose(1, 2).reshape(laid.shape)


def panels_of(weight: Tensor, turned: bool = False) -> Tensor:
    """Weights (outputs, inputs), or turned round (inputs, outputs), as the kernels for many rows read them."""
    outputs, inputs = reversed(weight.shape) if turned else weight.shape
    panels = weight.new_empty(_panels(outputs) * inputs)
    weight = weight.detach().contiguous()
    KERNELS.regard_lay_out(weight.data_ptr(), panels.data_ptr(), outputs, inputs, turned)
    return panels


def full_bias(weight: Tensor, outputs: int, parts: Sequence[Tensor]) -> Tensor:
    """The biases one after another, or none, with zeros for the outputs that fill up the last panel."""
    bias = weight.new_zeros(_panels(outputs))
    if parts:
        bias[:outputs] = torch.cat([part.detach() for part in parts])
    return bias


def _panels(outputs: int) -> int:
    return -(-outputs // PANEL) * PANEL


def through_panels(x: Tensor, panels: Tensor, bias: Tensor, outputs: int, add: Tensor | None, bend: int) -> Tensor:
    """bend(x · weightᵀ + bias + add); the bias has zeros for the outputs that fill up the last panel."""
    x, add = x.contiguous(), None if add is None else add.contiguous()
    y = x.new_empty(*x.shape[:-1], outputs)
    sizes = x.numel() // x.size(-1), outputs, x.size(-1)
    KERNELS.regard_product(
        x.data_ptr(), panels.data_ptr(), bias.data_ptr(), _place(add), y.data_ptr(), *sizes, bend,
        torch.get_num_threads(),
    )  # fmt: skip
    return y


def many(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether x has rows enough to lay weights out for one product, and all of them can be read where they are."""
    if not panelled() or x.numel() < MANY * x.size(-1) or not exact(x):
        return False
    return all(each is None or usable(each) for each in parameters)


def usable(parameter: Tensor) -> bool:
    """Whether kernels can read a parameter where it is."""
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu" and parameter.is_contiguous()


def product_of_many(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, turned: bool = False, bend: int = 0
) -> Tensor:
    """bend(x · weightᵀ + bias), or of x · weight where that is turned round: laid out, multiplied and forgotten."""
    outputs = weight.size(1) if turned else weight.size(0)
    panels, full = panels_of(weight, turned), full_bias(weight, outputs, [] if bias is None else [bias])
    return through_panels(x, panels, full, outputs, None, bend)


def bent(x: Tensor, bend: int, gradient: Tensor | None = None) -> Tensor:
    """bend(x), an activation by its number; with the gradient of that, the gradient of x."""
    x, gradient = x.contiguous(), None if gradient is None else gradient.contiguous()
    y = torch.empty_like(x)
    KERNELS.regard_bend(x.data_ptr(), _place(gradient), y.data_ptr(), x.numel(), bend, torch.get_num_threads())
    return y


def looks(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    """Whether these are queries, keys and values (texts, heads, places, width) for our attention."""
    if not built() or not exact(query) or query.ndim != 4 or key.ndim != 4 or key.shape != value.shape:
        return False
    (texts, heads, queries, width), (others, key_heads, length, key_width) = query.shape, key.shape
    fit = texts == others and heads % key_heads == 0 and width == key_width and (not causal or queries == length)
    close = all(part.stride(-1) == 1 and part.dtype == query.dtype for part in (query, key, value))
    return fit and close and queries >= QUERIES and 0 < length <= LENGTH


def look(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Contexts (texts, places, heads, width), and what is kept of each row of weights (texts, heads, places)."""
    texts, heads, places, width = query.shape
    context, sums = query.new_empty(texts, places, heads, width), query.new_empty(texts, heads, places)
    _done(KERNELS.regard_look, byref(_look(query, key, value, scale, causal)), context.data_ptr(), sums.data_ptr())
    return context, sums


def look_back(
    given: tuple[Tensor, Tensor, Tensor], scale: float, causal: bool, context: Tensor, sums: Tensor, gradient: Tensor
) -> list[Tensor]:
    """The gradients of queries, keys and values, each (texts, places, heads, width), from that of the context."""
    found = [part.new_empty(part.transpose(1, 2).shape) for part in given]
    gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
    places = [each.data_ptr() for each in found]
    back = Back(context.data_ptr(), sums.data_ptr(), _view(gradient.transpose(1, 2)), *places)
    _done(KERNELS.regard_look_back, byref(_look(*given, scale, causal)), byref(back))
    return found


def looked(projected: Tensor, lengths: list[int], heads: int, scale: float) -> Tensor:
    """Contexts of texts one after another, each token's of its own text: (tokens, 3 · width) → (tokens, width)."""
    context = projected.new_empty(len(projected), projected.size(1) // 3)
    if not len(projected):
        return context
    parts = projected.contiguous().view(1, len(projected), 3, heads, -1).permute(2, 0, 3, 1, 4)
    look = _look(parts[0], parts[1], parts[2], scale, causal=False)
    sizes, starts = (c_long * len(lengths))(*lengths), (c_long * len(lengths))(*accumulate([0, *lengths[:-1]]))
    look.lengths, look.starts = ctypes.addressof(sizes), ctypes.addressof(starts)
    look.texts, look.queries, look.length = len(lengths), max(lengths), max(lengths)
    _done(KERNELS.regard_look, byref(look), context.data_ptr(), None)
    return context


def _look(query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool) -> Look:
    texts, heads, queries, width = query.shape
    sizes = texts, queries, key.size(2), heads, key.size(1), width
    return Look(_view(query), _view(key), _view(value), None, None, *sizes, causal, scale)


def _view(tensor: Tensor) -> View:
    return View(tensor.data_ptr(), *tensor.stride()[:3])


def _done(kernel: Any, *arguments: Any) -> None:
    if kernel(*arguments, torch.get_num_threads()):
        raise MemoryError("there is no memory left for what a kernel keeps")


def _place(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
