"""Two processes train as one with twice the accumulation."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from toy import go

TOY = Path(__file__).parents[1] / "toy.py"
OPTIONS = ("train.max_steps=31", "train.learning_rate=0.01", "train.warmup_steps=5", "train.eval_steps=10")


def torchrun(run: Path, *options: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOY.parent.parent), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*launch, str(TOY), str(run), *options], env=environment, capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr.decode()


def test_two_processes_equal_one_with_twice_the_accumulation(tmp_path: Path) -> None:
    """Also with dropout: its randomness belongs to the batch, not to the process."""
    two, one = tmp_path / "two", tmp_path / "one"
    torchrun(two, *OPTIONS, "train.max_steps=17")
    torchrun(two, *OPTIONS)  # resumes from step 17
    go(one, *OPTIONS, "train.gradient_accumulation_steps=2", "train.threads=1")
    weights = [load_file(run / "checkpoint-31" / "model.safetensors") for run in (two, one)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-6, rtol=0)
