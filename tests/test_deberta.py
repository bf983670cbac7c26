"""DeBERTa as a family: its published sizes, its texts, what it refuses, and training as others train."""

from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.models import FAMILIES, build

COUNTS = {  # of the published models without a head
    "base": 138_601_728,
    "large": 405_163_008,
    "xlarge": 757_804_032,
    "v2-xlarge": 884_593_152,
    "v2-xxlarge": 1_564_549_632,
    "v3-xsmall": 70_682_112,
    "v3-small": 141_304_320,
    "v3-base": 183_831_552,
    "v3-large": 434_012_160,
}


def test_presets_have_their_published_sizes() -> None:
    assert set(COUNTS) == set(FAMILIES["deberta"].presets)
    for preset, count in COUNTS.items():
        with torch.device("meta"):
            network = build(
                {"family": "deberta", "preset": preset}, vocabulary=128100 if preset.startswith("v") else 50265
            )
        assert sum(parameter.numel() for parameter in network.parameters()) == count, preset


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"width": 22, "heads": 4}, "multiple of heads"),
    "nothing asks": ({"to_position": False, "to_content": False}, "neither to_position nor to_content"),
    "too many buckets": ({"buckets": 100, "limit": 50}, "twice the reach"),
    "too few buckets": ({"buckets": 2}, "at least 4"),
    "even kernel": ({"kernel": 4}, "odd"),
    "groups": ({"kernel": 3, "kernel_groups": 5}, "kernel_groups"),
    "activation": ({"kernel_activation": "mish"}, "kernel_activation"),
}


@pytest.mark.parametrize(("fields", "word"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_does_not_fit_together_is_said(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word), torch.device("meta"):
        build({"family": "deberta", "width": 24, "heads": 3, **fields}, vocabulary=31)
