"""Transcripts by Whisper: recordings of one window together, longer ones window by window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from regard.audio.processor import AudioProcessor
from regard.config.recipe import DecodeOptions
from regard.decoding.candidates import key_of
from regard.decoding.search import Hypothesis
from regard.errors import UserError
from regard.interop.whisper import SpeechTokens
from regard.layers.audio_encoder import Encoded
from regard.models.whisper import Whisper
from regard.tasks.transcribe.long_form import LongFormOptions, transcribe_windows
from regard.tasks.transcribe.timing import TimedText
from regard.tasks.transcribe.transcript import Transcript
from regard.tasks.transcribe.whisper import WhisperDecoder
from regard.text.tokenizer import Tokenizer

OPTIONS: dict[str, tuple[type, Any]] = {  # of `run`, with their types and defaults
    "language": (str, ""),
    "translate": (bool, False),
    "condition_on_previous_text": (bool, True),
}


@dataclass(frozen=True)
class WindowTranscriber:
    decoder: WhisperDecoder
    processor: AudioProcessor
    options: LongFormOptions

    @classmethod
    def of(
        cls,
        network: Whisper,
        processor: Any,
        tokens: SpeechTokens,
        decoding: DecodeOptions,
        chosen: Mapping[str, Any],
    ) -> "WindowTranscriber":
        """With those of OPTIONS that are chosen."""
        for name, value in chosen.items():
            if type(value) is not OPTIONS[name][0]:
                raise UserError(f"{name} = {value!r:.40} does not fit; expected {OPTIONS[name][0].__name__}")
        language = chosen.get("language", "")
        tokens = tokens.with_language(language) if language else tokens
        task = "translate" if chosen.get("translate") else tokens.default_task
        tokenizer: Tokenizer = processor.target
        decoder = WhisperDecoder(network, tokenizer, tokens, decoding, tokens.default_language, task)
        tokens.require_task(task)
        options = LongFormOptions(condition_on_previous_text=chosen.get("condition_on_previous_text", True))
        return cls(decoder, processor.source, options)

    def __call__(self, recordings: Sequence[np.ndarray], timed: bool) -> list[Transcript]:
        """A transcript of each; `timed` with segments and words."""
        short = [
            index
            for index, samples in enumerate(recordings)
            if not timed and len(samples) <= self.processor.window_samples and samples.any()
        ]
        transcripts = dict(zip(short, self.together([recordings[index] for index in short]), strict=True))
        for index, samples in enumerate(recordings):
            if index not in transcripts:
                transcripts[index] = self.by_window(samples, timed)
        return [transcripts[index] for index in range(len(recordings))]

    def together(self, recordings: Sequence[np.ndarray]) -> list[Transcript]:
        """Recordings of at most one window, without timestamps: decoded as one batch, with alternatives."""
        if not recordings:
            return []
        decoder = self.decoder
        state = decoder.start(self.encode(recordings))
        prompts = decoder.prompts(state, len(recordings), timestamps=False)
        sampled = decoder.options.temperature > 0
        keys = [key_of(samples.view(np.int32)) for samples in recordings] if sampled else ()
        transcripts = []
        for hypotheses in decoder.decode(state, prompts, timestamps=False, keys=keys):
            best, *others = map(self.transcript, hypotheses)
            transcripts.append(replace(best, alternatives=tuple(others)))
        return transcripts

    @torch.inference_mode()
    def encode(self, recordings: Sequence[np.ndarray]) -> Encoded:
        """One after the other: the encoder of a window fills the machine, and its activations the caches."""
        encoded = [self.decoder.listen(self.processor([samples])) for samples in recordings]
        return Encoded(*(torch.cat(tensors) for tensors in zip(*encoded, strict=True)))

    def transcript(self, hypothesis: Hypothesis) -> Transcript:
        text = self.decoder.text(hypothesis.tokens)
        return Transcript(text, hypothesis.score, tuple(hypothesis.tokens), hypothesis.finished)

    def by_window(self, samples: np.ndarray, timed: bool) -> Transcript:
        """A recording of any length, by timestamps."""
        options = replace(self.options, words=timed)
        segments = list(transcribe_windows(self.decoder, self.processor, samples, options))
        tokens = tuple(token for segment in segments for token in segment.tokens)
        score = sum(segment.log_probability * len(segment.tokens) for segment in segments) / max(len(tokens), 1)
        transcript = Transcript(" ".join(segment.text for segment in segments), score, tokens)
        if not timed:
            return transcript
        words = tuple(word for segment in segments for word in segment.words)
        lines = tuple(TimedText(segment.text, segment.start, segment.end) for segment in segments)
        return replace(transcript, words=words, segments=lines)
