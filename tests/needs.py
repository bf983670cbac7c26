"""What a test needs from the machine: it is skipped with the way to get it, or fails where everything must run."""

import os
from pathlib import Path

import pytest


def need(condition: object, how_to_get_it: str) -> None:
    """Skip the test unless the condition holds; under REGARD_REQUIRE_ALL=1 a missing need is a failure."""
    if condition:
        return
    if os.environ.get("REGARD_REQUIRE_ALL") == "1":
        pytest.fail(f"REGARD_REQUIRE_ALL=1, but something is missing: {how_to_get_it}", pytrace=False)
    pytest.skip(how_to_get_it)


def need_weights(name: str) -> Path:
    """A folder of published weights."""
    folder = Path(os.environ.get("REGARD_WEIGHTS", "nowhere")) / name
    need(folder.is_dir(), f"set REGARD_WEIGHTS to a folder with {name}")
    return folder
