"""The kernels in C (`kernels/`), where they were built and this processor runs them; elsewhere torch's do the work.

They are built when regard is installed, if there is a C compiler that knows OpenMP. They are given pointers: that
tensors are float32, contiguous and on the CPU is for callers to see to.
"""

import ctypes
import warnings
from ctypes import byref, c_float, c_int, c_long, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch  # before the kernels are opened: they share its threads
from torch import Tensor, nn

from regard.layers.activations import GeluTanh

FEW = 64  # rows of inputs, up to which weights are read as they are,
ROOM = 1 << 18  # and numbers in them
LANES, PANEL = 8, 16  # numbers at once, outputs of a panel: as in kernels/
BENDS: dict[type, int] = {nn.ReLU: 1, nn.GELU: 2, GeluTanh: 3, nn.SiLU: 4, nn.Tanh: 5}


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


def _opened() -> Any:
    """The library, or nothing where there is none for this machine; one of another state of the sources is left."""
    for suffix in EXTENSION_SUFFIXES:
        place = Path(__file__).with_name(f"_kernels{suffix}")
        if not place.is_file():
            continue
        try:
            library = ctypes.CDLL(str(place))
            if not library.regard_runs_here():
                return None
            if library.regard_size_of_block() == ctypes.sizeof(Block):
                return _declared(library)
            problem = "it was built from other sources"
        except (OSError, AttributeError) as error:
            problem = str(error)
        warnings.warn(f"{place.name} cannot be used, install regard anew: {problem}", RuntimeWarning, stacklevel=2)
    return None


def _declared(library: Any) -> Any:
    library.regard_lay_out.argtypes = [c_void_p] * 2 + [c_long] * 2
    library.regard_lay_bytes.argtypes = [c_void_p] * 2 + [c_long] * 2
    library.regard_product.argtypes = [c_void_p] * 5 + [c_long] * 3 + [c_int] * 2
    library.regard_few.argtypes = [c_void_p] * 3 + [c_int] * 2
    library.regard_step.argtypes = [c_void_p] * 2 + [c_int, c_void_p, c_int, c_int, c_long, c_void_p, c_int]
    library.regard_look.argtypes = [c_void_p] * 3 + [c_long] + [c_int] * 2 + [c_float, c_int]
    for name in ("regard_lay_out", "regard_lay_bytes", "regard_product", "regard_few"):
        getattr(library, name).restype = None
    return library


KERNELS = _opened()


def built() -> bool:
    """Whether there are kernels for a few rows."""
    return KERNELS is not None


def panelled() -> bool:
    """Whether those for many rows are the faster ones: where vectors have sixteen numbers, torch's are."""
    return built() and "AVX512" not in torch.backends.cpu.get_cpu_capability()


def plain(x: Tensor) -> bool:
    """Whether x is what kernels take, and nobody wants gradients or another precision."""
    exact = x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return exact and not torch.is_grad_enabled()


def few(x: Tensor) -> bool:
    """Whether x is such, and of a few rows."""
    return built() and plain(x) and x.numel() <= min(FEW * x.size(-1), ROOM)


def product(weight: Tensor, bias: Tensor | None) -> Product:
    """Pointers to these, which must outlive it."""
    return Product(weight.data_ptr(), None, _place(bias), *weight.shape)


def byte_product(laid: Tensor, scale: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> Product:
    """The same for bytes, which do not tell their (outputs, inputs): both were rounded up."""
    return Product(laid.data_ptr(), scale.data_ptr(), _place(bias), *shape)


def bend(module: nn.Module) -> int | None:
    """The kernels' number of an activation, where they know it."""
    known = BENDS.get(type(module))
    return None if isinstance(module, nn.GELU) and known == BENDS[nn.GELU] and module.approximate != "none" else known


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
    threads = torch.get_num_threads()
    if KERNELS.regard_step(blocks, rooms, len(blocks), x.data_ptr(), rows, width, length, byref(angles), threads):
        raise MemoryError("there is no memory left for a step")


def laid_bytes(rounded: Tensor) -> Tensor:
    """Weights of bytes (outputs, inputs) as the kernels read them: (outputs, inputs), both rounded up."""
    outputs, inputs = rounded.shape
    laid = torch.empty(-(-outputs // LANES) * LANES, -(-inputs // LANES) * LANES, dtype=torch.int8)
    rounded = rounded.contiguous()
    KERNELS.regard_lay_bytes(rounded.data_ptr(), laid.data_ptr(), outputs, inputs)
    return laid


def laid_back(laid: Tensor) -> Tensor:
    """The bytes of some eights of outputs as (outputs, inputs) again."""
    return laid.view(-1, laid.size(1) // LANES, LANES, LANES).transpose(1, 2).reshape(laid.shape)


def panels_of(weight: Tensor) -> Tensor:
    """Weights as the kernels for many rows read them."""
    outputs, inputs = weight.shape
    panels = torch.empty(-(-outputs // PANEL) * PANEL * inputs)
    weight = weight.detach().contiguous()
    KERNELS.regard_lay_out(weight.data_ptr(), panels.data_ptr(), outputs, inputs)
    return panels


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


def looked(projected: Tensor, lengths: list[int], heads: int, scale: float) -> Tensor:
    """Contexts of texts one after another, each token's of its own text: (tokens, 3 · width) → (tokens, width)."""
    projected = projected.contiguous()
    context = projected.new_empty(len(projected), projected.size(1) // 3)
    sizes = (c_long * len(lengths))(*lengths)
    width, threads = context.size(1) // heads, torch.get_num_threads()
    places = projected.data_ptr(), context.data_ptr()
    if KERNELS.regard_look(*places, sizes, len(lengths), heads, width, scale, threads):
        raise MemoryError("there is no memory left to look at texts")
    return context


def _place(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
