"""The tables of a recipe that all tasks share, as frozen dataclasses; each checks its own values."""

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from regard.config.schema import show
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.config.recipe import Recipe

Score = Literal[
    "auto", "loss", "bleu", "bleu1", "bleu2", "bleu3", "bleu4", "cider", "chrf", "exact", "accuracy", "f1", "macro_f1",
    "micro_f1", "exact_match", "matthews_correlation", "top5_accuracy", "pearsonr", "spearmanr", "mse",
    "subset_accuracy", "wer", "cer", "per",
]  # fmt: skip

TokenizerKind = Literal["bpe", "unigram", "wordpiece", "words", "characters", "bytes", "byte_bpe"]
TargetKind = Literal["", "bpe", "unigram", "wordpiece", "words", "characters", "bytes", "byte_bpe"]
Schedule = Literal["inverse_sqrt", "cosine", "linear", "slanted_triangular", "constant"]

MAX_NUMBER = sys.float_info.max
MAX_COUNT = 1 << 31  # of tokens or samples
MAX_VOCABULARY = 1 << 24
MAX_THREADS = 1024
MAX_AUGMENT = 100
MAX_MASK = 10_000  # bins or frames
SPEEDS = (0.5, 2.0)


def require(holds: bool, message: str) -> None:
    """Raise a UserError with this message unless the condition holds."""
    if not holds:
        raise UserError(message)


@dataclass(frozen=True)
class DataOptions:
    """Where samples come from: files, or counts where `synthetic` names a generator; a fraction is held out of `train`.

    Each task extends this table with its own keys (regard/tasks/<task>/options.py).
    """

    train: str | int = ""
    validation: str | int | float = ""
    test: str | int | float = ""
    synthetic: str = ""
    columns: tuple[str, ...] = ()  # names for a table without a header
    split_by: str = "source"  # equal values of this column never are in two splits; or "containing_text"
    max_length: int = 0  # tokens; longer samples are skipped and counted; 0 = as many as the model reads

    @classmethod
    def of(cls, recipe: "Recipe") -> Self:
        """The recipe's [data] as the options of this task."""
        assert isinstance(recipe.data, cls), f"task = '{recipe.task}' with the data options of another task"
        return recipe.data

    def __post_init__(self) -> None:
        require(self.max_length >= 0, f"data.max_length = {self.max_length}: must be 0 or more")
        for name in ("train", "validation", "test"):
            value = getattr(self, name)
            if self.synthetic:
                require(
                    isinstance(value, int) or value == "",
                    f"data.{name} = {show(value)}: with data.synthetic, expected a number of samples, such as 1000",
                )
            if isinstance(value, float):
                require(0 < value < 1, f"data.{name} = {value}: a split held out of train must be between 0 and 1")
            elif isinstance(value, int):
                fits = 0 <= value < MAX_COUNT
                require(fits, f"data.{name} = {value}: a number of samples must be 0 or more and below {MAX_COUNT}")
                require(
                    bool(self.synthetic) or value == 0,
                    f"data.{name} = {value}: a number of samples needs data.synthetic; otherwise expected a file",
                )


