"""A training step of a small GPT with and without what makes it faster on a CPU, one thing at a time."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.language import PEERS, RECIPE, SHAPES, STEPS, agreement, write_text
from benchmarks.sides import Result, Work, compare
from benchmarks.training import ours

LONGER = {"6×384, context 512": (6, 6, 384, 512, 2)}  # depth, heads, width, context, batch


def measure(rounds: int, threads: int) -> list[Result]:
    parts = ["flash_attention"] if threads == 1 else ["flash_attention", "microbatches"]
    results = []
    for name, shape in (SHAPES | LONGER).items():
        steps = STEPS.get(name, 5)
        with TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "recipe.toml").write_text(RECIPE.format(*shape, **PEERS["nanogpt"]))
            write_text(root / "train.txt")
            for part in parts:
                sides = {"regard": (ours, folder, threads, steps), "peer": (without, part, folder, threads, steps)}
                title = f"GPT {name}, without {part}"
                results.append(compare(title, "tokens/s", steps * shape[3] * shape[4], sides, rounds, agreement))
    return results


def without(part: str, folder: str, threads: int, steps: int) -> Work:
    """The same steps with torch's attention, or without micro-batches in threads."""
    from regard.kernels import ops
    from regard.training import loop

    if part == "flash_attention":
        ops.supports_attention = lambda query, key, value, causal: False
    else:
        loop.choose_workers = lambda network, device: 1
    return ours(folder, threads, steps)
