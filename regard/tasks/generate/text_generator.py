"""Text generation with a causal language model: continuations of prompts, in batches or as a stream."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from regard.config.recipe import DecodeOptions
from regard.decoding.candidates import key_of
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.search import BeamSearch, DecodeStart, EosIds, Hypothesis
from regard.decoding.speculative import DraftProposer, Speculation, speculate
from regard.errors import UserError
from regard.layers.autoregressive import TransformerLM
from regard.layers.inputs import pad
from regard.layers.protocols import CausalLM
from regard.tasks.batching import EncodedText, by_length, check_texts
from regard.tasks.generate.likelihood import log_probabilities
from regard.tasks.generation import NOT_FINITE
from regard.tasks.predictor import DEFAULT_INFERENCE, Inference
from regard.text.tokenizer import Tokenizer

NEW_TOKENS = 128  # default of max_new_tokens


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt. `score` is the length-normalised log-probability; `alternatives` are next best."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()  # without the end token
    finish_reason: str = "stop"  # an end token or stop sequence; or "length": max_new_tokens was reached
    stop_reason: str | None = None  # the stop sequence that ended it
    prompt_tokens: int = 0
    truncated: bool = False  # the start of the prompt was dropped
    context_shifted: bool = False  # prompt and output exceed the context: its older half was dropped
    log_probabilities: tuple[float, ...] | None = None  # of each token, on request
    alternatives: tuple["Continuation", ...] = ()

    @property
    def finished(self) -> bool:
        return self.finish_reason != "length"


@dataclass(frozen=True)
class TextGenerator:
    """A causal language model with its end tokens, and a factory of draft proposers for speculative decoding."""

    network: CausalLM
    tokenizer: Tokenizer
    eos_ids: EosIds
    draft: Callable[[], DraftProposer] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def prompts(self, texts: Sequence[str], truncate: bool = False) -> list[EncodedText]:
        """Prompts as tokens; one that exceeds the context is an error, or loses its start."""
        check_texts(texts)
        for index, text in enumerate(texts):
            if not text:
                raise UserError("is empty: a prompt needs at least one character", index)
        return [self.row(self.tokenizer.prompt(text), truncate, index) for index, text in enumerate(texts)]

    def row(self, tokens: list[int], truncate: bool = False, index: int | None = None) -> EncodedText:
        """A prompt of tokens."""
        limit = self.network.max_positions
        head = len(self.tokenizer.head)
        if not tokens:
            raise UserError("the prompt has no tokens: give at least one")
        if len(tokens) <= limit:
            return EncodedText(tokens)
        if not truncate:
            raise UserError(
                f"{'has' if index is not None else 'the prompt has'} {len(tokens):,} tokens, the model reads at most "
                f"{limit:,}: {self.tokenizer.decode(tokens[:16])!r}…; shorten it, or drop its start with --truncate "
                "(truncate=True)",
                index,
            )
        return EncodedText(tokens[:head] + tokens[len(tokens) - limit + head :], truncated=True)

    def run(
        self,
        texts: Sequence[str],
        options: DecodeOptions,
        inference: Inference = DEFAULT_INFERENCE,
        with_log_probabilities: bool = False,
    ) -> list[Continuation]:
        """A continuation of each text, computed in batches of similar length."""
        rows = self.prompts(texts, inference.truncate)
        outputs = []
        for row, hypotheses in zip(rows, self.search_all(rows, options, inference), strict=True):
            best, *rest = (self.continuation(row, each, options, with_log_probabilities) for each in hypotheses)
            outputs.append(replace(best, alternatives=tuple(rest)))
        return outputs

    def search_all(
        self, rows: Sequence[EncodedText], options: DecodeOptions, inference: Inference = DEFAULT_INFERENCE
    ) -> list[list[Hypothesis]]:
        """The best continuations of any number of prompts.

        Those of a batch have similar lengths; equal ones where outputs may exceed the context, which then shifts.
        """
        limit = self.network.max_positions - _max_new_tokens(options)
        groups: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(max(len(row.tokens), limit), []).append(index)
        hypotheses: dict[int, list[Hypothesis]] = {}
        for _, group in sorted(groups.items()):
            for batch in by_length([len(rows[index].tokens) for index in group], inference.batch_size):
                indices = [group[position] for position in batch]
                batch_outputs = self.search([rows[index].tokens for index in indices], options)
                hypotheses |= zip(indices, batch_outputs, strict=True)
                inference.progress(len(indices))
        return [hypotheses[index] for index in range(len(rows))]

    def search(self, prompts: list[list[int]], options: DecodeOptions) -> list[list[Hypothesis]]:
        """The best continuations of a batch of prompts of tokens, best first."""
        if self.draft is not None:
            return [[self.speculate(prompt, options).answer] for prompt in prompts]
        source = pad(prompts, 0).to(self.device)
        hypotheses = BeamSearch(self.network, source, self.decode_start(prompts, options), options).run()
        if not all(hypotheses):
            raise UserError(NOT_FINITE)
        return hypotheses

    def decode_start(self, prompts: list[list[int]], options: DecodeOptions) -> DecodeStart:
        """Prompts as forced first tokens; all but the last one are processed at the start."""
        length = max(map(len, prompts))
        begin = torch.tensor([[-1] * (length - len(prompt)) + prompt for prompt in prompts], device=self.device)
        keys = [key_of(prompt) for prompt in prompts] if options.temperature else ()
        limit = _max_new_tokens(options)
        return DecodeStart(begin, self._eos_ids(options), limit, length - 1, keys, self._stop_condition(options))

    def _eos_ids(self, options: DecodeOptions) -> tuple[int, ...]:
        """The end tokens, and the special tokens among the stop sequences: those have no text."""
        eos_ids = (self.eos_ids,) if isinstance(self.eos_ids, int) else self.eos_ids
        return (*eos_ids, *(self.tokenizer.special[stop] for stop in options.stop if stop in self.tokenizer.special))

    def _stop_condition(self, options: DecodeOptions) -> Callable[[list[int]], bool] | None:
        """Whether an output contains a stop sequence; its last tokens decide it."""
        if not options.stop:
            return None
        tail = max(len(stop.encode()) for stop in options.stop) + 8  # a token is a byte or more
        return lambda tokens: any(stop in self.tokenizer.decode(tokens[-tail:]) for stop in options.stop)

    def speculate(self, prompt: list[int], options: DecodeOptions) -> Speculation:
        """The greedy continuation of one prompt by speculative decoding."""
        assert self.draft is not None
        if options.temperature or options.num_beams > 1:
            name = "temperature" if options.temperature else "num_beams"
            raise UserError(f"speculative decoding is for greedy search, not {name} = {getattr(options, name)}")
        speculation = speculate(
            self.network,
            torch.tensor([prompt], device=self.device),
            self._eos_ids(options),
            options,
            _max_new_tokens(options),
            self.draft(),
            self._stop_condition(options),
        )
        if math.isnan(speculation.answer.score):
            raise UserError(NOT_FINITE)
        return speculation

    def continuation(
        self, row: EncodedText, hypothesis: Hypothesis, options: DecodeOptions, with_log_probabilities: bool = False
    ) -> Continuation:
        """A hypothesis as text, which ends before the first stop sequence."""
        decoder = self.tokenizer.incremental()
        decoder.feed(row.tokens)
        decoded = decoder.feed(hypothesis.tokens) + decoder.finish()
        stop = _first_stop(decoded, options.stop)
        stopped_by = next((text for text in options.stop if stop is not None and decoded.startswith(text, stop)), None)
        total = len(row.tokens) + len(hypothesis.tokens)
        context_shifted = isinstance(self.network, TransformerLM) and total > self.network.max_positions
        logs = None
        if with_log_probabilities:
            if context_shifted:
                raise UserError(
                    f"log-probabilities of {total} tokens, but the model's context is {self.network.max_positions}: "
                    "use fewer max_new_tokens"
                )
            tokens = torch.tensor([row.tokens + hypothesis.tokens], device=self.device)
            logs = ()
            if hypothesis.tokens:
                logs = tuple(log_probabilities(self.network, tokens)[0, len(row.tokens) - 1 :].tolist())
        return Continuation(
            decoded[:stop],
            hypothesis.score,
            tuple(hypothesis.tokens),
            "stop" if hypothesis.finished else "length",
            stopped_by,
            len(row.tokens),
            row.truncated,
            context_shifted,
            logs,
        )


class GenerationStream:
    """A continuation while it is generated: iterate for pieces of text; afterwards `answer` is all of it.

    With a prefix cache, the prefix that the prompt shares with the last text is not computed again.
    """

    def __init__(
        self,
        generator: TextGenerator,
        row: EncodedText,
        options: DecodeOptions,
        prefix_cache: PrefixCache | None = None,
    ):
        if options.num_beams > 1 or options.num_return_sequences > 1:
            raise UserError(
                "beam search has no output before its end: stream with num_beams = 1 and num_return_sequences = 1"
            )
        self.generator = generator
        self.row = row
        self.options = options
        self.network = prefix_cache or generator.network
        self.tokens: list[int] = []
        self.answer: Continuation | None = None

    def __iter__(self) -> Iterator[str]:
        generator = self.generator
        options = self.options
        prompt = self.row.tokens
        source = pad([prompt], 0).to(generator.device)
        search = BeamSearch(self.network, source, generator.decode_start([prompt], options), options)
        decoder = generator.tokenizer.incremental()
        decoder.feed(prompt)
        pending = ""
        for step in search:
            if step.total[0, 0] == -torch.inf:  # it has ended
                continue
            self.tokens = step.tokens[0, 0].tolist()
            piece, pending = _split(pending + decoder.feed(self.tokens[-1:]), options.stop)
            if piece:
                yield piece
        (hypotheses,) = search.finished.kept
        if not hypotheses:
            raise UserError(NOT_FINITE)
        self.answer = generator.continuation(self.row, hypotheses[0], options)
        rest = pending + decoder.finish()
        rest = rest[: _first_stop(rest, options.stop)]
        if rest:
            yield rest


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop sequence begins; None where there is none."""
    return min((text.index(stop) for stop in stops if stop in text), default=None)


def _split(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Text that can be shown, and the rest, which is or may become a stop sequence."""
    end = _first_stop(text, stops)
    if end is None:
        sizes = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        end = len(text) - max(sizes, default=0)
    return text[:end], text[end:]


def _max_new_tokens(options: DecodeOptions) -> int:
    return options.max_new_tokens or NEW_TOKENS
