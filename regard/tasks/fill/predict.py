"""Masked tokens filled in: a text with [MASK], or whatever its tokenizer's mask token is. Devlin et al. 2019, 3.1."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.attention.trace import Trace
from regard.errors import UserError
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.tasks.batching import encode_batches
from regard.tasks.encoding import EncodedText, Text, collate, encode_texts, split_pair, trace_encoder
from regard.tasks.predictor import Predictor, Progress, positive
from regard.text.special_tokens import mask_token_of
from regard.text.tokenizer import Tokenizer

BATCH = 64  # default number of texts per batch
CANDIDATES = 5  # per mask, by default


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, and its probability."""

    text: str
    score: float
    token: int


@dataclass(frozen=True)
class FilledText:
    """A text with the most probable token at each mask; `words` has the candidates of each mask, best first."""

    text: str
    words: tuple[tuple[Candidate, ...], ...]
    truncated: bool = False

    @property
    def score(self) -> float:
        """The least probability of its tokens."""
        return min(candidates[0].score for candidates in self.words)

    @property
    def alternatives(self) -> tuple["FilledText", ...]:
        return ()


class FillPredictor(Predictor):
    """`run` and `trace` of masked language models."""

    task = "fill"
    description = "a masked language model"
    options = ("best",)

    def predict(
        self, inputs: list[Any], options: dict[str, Any], *, batch_size: int, truncate: bool, progress: Progress
    ) -> list[FilledText]:
        best = positive(options, "best", CANDIDATES)
        return fill(self.network, self.tokenizer, inputs, batch_size, truncate, progress, best)

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        texts = [split_pair(text, False) for text in texts]
        return encode_texts(self.tokenizer, texts, self.network.max_positions, truncate)

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
        (row,) = self.encode_inputs([value], truncate)
        return trace_encoder(self.network, self.tokenizer, row, prove)

    def second_column(self, requested: str, has_context: bool) -> str:
        return requested

    def lines(self, prediction: FilledText, options: Mapping[str, Any]) -> list[str]:
        lines = super().lines(prediction, options)
        if "best" in options:
            lines += ["\t".join(f"{word.text} {word.score:.3f}" for word in mask) for mask in prediction.words]
        return lines


@torch.inference_mode()
def fill(
    network: MaskedLM,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    batch_size: int = BATCH,
    truncate: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    best: int = CANDIDATES,
) -> list[FilledText]:
    """Each text with its masks filled. Logits are computed for masked positions only."""
    mask = mask_token_of(tokenizer)
    rows = encode_texts(tokenizer, texts, network.max_positions, truncate)
    for index, row in enumerate(rows):
        if mask not in row.tokens:
            raise UserError(f"has no mask: write {tokenizer.name(mask)} where a token is to be predicted", index)
    filled: dict[int, FilledText] = {}

    def encode(indices: list[int]) -> Iterator[tuple[list[float], list[int]]]:
        text = collate([rows[index] for index in indices]).to(next(network.parameters()).device)
        output: Any = network(text, (text.tokens == mask) & text.real)
        logits = output.words if isinstance(network, Pretraining) else output
        probabilities = logits[:, : tokenizer.size].float().softmax(-1)
        probabilities[:, [*tokenizer.special.values()]] = 0.0  # special tokens are no candidates
        top = probabilities.topk(min(best, tokenizer.size))
        return zip(top.values.tolist(), top.indices.tolist(), strict=True)

    for indices, masks in encode_batches(network, [len(row.tokens) for row in rows], batch_size, encode):
        for index in indices:
            count = rows[index].tokens.count(mask)
            filled[index] = _filled(tokenizer, rows[index], mask, [next(masks) for _ in range(count)])
        progress(len(indices))
    return [filled[index] for index in range(len(rows))]


def _filled(
    tokenizer: Tokenizer, row: EncodedText, mask: int, masks: list[tuple[list[float], list[int]]]
) -> FilledText:
    candidates = tuple(
        tuple(
            Candidate(tokenizer.pieces([token])[0].strip(), score, token)
            for score, token in zip(scores, tokens, strict=True)
        )
        for scores, tokens in masks
    )
    best = iter(candidates)
    tokens = [next(best)[0].token if token == mask else token for token in row.tokens]
    return FilledText(tokenizer.decode(tokens), candidates, row.truncated)