class Selection(dict):
    """Columns and the values that select a split. It is never changed, so that options can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(show(self))


@dataclass(frozen=True)
class SelectedSplits(DataOptions):
    """Splits may also be selected by the values of columns: test = {speaker = "nicolas"}, or a list of values."""

    validation: str | int | float | dict = ""  # type: ignore[assignment]
    test: str | int | float | dict = ""  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("validation", "test"):
            selection = getattr(self, name)
            if not isinstance(selection, dict):
                continue
            lists = [values if isinstance(values, list) else [values] for values in selection.values()]
            fits = lists and all(values and all(type(value) in (str, int) for value in values) for values in lists)
            expected = 'expected columns and values, such as {speaker = "anna"} or {index = [0, 1]}'
            require(bool(fits), f"data.{name} = {show(selection)}: {expected}")
            object.__setattr__(self, name, Selection(selection))


@dataclass(frozen=True)
class RecordingOptions(SelectedSplits):
    """Recordings: where they are listed, and their features. Those of a pre-trained model come from its processor."""

    audio: str = ""  # column of the audio files (by default "audio")
    recordings: str = ""  # the folder or .zip that paths are relative to; by default the folder of the table
    file_name: str = ""  # the fields in the names of the files, such as "{label}_{speaker}_{index}"
    features: Literal["log_mel", "mfcc"] = "log_mel"  # of a new model,
    sampling_rate: int = 16_000  # the rate in Hz that recordings are resampled to,
    dynamic_range: float = 0.0  # decibels below the loudest bin to which quieter ones are raised; 0 = no limit,
    normalisation: Literal["none", "bin", "recording"] = "bin"  # and what has mean 0 and variance 1


@dataclass(frozen=True)
class DocumentOptions(DataOptions):
    """Raw text: text files, or documents in a column of a table."""

    text: str = ""  # the column of the documents


@dataclass(frozen=True)
class TokenizerOptions:
    """How text is tokenized; `joint`: one vocabulary for source and target."""

    kind: TokenizerKind = "bpe"
    target_kind: TargetKind = ""  # of the target side, where there is one for each; "" = `kind`
    vocab_size: int = 8000
    joint: bool = True
    folder: str = ""  # a run or checkpoint folder whose tokenizer is used instead of a trained one
    lowercase: bool = False
    min_frequency: int = 2

    def __post_init__(self) -> None:
        fits = 5 <= self.vocab_size <= MAX_VOCABULARY
        require(fits, f"tokenizer.vocab_size = {self.vocab_size}: must be at least 5 and at most {MAX_VOCABULARY}")
        require(
            not self.joint or not self.target_kind,
            f"tokenizer.target_kind = '{self.target_kind}' needs one tokenizer a side: set tokenizer.joint = false",
        )
        require(self.min_frequency >= 1, f"tokenizer.min_frequency = {self.min_frequency}: must be at least 1")
        require(
            not (self.lowercase and {"bytes", "byte_bpe"} & {self.kind, self.target_kind}),
            f"tokenizer.lowercase = true is not supported by kind = '{self.kind}', which never changes text",
        )


@dataclass(frozen=True)
class TrainOptions:
    """Training: batches, length of the run, AdamW and its schedule, evaluation and checkpoints."""

    batch_tokens: int = 0  # one of these two
    batch_size: int = 0
    max_steps: int = 0  # one of these three
    epochs: float = 0.0
    minutes: float = 0.0
    min_steps: int = 0  # updates that `epochs` are at least; 150 with the epochs of a built-in recipe
    learning_rate: float = 5e-4
    layer_decay: float = 1.0  # a layer's rate is that of the one above it times this
    freeze: str | int = ""  # "embeddings", "body" (all but the head), or a number of layers from the bottom
    unfreeze_steps: int = 0  # gradual unfreezing: the head first, then the next layer after this many steps; 0 = off
    schedule: Schedule = "inverse_sqrt"
    warmup_steps: int = 400
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    dropout: float = -1.0  # in place of the model's own rate; −1 = that one
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0  # 0 = no clipping
    gradient_accumulation_steps: int = 1
    ema_decay: float = 0.0  # of the exponential moving average of the weights; 0 = off
    patience: int = 0  # evaluations without a better score before the run stops; 0 = off
    score: Score = "auto"  # the validation metric that chooses the best checkpoint
    eval_steps: int = 500
    eval_samples: int = 1000  # validation samples that are decoded at each evaluation, from the first on
    save_steps: int = 500
    log_steps: int = 20
    keep: int = 3  # newest checkpoints; the best is always kept
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    threads: int = 0  # 0 = OMP_NUM_THREADS, else the physical cores
    tensorboard: bool = False

    def __post_init__(self) -> None:
        at_least_one = ("gradient_accumulation_steps", "eval_steps", "eval_samples", "save_steps", "log_steps", "keep")
        not_negative = ("batch_tokens", "batch_size", "max_steps", "epochs", "minutes", "min_steps", "warmup_steps")
        not_negative += ("learning_rate", "weight_decay", "max_grad_norm", "patience", "threads", "unfreeze_steps")
        for name in at_least_one:
            require(getattr(self, name) >= 1, f"train.{name} = {getattr(self, name)}: must be at least 1")
        for name in not_negative:
            require(getattr(self, name) >= 0, f"train.{name} = {getattr(self, name)}: must be 0 or more")
        for name in ("label_smoothing", "ema_decay"):
            value = getattr(self, name)
            require(0 <= value < 1, f"train.{name} = {value}: must be at least 0 and below 1")
        require(self.threads <= MAX_THREADS, f"train.threads = {self.threads}: must be at most {MAX_THREADS}")
        fits = self.dropout == -1 or 0 <= self.dropout < 1
        require(fits, f"train.dropout = {self.dropout}: must be at least 0 and below 1; -1 is the model's own")
        require(all(0 <= beta < 1 for beta in self.betas), f"train.betas = {list(self.betas)}: each in [0, 1)")
        require(0 < self.layer_decay <= 1, f"train.layer_decay = {self.layer_decay}: must be above 0 and at most 1")
        freezes = self.freeze >= 0 if isinstance(self.freeze, int) else self.freeze in ("", "embeddings", "body")
        require(freezes, f"train.freeze = {show(self.freeze)}: expected 'embeddings', 'body' or a number of layers")
        require(
            not (self.unfreeze_steps and self.minutes),
            f"train.unfreeze_steps = {self.unfreeze_steps}: cannot be combined with train.minutes = {self.minutes:g}, "
            "because later steps take longer than the first ones: set train.max_steps or train.epochs",
        )
        require(
            not (self.schedule == "slanted_triangular" and self.minutes),
            f"train.schedule = 'slanted_triangular': cannot be combined with train.minutes = {self.minutes:g}, because "
            "its peak is at a tenth of the steps: set train.max_steps or train.epochs",
        )


@dataclass(frozen=True)
class FineTuneOptions(TrainOptions):
    """Defaults for encoders: Devlin et al. 2019, appendix A.3."""

    schedule: Schedule = "linear"
    warmup_steps: int = 100
    betas: tuple[float, float] = (0.9, 0.999)
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class WordPieceOptions(TokenizerOptions):
    kind: TokenizerKind = "wordpiece"


@dataclass(frozen=True)
class DistilOptions:
    """Knowledge distillation from a teacher, and the weight of each loss term. Sanh et al. 2019, section 3."""

    teacher: str = ""  # a run or checkpoint folder
    temperature: float = 2.0  # of both softmax distributions
    kl_weight: float = 5.0  # of the divergence from the teacher's distribution,
    task_weight: float = 2.0  # of the loss on the labels,
    cosine_weight: float = 1.0  # of the cosine distance of the last hidden states,
    hard_weight: float = 0.0  # and of the loss on the teacher's predicted labels

    def __post_init__(self) -> None:
        require(self.temperature > 0, f"distil.temperature = {self.temperature}: must be above 0")
        for name in ("kl_weight", "task_weight", "cosine_weight", "hard_weight"):
            require(getattr(self, name) >= 0, f"distil.{name} = {getattr(self, name)}: must be 0 or more")
        require(
            self.kl_weight + self.cosine_weight + self.hard_weight > 0,
            "distil.kl_weight, distil.hard_weight and distil.cosine_weight are all 0, so the teacher is not used: set "
            "one of them above 0",
        )


@dataclass(frozen=True)
class DecodeOptions:
    """Decoding: greedy (one beam, temperature 0), beam search, or sampling."""

    num_beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # subtracted from the logit of each token already generated,
    frequency_penalty: float = 0.0  # and this times the number of its occurrences
    logit_bias: dict[str, float] = field(default_factory=dict)  # token id → added to its logit
    stop: tuple[str, ...] = ()  # strings that end the output; they are not part of it
    max_new_tokens: int = 0  # 0 = the task's default
    min_new_tokens: int = 0
    temperature: float = 0.0  # 0 = no sampling
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_return_sequences: int = 1
    suppress_tokens: tuple[int, ...] = ()  # ids that are never generated
    seed: int = 0

    def __post_init__(self) -> None:
        require(all(self.stop), "decode.stop contains an empty string, which would end every output")
        for token, bias in self.logit_bias.items():
            require(
                token.isdecimal() and isinstance(bias, int | float) and abs(bias) <= MAX_NUMBER,
                f"decode.logit_bias: {show(token)} = {bias}: expected a token's id and a number, such as 13 = -5.0",
            )
        for name in ("num_beams", "num_return_sequences"):
            require(getattr(self, name) >= 1, f"decode.{name} = {getattr(self, name)}: must be at least 1")
        for name in ("no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "temperature", "top_k", "seed"):
            require(getattr(self, name) >= 0, f"decode.{name} = {getattr(self, name)}: must be 0 or more")
        for name in ("no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "top_k"):
            value = getattr(self, name)
            require(value < MAX_COUNT, f"decode.{name} = {value}: must be below {MAX_COUNT}")
        require(0 < self.top_p <= 1, f"decode.top_p = {self.top_p}: must be above 0 and at most 1")
        require(0 <= self.min_p <= 1, f"decode.min_p = {self.min_p}: must be between 0 and 1")
        require(self.repetition_penalty > 0, f"decode.repetition_penalty = {self.repetition_penalty}: must be above 0")
        for name in ("length_penalty", "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature"):
            value = getattr(self, name)
            require(abs(value) <= MAX_NUMBER, f"decode.{name} = {value}: must be finite")
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
        """Whether all tokens may be forbidden at some step."""
        return bool(self.no_repeat_ngram_size or self.min_new_tokens or self.suppress_tokens)


@dataclass(frozen=True)
class AugmentOptions:
    """Random changes of training samples; tasks that have any extend this table."""

    def __post_init__(self) -> None:
        """Options that do not fit are a `UserError`."""


@dataclass(frozen=True)
class ImageAugmentOptions(AugmentOptions):
    """Data augmentation of images; all of it is off by default."""

    horizontal_flip: float = 0.0  # the probability
    crop_padding: int = 0  # pixels of padding from which a random crop of the image's size is taken
    min_crop_area: float = 1.0  # of random resized crops, as a share of the image; 1 = off
    rand_augment: int = 0  # the number of random operations on each image,
    rand_augment_magnitude: float = 9.0  # and their strength, from 0 to 10
    random_erasing: float = 0.0  # the probability that a random box is erased
    mixup: float = 0.0  # α of the Beta distribution of the shares of two images; 0 = off
    cutmix: float = 0.0  # the same where a box of one image is pasted into the other
    repeats: int = 1  # repeated augmentation: how often a batch has each of its samples

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("horizontal_flip", "random_erasing"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"augment.{name} = {value}: a probability must be between 0 and 1")
        for name in ("crop_padding", "rand_augment", "mixup", "cutmix"):
            value = getattr(self, name)
            require(0 <= value <= MAX_AUGMENT, f"augment.{name} = {value}: must be between 0 and {MAX_AUGMENT}")
        area = self.min_crop_area
        require(0 < area <= 1, f"augment.min_crop_area = {area}: must be above 0 and at most 1")
        magnitude = self.rand_augment_magnitude
        require(0 <= magnitude <= 10, f"augment.rand_augment_magnitude = {magnitude}: must be between 0 and 10")
        require(1 <= self.repeats <= MAX_AUGMENT, f"augment.repeats = {self.repeats}: must be 1 to {MAX_AUGMENT}")


@dataclass(frozen=True)
class AudioAugmentOptions(AugmentOptions):
    """Data augmentation of recordings; all of it is off by default."""

    speeds: tuple[float, ...] = ()  # speed perturbation: each time one of these factors, such as [0.9, 1.0, 1.1]
    filter_gain: float = 0.0  # of a random frequency response: at most this is added to a bin, in units of the features
    frequency_masks: int = 0  # SpecAugment: masked bands of bins,
    frequency_mask_width: int = 0  # each of at most this many bins,
    time_masks: int = 0  # and masked spans of frames,
    time_mask_width: int = 0  # each of at most this many frames,
    time_mask_share: float = 1.0  # and of at most this share of the recording

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frequency_masks", "frequency_mask_width", "time_masks", "time_mask_width"):
            value = getattr(self, name)
            require(0 <= value <= MAX_MASK, f"augment.{name} = {value}: must be between 0 and {MAX_MASK}")
        gain = self.filter_gain
        require(0 <= gain <= MAX_AUGMENT, f"augment.filter_gain = {gain}: must be between 0 and {MAX_AUGMENT}")
        share = self.time_mask_share
        require(0 <= share <= 1, f"augment.time_mask_share = {share}: must be between 0 and 1")
        low, high = SPEEDS
        fits = all(low <= speed <= high for speed in self.speeds) and len(set(self.speeds)) == len(self.speeds)
        require(fits, f"augment.speeds = {list(self.speeds)}: must be different and between {low} and {high}")


class TaskOptions(NamedTuple):
    """The recipe tables of a task: subclasses that add keys or change defaults."""

    data: type[DataOptions] = DataOptions
    train: type[TrainOptions] = TrainOptions
    tokenizer: type[TokenizerOptions] = TokenizerOptions
    augment: type[AugmentOptions] = AugmentOptions
