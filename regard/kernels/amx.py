"""AMX that a CPU reports but cannot execute.

Some virtual machines report AMX in CPUID leaf 7 although their tile palette (leaf 0x1D) is empty. oneDNN checks leaf 7
and XCR0 only, so that its products fail ("could not create a primitive") or end the process (SIGILL). On such a CPU
oneDNN is limited to AVX-512, by an environment variable that it reads once, at the first product.
"""

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Amx = Literal["absent", "works", "broken"]
FORCED = "REGARD_AMX"  # the result of the detection, for tests
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # as oneDNN reads them
BELOW_AMX = "AVX512_CORE_FP16"

# cpuid(eax = 0x1D, ecx = 1), called as a function: returns eax, which is 0 where the palette is empty.
_PALETTE = """
import ctypes, mmap, sys
code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("53 b81d000000 b901000000 0fa2 5b c3"))
function = ctypes.CFUNCTYPE(ctypes.c_uint)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
sys.exit(0 if function() else 1)
"""


def limit_onednn(library: Any) -> None:
    """Keep oneDNN from AMX where that is broken, unless the user has set a limit. `library`: our kernels, if built."""
    if detect(library) == "broken" and not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = BELOW_AMX


@cache
def detect(library: Any) -> Amx:
    """Whether this CPU reports AMX, and whether it can execute it."""
    results: tuple[Amx, ...] = get_args(Amx)
    if (forced := os.environ.get(FORCED)) in results:
        return results[results.index(forced)]
    if library is not None:
        return results[library.regard_amx()]
    if not _reports_amx():
        return "absent"
    child = subprocess.run([sys.executable, "-I", "-S", "-c", _PALETTE], capture_output=True, check=False)
    return "works" if child.returncode == 0 else "broken"


def _reports_amx() -> bool:
    """Only Linux names the features of a CPU in a file; elsewhere no such virtual machine is known."""
    path = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and path.is_file() and "amx_tile" in path.read_text()
