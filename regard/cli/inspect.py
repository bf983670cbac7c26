"""`regard inspect`: a model's sizes, config, attention layers and file hashes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard.attention.recording import record
from regard.data.cache import hash_file
from regard.data.processor import Processor
from regard.errors import UserError
from regard.explorer.induction import head_scores
from regard.model import load
from regard.models.registry import family_of
from regard.runtime.machine import processor
from regard.text.sentencepiece import SentencePieceTokenizer
from regard.text.tokenizer import IdOnlyTokenizer


def describe(path: str, heads: bool = False, model_type: str | None = None) -> dict[str, Any]:
    """A model's sizes, config, attention layers and file hashes; with `heads` also induction scores."""
    model = load(path, device="cpu", model_type=model_type)
    folder = model.folder or Path(path)
    if heads and not model.is_causal_lm:
        raise UserError(f"--heads is for causal language models; this model's task is '{model.task}'")
    with record() as recorder:  # one pass over the smallest input lists every attention layer
        model.network(*model.network.dummy_inputs)
    return {
        "folder": str(folder),
        "family": family_of(model.network),
        "task": model.task,
        **model.predictor().describe(),
        **_tokenizer(model.processor),
        "parameters": model.num_parameters,
        "bytes": sum(parameter.nbytes for parameter in model.network.parameters()),
        "config": asdict(model.network.config),
        "parameters_by_part": _counts(model.network),
        "sites": list(recorder.records),
        **({"heads": head_scores(model)} if heads else {}),
        "machine": processor(),
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": hash_file(file)}
            for file in sorted(folder.iterdir())
            if file.is_file()
        },
    }


def _tokenizer(processor: Processor) -> dict[str, Any]:
    """What the tokenizer is and whether it lower-cases text."""
    tokenizer = processor.target
    if tokenizer is None or isinstance(tokenizer, IdOnlyTokenizer):
        return {}
    kind = "SentencePiece" if isinstance(tokenizer, SentencePieceTokenizer) else type(tokenizer.inner.model).__name__
    facts = {"type": kind, "lowercase": "A" not in tokenizer.normalise("A"), "vocabulary": tokenizer.size}
    return {"tokenizer": facts}


def _counts(network: nn.Module) -> dict[str, int]:
    """Parameters of each submodule; shared ones count in the first."""
    counts: dict[str, int] = {}
    seen: set[int] = set()
    for name, module in network.named_children():
        sizes = {id(parameter): parameter.numel() for parameter in module.parameters() if id(parameter) not in seen}
        counts[name] = sum(sizes.values())
        seen.update(sizes)
    return counts
