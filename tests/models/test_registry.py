"""What every network declares: its task, its input type, and its smallest input."""

from typing import Any

import pytest

from regard.layers.inputs import TokenBatch
from regard.models.heads.hierarchical import Documents
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.span import SpanClassifier
from regard.models.heads.token import TokenClassifier
from regard.models.registry import FAMILIES, build, sizes

TASKS = {
    "bert": "embed", "deberta": "embed", "recurrent": "embed", "gpt": "generate", "llama": "generate",
    "bytenet": "translate", "convs2s": "translate", "seq2seq": "translate", "transformer": "translate",
}  # fmt: skip


def small(family: str) -> Any:
    preset = "tiny" if "tiny" in FAMILIES[family].presets else "v3-xsmall"
    model = {"family": family, "preset": preset}
    return build(model | ({"depth": 1, "width": 24} if family == "deberta" else {}), **sizes(family, 11, 11)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_declares_its_task_and_its_smallest_input(family):
    network = small(family)
    assert network.task == TASKS[family]
    assert network.input_type is TokenBatch
    assert network(*network.dummy_inputs).size(0) == 1


HEADS = {
    "fill": MaskedLM,
    "tag": lambda body: TokenClassifier(body, ["A", "B"]),
    "answer": SpanClassifier,
    "classify": lambda body: Classifier(body, ["a", "b"]),
}


@pytest.mark.parametrize("task", HEADS)
def test_a_head_declares_its_task_and_its_smallest_input(task):
    network = HEADS[task](small("bert")).eval()
    assert network.task == task
    assert network.input_type is TokenBatch
    assert network(*network.dummy_inputs).size(0) == 1


def test_heads_that_extend_another_have_its_task():
    assert Pretraining.task == "fill"
    assert Documents.task == "classify"
    documents = Documents(small("bert"), ["a", "b"], segment=16, stride=8).eval()
    assert documents(*documents.dummy_inputs).shape == (1, 2)
