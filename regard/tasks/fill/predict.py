"""Masked tokens filled in: a text with [MASK], or whatever its tokenizer's mask token is. Devlin et al. 2019, 3.1."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from regard.errors import UserError
from regard.models.heads.mlm import MaskedLM
from regard.tasks.batching import encode_batches
from regard.tasks.encoding import EncoderPredictor, collate, encode_texts
from regard.tasks.predictor import Inference, Options, Unranked, positive
from regard.text.special_tokens import mask_token_of

CANDIDATES = 5  # per mask, by default


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, and its probability."""

    text: str
    score: float
    token: int


@dataclass(frozen=True)
class FilledText(Unranked):
    """A text with the most probable token at each mask, and the candidates of each mask, best first."""

    text: str
    candidates: tuple[tuple[Candidate, ...], ...]
    truncated: bool = False

    @property
    def score(self) -> float:
        """The least probability of its tokens."""
        return min(mask[0].score for mask in self.candidates)


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

        def encode(indices: list[int]) -> Iterator[tuple[Candidate, ...]]:
            text = collate([rows[index] for index in indices]).to(self.model.device)
            logits = network.lm_head(network.encode(text)[(text.tokens == mask) & text.real])
            probabilities = logits[:, : tokenizer.size].float().softmax(-1)
            probabilities[:, [*tokenizer.special.values()]] = 0.0  # special tokens are no candidates
            top = probabilities.topk(min(best, tokenizer.size))
            masks = []
            for scores, tokens in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                texts = [piece.strip() for piece in tokenizer.pieces(tokens)]
                masks.append(tuple(map(Candidate, texts, scores, tokens)))
            return iter(masks)

        for indices, masks in encode_batches(network, [len(row.tokens) for row in rows], inference.batch_size, encode):
            for index in indices:
                row = rows[index]
                candidates = tuple(islice(masks, row.tokens.count(mask)))
                best_tokens = iter([each[0].token for each in candidates])
                tokens = [next(best_tokens) if token == mask else token for token in row.tokens]
                filled[index] = FilledText(tokenizer.decode_with_unknown(tokens), candidates, row.truncated)
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
