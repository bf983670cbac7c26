"""A training step of a small GPT with and without micro-batches in threads."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.language import PEERS, RECIPE, SHAPES, STEPS, agreement, write_text
from benchmarks.sides import Result, Work, compare
from benchmarks.training import ours


def measure(rounds: int, threads: int) -> list[Result]:
    results = []
    for name, shape in SHAPES.items():
        steps = STEPS[name]
        with TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "recipe.toml").write_text(RECIPE.format(*shape, **PEERS["nanogpt"]))
            write_text(root / "train.txt")
            sides = {"regard": (ours, folder, threads, steps), "peer": (one_batch, folder, threads, steps)}
            title = f"GPT {name}, without micro-batches"
            results.append(compare(title, "tokens/s", steps * shape[3] * shape[4], sides, rounds, agreement))
    return results


def one_batch(folder: str, threads: int, steps: int) -> Work:
    """The same steps, each batch in one piece on all threads."""
    from regard.training import loop

    loop.choose_workers = lambda network, device: 1
    return ours(folder, threads, steps)
