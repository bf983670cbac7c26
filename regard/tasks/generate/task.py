"""Language modelling: a text's next token, over and over; its data, loss and score."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.options import DocumentOptions
from regard.config.recipe import DecodeOptions, Recipe
from regard.data.documents import tokenizer_texts
from regard.data.packing import BlockBatch, PackOptions, batches_per_epoch, epochs, packed, windows
from regard.data.synthetic.registry import in_context_dataset
from regard.data.token_stream import TokenStream, prepare_documents, prepare_stream
from regard.errors import UserError
from regard.models.registry import Family
from regard.tasks.base import Preview, Task, reject_classifier
from regard.tasks.generate.likelihood import Likelihood, of_windows
from regard.tasks.generate.predict import Writer
from regard.text.vocabulary import Tokenizer, Vocabulary, train_tokenizer

EXACT = ("byte_bpe", "bytes", "characters")  # the kinds of tokenizers that lose nothing

SHOWN = 48  # tokens of a prompt, and of its continuation, that are shown between steps


def learn_vocabulary(recipe: Recipe) -> Vocabulary:
    """A tokenizer trained on the training part, one that keeps all of a text: its spaces and line breaks too."""
    if recipe.tokenizer.kind not in EXACT:
        raise UserError(
            f"tokenizer.kind = '{recipe.tokenizer.kind}' loses line breaks and spaces, which a model of running text "
            f"should learn; possible: {', '.join(EXACT)}"
        )
    data = DocumentOptions.of(recipe)
    texts = _made(recipe, "train") if data.synthetic else tokenizer_texts(data, "train", Path(recipe.origin))
    tokenizer = train_tokenizer(texts, recipe.tokenizer, ends=False)
    return Vocabulary(tokenizer, tokenizer)


class Generate(Task[TokenStream]):
    """What the training loop asks of language modelling."""

    data: DocumentOptions

    name = "generate"
    train_tokenizer = staticmethod(learn_vocabulary)
    attach_head = staticmethod(reject_classifier)

    @staticmethod
    def supports(family: Family) -> bool:
        return family.is_causal_lm

    def dataset(self, split: str) -> TokenStream | None:
        return corpus(self.recipe, split, self.tokenizer, self.cache)

    def plan_batches(self) -> None:
        """BlockBatch of one length, cut out of all texts in a row."""
        size = self.options.batch_size or max(1, self.options.batch_tokens // self.length)
        self.packing = PackOptions(self.length, size, self.recipe.seed)
        self.batches_per_epoch = batches_per_epoch(self.training, self.packing)

    def batches(self, start: int, rank: int, world: int) -> Iterator[BlockBatch]:
        return packed(self.training, self.packing, start, rank, world)

    def epoch(self, batches: int) -> float:
        return epochs(self.training, self.packing, batches)

    def num_targets(self, batch: BlockBatch) -> int:
        return batch.tokens[:, 1:].numel()

    def loss(self, network: nn.Module, batch: BlockBatch) -> Tensor:
        """Cross-entropy of each next token, summed."""
        logits = network(batch.tokens[:, :-1]).flatten(0, 1).float()
        smoothing = self.options.label_smoothing
        return F.cross_entropy(logits, batch.tokens[:, 1:].flatten(), label_smoothing=smoothing, reduction="sum")

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss over the first `eval_samples` blocks of the validation part, side by side as in training."""
        if self.validation is None:
            return {}
        most = min(len(self.validation), self.options.eval_samples * self.length + 1)
        found = likelihood(network, self.validation, self.length, self.length, most, batch_size=self.packing.batch_size)
        return {"loss": found.loss, "perplexity": found.perplexity, "bits_per_byte": found.bits_per_byte}

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        """Beginnings from the validation part, how they go on there, and how the network goes on."""
        if self.validation is None:
            return []
        writer = Writer(network, self.tokenizer, self.tokenizer.end)
        options, shown = DecodeOptions(max_new_tokens=SHOWN, temperature=0.8, top_p=0.95), min(SHOWN, self.length // 2)
        found = []
        for number in range(count):
            begin = number * len(self.validation) // count
            tokens = [int(token) for token in self.validation.tokens[begin : begin + 2 * shown]]
            prompt, rest = tokens[:shown], tokens[shown:]
            if rest:
                row = writer.row(prompt)
                answer = writer.told(row, writer.search([prompt], options)[0][0], options)
                found.append(Preview(self.tokenizer.decode(prompt), self.tokenizer.decode(rest), answer.text))
        return found


def corpus(recipe: Recipe, part: str, tokenizer: Tokenizer, cache: Path) -> TokenStream | None:
    data, given = DocumentOptions.of(recipe), getattr(DocumentOptions.of(recipe), part)
    if not given:
        return None
    if not data.synthetic:
        return prepare_stream(data, part, tokenizer, cache, Path(recipe.origin))
    key = json.dumps([data.synthetic, recipe.seed, part, given])
    return prepare_documents(_made(recipe, part), key, tokenizer, cache)


def _made(recipe: Recipe, part: str) -> Iterator[str]:
    """Synthetic documents."""
    return in_context_dataset(DocumentOptions.of(recipe).synthetic).documents(
        recipe.seed, part, int(getattr(DocumentOptions.of(recipe), part))
    )


def likelihood(
    network: Any, stream: TokenStream, length: int, stride: int, most: int = 0, batch_size: int = 8, **more: Any
) -> Likelihood:
    """How likely a text is, or its first `most` tokens: in windows of `length` tokens that move by `stride`."""
    spans = windows(range(min(len(stream), most or len(stream))), length + 1, stride)
    found = list(of_windows(network, lambda begin, last: stream.tokens[begin:last], spans, batch_size, **more))
    total, count = sum(total for total, _ in found), sum(count for _, count in found)
    return Likelihood(total, count, round(stream.bytes * count / max(1, len(stream) - 1)))
