"""Text generation as a task: the predictor of causal language models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from regard.attention.trace import Trace
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.speculative import DraftModel, DraftProposer, PromptLookup
from regard.errors import UserError
from regard.tasks.encoding import EncodedText
from regard.tasks.generate.text_generator import Continuation, GenerationStream, TextGenerator
from regard.tasks.generate.tracing import trace_causal
from regard.tasks.generation import GenerationPredictor
from regard.tasks.predictor import Progress, RunInput


class GeneratePredictor(GenerationPredictor):
    """`run`, `stream`, `generate` and `trace` of causal language models."""

    task = "generate"
    batch_size = 32
    description = "a causal language model"
    options = (*GenerationPredictor.options, "log_probabilities", "draft", "lookup")
    streams = True
    batch_size = 32
    is_causal_lm = True

    def text_generator(self, draft: Any = None, lookup: bool = False) -> TextGenerator:
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
            smaller = self._load_draft(draft)
            propose = partial(DraftModel, smaller.network, self.model.device)
        return TextGenerator(self.network, self.tokenizer, self.eos_ids, propose)

    def _load_draft(self, draft: Any) -> Any:
        from regard.model import Model, load  # upward, for a folder's name

        model = draft if isinstance(draft, Model) else load(draft, device=str(self.model.device))
        if model.task != self.task or model.vocabulary.target.table != self.tokenizer.table:
            raise UserError("a draft must be a causal language model with the vocabulary of the model it drafts for")
        return model

    def predict(
        self, inputs: list[Any], options: dict[str, Any], *, batch_size: int, truncate: bool, progress: Progress
    ) -> list[Continuation]:
        log_probabilities = options.pop("log_probabilities", False)
        generator = self.text_generator(options.pop("draft", None), options.pop("lookup", False))
        decode = self.decode_options(**options)
        return generator.run(inputs, decode, batch_size, truncate, log_probabilities, progress)

    def generate(self, rows: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
        rows = [self.check_ids(row) for row in rows]
        generator = self.text_generator(options.pop("draft", None), options.pop("lookup", False))
        return [best.tokens for best, *_ in generator.search_all(rows, self.decode_options(**options))]

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
        rows = self.text_generator().prompts(texts, truncate)
        return [EncodedText(row.tokens, [], row.truncated) for row in rows]

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
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
        return trace_causal(self.network, self.tokenizer, row.tokens, output, prove)

    def notes(self, value: RunInput, prediction: Any) -> Iterator[str]:
        yield from super().notes(value, prediction)
        if prediction.context_shifted:
            yield (
                f"prompt and output exceed the model's context of {self.network.max_positions} tokens: its older half "
                "was dropped"
            )

    def describe(self) -> dict[str, Any]:
        return {
            "context": self.network.max_positions,
            "chat_template": "chat_template" in self.tokenizer.settings,
        }
