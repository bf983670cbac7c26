"""Whisper's decoding of windows of 30 seconds: prompts, languages, and what its generation_config.json forbids.

Shapes: tokens (rows, length); a state has the encoded windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.config.recipe import DecodeOptions
from regard.decoding.logits_processors import LogitsProcessor
from regard.decoding.search import Hypothesis, search
from regard.decoding.timestamps import NotFirst, TimestampRules
from regard.errors import UserError
from regard.interop.whisper import SpeechTokens
from regard.layers.audio_encoder import Encoded
from regard.layers.inputs import AudioBatch
from regard.layers.pytree import State
from regard.models.whisper import Whisper
from regard.tasks.generation import NOT_FINITE
from regard.text.tokenizer import Tokenizer


class FromState:
    """A network whose source is encoded already, so that it is encoded once for several searches."""

    def __init__(self, network: Whisper):
        self.step = network.step

    def start(self, source: State) -> State:
        return source


@dataclass(frozen=True)
class WhisperDecoder:
    """A Whisper network, its special tokens, and how it is decoded. An empty language is detected."""

    network: Whisper
    tokenizer: Tokenizer
    tokens: SpeechTokens
    options: DecodeOptions
    language: str = ""
    task: str = "transcribe"  # or "translate": into English

    @torch.inference_mode()
    def listen(self, audio: AudioBatch) -> Encoded:
        """The encoder's states of each window."""
        return self.network.listen(audio.to(self.device))

    @torch.inference_mode()
    def start(self, encoded: Encoded) -> State:
        """The state before the first token of each window."""
        return self.network.start_from(encoded)

    def encode(self, audio: AudioBatch) -> State:
        """Both."""
        return self.start(self.listen(audio))

    def decode(
        self,
        state: State,
        prompts: Sequence[Sequence[int]],
        timestamps: bool,
        options: DecodeOptions | None = None,
        keys: Sequence[int] = (),
    ) -> list[list[Hypothesis]]:
        """Hypotheses for each window, best first. Prompts are equally long."""
        options = options or self.options
        begin = torch.tensor(prompts, device=self.device)
        positions = self.network.max_positions - begin.size(1)
        limit = min(options.max_new_tokens or positions, positions)
        hypotheses = search(
            FromState(self.network), state, begin, self.tokens.end, options, limit,
            keys=keys, processors=self.processors(timestamps),
        )  # fmt: skip
        if not all(hypotheses):
            raise UserError(NOT_FINITE)
        return hypotheses

    def processors(self, timestamps: bool) -> list[LogitsProcessor]:
        tokens = self.tokens
        rules: list[LogitsProcessor] = [NotFirst(tokens.first_suppressed)] if tokens.first_suppressed else []
        if timestamps:
            rules.append(TimestampRules(tokens.end, tokens.first_timestamp, tokens.max_initial_timestamp))
        return rules

    def prompts(self, state: State, windows: int, timestamps: bool) -> list[list[int]]:
        """The prompt of each window, in the language that it is spoken in."""
        language = self.language or self.tokens.default_language
        detected = not language and bool(self.tokens.languages)
        languages = self.detect_languages(state, windows) if detected else [language] * windows
        return [self.tokens.prompt(language, self.task, timestamps) for language in languages]

    @torch.inference_mode()
    def detect_languages(self, state: State, windows: int) -> list[str]:
        """The most probable language of each window: the token that follows the first one."""
        codes, ids = zip(*self.tokens.languages.items(), strict=True)
        logits, _ = self.network.step(torch.full((windows, 1), self.tokens.begin, device=self.device), state)
        return [codes[index] for index in logits[:, 0, list(ids)].argmax(1).tolist()]

    @torch.inference_mode()
    def no_speech(self, state: State) -> float:
        """The probability that nobody speaks in a window."""
        if self.tokens.no_speech is None:
            return 0.0
        logits, _ = self.network.step(torch.tensor([[self.tokens.begin]], device=self.device), state)
        return float(logits[0, 0].float().softmax(0)[self.tokens.no_speech])

    def text(self, tokens: Sequence[int]) -> str:
        """Without timestamps and other special tokens."""
        return self.tokenizer.decode(self.words(tokens)).strip()

    def words(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of the text alone."""
        return [token for token in tokens if token < self.tokens.end]

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device
