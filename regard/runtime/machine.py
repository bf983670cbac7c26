"""The machine that a run uses: device, threads, memory settings, and a record of hardware and software."""

import ctypes
import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.kernels import amx, bindings, onednn, ops

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8  # malloc.h

HUGE_PAGE, MADV_HUGEPAGE, MADV_COLLAPSE = 2 << 20, 14, 25

RESERVED = 1 << 30  # bytes of addresses, not of memory

PACKAGES = ("torch", "tokenizers", "safetensors", "numpy", "sacrebleu")


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Existing objects are exempt from garbage collection: there are many, and they stay."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def tune_malloc() -> bool:
    """Make glibc keep freed buffers; True on success.

    By default malloc maps each large buffer on allocation and unmaps it when freed. The page faults of touching fresh
    memory, for the same buffers at each step, cost 10 to 30 % of a training step. Kept buffers may also be on
    huge pages, which saves another 10 %: the heap reserves addresses once, and the kernel is advised to use huge pages
    for it.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = _libc()
    settings = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: RESERVED, ARENA_MAX: 1}  # no trimming, one heap
    accepted = min(libc.mallopt(*setting) for setting in settings.items()) > 0
    libc.free(libc.malloc(RESERVED // 8))  # more than is free, so that the heap grows
    for begin, end, name in _mappings():
        if name == "[heap]":
            libc.madvise(begin, end - begin, MADV_HUGEPAGE)
    return bool(libc.mallopt(TOP_PAD, 64 << 20)) and accepted


def use_huge_pages() -> bool:
    """Move this process's memory to huge pages; True on success.

    Weights that are read once for each token are read 20 % faster, because of fewer TLB misses.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = _libc()
    moved = [
        not libc.madvise(begin, end - begin, MADV_HUGEPAGE) and not libc.madvise(begin, end - begin, MADV_COLLAPSE)
        for begin, end, name in _mappings()
        if name in ("", "[heap]")
    ]
    return any(moved)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _mappings() -> Iterator[tuple[int, int, str]]:
    """The private writable mappings of this process, aligned to huge pages: begin, end and name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin = -(-begin // HUGE_PAGE) * HUGE_PAGE
        end = end // HUGE_PAGE * HUGE_PAGE
        if rights.startswith("rw") and rights.endswith("p") and begin < end:
            yield begin, end, name.strip()


def usable_cores() -> int:
    """Logical cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Physical cores this process may use: hyper-threads of one core share its arithmetic units."""
    siblings = set()
    for core in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings.add(path.read_text() if path.is_file() else str(core))
    return len(siblings) or os.cpu_count() or 1


def choose_threads(requested: int) -> int:
    """The requested number, else OMP_NUM_THREADS, else the physical cores."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return requested or (int(variable) if variable.isdecimal() and int(variable) else physical_cores())


def choose_device(name: str) -> torch.device:
    """The named device, or with "auto" the fastest available."""
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:  # raised by builds without CUDA
            reason = str(error).splitlines()[0]
            raise UserError(f"device '{name}' cannot be used: {reason}; possible: {', '.join(_devices())}") from None
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _devices() -> list[str]:
    """The names that are valid on this machine."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["auto", "cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def processor() -> dict[str, Any]:
    """The CPU, and which instructions are used on it."""
    limit = next(filter(None, map(os.environ.get, amx.VARIABLES)), None)
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "kernels": ops.available(),
        "onednn_linear": onednn.is_faster(),  # linear layers by oneDNN instead of torch's BLAS
        "amx": amx.detect(bindings.KERNELS),  # "broken": reported, but not executable, so that oneDNN is limited
        **({"onednn_max_cpu_isa": limit} if limit else {}),
    }


def environment(threads: int, fingerprint: Mapping[str, str]) -> dict[str, Any]:
    """What a result depends on besides the recipe."""
    return {
        "regard": _version("regard"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        **processor(),
        "threads": threads,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "commit": _commit(),
        "command": sys.argv,
        "data": dict(fingerprint),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of the working directory, with a + where files differ from it."""
    try:
        command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
