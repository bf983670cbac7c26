"""DeBERTa's states of a text: regard beside transformers' DebertaV2Model, version 3's base size, random weights."""

import ctypes
import re
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.sides import Result, Work, compare

WORDS = 1000
BASE: dict[str, Any] = dict(
    vocab_size=WORDS, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
    relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256, share_att_key=True,
    norm_rel_ebd="layer_norm", position_biased_input=False,
)  # fmt: skip
SHAPES = {"one long text": (1, 512), "one short text": (1, 32), "eight texts": (8, 128)}


def measure(rounds: int, threads: int) -> list[Result]:
    with TemporaryDirectory() as folder:
        write(Path(folder))
        results = []
        for name, (texts, length) in SHAPES.items():
            sides = {"regard": (ours, folder, texts, length, threads), "peer": (theirs, folder, texts, length, threads)}
            results.append(compare(f"{name} of {length}", "tokens/s", texts * length, sides, rounds, agreement))
        return results


def write(folder: Path) -> None:
    from transformers import DebertaV2Config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference library, about itself
        from transformers import DebertaV2Model

        torch.manual_seed(1)
        DebertaV2Model(DebertaV2Config(**BASE)).save_pretrained(folder)


def ours(folder: str, texts: int, length: int, threads: int) -> Work:
    from regard.interop.folder import load
    from regard.layers.inputs import TokenBatch

    network = load(Path(folder)).network
    return counted(lambda ids: network(TokenBatch(ids, torch.full((texts,), ids.size(1)))), texts, length, threads)


def theirs(folder: str, texts: int, length: int, threads: int) -> Work:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import DebertaV2Model

        model = DebertaV2Model.from_pretrained(folder).eval()
    return counted(lambda ids: model(ids).last_hidden_state, texts, length, threads)


def counted(encode: Any, texts: int, length: int, threads: int) -> Work:
    """A round, which gives its states and how much memory the process had at most beyond the model, in MB."""
    torch.set_num_threads(threads)
    ids = torch.randint(4, WORDS, (texts, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        encode(ids[:, :1])  # weights may be read from the file only now
    before = settle()

    def work() -> tuple[Any, float]:
        with torch.inference_mode():
            return encode(ids).numpy(), memory("VmHWM") - before

    return work


def settle() -> float:
    """Gives back what loading needed, forgets its peak, and says what is left (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(line: str) -> float:
    """A line of this process's status, in MB."""
    return int(re.findall(rf"{line}:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def agreement(ours: tuple[Any, float], expected: tuple[Any, float]) -> str:
    (states, most), (others, their_most) = ours, expected
    apart = abs(states - others).max() / abs(others).max()
    assert apart <= 1e-5, apart
    return f"states apart by {apart:.0e} of the largest; peak beyond the model {most:.0f} and {their_most:.0f} MB"
