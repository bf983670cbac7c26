"""Attention of an encoder–decoder over an output, and word alignments from it."""

from regard.attention.scores import uniform
from regard.attention.trace import Axes, Axis, Trace
from regard.errors import UserError
from regard.layers.protocols import Seq2SeqModel
from regard.tasks.seq2seq import record_target
from regard.tasks.translate.dataset import collate_sources
from regard.text.vocabulary import Vocabulary


def trace(
    network: Seq2SeqModel, vocabulary: Vocabulary, row: list[int], output: list[int], prove: bool = False
) -> Trace:
    """One teacher-forced pass over the output; its attention weights are those of the search that generated it."""
    tokenizer = vocabulary.target
    source = collate_sources([row], vocabulary).to(next(network.parameters()).device)
    recorder = record_target(network, source, tokenizer, output, prove)
    axes = Axes.encoder_decoder(
        source=Axis(vocabulary.source.pieces(source.tokens[0].tolist())),
        target=Axis(tokenizer.pieces([tokenizer.begin, *output])),
        output=Axis(tokenizer.pieces([*output, tokenizer.end])),
    )
    return Trace(recorder, axes, tokenizer.decode(output))


def alignment_site(trace: Trace) -> str | None:
    """The layer whose attention gives alignments: of a stack the last but one (Garg et al. 2019).

    None where the attention is uniform, or there is none.
    """
    sites = [site for site in trace.sites if site.endswith("cross") and trace.records[site][0].score is not uniform]
    return sites[max(0, len(sites) - 2)] if sites else None


def align(trace: Trace) -> tuple[tuple[int, int], ...]:
    """(source token, target token) pairs: for each target token the source token with the largest mean weight."""
    site = alignment_site(trace)
    if site is None:
        raise UserError("this model does not attend to its source, or does so uniformly: it has no alignments")
    weights = trace.weights(site).mean(0)[:-1]  # the last row is that of the end token
    return tuple((int(source), target) for target, source in enumerate(weights.argmax(-1)))
