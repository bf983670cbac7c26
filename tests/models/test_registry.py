"""What every network declares: its task, its input type, and its smallest input."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from regard.layers.autoregressive import TransformerLM
from regard.layers.inputs import AudioBatch, Batch, ImageBatch, TokenBatch, pad
from regard.layers.protocols import CausalLM, TruncatableLM
from regard.models.heads.hierarchical import Documents
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import FAMILIES, build, sizes

TASKS = {
    "bert": "embed", "deberta": "embed", "recurrent": "embed", "gpt": "generate", "llama": "generate",
    "awd_lstm": "generate", "elmo": "embed",
    "cnn": "embed", "deit": "embed", "hybrid": "embed", "swin": "embed", "vit": "embed",
    "speech_recurrent": "embed", "speech_transformer": "embed", "las": "transcribe", "whisper": "transcribe",
    "captioner": "caption", "show_attend_tell": "caption",
    "bytenet": "translate", "convs2s": "translate", "seq2seq": "translate", "transformer": "translate",
}  # fmt: skip


AUDIO = ("las", "speech_recurrent", "speech_transformer", "whisper")
IMAGES = ("captioner", "cnn", "deit", "hybrid", "show_attend_tell", "swin", "vit")


def small(family: str) -> Any:
    preset = "tiny" if "tiny" in FAMILIES[family].presets else "v3-xsmall"
    model = {"family": family, "preset": preset}
    return build(model | ({"depth": 1, "width": 24} if family == "deberta" else {}), **sizes(family, 11, 11)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_declares_its_task_and_its_smallest_input(family):
    network = small(family)
    assert network.task == TASKS[family]
    assert network.input_type is (ImageBatch if family in IMAGES else AudioBatch if family in AUDIO else TokenBatch)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_only_language_models_implement_causal_lm(family):
    network = small(family)
    assert isinstance(network, CausalLM) == FAMILIES[family].is_causal_lm
    assert isinstance(network, TruncatableLM) == isinstance(network, TransformerLM)  # an LSTM has no way back
    assert not isinstance(Classifier(small("gpt"), ["a", "b"]), CausalLM)


def test_every_batch_has_lengths_padding_and_a_size():
    batch: Batch = pad([[5, 6, 7], [8]], 0)
    assert batch.batch_size == 2 and batch.lengths.tolist() == [3, 1]
    assert batch.real.tolist() == [[True] * 3, [True, False, False]]
    assert torch.equal(batch.to("cpu").real, batch.real)
    assert TokenBatch.minimal().tokens.shape == (1, 1)


TENSOR_PACKAGES = ("attention", "layers", "models", "runtime", "kernels")


def test_tensor_packages_load_no_tokenizer_and_no_file_reader():
    """In a new process: which modules are loaded by importing all of them."""
    code = f"""
import importlib, pkgutil, sys
for name in {TENSOR_PACKAGES}:
    package = importlib.import_module("regard." + name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.rpartition(".")[2].startswith("_"):  # the C library is no Python module
            importlib.import_module(module.name)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    own = {name.split(".")[1] for name in loaded if name.startswith("regard.")}
    assert own <= {*TENSOR_PACKAGES, "config", "errors", "progress"}
    assert not loaded & {"tokenizers", "safetensors", "tomllib", "jinja2", "PIL"}
