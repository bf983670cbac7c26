"""Training on a corpus 50 times larger takes no more memory: what grows with the corpus is on disk."""

import json
import random
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from needs import need

RECIPE = """
task = "translate"
[data]
train = "train.tsv"
validation = "validation.tsv"
[tokenizer]
kind = "{kind}"
vocab_size = 2003
[model]
family = "transformer"
width = 24
heads = 3
depth = 1
feedforward = 41
[train]
batch_tokens = 1021
max_steps = 37
warmup_steps = 5
eval_steps = 19
save_steps = 19
threads = 1
"""
WATCHED = """
import json, sys, threading, time
from pathlib import Path

status, run, done = Path("/proc/self/status"), Path(sys.argv[1]), threading.Event()
peaks = {"preparing": 0, "training": 0}

def watch():
    while not done.is_set():
        line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
        phase = "training" if run.exists() else "preparing"
        peaks[phase] = max(peaks[phase], int(line.split()[1]))
        time.sleep(0.005)

watcher = threading.Thread(target=watch)
watcher.start()
from regard.cli.main import main
try:
    main(sys.argv[2:])
except SystemExit as left:
    code = left.code
done.set()
watcher.join()
print(json.dumps({"code": code, **peaks}))
"""


def write_corpus(path: Path, count: int) -> None:
    """Sentences of up to 30 words from a lexicon of 5,003: as in a language, a few are frequent and most are rare."""
    chance = random.Random(count)
    lexicon = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 11))) for _ in range(5003)]
    weights = list(accumulate(1 / rank for rank in range(1, len(lexicon) + 1)))
    with path.open("w") as file:
        for _ in range(count):
            source, target = (
                " ".join(chance.choices(lexicon, cum_weights=weights, k=chance.randint(3, 30))) for _ in range(2)
            )
            file.write(f"{source}\t{target}\n")


def peaks(folder: Path, count: int, kind: str = "bpe") -> dict[str, int]:
    """The most anonymous memory, in kB, of `regard train`: until the data is prepared, and from then on."""
    folder.mkdir()
    (folder / "mine.toml").write_text(RECIPE.format(kind=kind))
    write_corpus(folder / "train.tsv", count)
    write_corpus(folder / "validation.tsv", 53)
    arguments = [str(folder / "run"), "train", str(folder / "mine.toml"), f"output={folder / 'run'}", "--quiet"]
    done = subprocess.run([sys.executable, "-c", WATCHED, *arguments], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.pop("code") == 0, done.stderr
    return result


def hold(folder: Path, count: int, kind: str) -> dict[str, int]:
    """Train on so many pairs and on 50 times as many; gives how much more memory the second took, in kB."""
    need(Path("/proc/self/status").exists(), "a system that tells a process's memory in /proc")
    small, large = peaks(folder / "small", count, kind), peaks(folder / "large", 50 * count, kind)
    print(f"{kind}, {count} pairs: {small} kB; {50 * count} pairs: {large} kB")
    for phase, most in small.items():
        assert large[phase] <= 1.2 * most
    return {phase: large[phase] - small[phase] for phase in small}


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    grown = hold(tmp_path, 601, "bpe")
    assert max(grown.values()) < 15_000  # about 8,000 (a larger chunk, more words); 23,000 where the records are held


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "words", "characters"])
def test_no_kind_of_tokenizer_holds_the_corpus(kind: str, tmp_path: Path) -> None:
    hold(tmp_path, 6007, kind)
