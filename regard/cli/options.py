"""Groups of options that several commands share; each is a section of their help (see cli/command.py)."""

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.command import option, option_name
from regard.config.options import MAX_THREADS, DecodeOptions
from regard.errors import UserError


def read_texts(arguments: list[str] | None) -> Iterator[str]:
    """The arguments, else the lines of stdin, split at \\n only; a line that is not UTF-8 is an error."""
    if arguments:
        yield from arguments
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    for index, text in enumerate(sys.stdin, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"stdin, line {index}: not UTF-8; convert it, e.g. with iconv -t UTF-8") from None
        yield text.rstrip("\r\n")


class OptionGroup:
    """Options that a command takes as one value: a dataclass with a field per option."""

    def specified(self) -> dict[str, Any]:
        """The options whose value is not the default."""
        pairs = [(field, getattr(self, field.name)) for field in fields(self)]  # type: ignore[arg-type]
        return {field.name: value for field, value in pairs if value not in (field.default, [])}


ModelPath = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Run folder, checkpoint or Hugging Face model folder, or installed model package."
    ),
]

MODEL_TYPE = "Architecture, e.g. bert, if config.json has no model_type."
TRUNCATE = "Truncate inputs longer than the model's context (default: error)."
TEXT_PAIR = "Column with the second text (sentence pairs) or the context (QA)."

ModelType = Annotated[str, typer.Option(metavar="NAME", help=MODEL_TYPE)]
Truncate = Annotated[bool, typer.Option("--truncate", help=TRUNCATE)]


@dataclass(frozen=True)
class Output:
    """Output."""

    json: bool = option(False, "Print JSON instead of text.")
    quiet: bool = option(False, "Print results only: no progress, no advice.", "-q")


@dataclass(frozen=True)
class DeviceOptions:
    """Device and precision."""

    device: str = option("auto", "cpu, cuda, cuda:1, mps, or auto.", metavar="NAME")
    threads: int = option(0, "CPU threads; 0 = automatic.", min=0, max=MAX_THREADS)
    precision: str = option("float32", "float32, bfloat16, or int8 quantisation (CPU).", "--dtype", metavar="NAME")
    model_type: str = option("", MODEL_TYPE, metavar="NAME")


@dataclass(frozen=True)
class ComputeOptions(DeviceOptions):
    """Device and precision."""

    batch_size: int = option(32, "Batch size.", min=1)


@dataclass(frozen=True)
class GenerationOptions(OptionGroup):
    """Generation. Defaults come from the checkpoint's generation_config.json."""

    no_repeat_ngram_size: int | None = option(None, "Forbid repeating any n-gram of this size; 0 = off.", min=0)
    repetition_penalty: float | None = option(None, "Above 1: penalises tokens of the prompt and the output.")
    presence_penalty: float | None = option(None, "Subtracted once from the logit of each token already in the output.")
    frequency_penalty: float | None = option(None, "Subtracted from a token's logit once per occurrence in the output.")
    logit_bias: list[str] | None = option(None, "Add BIAS to the logit of token ID; repeatable.", metavar="ID=BIAS")
    stop: list[str] | None = option(None, "Stop sequence; generation ends before it. Repeatable.", metavar="TEXT")
    min_new_tokens: int | None = option(None, "Minimum number of generated tokens.", min=0)
    max_new_tokens: int | None = option(None, "Maximum number of generated tokens.", "--max-tokens", min=1)
    temperature: float | None = option(None, "Sampling temperature; 0 = greedy or beam search.", min=0.0)
    top_k: int | None = option(None, "Sample from the N most probable tokens; 0 = off.", min=0)
    top_p: float | None = option(None, "Nucleus sampling: fewest tokens of total probability ≥ X.", min=0.0, max=1.0)
    min_p: float | None = option(None, "Drop tokens less probable than X × the most probable.", min=0.0, max=1.0)
    seed: int | None = option(None, "Random seed of sampling (default 0: reproducible).")

    def specified(self) -> dict[str, Any]:
        """The options that the user specified; they override the checkpoint's generation settings."""
        options = super().specified()
        if self.logit_bias:
            options["logit_bias"] = dict(map(_parse_bias, self.logit_bias))
        for name in options.keys() - {"num_return_sequences"}:  # its validity depends on the number of beams
            try:
                DecodeOptions(**{name: options[name]})
            except UserError as error:
                message = str(error).removeprefix("decode.")
                raise typer.BadParameter(message, param_hint=f"'{option_name(name)}'") from None
        return options


