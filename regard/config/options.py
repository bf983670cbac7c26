"""The tables of a recipe as frozen dataclasses: [data], [tokenizer], [train], [decode]; each checks its own values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from regard.config.schema import show
from regard.errors import UserError

Score = Literal[
    "auto", "loss", "bleu", "chrf", "exact", "accuracy", "f1", "macro_f1", "micro_f1", "exact_match",
    "matthews_correlation", "pearsonr", "spearmanr", "squared_error",
]  # fmt: skip

DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {  # of a task, where they differ from those below
    "answer": {
        "data": {"max_length": 0},
        "tokenizer": {"kind": "wordpiece"},
        "train": {"schedule": "linear", "warmup_steps": 100, "betas": [0.9, 0.999], "label_smoothing": 0.0},
    },
    "classify": {
        "data": {"max_length": 0, "stratify": True},
        "tokenizer": {"kind": "byte_bpe"},
        "train": {"schedule": "cosine", "warmup_steps": 50, "betas": [0.9, 0.999], "label_smoothing": 0.0},
    },
    "fill": {
        "data": {"max_length": 0},
        "tokenizer": {"kind": "wordpiece"},
        "train": {"schedule": "linear", "warmup_steps": 500, "betas": [0.9, 0.999], "label_smoothing": 0.0},
    },
    "generate": {
        "data": {"max_length": 0},
        "tokenizer": {"kind": "byte_bpe"},
        "train": {
            "schedule": "cosine",
            "warmup_steps": 100,
            "weight_decay": 0.1,
            "betas": [0.9, 0.95],
            "label_smoothing": 0.0,
        },
    },
    "tag": {
        "data": {"max_length": 0},
        "tokenizer": {"kind": "wordpiece"},
        "train": {"schedule": "linear", "warmup_steps": 100, "betas": [0.9, 0.999], "label_smoothing": 0.0},
    },
}

_LABELLED = ("text2", "label_until", "label_kind", "label_separator", "stratify", "segment")

ONLY: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # the tasks that read a key; all read the rest
    "data": {
        **dict.fromkeys(_LABELLED, ("classify",)),
        **dict.fromkeys(("question", "context", "answer"), ("answer",)),
        **dict.fromkeys(("pairs", "masked", "whole_words"), ("fill",)),
        "stride": ("answer", "classify"),
        "split_by": ("answer", "classify", "fill", "generate", "translate"),
    },
    "train": dict.fromkeys(("auxiliary", "class_weights"), ("classify",)),
}


def require(holds: bool, message: str) -> None:
    """An error with this message unless it holds."""
    if not holds:
        raise UserError(message)


@dataclass(frozen=True)
class DataOptions:
    """Where samples come from: files, or counts where `generate` makes them; a fraction is held out of `train`."""

    train: str | int = ""
    validation: str | int | float = ""
    test: str | int | float = ""
    generate: str = ""
    source: str = ""  # names of sides or columns
    target: str = ""
    columns: tuple[str, ...] = ()  # names for a TSV without a header
    prefix: str = ""  # the column whose value becomes a first token "<value>"
    text: str = ""  # the column of a language model's documents, or of texts to be labelled,
    text2: str = ""  # and of those to be read beside them
    label: str = ""
    label_until: str = ""  # a label ends before this mark: "NUM" of "NUM:date"
    label_kind: Literal["one", "several", "number"] = "one"  # what a text has
    label_separator: str = ","  # stands between several labels of a text
    stratify: bool = False  # of texts with one label, whether each label has its share in a part held out of train
    question: str = ""  # columns of questions, of the texts that they are asked of,
    context: str = ""
    answer: str = ""  # and of their answers
    segment: int = 0  # tokens of each segment in which a long text is read to be labelled; 0 = it is read whole
    stride: int = 0  # tokens from one window or segment to the next; 0 = a third of the longest, or 3/4 of segment
    pairs: Literal["none", "next", "order"] = "none"  # what a second text is, beside words to be told
    masked: float = 0.15  # the share of tokens that are hidden,
    whole_words: bool = False  # a word's pieces together
    split_by: str = "source"  # equal values of this column never lie in two parts; or "containing_text"
    max_length: int = 256  # tokens; longer samples are skipped and counted; 0 = as many as the model reads

    def __post_init__(self) -> None:
        for name in ("max_length", "stride", "segment"):
            require(getattr(self, name) >= 0, f"data.{name} = {getattr(self, name)}: must be 0 or more")
        if self.segment:
            require(self.segment > 2, f"data.segment = {self.segment}: must be more than the two tokens round a text")
            require(
                self.stride <= self.segment - 2,
                f"data.stride = {self.stride}: a segment of {self.segment} tokens has {self.segment - 2} of the text, "
                "and none may be passed over",
            )
            require(
                not self.text2,
                f"data.segment = {self.segment}: a document is one text: remove data.text2 = '{self.text2}'",
            )
        require(bool(self.label_separator), "data.label_separator is empty: give the mark between labels, such as |")
        require(
            self.split_by != "containing_text" or not self.text2,
            "data.split_by = 'containing_text' is for single texts: with data.text2 name a column, or leave it out",
        )
        require(0 < self.masked < 1, f"data.masked = {self.masked}: must lie between 0 and 1")
        for name in ("train", "validation", "test"):
            value = getattr(self, name)
            if self.generate:
                require(
                    isinstance(value, int) or value == "",
                    f"data.{name} = {show(value)}: with `generate` it is a number of samples, such as 1000",
                )
            if isinstance(value, float):
                require(0 < value < 1, f"data.{name} = {value}: a part held out of train must lie between 0 and 1")
            elif isinstance(value, int):
                require(value >= 0, f"data.{name} = {value}: a number of samples cannot be negative")
                require(
                    bool(self.generate) or value == 0,
                    f"data.{name} = {value}: a number of samples needs `generate`; otherwise name a file",
                )

    @property
    def segment_stride(self) -> int:
        """Tokens from one segment to the next: of 200 in each, as many as 150, so that they overlap."""
        return self.stride or max(1, min(3 * self.segment // 4, self.segment - 2))


@dataclass(frozen=True)
class TokenizerOptions:
    """How text is cut into tokens; `joint` is one vocabulary for source and target."""

    kind: Literal["bpe", "unigram", "wordpiece", "words", "characters", "bytes", "byte_bpe"] = "bpe"
    vocab_size: int = 8000
    joint: bool = True
    folder: str = ""  # a run or checkpoint folder whose tokenizer is taken, in place of a learnt one
    lowercase: bool = False
    min_frequency: int = 2

    def __post_init__(self) -> None:
        require(self.vocab_size >= 5, f"tokenizer.vocab_size = {self.vocab_size}: must be at least 5")
        require(self.min_frequency >= 1, f"tokenizer.min_frequency = {self.min_frequency}: must be at least 1")
        require(
            not (self.lowercase and self.kind in ("bytes", "byte_bpe")),
            f"tokenizer.lowercase = true: kind = '{self.kind}' keeps text as it is; possible with the other kinds",
        )


@dataclass(frozen=True)
class TrainOptions:
    """How the weights are found: batches, length of the run, AdamW and its schedule, evaluation and checkpoints."""

    batch_tokens: int = 0  # one of these two
    batch_size: int = 0
    max_steps: int = 0  # one of these three
    epochs: float = 0.0
    minutes: float = 0.0
    learning_rate: float = 5e-4
    layer_decay: float = 1.0  # a layer's rate is that of the one above it times this
    freeze: str | int = ""  # "embeddings", "body" (all but the head), or a number of layers from the bottom
    unfreeze_steps: int = 0  # the head is trained first, and one layer more from the top every so many steps; 0 = off
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    warmup_steps: int = 400
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    dropout: float = -1.0  # in place of the model's own rate; −1 = that one
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0  # 0 = no clipping
    gradient_accumulation_steps: int = 1
    average_decay: float = 0.0  # of the weights' moving average; 0 = off
    class_weights: Literal["none", "balanced"] = "none"  # "balanced": rare labels count as much as frequent ones
    auxiliary: float = 0.0  # how much the text's own loss counts beside that of its label
    patience: int = 0  # evaluations without a better score before the run stops; 0 = off
    score: Score = "auto"  # in it the best checkpoint is best
    eval_steps: int = 500
    eval_samples: int = 1000  # validation samples that are answered at each evaluation, from the first on
    save_steps: int = 500
    log_steps: int = 20
    keep: int = 3  # newest checkpoints; the best is always kept
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    threads: int = 0  # 0 = OMP_NUM_THREADS, else the physical cores
    tensorboard: bool = False

    def __post_init__(self) -> None:
        at_least_one = ("gradient_accumulation_steps", "eval_steps", "eval_samples", "save_steps", "log_steps", "keep")
        not_negative = ("batch_tokens", "batch_size", "max_steps", "epochs", "minutes", "learning_rate", "warmup_steps")
        not_negative += ("weight_decay", "max_grad_norm", "patience", "threads", "auxiliary", "unfreeze_steps")
        for name in at_least_one:
            require(getattr(self, name) >= 1, f"train.{name} = {getattr(self, name)}: must be at least 1")
        for name in not_negative:
            require(getattr(self, name) >= 0, f"train.{name} = {getattr(self, name)}: must be 0 or more")
        for name in ("label_smoothing", "average_decay"):
            value = getattr(self, name)
            require(0 <= value < 1, f"train.{name} = {value}: must be at least 0 and below 1")
        fits = self.dropout == -1 or 0 <= self.dropout < 1
        require(fits, f"train.dropout = {self.dropout}: must be at least 0 and below 1; -1 is the model's own")
        require(all(0 <= beta < 1 for beta in self.betas), f"train.betas = {list(self.betas)}: each in [0, 1)")
        require(0 < self.layer_decay <= 1, f"train.layer_decay = {self.layer_decay}: must be above 0 and at most 1")
        freezes = self.freeze >= 0 if isinstance(self.freeze, int) else self.freeze in ("", "embeddings", "body")
        require(freezes, f"train.freeze = {show(self.freeze)}: possible: 'embeddings', 'body', or a number of layers")
        require(
            not (self.unfreeze_steps and self.minutes),
            f"train.unfreeze_steps = {self.unfreeze_steps}: later steps take longer than the first, by which "
            f"train.minutes = {self.minutes:g} would be measured: give train.max_steps or train.epochs",
        )


@dataclass(frozen=True)
class DistilOptions:
    """Learning from a teacher beside the data, and how much each loss counts. Sanh et al. 2019, section 3."""

    teacher: str = ""  # a run or checkpoint folder
    temperature: float = 2.0  # at which both say how likely each answer is
    soft: float = 5.0  # what the teacher says,
    hard: float = 2.0  # what the data says,
    cosine: float = 1.0  # and the direction of the last states

    def __post_init__(self) -> None:
        require(self.temperature > 0, f"distil.temperature = {self.temperature}: must be above 0")
        for name in ("soft", "hard", "cosine"):
            require(getattr(self, name) >= 0, f"distil.{name} = {getattr(self, name)}: must be 0 or more")
        require(
            self.soft + self.cosine > 0, "distil.soft = 0 and distil.cosine = 0 leave nothing to learn from a teacher"
        )


@dataclass(frozen=True)
class DecodeOptions:
    """How output is searched for: greedy (one beam, temperature 0), beam search, or sampling."""

    num_beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # taken from the logit of each token already written,
    frequency_penalty: float = 0.0  # and this as often as it was written
    logit_bias: dict[str, float] = field(default_factory=dict)  # id → what is added to its logit
    stop: tuple[str, ...] = ()  # texts at which an answer ends; they are not part of it
    max_new_tokens: int = 0  # 0 = the task's default
    min_new_tokens: int = 0
    temperature: float = 0.0  # 0 = no sampling
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_return_sequences: int = 1
    suppress_tokens: tuple[int, ...] = ()  # ids that are never written
    seed: int = 0

    def __post_init__(self) -> None:
        require(all(self.stop), "decode.stop holds an empty text, at which every answer would end")
        for token, bias in self.logit_bias.items():
            require(
                token.isdecimal() and isinstance(bias, int | float) and isfinite(bias),
                f"decode.logit_bias: {show(token)} = {bias}: expected a token's id and a number, such as 13 = -5.0",
            )
        for name in ("num_beams", "num_return_sequences"):
            require(getattr(self, name) >= 1, f"decode.{name} = {getattr(self, name)}: must be at least 1")
        for name in ("no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "temperature", "top_k", "seed"):
            require(getattr(self, name) >= 0, f"decode.{name} = {getattr(self, name)}: must be 0 or more")
        require(0 < self.top_p <= 1, f"decode.top_p = {self.top_p}: must be above 0 and at most 1")
        require(0 <= self.min_p <= 1, f"decode.min_p = {self.min_p}: must be between 0 and 1")
        require(self.repetition_penalty > 0, f"decode.repetition_penalty = {self.repetition_penalty}: must be above 0")
        for name in ("length_penalty", "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature"):
            require(isfinite(getattr(self, name)), f"decode.{name} = {getattr(self, name)}: must be finite")
        require(
            not self.max_new_tokens or self.min_new_tokens <= self.max_new_tokens,
            f"decode.min_new_tokens = {self.min_new_tokens} is more than decode.max_new_tokens = {self.max_new_tokens}",
        )
        require(
            self.temperature > 0 or self.num_return_sequences <= self.num_beams,
            f"decode.num_return_sequences = {self.num_return_sequences} needs as many num_beams (or a temperature)",
        )

    @property
    def forbids(self) -> bool:
        """Whether it may happen that no token is allowed to follow."""
        return bool(self.no_repeat_ngram_size or self.min_new_tokens or self.suppress_tokens)
