"""Transcripts of recordings, with the times of their words, and the attention of each unit over the recording."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from regard.attention.recording import record
from regard.attention.trace import Axes, Axis, Trace
from regard.audio.processor import AudioProcessor
from regard.decoding.ctc import ctc_log_probs
from regard.decoding.search import Hypothesis
from regard.errors import UserError
from regard.interop.whisper import SpeechTokens, upper_heads
from regard.layers.inputs import AudioBatch
from regard.models.heads.ctc import CTC
from regard.models.whisper import Whisper
from regard.tasks.generation import GenerationPredictor
from regard.tasks.predictor import Inference, Options, RunInput
from regard.tasks.recordings import (
    AudioRow,
    encode_recordings,
    is_single_recording,
    read_samples,
    recording_of_row,
    recordings_of_arguments,
    row_features,
    spectrogram,
    time_axis,
)
from regard.tasks.seq2seq import check_output, record_target
from regard.tasks.transcribe import windows
from regard.tasks.transcribe.alignment import token_times
from regard.tasks.transcribe.recognise import Recognition, Times, attention_times, ctc_times
from regard.tasks.transcribe.timing import group_words, timed_words, to_lines, to_srt, to_vtt
from regard.tasks.transcribe.transcript import Transcript
from regard.tasks.transcribe.windows import WindowTranscriber

FORMATS = {"srt": to_srt, "vtt": to_vtt}
CROSS = "decoder.cross"  # the site of the attention of a recurrent decoder


class TranscribePredictor(GenerationPredictor):
    """`run` and `trace` of speech recognition models."""

    task = "transcribe"
    description = "a speech recognition model"
    options = (*GenerationPredictor.options, "ctc_weight", "timestamps", *FORMATS, *windows.OPTIONS)
    text_columns = ("audio", "file", "file_name", "path")
    batch_size = 16

    @cached_property
    def speech_tokens(self) -> SpeechTokens | None:
        """The tokens of Whisper's prompts; None for other models."""
        if not isinstance(self.network, Whisper):
            return None
        return SpeechTokens.of(self.model.generation, self.network.config, self.tokenizer)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.size

    @property
    def audio(self) -> AudioProcessor:
        """The audio processor of the model."""
        return self.processor.source

    @property
    def state_seconds(self) -> float:
        """The time from one state of the encoder to the next."""
        stride = self.network.body.stride if isinstance(self.network, CTC) else self.network.stride
        return stride * self.audio.frame_seconds

    def is_single(self, inputs: Any) -> bool:
        return is_single_recording(inputs)

    def is_empty(self, value: Any) -> bool:
        return isinstance(value, str) and not value.strip()

    # ── predictions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def recognition(self, options: Options) -> Recognition:
        """How the model transcribes with these options; by default with the CTC weight that it was trained with."""
        options = dict(options)
        weight = options.pop("ctc_weight", getattr(self.network.config, "ctc_weight", 0.0))
        if not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise UserError(f"ctc_weight = {weight!r}: expected a number from 0 to 1")
        return Recognition(self.network, self.tokenizer, self.decode_options(**options), float(weight))

    def predict(self, inputs: list[Any], options: Options, inference: Inference) -> list[Transcript]:
        timings = [options.pop(name, False) for name in ("timestamps", *FORMATS)]
        if self.speech_tokens is not None:
            return self._predict_windows(inputs, options, inference, any(timings))
        _refuse(options, tuple(windows.OPTIONS), "Whisper")
        recognise = self.recognition(options)
        rows = self.rows(inputs, inference.truncate)
        order = sorted(range(len(rows)), key=lambda index: -rows[index].length)
        transcripts: dict[int, Transcript] = {}
        for start in range(0, len(order), inference.batch_size):
            indices = order[start : start + inference.batch_size]
            batch = self.batch([rows[index] for index in indices])
            for position, (index, hypotheses) in enumerate(zip(indices, recognise(batch), strict=True)):
                best, *others = (self._transcript(each) for each in hypotheses)
                if any(timings):
                    single = AudioBatch(
                        batch.frames[position, None, : batch.lengths[position]], batch.lengths[position, None]
                    )
                    words = timed_words(self.tokenizer, best.tokens, self.times(single, best.tokens))
                    best = replace(best, words=words, segments=group_words(words))
                transcripts[index] = replace(best, truncated=rows[index].truncated, alternatives=tuple(others))
            inference.progress(len(indices))
        return [transcripts[index] for index in range(len(rows))]

    def _predict_windows(
        self, inputs: list[Any], options: Options, inference: Inference, timed: bool
    ) -> list[Transcript]:
        """By Whisper: recordings of any length."""
        transcribe = self.transcriber(options)
        transcripts: list[Transcript] = []
        for start in range(0, len(inputs), inference.batch_size):
            values = inputs[start : start + inference.batch_size]
            samples = [read_samples(value, self.audio.rate, index) for index, value in enumerate(values, start)]
            transcripts += transcribe(samples, timed)
            inference.progress(len(values))
        return transcripts

    def transcriber(self, options: Options) -> WindowTranscriber:
        """Whisper with these options."""
        assert self.speech_tokens is not None
        _refuse(options, ("ctc_weight",), "models with a CTC output")
        chosen = {name: value for name, value in options.items() if name in windows.OPTIONS}
        decoding = self.decode_options(**{name: value for name, value in options.items() if name not in chosen})
        return WindowTranscriber.of(self.network, self.processor, self.speech_tokens, decoding, chosen)

    def _transcript(self, hypothesis: Hypothesis) -> Transcript:
        text = self.tokenizer.decode(hypothesis.tokens).strip()
        return Transcript(text, hypothesis.score, tuple(hypothesis.tokens), hypothesis.finished)

    def rows(self, values: Sequence[Any], truncate: bool = False) -> list[AudioRow]:
        """Recordings as rows; one that is longer than the model reads is an error, or truncated."""
        return encode_recordings(values, self.audio, self.network.config.max_frames, truncate)

    def batch(self, rows: Sequence[AudioRow]) -> AudioBatch:
        """Rows as one batch."""
        return self.audio.collate([row_features(row, self.audio) for row in rows])

    @torch.inference_mode()
    def times(self, audio: AudioBatch, tokens: Sequence[int]) -> Times:
        """When each token of an output for one recording is spoken: by CTC if the model has it, else by attention."""
        audio = audio.to(self.model.device)
        if isinstance(self.network, Whisper):
            return self._whisper_times(self.network, audio, tokens)
        emissions = Recognition(self.network, self.tokenizer).emissions(audio)
        if emissions is not None:
            log_probs = ctc_log_probs(*emissions, self.tokenizer.pad)[0]
            times = ctc_times(log_probs, tokens, self.tokenizer.pad, self.state_seconds)
            if times or isinstance(self.network, CTC):
                return times
        recorder = record_target(
            self.network, audio, self.tokenizer, tokens
        )  # also for more tokens than CTC has states
        return attention_times(Trace(recorder), CROSS, self.state_seconds)

    def _whisper_times(self, network: Whisper, audio: AudioBatch, tokens: Sequence[int]) -> Times:
        state = network.start(audio)
        prompt, heads = [self.tokenizer.begin], upper_heads(network.config)
        if self.speech_tokens is not None:
            (prompt,) = self.transcriber({}).decoder.prompts(state, 1, timestamps=False)
            heads = self.speech_tokens.alignment_heads
        seconds = int(audio.lengths[0]) * self.audio.frame_seconds
        return token_times(network, state, prompt, tokens, heads, seconds)

    # ── traces ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def trace(self, value: Any, target: str | None, prove: bool, truncate: bool, options: Options) -> Trace:
        """Output units × seconds where there is a decoder; of a CTC model the self-attention over the recording."""
        (row,) = self.rows([value], truncate)
        audio = self.batch([row]).to(self.model.device)
        output = self.answer(audio, target, options)
        if isinstance(self.network, CTC):
            trace = self._trace_encoder(audio, output, prove)
        else:
            check_output(self.network, output)
            trace = self._trace_decoder(audio, output, prove)
        name = Path(value).name if isinstance(value, str | Path) else ""
        trace.picture = spectrogram(audio.frames[0].cpu(), name)
        return trace

    def answer(self, audio: AudioBatch, target: str | None, options: Options) -> list[int]:
        """The decoder's tokens after the first: a target, or the prediction. Whisper's begin with its prompt."""
        if self.speech_tokens is None:
            encoded = None if target is None else self.tokenizer.encode(target)
            return self.recognition(options)(audio)[0][0].tokens if encoded is None else encoded
        decoder = self.transcriber(options).decoder
        state = decoder.encode(audio)
        prompts = decoder.prompts(state, 1, timestamps=False)
        if target is None:
            tokens = decoder.decode(state, prompts, timestamps=False)[0][0].tokens
        else:
            tokens = self.tokenizer.encode(" " + target.strip())
        return [*prompts[0][1:], *tokens]

    def _axis(self, audio: AudioBatch, states: int) -> Axis:
        """The states of the encoder for one recording."""
        length = int(audio.lengths[0]) * self.audio.frame_seconds
        return time_axis(states, self.state_seconds, states * self.state_seconds / length)

    @torch.no_grad()
    def _trace_encoder(self, audio: AudioBatch, output: Sequence[int], prove: bool) -> Trace:
        with record(prove) as recorder:
            emissions = self.network(audio)
        axis = self._axis(audio, int(emissions.lengths[0]))
        return Trace(recorder, Axes(self.network.body.sites(axis), axis), self.tokenizer.decode(output))

    def _trace_decoder(self, audio: AudioBatch, output: Sequence[int], prove: bool) -> Trace:
        recorder = record_target(self.network, audio, self.tokenizer, output, prove)
        axis = self._axis(audio, -(-int(audio.lengths[0]) // self.network.stride))
        begin, end = self.tokenizer.begin, self.tokenizer.end
        target = Axis(self.tokenizer.pieces([begin, *output]))
        units = Axis(self.tokenizer.pieces([*output, end]))
        return Trace(recorder, Axes.encoder_decoder(axis, target, units), self.tokenizer.decode(output))

    # ── files and terminals ──────────────────────────────────────────────────────────────────────────────────────────

    def from_arguments(self, arguments: Sequence[str]) -> Iterator[RunInput]:
        return recordings_of_arguments(arguments)

    def parse_row(self, text: str, second: str | None, extra: Mapping[str, str], location: str) -> RunInput:
        return recording_of_row(text, location)

    def lines(self, prediction: Transcript, options: Mapping[str, Any]) -> list[str]:
        segments = prediction.segments or ()
        for name, write in FORMATS.items():
            if options.get(name):
                return write(segments).split("\n")
        return to_lines(segments) if options.get("timestamps") else super().lines(prediction, options)


def _refuse(options: Options, names: Sequence[str], owners: str) -> None:
    if wrong := [name for name in names if name in options]:
        raise UserError(f"'{wrong[0]}' is for {owners}")
