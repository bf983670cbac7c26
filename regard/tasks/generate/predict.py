"""Going on with texts: what a language model answers to a prompt, at once or while it is written."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.sampling import key_of
from regard.decoding.search import DecodeStart, EosIds, Hypothesis, decode_steps, run_to_end
from regard.decoding.speculative import DraftModel, DraftProposer, PromptLookup, Speculation, speculate
from regard.errors import UserError
from regard.layers.inputs import pad
from regard.tasks.batching import Row, by_length, check_texts
from regard.tasks.encoding import EncodedText
from regard.tasks.generate.likelihood import log_probabilities
from regard.tasks.generate.tracing import trace_causal
from regard.tasks.generation import GenerationPredictor
from regard.tasks.predictor import Progress, RunInput
from regard.text.vocabulary import Tokenizer

BROKEN = "the network's output is not finite: its weights are damaged, or its training diverged"

NEW_TOKENS = 128  # where nobody says how many


@dataclass(frozen=True)
class Continuation:
    """What follows a prompt. `score` is the length-normalised log-probability; `alternatives` are the next best."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()  # as written, without the end
    finish: str = "end"  # or "stop": one of the texts to stop at came; "length": cut off
    prompt_tokens: int = 0
    truncated: bool = False  # the prompt lost its head
    context_shifted: bool = False  # prompt and output exceed the context: its older half was dropped
    log_probabilities: tuple[float, ...] | None = None  # of each token, on request
    alternatives: tuple["Continuation", ...] = ()

    @property
    def finished(self) -> bool:
        return self.finish != "length"


@dataclass(frozen=True)
class TextGenerator:
    """A language model at work: the tokens that end its texts, and what guesses ahead of it, if anything."""

    network: Any
    tokenizer: Tokenizer
    ends: EosIds
    guess: Callable[[], DraftProposer] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def prompts(self, texts: Sequence[str], truncate: bool = False) -> list[Row]:
        """Prompts as tokens that the network has room for: a longer one is refused, or loses its head."""
        check_texts(texts)
        for index, text in enumerate(texts):
            if not text:
                raise UserError("is empty: a prompt needs at least one character", index)
        return [self.row(self.tokenizer.prompt(text), truncate, index) for index, text in enumerate(texts)]

    def row(self, tokens: list[int], truncate: bool = False, index: int | None = None) -> Row:
        """A prompt given as tokens."""
        limit, head = self.network.max_positions, len(self.tokenizer.head)
        if not tokens:
            raise UserError("the prompt has no tokens: give at least one")
        if len(tokens) <= limit:
            return Row(tokens, len(tokens))
        if not truncate:
            raise UserError(
                f"{'has' if index is not None else 'the prompt has'} {len(tokens):,} tokens, the model reads at most "
                f"{limit:,}: {self.tokenizer.decode(tokens[:16])!r}…; shorten it, or drop its start with --truncate "
                "(truncate=True)",
                index,
            )
        return Row(tokens[:head] + tokens[len(tokens) - limit + head :], len(tokens))

    def run(
        self,
        texts: Sequence[str],
        options: DecodeOptions,
        batch_size: int = 32,
        truncate: bool = False,
        logs: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Continuation]:
        """A continuation of each text, searched for in batches of like length."""
        rows = self.prompts(texts, truncate)
        answers: dict[int, Continuation] = {}
        for numbers in self._groups(rows, options, batch_size):
            found = self.search([rows[number].tokens for number in numbers], options)
            for number, hypotheses in zip(numbers, found, strict=True):
                told = [self.told(rows[number], each, options, logs) for each in hypotheses]
                answers[number] = replace(told[0], alternatives=tuple(told[1:]))
            progress(len(numbers))
        return [answers[number] for number in range(len(rows))]

    def search_all(self, prompts: list[list[int]], options: DecodeOptions, size: int = 32) -> list[list[Hypothesis]]:
        """The best continuations of any number of prompts given as tokens."""
        rows = [self.row(prompt) for prompt in prompts]
        found: dict[int, list[Hypothesis]] = {}
        for numbers in self._groups(rows, options, size):
            found |= zip(numbers, self.search([prompts[number] for number in numbers], options), strict=True)
        return [found[number] for number in range(len(prompts))]

    def _groups(self, rows: list[Row], options: DecodeOptions, size: int) -> Iterator[list[int]]:
        """Rows of like length together; of the same where texts outgrow the context, which all forget at once."""
        lengths = [len(row.tokens) for row in rows]
        within = [length + _limit(options) <= self.network.max_positions for length in lengths]
        short = [number for number, fits in enumerate(within) if fits]
        for group in by_length([lengths[number] for number in short], size):
            yield [short[place] for place in group]
        for length in sorted({length for length, fits in zip(lengths, within, strict=True) if not fits}):
            same = [number for number, each in enumerate(lengths) if each == length]
            yield from (same[start : start + size] for start in range(0, len(same), size))

    def search(self, prompts: list[list[int]], options: DecodeOptions) -> list[list[Hypothesis]]:
        """The best continuations of prompts given as tokens, best first."""
        if self.guess is not None:
            return [[self.speculate(prompt, options).answer] for prompt in prompts]
        found = run_to_end(
            decode_steps(self.network, pad(prompts, 0).to(self.device), self.outset(prompts, options), options)
        )
        if not all(found):
            raise UserError(BROKEN)
        return found

    def outset(self, prompts: list[list[int]], options: DecodeOptions) -> DecodeStart:
        """Prompts as forced first tokens, of which all but the last are read at the start."""
        longest = max(map(len, prompts))
        begin = torch.tensor([[-1] * (longest - len(prompt)) + prompt for prompt in prompts], device=self.device)
        keys = [key_of(prompt) for prompt in prompts] if options.temperature else ()
        return DecodeStart(begin, self._ends(options), _limit(options), longest - 1, keys, self._stopped(options))

    def _ends(self, options: DecodeOptions) -> tuple[int, ...]:
        """The tokens that end a text, and those to stop at that are never spelled out."""
        ends = (self.ends,) if isinstance(self.ends, int) else self.ends
        return (*ends, *(self.tokenizer.special[stop] for stop in options.stop if stop in self.tokenizer.special))

    def speculate(self, prompt: list[int], options: DecodeOptions) -> Speculation:
        """The greedy continuation of one prompt, some of whose tokens were guessed."""
        assert self.guess is not None
        if options.temperature or options.num_beams > 1:
            name = "temperature" if options.temperature else "num_beams"
            raise UserError(f"speculative decoding is for greedy search, not {name} = {getattr(options, name)}")
        tokens, stopped = torch.tensor([prompt], device=self.device), self._stopped(options)
        found = speculate(self.network, tokens, self._ends(options), options, _limit(options), self.guess(), stopped)
        if math.isnan(found.answer.score):
            raise UserError(BROKEN)
        return found

    def _stopped(self, options: DecodeOptions) -> Callable[[list[int]], bool] | None:
        """Whether one of the texts to stop at stands in an answer: its last tokens are enough to tell."""
        if not options.stop:
            return None
        tail = max(len(stop.encode()) for stop in options.stop) + 8  # a token is a byte or more
        return lambda tokens: any(stop in self.tokenizer.decode(tokens[-tail:]) for stop in options.stop)

    def told(self, row: Row, found: Hypothesis, options: DecodeOptions, logs: bool = False) -> Continuation:
        """A hypothesis as an answer."""
        decoder = self.tokenizer.incremental()
        decoder.feed(row.tokens)
        text = decoder.feed(found.tokens) + decoder.finish()
        place = min((text.index(stop) for stop in options.stop if stop in text), default=-1)
        finish = "length" if not found.finished else "end" if place < 0 else "stop"
        slid = len(row.tokens) + len(found.tokens) > self.network.max_positions
        if logs and slid:
            raise UserError(
                f"log-probabilities of {len(row.tokens) + len(found.tokens)} tokens, but the model's context is "
                f"{self.network.max_positions}: ask for fewer max_new_tokens"
            )
        told = self._logs(row.tokens, found.tokens) if logs else None
        return Continuation(
            text if place < 0 else text[:place],
            found.score,
            tuple(found.tokens),
            finish,
            len(row.tokens),
            row.truncated,
            slid,
            told,
        )

    def _logs(self, prompt: list[int], answer: list[int]) -> tuple[float, ...]:
        """The network's own log-probability of each token of an answer, in one pass over it."""
        if not answer:
            return ()
        tokens = torch.tensor([prompt + answer], device=self.device)
        return tuple(log_probabilities(self.network, tokens)[0, len(prompt) - 1 :].tolist())


