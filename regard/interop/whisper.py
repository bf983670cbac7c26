"""Whisper (Radford et al. 2022): its config keys and tensor names, and what its files say about the tokens of a prompt.

prompt     <|startofprev|> previous text  <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>
answer     <|0.00|> text <|2.40|> <|2.40|> …  <|endoftext|>           (timestamps unless they are turned off)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from regard.errors import UserError, nearest
from regard.interop.config_keys import ACTIVATIONS, Json, Key
from regard.interop.layout import Published
from regard.interop.marian import Marian
from regard.models.whisper import WhisperConfig, sinusoids

MODEL = "model."
SINUSOIDS = "encoder.embed_positions.weight"

SECONDS_PER_STATE = 0.02  # of the encoder; also from one timestamp token to the next
MAX_TIMESTAMPS = 1501  # 0.00 to 30.00

TASKS = ("transcribe", "translate")

GENERATION_KEYS = frozenset(("begin_suppress_tokens", "forced_decoder_ids"))


class Whisper(Published):
    """WhisperForConditionalGeneration. `scale_embedding` is a key of its files that changes nothing."""

    model_type = "whisper"
    architecture = "WhisperForConditionalGeneration"
    family = "whisper"
    keys = {
        "vocab_size": Key("vocabulary", 51865),
        "num_mel_bins": Key("bins", 80),
        "d_model": Key("width", 384),
        "encoder_attention_heads": Key("heads", 6),
        "encoder_layers": Key("depth", 4),
        "encoder_ffn_dim": Key("feedforward", 1536),
        "decoder_attention_heads": Key("decoder_heads", 6),
        "decoder_layers": Key("decoder_depth", 4),
        "decoder_ffn_dim": Key("decoder_feedforward", 1536),
        "activation_function": Key("activation", "gelu", ACTIVATIONS),
        "tie_word_embeddings": Key("tied", True),
        "dropout": Key("dropout", 0.0),
        "max_source_positions": Key("source_positions", 1500),
        "max_target_positions": Key("max_positions", 448),
    }
    required = {"is_encoder_decoder": True, "use_weighted_layer_sum": False, "quantization_config": None}
    extra_keys = {"attention_dropout": 0.0, "activation_dropout": 0.0, "use_cache": True}
    generation_keys = GENERATION_KEYS
    prefix = MODEL
    outer_modules = {
        "source.first": "encoder.conv1",
        "source.second": "encoder.conv2",
        "source.positions.table": "encoder.embed_positions",
        "encoder.final": "encoder.layer_norm",
        "target.positions.table": "decoder.embed_positions",
        "decoder.final": "decoder.layer_norm",
    }
    block = Marian.block  # both are BART's
    block_names = Marian.block_names

    def outer_names(self, config: WhisperConfig) -> dict[str, tuple[str, ...]]:
        table, output = f"{MODEL}decoder.embed_tokens.weight", "proj_out.weight"
        tables = {"target.table.weight": (table, output) if config.tied else (table,), "output.weight": (output,)}
        return super().outer_names(config) | tables

    def config_fields(self, config: WhisperConfig) -> Json:
        feedforward = config.feedforward or 4 * config.width
        return vars(config) | {
            "feedforward": feedforward,
            "decoder_heads": config.decoder_heads or config.heads,
            "decoder_depth": config.decoder_depth or config.depth,
            "decoder_feedforward": config.decoder_feedforward or feedforward,
        }

    def adapt_tensors(self, tensors: dict[str, Tensor], config: Json) -> dict[str, Tensor]:
        """With the sinusoids, where a file leaves them out."""
        if {SINUSOIDS, MODEL + SINUSOIDS} & tensors.keys():
            return tensors
        fields = self.read_fields(config)
        return tensors | {MODEL + SINUSOIDS: sinusoids(fields["source_positions"], fields["width"])}

    def check_generation(self, generation: Json, network: Any, tokenizer: Any) -> None:
        SpeechTokens.of(generation, network.config, tokenizer)


@dataclass(frozen=True)
class SpeechTokens:
    """The special tokens of a Whisper checkpoint, and which others may not be generated."""

    begin: int  # <|startoftranscript|>
    end: int  # also the first id that is not text
    no_timestamps: int
    previous: int | None  # <|startofprev|>: the text before the window follows
    no_speech: int | None
    languages: Mapping[str, int]  # by code; empty in an English-only model
    tasks: Mapping[str, int]
    first_suppressed: tuple[int, ...] = ()  # may not begin an answer
    max_initial_timestamp: int | None = None  # the last timestamp that may begin an answer, counted from 0.00
    alignment_heads: tuple[tuple[int, int], ...] = ()  # (layer, head) whose cross-attention follows the speech
    default_language: str = ""  # "": it is detected
    default_task: str = "transcribe"

    @property
    def first_timestamp(self) -> int:
        """<|0.00|>; the others follow it."""
        return self.no_timestamps + 1

    @classmethod
    def of(cls, generation: Json, config: WhisperConfig, tokenizer: Any) -> "SpeechTokens | None":
        """From generation_config.json, and from the names in the tokenizer where it is an older one.

        None where neither has them: such a model was not trained with prompts.
        """
        table: Mapping[str, int] = tokenizer.table
        languages, tasks = {}, {}
        if generation.get("is_multilingual", config.vocabulary != 51864):
            languages = _languages(generation, table, config.vocabulary)
            tasks = _tasks(generation, table, config.vocabulary)
        forced = _forced(generation, config.vocabulary)
        no_timestamps = _id(generation, "no_timestamps_token_id", table.get("<|notimestamps|>"), config.vocabulary)
        if no_timestamps is None:
            return None
        codes = {id: code for code, id in languages.items()}
        task = generation.get("task") or next((name for name, id in tasks.items() if forced.get(2) == id), "transcribe")
        if task not in TASKS:
            raise UserError(f"task = {task!r:.40} is not supported; expected one of: {', '.join(TASKS)}")
        language = generation.get("language") or codes.get(forced.get(1) or -1, "")
        tokens = cls(
            tokenizer.begin,
            tokenizer.end,
            no_timestamps,
            _id(generation, "prev_sot_token_id", table.get("<|startofprev|>"), config.vocabulary),
            table.get("<|nospeech|>", table.get("<|nocaptions|>")),
            languages,
            tasks,
            _ids(generation, "begin_suppress_tokens", config.vocabulary),
            _count(generation, "max_initial_timestamp_index"),
            _alignment_heads(generation, config),
            default_task=task,
        )
        return tokens if not language else tokens.with_language(language)

    def with_language(self, language: str) -> "SpeechTokens":
        """With this language by default: a code, or its token."""
        code = str(language).removeprefix("<|").removesuffix("|>").lower()
        if self.languages and code not in self.languages:
            raise UserError(f"language = '{language}' is unknown{nearest(code, self.languages)}")
        if not self.languages and code != "en":
            raise UserError(f"language = '{language}': this model knows English only")
        return replace(self, default_language=code)

    def require_task(self, task: str) -> None:
        """An error unless the model does this."""
        if task != "transcribe" and task not in self.tasks:
            raise UserError(f"task = '{task}' is for multilingual models; this one transcribes English")

    def prompt(self, language: str, task: str, timestamps: bool) -> list[int]:
        """The tokens before an answer. An English-only model is told neither language nor task."""
        self.require_task(task)
        language_and_task = [self.languages[language], self.tasks[task]] if self.languages else []
        return [self.begin, *language_and_task, *([] if timestamps else [self.no_timestamps])]


def _id(generation: Json, key: str, default: int | None, vocabulary: int) -> int | None:
    value = generation.get(key, default)
    if value is not None and (type(value) is not int or not 0 <= value < vocabulary):
        raise UserError(f"{key} = {value!r:.40}: expected one of the vocabulary's ids, 0 … {vocabulary - 1}")
    return value


def _ids(generation: Json, key: str, vocabulary: int) -> tuple[int, ...]:
    values = generation.get(key) or []
    if not isinstance(values, list) or not all(type(id) is int and 0 <= id < vocabulary for id in values):
        raise UserError(f"{key} = {values!r:.60}: expected a list of ids, 0 … {vocabulary - 1}")
    return tuple(values)


def _count(generation: Json, key: str) -> int | None:
    value = generation.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < MAX_TIMESTAMPS):
        raise UserError(f"{key} = {value!r:.40}: expected an integer, 0 … {MAX_TIMESTAMPS - 1}")
    return value


def _named_ids(generation: Json, key: str, vocabulary: int) -> dict[str, int]:
    values = generation.get(key) or {}
    valid = isinstance(values, dict) and all(type(id) is int and 0 <= id < vocabulary for id in values.values())
    if not valid:
        raise UserError(f"{key} = {values!r:.60}: expected an object of names and ids, 0 … {vocabulary - 1}")
    return values


def _languages(generation: Json, table: Mapping[str, int], vocabulary: int) -> dict[str, int]:
    """By code. In the vocabulary they are between <|startoftranscript|> and the tasks."""
    names = _named_ids(generation, "lang_to_id", vocabulary)
    if not names and {"<|startoftranscript|>", "<|translate|>"} <= table.keys():
        between = range(table["<|startoftranscript|>"] + 1, table["<|translate|>"])
        names = {name: id for name, id in table.items() if id in between}
    return {name.removeprefix("<|").removesuffix("|>"): id for name, id in names.items()}


def _tasks(generation: Json, table: Mapping[str, int], vocabulary: int) -> dict[str, int]:
    named = {name: table[f"<|{name}|>"] for name in TASKS if f"<|{name}|>" in table}
    return named | _named_ids(generation, "task_to_id", vocabulary)


def _forced(generation: Json, vocabulary: int) -> dict[int, int | None]:
    """The tokens at some positions of the answer's beginning; None is one that the model chooses."""
    pairs = generation.get("forced_decoder_ids") or []
    valid = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    if not valid or not all(
        type(position) is int and (id is None or (type(id) is int and 0 <= id < vocabulary)) for position, id in pairs
    ):
        raise UserError(f"forced_decoder_ids = {pairs!r:.60}: expected pairs of a position and an id")
    return dict(pairs)


def upper_heads(config: WhisperConfig) -> tuple[tuple[int, int], ...]:
    """All heads of the upper half of the decoder's layers, which align where no file names better ones."""
    depth, heads = config.decoder_depth or config.depth, config.decoder_heads or config.heads
    return tuple((layer, head) for layer in range(depth // 2, depth) for head in range(heads))


def _alignment_heads(generation: Json, config: WhisperConfig) -> tuple[tuple[int, int], ...]:
    """The heads that a file names."""
    depth, heads = config.decoder_depth or config.depth, config.decoder_heads or config.heads
    pairs = generation.get("alignment_heads")
    if pairs is None:
        return upper_heads(config)
    valid = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    if not valid or not all(
        type(layer) is int and type(head) is int and 0 <= layer < depth and 0 <= head < heads for layer, head in pairs
    ):
        raise UserError(
            f"alignment_heads = {pairs!r:.60}: expected pairs of a layer, 0 … {depth - 1}, and a head, 0 … {heads - 1}"
        )
    return tuple((layer, head) for layer, head in pairs)
