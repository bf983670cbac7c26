"""Masked tokens filled in: a text with [MASK], or whatever its tokenizer's mask token is. Devlin et al. 2019, 3.1."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import UserError
from regard.models.heads.mlm import MaskedLM
from regard.tasks.batching import EncodedText, encode_batches
from regard.tasks.encoding import EncoderPredictor, collate, encode_texts
from regard.tasks.predictor import Inference, Options, positive
from regard.text.special_tokens import mask_token_of
from regard.text.tokenizer import Tokenizer

CANDIDATES = 5  # per mask, by default


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, and its probability."""

    text: str
    score: float
    token: int


@dataclass(frozen=True)
class FilledText:
    """A text with the most probable token at each mask, and the candidates of each mask, best first."""

    text: str
    candidates: tuple[tuple[Candidate, ...], ...]
    truncated: bool = False

    @property
    def score(self) -> float:
        """The least probability of its tokens."""
        return min(mask[0].score for mask in self.candidates)

    @property
    def alternatives(self) -> tuple["FilledText", ...]:
        return ()


class FillPredictor(EncoderPredictor):
    """`run` and `trace` of masked language models."""

    task = "fill"
    description = "a masked language model"
    options = ("best",)

    @torch.inference_mode()
    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[FilledText]:
        """Each text with its masks filled. Logits are computed for masked positions only."""
        best = positive(options, "best", CANDIDATES)
        network: MaskedLM = self.network
        tokenizer = self.tokenizer
        mask = mask_token_of(tokenizer)
        rows = encode_texts(tokenizer, inputs, network.max_positions, inference.truncate)
        for index, row in enumerate(rows):
            if mask not in row.tokens:
                raise UserError(
                    f"has no mask token: put {tokenizer.name(mask)} where a token is to be predicted", index
                )
        filled: dict[int, FilledText] = {}

        def encode(indices: list[int]) -> Iterator[tuple[list[float], list[int]]]:
            text = collate([rows[index] for index in indices]).to(self.model.device)
            logits = network.lm_head(network.encode(text)[(text.tokens == mask) & text.real])
            probabilities = logits[:, : tokenizer.size].float().softmax(-1)
            probabilities[:, [*tokenizer.special.values()]] = 0.0  # special tokens are no candidates
            top = probabilities.topk(min(best, tokenizer.size))
            return zip(top.values.tolist(), top.indices.tolist(), strict=True)

        for indices, masks in encode_batches(network, [len(row.tokens) for row in rows], inference.batch_size, encode):
            for index in indices:
                count = rows[index].tokens.count(mask)
                filled[index] = _filled(tokenizer, rows[index], mask, [next(masks) for _ in range(count)])
            inference.progress(len(indices))
        return [filled[index] for index in range(len(rows))]

    def second_column(self, requested: str, has_context: bool) -> str:
        return requested

    def lines(self, prediction: FilledText, options: Mapping[str, Any]) -> list[str]:
        lines = super().lines(prediction, options)
        if "best" in options:
            masks = prediction.candidates
            lines += ["\t".join(f"{each.text} {each.score:.3f}" for each in mask) for mask in masks]
        return lines


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