@dataclass(frozen=True)
class BeamSearchOptions(GenerationOptions):
    """Generation. Defaults come from the checkpoint's generation_config.json."""

    num_beams: int | None = option(None, "Beam size; 1 = greedy.", min=1)
    length_penalty: float | None = option(None, "Beam score = log-probability / length^X; larger: longer output.")
    num_return_sequences: int | None = option(None, "Number of outputs per input.", min=1)


def _parse_bias(text: str) -> tuple[str, float]:
    """ID=BIAS as a pair."""
    token, _, bias = text.partition("=")
    try:
        return str(int(token)), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} should be ID=BIAS, such as 13=-5", param_hint="'--logit-bias'") from None


@dataclass(frozen=True)
class FileOptions:
    """Batch input from a file."""

    file: str = option("", "Read inputs from a .csv, .tsv, .jsonl or .txt file, one per row.", metavar="FILE")
    column: str = option("", "Column with the input text (default: the recipe's, else text).", metavar="NAME")
    text_pair: str = option("", TEXT_PAIR, metavar="NAME")
    results: Path | None = option(None, "Write rows and predictions to a .csv, .tsv or .jsonl file.", "-o")

    def check(self, inputs: list[str] | None) -> None:
        """Reject options that would have no effect."""
        if self.file and inputs:
            raise typer.BadParameter("give INPUTs or a file, not both", param_hint="'--file'")
        dependent = {"--column": self.column, "--text-pair": self.text_pair, "--output": self.results}
        for name, value in dependent.items():
            if value and not self.file:
                raise typer.BadParameter("is for a file: give --file too", param_hint=f"'{name}'")
        if self.file and self.results and self.results.resolve() == Path(self.file).resolve():
            raise typer.BadParameter("is the input file: give another name", param_hint="'--output'")


@dataclass(frozen=True)
class AnswerOptions(OptionGroup):
    """Task-specific options. Each is for the models named in it."""

    alignments: bool = option(False, "Translation: also source–target alignments (Pharaoh: 0-0 2-1).")
    log_probabilities: bool = option(False, "Language models: log-probability of each token (--json).", "--logprobs")
    draft: str = option("", "Language models: draft model, speculative decoding (greedy).", "--draft", metavar="MODEL")
    lookup: bool = option(False, "Language models: prompt-lookup decoding, drafts n-grams (greedy).", "--lookup")
    context: Path | None = option(None, "Question answering: file with the passage to answer from.")
    best: int | None = option(None, "Question answering, masked LM: candidates per question or mask.", min=1)
    threshold: float | None = option(
        None,
        "QA: no answer if its score exceeds the best span's by more than X. "
        "Multi-label: minimum probability of a label (default 0.5).",
    )
    timestamps: bool = option(False, "Speech recognition: also when each segment is said.")
    srt: bool = option(False, "Speech recognition: print subtitles as SRT; for a single INPUT.")
    vtt: bool = option(False, "Speech recognition: print subtitles as WebVTT; for a single INPUT.")
    language: str = option("", "Whisper: spoken language, such as de (default: detected).", metavar="CODE")
    translate: bool = option(False, "Whisper: translate into English.")
    ctc_weight: float | None = option(
        None, "Speech recognition: weight of CTC beside the decoder (default: as in training).", min=0.0, max=1.0
    )
    truncate: bool = option(False, TRUNCATE)

    def check(self, inputs: list[str] | None) -> None:
        """Reject options that would have no effect."""
        for name in ("srt", "vtt"):
            if getattr(self, name) and (inputs is None or len(inputs) != 1):
                raise typer.BadParameter(
                    "prints the subtitles of one recording: give one INPUT", param_hint=f"'--{name}'"
                )


