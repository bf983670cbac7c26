"""Choice of the device that a model runs on."""

import os

import torch
import torch.distributed

from regard.errors import UserError


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
