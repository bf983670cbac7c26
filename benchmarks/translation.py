"""Translation with a Marian base shape: regard beside transformers' MarianMTModel, on the same folder of weights."""

import random
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.sides import Result, Work, compare

SHAPE = {"family": "transformer", "preset": "base", "norm": "post", "positions": "sinusoid_halves"}
VOCABULARY, BEAMS, TOKENS = 8000, 5, 20
SEARCH: dict[str, Any] = dict(num_beams=BEAMS, min_new_tokens=TOKENS, max_new_tokens=TOKENS)


def measure(rounds: int, threads: int) -> list[Result]:
    """Sentences at once: one, as a person waits for it, and 32, as a file is translated."""
    with TemporaryDirectory() as folder:
        write(Path(folder))
        results = []
        for size in (1, 32):
            sides = {
                side: (prepare, folder, sentences(size), threads)
                for side, prepare in (("regard", ours), ("peer", theirs))
            }
            name = f"translate, batch {size}"
            results.append(compare(name, "tokens/s", size * TOKENS, sides, rounds, agreement))
    return results


def sentences(count: int) -> list[list[int]]:
    """Source ids of 11 to 29 tokens, as sentences have."""
    rng = random.Random(1)
    return [[rng.randrange(4, VOCABULARY) for _ in range(rng.randint(11, 29))] for _ in range(count)]


def write(folder: Path) -> None:
    """A checkpoint with random weights that both libraries open."""
    import torch

    from regard.config.recipe import TokenizerOptions
    from regard.interop.folder import save
    from regard.models.registry import build
    from regard.text.train_tokenizer import train_tokenizer
    from regard.text.vocabulary import Vocabulary

    options = TokenizerOptions(kind="words", vocab_size=VOCABULARY, min_frequency=1)
    words = train_tokenizer((f"w{index}" for index in range(VOCABULARY)), options)
    torch.manual_seed(1)
    network = build(SHAPE, source_vocabulary=words.size, target_vocabulary=words.size)
    save(folder, network, Vocabulary(words, words), {})


def ours(folder: str, rows: list[list[int]], threads: int) -> Work:
    import torch

    import regard

    torch.set_num_threads(threads)
    model = regard.load(folder, device="cpu")
    return lambda: model.generate(rows, **SEARCH)


def theirs(folder: str, rows: list[list[int]], threads: int) -> Work:
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import MarianMTModel
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    disable_progress_bar()
    loaded: Any = MarianMTModel.from_pretrained(folder)
    model = loaded.eval()
    end, padding = model.config.eos_token_id, model.config.pad_token_id
    tokens = pad_sequence([torch.tensor([*row, end]) for row in rows], batch_first=True, padding_value=padding)
    lengths = torch.tensor([len(row) + 1 for row in rows])
    mask = (torch.arange(tokens.size(1)) < lengths[:, None]).long()

    def work() -> list[list[int]]:
        with torch.inference_mode():
            return model.generate(input_ids=tokens, attention_mask=mask, **SEARCH)[:, 1:].tolist()

    return work


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> str:
    """Both must have done the same work; with random weights a near tie may fall either way."""
    same = sum(one == other for one, other in zip(ours, theirs, strict=True))
    return f"{same} of {len(ours)} outputs the same"
