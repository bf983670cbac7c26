"""What tasks of encoder–decoder models share, whatever their input: targets, loss, decoding and the pass of a trace.

Shapes: tokens (batch, length).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.recording import Recorder, record
from regard.config.recipe import DecodeOptions
from regard.decoding.search import Hypothesis, search
from regard.errors import UserError
from regard.layers.inputs import Ids, TokenBatch, pad
from regard.layers.protocols import Seq2SeqModel
from regard.layers.pytree import to_device
from regard.tasks.base import Samples, SampleTask
from regard.tasks.batching import by_length
from regard.tasks.generation import NOT_FINITE
from regard.text.tokenizer import MISSING, ROLES, Tokenizer

M = TypeVar("M", bound=Samples)

VALIDATION_BATCH = 64


class Seq2SeqBatch(NamedTuple):
    """Inputs of any modality, and target rows that begin with <s> and end with </s>."""

    source: Any  # a `Batch`
    target: TokenBatch
    indices: Tensor  # (batch): the samples' indices in the dataset

    def to(self, device: torch.device | str) -> "Seq2SeqBatch":
        return to_device(self, device)


def required_token(tokenizer: Tokenizer, role: str) -> int:
    """The tokenizer's token of a role; an error if it has none."""
    token = tokenizer.ids[role]
    if token == MISSING:
        key, spellings = ROLES[role]
        raise UserError(
            f"the tokenizer has no token for '{role}', which target texts need (looked for {', '.join(spellings)}); "
            f"name it as {key} in its tokenizer_config.json"
        )
    return token


def collate_targets(targets: Sequence[Ids], tokenizer: Tokenizer) -> TokenBatch:
    """Begin + ids + end."""
    first = [required_token(tokenizer, "begin")]
    return pad(targets, max(tokenizer.pad, 0), first=first, last=[required_token(tokenizer, "end")])


def cross_entropy(network: nn.Module, batch: Seq2SeqBatch, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of each next token, summed; padding does not count."""
    tokens = batch.target.tokens
    real = batch.target.real[:, 1:]
    logits = network(batch.source, tokens[:, :-1], real)
    return F.cross_entropy(logits.float(), tokens[:, 1:][real], label_smoothing=smoothing, reduction="sum")


class Seq2SeqTask(SampleTask[M]):
    """A task whose network is trained to predict each next token of a target."""

    def max_tokens(self, requested: int, limit: int) -> int:
        capacity = limit - 1
        if not 1 <= requested <= capacity:
            raise UserError(
                f"data.max_length = {requested}, but the model reads and writes at most {capacity} tokens and an end "
                f"(model.max_positions = {limit}): lower data.max_length, or raise model.max_positions"
            )
        return requested

    def num_targets(self, batch: Seq2SeqBatch) -> int:
        return int((batch.target.lengths - 1).sum())

    def loss(self, network: nn.Module, batch: Seq2SeqBatch) -> Tensor:
        return cross_entropy(network, batch, self.options.label_smoothing)

    @torch.no_grad()
    def mean_loss(self, network: nn.Module, split: M, count: int) -> float:
        """The loss of a target token, over the first `count` samples of a split."""
        total = tokens = 0.0
        for indices in by_length(split.target_lengths[:count].tolist(), VALIDATION_BATCH):
            batch = self.collate(split, indices).to(next(network.parameters()).device)
            total += float(cross_entropy(network, batch))
            tokens += self.num_targets(batch)
        return total / tokens


def decode(
    network: Seq2SeqModel,
    source: Any,
    tokenizer: Tokenizer,
    options: DecodeOptions,
    limit: int | Tensor,
    keys: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Hypotheses for each input of a batch, best first; `keys` decide the draws of each, besides the seed."""
    hypotheses = search(network, source, tokenizer.begin, tokenizer.end, options, limit, keys=keys)
    if not all(hypotheses):
        raise UserError(NOT_FINITE)
    return hypotheses


@torch.no_grad()
def record_target(
    network: Seq2SeqModel, source: Any, tokenizer: Tokenizer, output: Sequence[int], prove: bool = False
) -> Recorder:
    """One teacher-forced pass over an output; its attention weights are those of the search that generated it."""
    target = torch.tensor([[tokenizer.begin, *output]], device=next(network.parameters()).device)
    with record(prove) as recorder:
        network(source, target)
    return recorder


def check_output(network: Seq2SeqModel, output: Sequence[int]) -> None:
    """Reject a target that is longer than what the network generates."""
    if len(output) >= network.max_positions:
        raise UserError(f"the target has {len(output)} tokens, the model generates at most {network.max_positions - 1}")
