"""CPUs that report what they cannot execute, another C compiler, and machines without our kernels."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from calling import Call
from needs import need

from regard.kernels import amx, bindings, ops
from regard.runtime.linear import PackedWeights, SmallBatchLinear

FOLDER = Path(bindings.__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog " * 40


def fresh(code: str, **variables: str) -> str:
    """What a new process prints that runs this code."""
    environment = {name: value for name, value in os.environ.items() if name not in (*amx.VARIABLES, amx.FORCED)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment | variables)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("result", "user", "limit"),
    [
        ("broken", {}, amx.BELOW_AMX),
        ("broken", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX2"),
        ("broken", {"DNNL_MAX_CPU_ISA": "AVX2"}, "None"),
        ("works", {}, "None"),
        ("absent", {}, "None"),
    ],
)
def test_onednn_is_limited_only_where_amx_is_broken_and_the_user_has_set_nothing(
    result: str, user: dict[str, str], limit: str
) -> None:
    code = "import regard; regard.load; import os; print(os.environ.get('ONEDNN_MAX_CPU_ISA'))"
    assert fresh(code, REGARD_AMX=result, **user) == limit


def test_the_limit_is_set_before_onednn_reads_it() -> None:
    """With a lower limit than any CPU's features, oneDNN's log shows whether it was applied."""
    need(platform.machine() == "x86_64" and torch.backends.mkldnn.is_available(), "torch with oneDNN on x86-64")
    code = "import regard.kernels.amx as amx; amx.BELOW_AMX = 'SSE41'; import regard; regard.load; import torch; "
    product = "torch.ones(4, 4).to_mkldnn()"
    said = fresh(code + product, REGARD_AMX="broken", ONEDNN_VERBOSE="1")
    assert "isa:Intel SSE4.1" in said
    assert "isa:Intel SSE4.1" not in fresh(code + product, REGARD_AMX="works", ONEDNN_VERBOSE="1")


def test_products_work_where_the_limit_is_set() -> None:
    code = (
        "import regard; regard.load; import torch; x = torch.eye(64); print(*"
        "[torch.equal((x.to(kind) @ x.to(kind)).float(), x) for kind in (torch.float32, torch.bfloat16)])"
    )
    assert fresh(code, REGARD_AMX="broken") == "True True"


def test_this_machine_is_left_alone_unless_its_amx_is_broken() -> None:
    """By the extension and by the child process alike."""
    code = "from regard.kernels import amx, bindings; print(amx.detect({}))"
    found = {fresh(code.format(library)) for library in ("bindings.KERNELS", "None")}
    assert len(found) == 1
    has_amx = Path("/proc/cpuinfo").is_file() and "amx_tile" in Path("/proc/cpuinfo").read_text()
    assert found <= ({"works", "broken"} if has_amx else {"absent"})


def test_a_cpu_without_palette_is_seen_by_a_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Palette 9 is empty on every CPU, as palette 1 is on machines that report AMX and lack it."""
    need(sys.platform == "linux" and platform.machine() == "x86_64", "Linux on x86-64")
    monkeypatch.delenv(amx.FORCED, raising=False)
    monkeypatch.setattr(amx, "_reports_amx", lambda: True)
    palette_9 = amx._PALETTE.replace("b901000000", "b909000000")
    assert palette_9 != amx._PALETTE
    monkeypatch.setattr(amx, "_PALETTE", palette_9)
    amx.detect.cache_clear()
    try:
        assert amx.detect(None) == "broken"
    finally:
        amx.detect.cache_clear()


def test_where_no_amx_is_reported_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(amx.FORCED, raising=False)
    monkeypatch.setattr(amx, "_reports_amx", lambda: False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    amx.detect.cache_clear()
    try:
        assert amx.detect(None) == "absent"
    finally:
        amx.detect.cache_clear()


@torch.no_grad()
def test_clang_builds_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenMP, whose header clang may lack; then they run in one thread."""
    compiler = shutil.which("clang")
    need(compiler and platform.machine() == "x86_64", "clang on x86-64: apt install clang")
    assert compiler
    built = tmp_path / "built.so"
    flags = ["-shared", "-fPIC", "-O2", "-mavx2", "-mfma", "-Wall", "-Werror", "-Wno-unknown-pragmas"]
    sources = [str(path) for path in sorted(FOLDER.glob("*.c"))]
    done = subprocess.run([compiler, *flags, *sources, "-o", str(built), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(built))
    assert library.regard_amx() in (0, 1, 2)
    need(library.regard_runs_here(), "a CPU with AVX2")
    monkeypatch.setattr(bindings, "KERNELS", bindings.declare(library))
    for rows in (3, 300):
        layer, x = torch.nn.Linear(43, 29), torch.randn(rows, 43)
        torch.testing.assert_close(PackedWeights([layer])(x), layer(x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(SmallBatchLinear(layer)(x), layer(x), atol=1e-5, rtol=1e-5)
    projected = torch.randn(23, 3 * 16)
    query, key, value = projected.view(23, 3, 2, 8).permute(1, 2, 0, 3)
    expected = F.scaled_dot_product_attention(query, key, value, scale=0.3).transpose(0, 1).flatten(1)
    torch.testing.assert_close(ops.attention_varlen(projected, [23], 2, 0.3), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_machines_without_kernels_train_and_run(
    system: str, machine: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Mac: no extension, no /proc, no glibc, no set of cores, no fbgemm and no oneDNN."""
    amx.detect.cache_clear()
    monkeypatch.delenv(amx.FORCED, raising=False)
    monkeypatch.setattr(bindings, "KERNELS", None)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: system)
    if system == "Darwin":
        is_file = Path.is_file
        monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(Path, "is_file", lambda path: not str(path).startswith("/proc") and is_file(path))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["qnnpack"])
    (tmp_path / "text.txt").write_text(TEXT)
    run = tmp_path / "run"
    options = ["train.minutes=0", "train.max_steps=2", "model.width=16", "model.heads=2", "model.depth=1"]
    options += ["train.batch_tokens=256", "tokenizer.vocab_size=300", f"data.train={tmp_path / 'text.txt'}"]
    code, _, printed = call("train", "write", f"output={run}", *options)
    assert code == 0, printed
    environment = json.loads((run / "environment.json").read_text())
    assert environment["kernels"] is False and environment["amx"] == "absent"
    code, out, printed = call("run", run, "the quick", "--max-new-tokens", "3", "--json")
    assert code == 0 and out, printed
    code, _, printed = call("run", run, "the quick", "--precision", "int8")
    assert code == 1 and "float32, bfloat16" in printed
    code, out, printed = call("inspect", run, "--json")
    assert code == 0 and json.loads(out)["machine"]["amx"] == "absent", printed


def test_what_a_doctor_reports(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(amx.FORCED, "broken")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", amx.BELOW_AMX)
    amx.detect.cache_clear()
    (tmp_path / "text.txt").write_text(TEXT)
    options = ["train.minutes=0", "train.max_steps=2", "model.width=16", "model.heads=2", "model.depth=1"]
    options += ["train.batch_tokens=256", "tokenizer.vocab_size=300", f"data.train={tmp_path / 'text.txt'}"]
    try:
        _, out, printed = call("doctor", "write", f"output={tmp_path / 'run'}", *options, "--json")
    finally:
        amx.detect.cache_clear()
    machine = json.loads(out)["facts"]["machine"]
    assert machine["amx"] == "broken" and machine["onednn_max_cpu_isa"] == amx.BELOW_AMX, printed
