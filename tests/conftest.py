"""The environment of every test: one thread, a fixed seed, its own cache, and the data next to the repository."""

import os
import random
from pathlib import Path

import pytest
from calling import Call

SHARED = Path(__file__).resolve().parents[2] / "shared"
for variable, folder in (("REGARD_DATA", "data"), ("REGARD_WEIGHTS", "weights")):
    if variable not in os.environ and (SHARED / folder).is_dir():
        os.environ[variable] = str(SHARED / folder)
os.environ["OMP_NUM_THREADS"] = "1"  # tests run in parallel, also in the processes they start
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive a fork
os.environ["HF_HUB_OFFLINE"] = "1"  # the reference library may not reach for the network


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """A test that draws numbers draws the same ones alone, in company and in any order."""
    import numpy
    import torch

    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepared data goes into a folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("REGARD_CACHE", str(folder))
    return folder


@pytest.fixture(params=["ours", "torch's"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose kernels do the work: ours, or torch's as on a machine where ours were not built."""
    from needs import need

    from regard.kernels import bindings, ops

    if request.param == "ours":
        need(ops.available(), "the kernels were not built: install a C compiler (gcc), then reinstall regard")
        monkeypatch.setattr(ops, "use_packed_gemm", lambda: True)  # also where torch's would be faster
    else:
        monkeypatch.setattr(bindings, "KERNELS", None)
    return request.param


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """The command line in this process."""
    from regard.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return int(left.value.code or 0), printed.out, printed.err

    return run
