"""What the machine lends to a run: threads, memory that is kept, and a record of what it all ran on."""

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

from regard.kernels import amx
from regard.kernels import bindings as kernels

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8  # malloc.h

HUGE_PAGE, MADV_HUGEPAGE, MADV_COLLAPSE = 2 << 20, 14, 25

RESERVED = 1 << 30  # bytes of addresses, not of memory

PACKAGES = ("torch", "tokenizers", "safetensors", "numpy", "sacrebleu")


@contextmanager
def uncounted() -> Iterator[None]:
    """Python does not look through what is there by now for garbage: there is much of it, and it stays."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def keep_memory() -> bool:
    """Ask glibc to keep freed buffers; True where it did.

    By default malloc maps every large buffer anew and gives it back at once, and the page faults of touching fresh
    memory, the same buffers at each step, cost a tenth to a third of a training step. Kept buffers may also lie on huge
    pages, which saves another tenth: the heap is grown once by addresses alone, and the kernel is told so.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc, never = _libc(), -1
    settings = {MMAP_MAX: 0, TRIM_THRESHOLD: never, TOP_PAD: RESERVED, ARENA_MAX: 1}  # threads share the one heap
    kept = min(libc.mallopt(*setting) for setting in settings.items()) > 0
    libc.free(libc.malloc(RESERVED // 8))  # more than is free, so that the heap grows
    for begin, end, name in _mappings():
        if name == "[heap]":
            libc.madvise(begin, end - begin, MADV_HUGEPAGE)
    return bool(libc.mallopt(TOP_PAD, 64 << 20)) and kept


def use_huge_pages() -> bool:
    """Ask the kernel to put what this process has allocated on huge pages; True where it did.

    Weights that are read once for each token come a fifth faster, since fewer addresses have to be looked up.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = _libc()
    done = [
        not libc.madvise(begin, end - begin, MADV_HUGEPAGE) and not libc.madvise(begin, end - begin, MADV_COLLAPSE)
        for begin, end, name in _mappings()
        if name in ("", "[heap]")
    ]
    return any(done)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _mappings() -> Iterator[tuple[int, int, str]]:
    """The private memory of this process that may be written: whole huge pages of it, and its name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
        begin, end = (int(each, 16) for each in addresses.split("-"))
        begin, end = -(-begin // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if rights.startswith("rw") and rights.endswith("p") and begin < end:
            yield begin, end, name.strip()


def usable_cores() -> int:
    """Logical cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Cores this process may use, siblings of one core counted once: two threads share its multipliers."""
    siblings = set()
    for core in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings.add(path.read_text() if path.is_file() else str(core))
    return len(siblings) or os.cpu_count() or 1


def choose_threads(wanted: int) -> int:
    """The recipe's number, else OMP_NUM_THREADS, else the physical cores."""
    environment = os.environ.get("OMP_NUM_THREADS", "")
    return wanted or (int(environment) if environment.isdecimal() and int(environment) else physical_cores())


def processor() -> dict[str, Any]:
    """The CPU, and which instructions are used on it."""
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "kernels": kernels.built(),
        "amx": amx.detect(kernels.KERNELS),  # "broken": reported, but not executable, so that oneDNN is limited
        "onednn_max_cpu_isa": next(filter(None, map(os.environ.get, amx.VARIABLES)), None),
    }


def environment(threads: int, fingerprint: Mapping[str, str]) -> dict[str, Any]:
    """What a figure depends on besides the recipe."""
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
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
