"""Knowledge distillation: a student learns from a frozen, larger teacher. Sanh et al. 2019, section 3.

    loss = kl_weight · T² · KL(teacher at temperature T ‖ student at T)       Hinton et al. 2015, section 2
         + task_weight · the loss of the task
         + cosine_weight · (1 − cosine of the last hidden states), averaged over real positions
         + hard_weight · the loss on the teacher's predicted labels              Touvron et al. 2021, equation 3

The teacher's terms are about the student's distillation head, if it has one.

Shapes: states (batch, length, width), logits (targets, classes).
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import DistilOptions
from regard.data.cache import hash_file
from regard.data.processor import Processor
from regard.errors import UserError
from regard.interop import folder as folders
from regard.interop.safetensors import SHARDS, SINGLE
from regard.layers.inputs import ImageBatch, TokenBatch
from regard.models.deit import DistilledClassifier
from regard.models.heads.sequence import Classifier
from regard.models.registry import family_of


class Predicted(NamedTuple):
    """Output of a network for a batch: hidden states of all positions, and logits of each kind of target."""

    states: Tensor
    logits: tuple[Tensor, ...]
    real: Tensor | slice = slice(None)  # the positions without padding
    distilled: tuple[Tensor, ...] = ()  # logits of a distillation head, which learn from the teacher in their place


class Teacher:
    """A frozen network, the weights of its loss terms, and the hashes of its files.

    Regression outputs are compared in units of the student's `scale`.
    """

    def __init__(self, network: Any, options: DistilOptions, hashes: dict[str, str], scale: float = 1.0) -> None:
        self.network = network.eval().requires_grad_(False)
        self.options = options
        self.hashes = hashes
        self.scale = scale

    def loss(self, task_loss: Tensor, student: Predicted, teacher: Predicted, count: int) -> Tensor:
        """The loss summed over the `count` targets of a batch, as `task_loss` is."""
        options = self.options
        loss = options.task_weight * task_loss
        pairs = list(zip(student.distilled or student.logits, teacher.logits, strict=True))
        problem_type = getattr(self.network, "problem_type", "single_label")
        if options.kl_weight:
            soft_loss = SOFT_LOSSES[problem_type]
            losses = [
                soft_loss(logits / self.scale, target / self.scale, options.temperature) for logits, target in pairs
            ]
            loss = loss + options.kl_weight * count * sum(losses)
        if options.hard_weight:
            losses = [HARD_LOSSES[problem_type](logits / self.scale, target / self.scale) for logits, target in pairs]
            loss = loss + options.hard_weight * count * sum(losses)
        if options.cosine_weight:
            states = (predicted.states[student.real].float() for predicted in (student, teacher))
            similarity = F.cosine_similarity(*states, dim=-1)
            loss = loss + options.cosine_weight * count * (1 - similarity).mean()
        return loss


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student), averaged over targets; padding of a vocabulary beyond the other's is ignored."""
    size = min(student.size(-1), teacher.size(-1))
    student_logs = (student[:, :size].float() / temperature).log_softmax(-1)
    teacher_logs = (teacher[:, :size].float() / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(student_logs, teacher_logs, reduction="batchmean", log_target=True)


def _binary_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The divergence of each label as a binary choice, averaged over labels too."""
    student = torch.stack([student, torch.zeros_like(student)], -1).flatten(0, 1)
    teacher = torch.stack([teacher, torch.zeros_like(teacher)], -1).flatten(0, 1)
    return divergence(student, teacher, temperature)


SOFT_LOSSES = {
    "single_label": divergence,
    "multi_label": _binary_divergence,
    "regression": lambda student, teacher, temperature: F.mse_loss(student, teacher),  # values have no temperature
}


HARD_LOSSES = {
    "single_label": lambda student, teacher: F.cross_entropy(student, teacher[:, : student.size(-1)].argmax(-1)),
    "multi_label": lambda student, teacher: F.binary_cross_entropy_with_logits(student, (teacher > 0).to(student)),
    "regression": F.mse_loss,
}


def read_teacher(
    folder: Path, options: DistilOptions, student: Any, processor: Processor, device: torch.device
) -> Teacher:
    """The teacher in a folder; it must have the tokens, labels and problem type of its student."""
    loaded = folders.load(folder)
    network: Any = loaded.network
    named = f"distil.teacher = '{options.teacher}'"
    if not isinstance(network, Classifier if isinstance(student, DistilledClassifier) else type(student)):
        raise UserError(
            f"{named} is a {type(network).__name__}, its student a {type(student).__name__}: a teacher is trained for "
            "the same task, and on pairs if the student is"
        )
    if student.input_type is not TokenBatch:
        if loaded.processor.source.content() != processor.source.content():
            raise UserError(f"{named} preprocesses inputs in another way than its student (preprocessor_config.json)")
    elif loaded.processor.target.table != processor.target.table:
        raise UserError(f"{named} reads other tokens than its student: let both have one tokenizer (tokenizer.folder)")
    for name in ("labels", "problem_type"):
        if getattr(network, name, None) != getattr(student, name, None):
            raise UserError(
                f"{named} has {name} {getattr(network, name)}, its student {getattr(student, name)}: they must be the "
                "same"
            )
    if options.cosine_weight and student.input_type is ImageBatch and family_of(network) != family_of(student):
        raise UserError(
            f"{named} is of family '{family_of(network)}', its student of '{family_of(student)}': their states are not "
            "of the same patches; give distil.cosine_weight = 0"
        )
    if options.cosine_weight and network.config.width != student.config.width:
        raise UserError(
            f"{named} has states of width {network.config.width}, its student of {student.config.width}: directions "
            "cannot be compared; give distil.cosine_weight = 0"
        )
    weights = sorted({*folder.glob(SINGLE), *folder.glob(SHARDS), *folder.glob("adapter_model.safetensors")})
    hashes = {path.name: hash_file(path) for path in weights}
    return Teacher(network.to(device), options, hashes, getattr(student, "scale", 1.0))
