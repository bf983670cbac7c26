"""What a translator looked at while it wrote an answer: the traced pass over it, and word alignments from that."""

from typing import Any

import torch

from regard.attention.scores import uniform
from regard.attention.trace import Axes, Axis, Trace, record
from regard.errors import UserError
from regard.tasks.translate.dataset import collate
from regard.text.vocabulary import Vocabulary


@torch.no_grad()
def look(network: Any, vocabulary: Vocabulary, row: list[int], answer: list[int], prove: bool = False) -> Trace:
    """One teacher-forced pass over the answer's tokens; its weights are those of the search that wrote them."""
    tokenizer, device = vocabulary.target, next(network.parameters()).device
    source = collate([row], None, vocabulary).to(device)
    with record(prove) as recorder:
        network(source, torch.tensor([[tokenizer.begin, *answer]], device=device))
    axes = Axes.encoder_decoder(
        source=Axis(vocabulary.source.pieces(source.tokens[0].tolist())),
        target=Axis(tokenizer.pieces([tokenizer.begin, *answer])),
        output=Axis(tokenizer.pieces([*answer, tokenizer.end])),
    )
    return Trace(recorder, axes, tokenizer.decode(answer))


def alignment_site(trace: Trace) -> str | None:
    """Where alignments are read: a recurrent model's one attention, of a stack that in the block before the last.

    There they are clearest (Garg et al. 2019). None where no part of the source is weighed above another.
    """
    sites = [site for site in trace.sites if site.endswith("cross") and trace.records[site][0].score is not uniform]
    return sites[max(0, len(sites) - 2)] if sites else None


def align(trace: Trace) -> tuple[tuple[int, int], ...]:
    """(source token, target token) pairs: for each target token the source token it looked at most, the end included.

    Several heads are taken together, as their mean.
    """
    site = alignment_site(trace)
    if site is None:
        raise UserError("this model weighs no part of its source above another, so it has no alignments")
    weights = trace.weights(site).mean(0)[:-1]  # the last row writes the end
    return tuple((int(place), row) for row, place in enumerate(weights.argmax(-1)))
