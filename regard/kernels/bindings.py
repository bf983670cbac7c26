"""The C library: opened where it was built for this CPU, and its functions declared. `ops.py` is what others call.

It is built when regard is installed, if there is a C compiler with OpenMP.
"""

import ctypes
import warnings
from ctypes import c_float, c_int, c_long, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch  # noqa: F401  first, so that the library shares its OpenMP threads

from regard.kernels.amx import limit_onednn


class Linear(ctypes.Structure):
    """A weight as float32, or as int8 with scales, and a bias or none."""

    _fields_ = [
        ("weight", c_void_p), ("scale", c_void_p), ("bias", c_void_p), ("outputs", c_int), ("inputs", c_int),
    ]  # fmt: skip


class Norm(ctypes.Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float), ("subtract_mean", c_int)]


class Block(ctypes.Structure):
    """A block of a decoder."""

    _fields_ = [
        ("attention_norm", Norm), ("feedforward_norm", Norm), ("cross_norm", Norm),
        ("qkv", Linear), ("output", Linear), ("gate", Linear), ("up", Linear), ("down", Linear),
        ("cross_query", Linear), ("cross_output", Linear),
        ("heads", c_int), ("key_heads", c_int), ("head_width", c_int), ("window", c_int), ("pre_norm", c_int),
        ("activation", c_int), ("scale", c_float),
    ]  # fmt: skip


class KVCache(ctypes.Structure):
    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("capacity", c_long)]


class Source(ctypes.Structure):
    """The keys and values of a block's cross-attention."""

    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("length", c_long), ("hypotheses", c_int)]


class Rotary(ctypes.Structure):
    _fields_ = [("cosine", c_void_p), ("sine", c_void_p), ("stride", c_int)]


class View(ctypes.Structure):
    """A tensor (batch, heads, positions, width) by its strides."""

    _fields_ = [("data", c_void_p), ("batch", c_long), ("head", c_long), ("position", c_long)]


class AttentionArgs(ctypes.Structure):
    _fields_ = [
        ("query", View), ("key", View), ("value", View), ("lengths", c_void_p), ("starts", c_void_p),
        ("batch", c_long), ("queries", c_long), ("length", c_long),
        ("heads", c_int), ("key_heads", c_int), ("width", c_int), ("causal", c_int), ("scale", c_float),
    ]  # fmt: skip


def declare(library: Any) -> Any:
    """The library with the types of its functions."""
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "regard_pack_weights": (None, [c_void_p] * 2 + [c_long] * 2),
        "regard_pack_int8": (None, [c_void_p] * 2 + [c_long] * 2),
        "regard_gemm_packed": (None, [c_void_p] * 5 + [c_long] * 3 + [c_int] * 2),
        "regard_linear_small": (None, [c_void_p] * 3 + [c_int] * 2),
        "regard_decode_step": (c_int, [c_void_p] * 3 + [c_int, c_void_p, c_int, c_int, c_long, c_void_p, c_int]),
        "regard_attention": (c_int, [c_void_p] * 2 + [c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def is_outdated(library: Path) -> bool:
    """Whether C sources next to it have changed since it was built; an installed package has none."""
    sources = [*library.parent.glob("*.c"), *library.parent.glob("*.h")]
    return any(source.stat().st_mtime > library.stat().st_mtime for source in sources)


def _open() -> Any:
    """The library; None where there is none for this machine, or it was built from other sources."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_built{suffix}")
        if not path.is_file():
            continue
        try:
            library = ctypes.CDLL(str(path))
            if not library.regard_runs_here():
                return None
            sizes = (library.regard_size_of_block(), library.regard_size_of_attention_args())
            if sizes == (ctypes.sizeof(Block), ctypes.sizeof(AttentionArgs)) and not is_outdated(path):
                return declare(library)
            problem = "it was built from other sources"
        except (OSError, AttributeError) as error:
            problem = str(error)
        warnings.warn(f"{path.name} cannot be used, reinstall regard: {problem}", RuntimeWarning, stacklevel=2)
    return None


KERNELS = _open()
limit_onednn(KERNELS)
