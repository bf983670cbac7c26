"""Text generation as a task: the predictor of causal language models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, Trace
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.speculative import DraftModel, DraftProposer, PromptLookup
from regard.errors import UserError
from regard.tasks.batching import EncodedText
from regard.tasks.generate.text_generator import Continuation, GenerationStream, TextGenerator
from regard.tasks.generation import GenerationPredictor
from regard.tasks.predictor import Inference, LoadedModel, Options, RunInput


class GeneratePredictor(GenerationPredictor):
    """`run`, `stream`, `generate` and `trace` of causal language models."""

    task = "generate"
    description = "a causal language model"
    options = (*GenerationPredictor.options, "log_probabilities", "draft", "lookup")
    streams = True
    batch_size = 32
    is_causal_lm = True

    def text_generator(self, draft: LoadedModel | str | Path | None = None, lookup: bool = False) -> TextGenerator:
        """The model as a generator; a smaller `draft` model, or n-grams of the prompt, may propose tokens."""
        if lookup and draft is not None:
            raise UserError("a draft model and prompt lookup cannot both propose tokens: give one of draft and lookup")
        if self.model.precision == "int8" and (lookup or draft is not None):
            raise UserError(
                "in int8 one row and several are rounded differently, so speculative decoding would change outputs: "
                "load the model in float32, or only the draft in int8"
            )
        propose: Callable[[], DraftProposer] | None = PromptLookup if lookup else None
        if draft is not None:
            from regard.model import load  # upward, for a folder's name

            model = load(draft, device=str(self.model.device)) if isinstance(draft, str | Path) else draft
            if model.task != self.task or model.processor.target.table != self.tokenizer.table:
                raise UserError(
                    "the draft model must be a causal language model with the vocabulary of the model it drafts for"
                )
            propose = partial(DraftModel, model.network, self.model.device)
        return TextGenerator(self.network, self.tokenizer, self.eos_ids, propose)

    def is_empty(self, value: Any) -> bool:
        """White space is a prompt."""
        return value == ""

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Continuation]:
        log_probabilities = options.pop("log_probabilities", False)
        generator = self.text_generator(options.pop("draft", None), options.pop("lookup", False))
        decode = self.decode_options(**options)
        return generator.run(inputs, decode, inference, log_probabilities)

    def generate(self, rows: list[list[int]], options: Options) -> list[list[int]]:
        generator = self.text_generator(options.pop("draft", None), options.pop("lookup", False))
        prompts = [generator.row(self.check_ids(row)) for row in rows]
        hypotheses = generator.search_all(prompts, self.decode_options(**options), Inference(self.batch_size))
        return [best.tokens for best, *_ in hypotheses]

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        truncate: bool = False,
        prefix_cache: PrefixCache | None = None,
        **options: Any,
    ) -> GenerationStream:
        """A continuation while it is generated: iterate for its text; then it has an `answer`.

        A prefix cache is reused from one call to the next: the common prefix is computed once.
        """
        generator = self.text_generator()
        if isinstance(prompt, str):
            (row,) = generator.prompts([prompt], truncate)
        else:
            row = generator.row(self.check_ids(prompt), truncate)
        return GenerationStream(generator, row, self.decode_options(**options), prefix_cache)

    def can_stream(self, options: Mapping[str, Any]) -> bool:
        """Whether the output is known token by token: no beams, no speculation, one output."""
        if any(name in options for name in ("draft", "lookup", "log_probabilities")):
            return False
        decode = self.decode_options(**options)
        return decode.num_beams == 1 and decode.num_return_sequences == 1

    def encode_inputs(self, texts: list[Any], truncate: bool = False) -> list[EncodedText]:
        return self.text_generator().prompts(texts, truncate)

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        generator = self.text_generator()
        (row,) = generator.prompts([value], truncate)
        if target is None:
            output = generator.search([row.tokens], self.decode_options(**options))[0][0].tokens
        else:
            output = self.tokenizer.prompt(value + target)[len(row.tokens) :]
        total = len(row.tokens) + len(output)
        if total > self.network.max_positions:
            raise UserError(
                f"prompt and output have {total} tokens, the model's context is {self.network.max_positions}: "
                "use fewer max_new_tokens"
            )
        tokens = [*row.tokens, *output]
        with torch.no_grad(), record(prove) as recorder:
            self.network(torch.tensor([tokens], device=self.model.device))
        pieces = self.tokenizer.pieces(tokens)
        last = self.tokenizer.pieces([self.tokenizer.end])[0] if self.tokenizer.end >= 0 else "…"
        axes = Axes.causal(Axis(pieces), output=Axis([*pieces[1:], last]))
        return Trace(recorder, axes, self.tokenizer.decode(output))

    def notes(self, value: RunInput, prediction: Any) -> Iterator[str]:
        yield from super().notes(value, prediction)
        if prediction.context_shifted:
            yield (
                f"context full ({self.network.max_positions} tokens): its oldest half was dropped and generation "
                "continued"
            )

    def describe(self) -> dict[str, Any]:
        return {
            "context": self.network.max_positions,
            "chat_template": "chat_template" in self.tokenizer.settings,
        }