class GenerationStream:
    """An answer while it is written: iterate for its text, piece by piece; `answer` is all of it, afterwards.

    With a prefix cache, what the last text had in common with this prompt is not read again.
    """

    def __init__(
        self, writer: TextGenerator, row: Row, options: DecodeOptions, prefix_cache: PrefixCache | None = None
    ):
        if options.num_beams > 1 or options.num_return_sequences > 1:
            raise UserError(
                "beam search has no output before its end: stream with num_beams = 1 and num_return_sequences = 1"
            )
        self.writer, self.row, self.options = writer, row, options
        self.network = prefix_cache or writer.network
        self.tokens: list[int] = []
        self.answer: Continuation | None = None

    def __iter__(self) -> Iterator[str]:
        writer, options, prompt = self.writer, self.options, self.row.tokens
        growing = decode_steps(
            self.network, pad([prompt], 0).to(writer.device), writer.outset([prompt], options), options
        )
        decoder, held = writer.tokenizer.incremental(), ""
        decoder.feed(prompt)
        while True:
            try:
                growth = next(growing)
            except StopIteration as done:
                (found,) = done.value
                break
            if growth.total[0, 0] == -torch.inf:  # it ended
                continue
            self.tokens = growth.tokens[0, 0].tolist()
            piece, held = _split(held + decoder.feed(self.tokens[-1:]), options.stop)
            if piece:
                yield piece
        if not found:
            raise UserError(BROKEN)
        self.answer = writer.told(self.row, found[0], options)
        rest = held + decoder.finish()
        place = min((rest.index(stop) for stop in options.stop if stop in rest), default=len(rest))
        if rest[:place]:
            yield rest[:place]


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


def _split(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """What may be shown, and what may yet become one of the texts to stop at (or is one)."""
    if found := [text.index(stop) for stop in stops if stop in text]:
        return text[: min(found)], text[min(found) :]
    longest = max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)
    return text[: len(text) - longest], text[len(text) - longest :]


def _limit(options: DecodeOptions) -> int:
    return options.max_new_tokens or NEW_TOKENS
