"""Learning from a teacher: a larger network, trained before, that stays as it is. Sanh et al. 2019, section 3.

    loss = soft · T² · KL(teacher at temperature T ‖ student at T)       Hinton et al. 2015, section 2
         + hard · what the data says
         + cosine · (1 − the cosine of the last states), a mean over real places

Shapes: states (batch, length, width), logits (targets, answers).
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config.recipe import DistilOptions
from regard.data.cache import hash_file
from regard.errors import UserError
from regard.interop import folder as folders
from regard.interop.safetensors import SHARDS, SINGLE
from regard.text.vocabulary import Vocabulary


class Predicted(NamedTuple):
    """What a network says of a batch: the states of all places, and logits of each kind of target."""

    states: Tensor
    logits: tuple[Tensor, ...]


class Teacher:
    """A frozen network, how much it counts, and what its files were; values count in the student's `scale`."""

    def __init__(self, network: Any, options: DistilOptions, hashes: dict[str, str], scale: float = 1.0) -> None:
        self.network, self.options, self.hashes = network.eval().requires_grad_(False), options, hashes
        self.scale = scale

    def loss(self, hard: Tensor, found: Predicted, shown: Predicted, real: Tensor, count: int) -> Tensor:
        """The sum over a batch's `count` targets, to which the hard loss is a sum already."""
        options = self.options
        loss = options.task_weight * hard
        if options.kl_weight:
            apart = SOFT[getattr(self.network, "problem_type", "single_label")]
            losses = [
                apart(said / self.scale, wanted / self.scale, options.temperature)
                for said, wanted in zip(found.logits, shown.logits, strict=True)
            ]
            loss = loss + options.kl_weight * count * sum(losses)
        if options.cosine_weight:
            alike = F.cosine_similarity(found.states[real].float(), shown.states[real].float(), dim=-1)
            loss = loss + options.cosine_weight * count * (1 - alike).mean()
        return loss


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL of the student's answers from the teacher's, a mean over targets; rows for no token are left out."""
    size = min(student.size(-1), teacher.size(-1))
    said, wanted = ((logits[:, :size].float() / temperature).log_softmax(-1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(said, wanted, reduction="batchmean", log_target=True)


def _divergence_each(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The same of labels that hold or not, each by itself, a mean over them too."""
    said, wanted = (torch.stack([logits, torch.zeros_like(logits)], -1).flatten(0, 1) for logits in (student, teacher))
    return divergence(said, wanted, temperature)


def _distance(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Of numbers, which have no temperature: the mean square."""
    return F.mse_loss(student, teacher)


SOFT = {"single_label": divergence, "multi_label": _divergence_each, "regression": _distance}  # by what a text has


def read_teacher(
    folder: Path, options: DistilOptions, student: Any, vocabulary: Vocabulary, device: torch.device
) -> Teacher:
    """The teacher of a folder; it must read the same tokens and give the same answers as its student."""
    loaded = folders.load(folder)
    network: Any = loaded.network
    named = f"distil.teacher = '{options.teacher}'"
    if not isinstance(network, type(student)):
        raise UserError(
            f"{named} is a {type(network).__name__}, its student a {type(student).__name__}: a teacher is trained for "
            "the same task, and with pairs for those too"
        )
    if loaded.vocabulary.target.table != vocabulary.target.table:
        raise UserError(f"{named} reads other tokens than its student: let both have one tokenizer (tokenizer.folder)")
    for name in ("labels", "problem_type"):
        if getattr(network, name, None) != getattr(student, name, None):
            theirs, own = getattr(network, name), getattr(student, name)
            raise UserError(f"{named} has {name} {theirs}, its student {own}: they must be the same")
    if options.cosine_weight and network.config.width != student.config.width:
        raise UserError(
            f"{named} has states of width {network.config.width}, its student of {student.config.width}: directions "
            "cannot be compared; give distil.cosine_weight = 0"
        )
    weights = sorted({*folder.glob(SINGLE), *folder.glob(SHARDS), *folder.glob("adapter_model.safetensors")})
    hashes = {path.name: hash_file(path) for path in weights}
    return Teacher(network.to(device), options, hashes, getattr(student, "scale", 1.0))