@dataclass(frozen=True)
class AttentionOptions(OptionGroup):
    """Attention weights. For a single INPUT."""

    explore: Path | None = option(None, "Write the attention viewer of this prediction.", metavar="FILE.html")
    overlay: Path | None = option(None, "Images, recordings: draw the attention weights.", metavar="FILE.png")
    site: str = option("", "Attention layer of --overlay (default: the last; see `regard inspect`).", metavar="NAME")
    head: int | None = option(None, "Head of --overlay (default: the mean over heads).", min=0)
    rollout: bool = option(False, "Attention rollout over all layers instead of one layer, in --overlay.")

    def check(self, inputs: list[str] | None) -> None:
        """Reject options that would have no effect, and files that cannot be written."""
        for path, suffix, name in ((self.explore, ".html", "--explore"), (self.overlay, ".png", "--overlay")):
            if path is None:
                continue
            if inputs is None or len(inputs) != 1:
                raise typer.BadParameter("shows the attention of one input: give one INPUT", param_hint=f"'{name}'")
            if Path(inputs[0]).is_dir():
                raise typer.BadParameter(f"shows one input, but {inputs[0]} is a folder", param_hint=f"'{name}'")
            if path.suffix != suffix:
                raise typer.BadParameter(f"expected a name that ends in {suffix}", param_hint=f"'{name}'")
            if not path.parent.is_dir():
                raise UserError(f"{name} {path}: there is no folder {path.parent}: make it first")
        for name in ("site", "head", "rollout"):
            if name in self.specified() and self.overlay is None:
                raise typer.BadParameter("is for --overlay: give that too", param_hint=f"'{option_name(name)}'")


@dataclass(frozen=True)
class FewShotOptions(OptionGroup):
    """Perplexity and few-shot evaluation. For language models."""

    shots: str = option("", "Numbers of in-context examples to evaluate with, e.g. 0,1,4,8.", metavar="N,N,…")
    by: str = option(
        "", "Choose the most probable label (default), or compare generated text.", metavar="likelihood|generation"
    )
    template: str = option("", "Prompt template per example (default '{text} → {label}\\n').")
    seeds: int = option(3, "Repetitions per question with different examples.", min=1)
    limit: int = option(0, "Evaluate at most N questions; 0 = all.", min=0)
    stride: int = option(0, "Stride of the perplexity window in tokens; 0 = half the context.", min=0)


@dataclass(frozen=True)
class EvalOptions(OptionGroup):
    """Input columns and metrics."""

    source: str = option("", "Column (or language) with the input.", metavar="NAME")
    target: str = option("", "Column (or language) with the reference.", metavar="NAME")
    text_pair: str = option("", TEXT_PAIR, metavar="NAME")
    columns: str = option("", "Column names of a file without a header row.", metavar="NAME,…")
    truncate: bool = option(False, TRUNCATE)
    by_length: bool = option(False, "Also report BLEU by source length.")
    plot: Path | None = option(None, "Plot BLEU by length, accuracy by shots, confusion matrix.", metavar="FILE.svg")
    predictions: Path | None = option(None, "Write reference and prediction of each example.", metavar="FILE.jsonl")
    lowercase: bool | None = option(None, "Case-insensitive scoring, or not (default: as the tokenizer).")

    def check(self, file: str | None) -> None:
        """Reject options that would have no effect, and files that cannot be written."""
        for name in ("source", "target", "text_pair", "columns"):
            if file is None and getattr(self, name):
                problem = f"{option_name(name)} is for a FILE, and none is given"
                raise UserError(f"{problem}: splits of a recipe are read with its options")
        for path in (self.plot, self.predictions):
            if path and not path.parent.is_dir():
                raise UserError(f"{path}: there is no folder {path.parent}: make it first")
        if self.plot and self.plot.suffix != ".svg":
            raise UserError(f"--plot {self.plot}: expected a name that ends in .svg")
