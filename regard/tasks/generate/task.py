"""Causal language modelling as a training task."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config.options import DocumentOptions
from regard.config.recipe import DecodeOptions, Recipe
from regard.data.packing import BlockBatch, PackOptions, batches_per_epoch, blocks_per_epoch, epochs, packed, windows
from regard.data.splits.hashed import digests
from regard.data.token_stream import TokenStream
from regard.interop.folder import Loaded
from regard.layers.protocols import CausalLM
from regard.models.elmo import BidirectionalLM, Elmo
from regard.models.registry import Family
from regard.tasks.base import Preview, Task, reject_classifier
from regard.tasks.generate.dataset import prepare_split, train_vocabulary
from regard.tasks.generate.evaluate import evaluate_task
from regard.tasks.generate.likelihood import metrics, window_log_probabilities
from regard.tasks.generate.predict import GeneratePredictor
from regard.tasks.generate.text_generator import TextGenerator
from regard.tasks.inspection import Findings, warn_overlaps, warn_skipped, warn_without_validation
from regard.text.tokenizer import MISSING

COUNTED = 1 << 22  # tokens among which `doctor` counts the unknown ones

PREVIEW_TOKENS = 48  # of a prompt, and of its continuation


class Generate(Task[TokenStream]):
    """Causal language modelling on documents, packed into blocks of one length."""

    data: DocumentOptions

    predictor = GeneratePredictor
    evaluate = staticmethod(evaluate_task)
    name = "generate"
    create_processor = staticmethod(train_vocabulary)

    @staticmethod
    def attach_head(loaded: Loaded, recipe: Recipe) -> Loaded:
        """The language model as it is; of ELMo the one whose layers it is made of."""
        network: Any = reject_classifier(loaded, recipe).network
        body = getattr(network, "body", network)
        if isinstance(body, Elmo):
            network = network if isinstance(network, BidirectionalLM) else BidirectionalLM(body)
            body.mix.requires_grad_(False)  # it is for tasks on the layers
        return loaded._replace(network=network)

    @staticmethod
    def supports(family: Family) -> bool:
        return family.is_causal_lm or family.is_bidirectional_lm

    def dataset(self, split: str) -> TokenStream | None:
        return prepare_split(self.recipe, split, self.tokenizer, self.cache)

    def plan_batches(self) -> None:
        """Blocks of one length, split from the concatenated documents."""
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
        """Cross-entropy of each next token, summed; with both directions, the mean of them. Peters et al. 2018, 3.1."""
        before, after = batch.tokens[:, :-1], batch.tokens[:, 1:]
        loss = self._cross_entropy(network(before), after)
        if isinstance(network, BidirectionalLM):
            loss = (loss + self._cross_entropy(network.backward_logits(after), before)) / 2
        return loss

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.options.label_smoothing
        logits = logits.flatten(0, 1).float()
        return F.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing, reduction="sum")

    def validate(self, network: nn.Module) -> dict[str, float]:
        """Loss over the first `eval_samples` blocks of the validation split, which do not overlap, as in training."""
        if self.validation is None:
            return {}
        assert isinstance(network, CausalLM)
        stream = self.validation
        most = min(len(stream), self.options.eval_samples * self.length + 1)
        spans = windows(range(most), self.length + 1, self.length)
        sums = window_log_probabilities(network, stream.tokens, spans, self.packing.batch_size)
        total, count = np.array(list(sums), float).reshape(-1, 2).sum(0)
        return metrics(total, count, stream.bytes / max(1, len(stream) - 1))

    def preview(self, network: nn.Module, count: int) -> list[Preview]:
        """Prompts from the validation split, their continuations there, and those of the network."""
        if self.validation is None:
            return []
        assert isinstance(network, CausalLM)
        generator = TextGenerator(network, self.tokenizer, self.tokenizer.end)
        options = DecodeOptions(max_new_tokens=PREVIEW_TOKENS, temperature=0.8, top_p=0.95)
        length = min(PREVIEW_TOKENS, self.length // 2)
        previews = []
        for index in range(count):
            begin = index * len(self.validation) // count
            tokens = [int(token) for token in self.validation.tokens[begin : begin + 2 * length]]
            prompt = tokens[:length]
            rest = tokens[length:]
            if rest:
                (hypotheses,) = generator.search([prompt], options)
                output = generator.continuation(generator.row(prompt), hypotheses[0], options)
                previews.append(Preview(self.tokenizer.decode(prompt), self.tokenizer.decode(rest), output.text))
        return previews

    def inspect(self, splits: Mapping[str, TokenStream], findings: Findings) -> None:
        """Facts about each split and about an epoch of training, and documents shared between splits."""
        tokenizer = self.tokenizer
        table: dict[str, dict[str, float]] = {}
        for name, stream in splits.items():
            known = tokenizer.unknown in (MISSING, tokenizer.end)  # byte tokenizers know every text
            unknown = 0.0 if known else 100 * float((stream.tokens[:COUNTED] == tokenizer.unknown).mean())
            ratio = round(stream.bytes / len(stream), 3)
            table[name] = {
                "documents": stream.report.kept,
                "skipped": stream.report.read - stream.report.kept,
                "tokens": len(stream),
                "bytes": stream.bytes,
                "bytes_per_token": ratio,
                "unknown_percent": round(unknown, 3),
            }
            findings.warnings += [f"{name}: {note}" for note in stream.report.notes[1:]]  # the first one states sizes
            warn_skipped(name, stream.report, findings)
            if unknown > 1:
                findings.warnings.append(
                    f"{name}: {unknown:.1f} % of the tokens are unknown; "
                    'use a byte tokenizer (tokenizer.kind = "byte_bpe"), which knows every text'
                )
            trained = table["train"]["bytes_per_token"]
            if 1.5 * ratio < trained:
                findings.warnings.append(
                    f"{name}: {ratio:.2f} bytes per token, in train {trained:.2f}: another language?"
                )
        findings.facts["text"] = table
        findings.facts["blocks"] = {
            "vocabulary": tokenizer.size,
            "tokens_per_block": self.length,
            "blocks_per_batch": self.packing.batch_size,
            "blocks_per_epoch": blocks_per_epoch(self.training, self.packing),
            "batches_per_epoch": self.batches_per_epoch,
        }
        warn_without_validation(splits, findings)
        hashes = {
            name: digests(document.tobytes() for document in stream.split_at(tokenizer.end))
            for name, stream in splits.items()
        }
        problem = "documents are in train too, so its loss is too low"
        warn_overlaps("same_document", hashes, findings, problem)
