"""Invariants of encoders: BERT, its variants and DeBERTa, in every configuration, with every head."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.layers.encoder import TextEncoder
from regard.layers.inputs import TokenBatch
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.token import SpanClassifier, TokenClassifier
from regard.models.registry import FAMILIES, build
from tests.models.test_laws import alike

TOKENS, LIMIT = 31, 41
BERT = dict(family="bert", width=24, heads=3, depth=3, feedforward=37, max_positions=LIMIT)
DEBERTA = BERT | dict(family="deberta")
MODELS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "three segments, untied": BERT | dict(token_types=3, tied=False, activation="relu"),
    "roberta": BERT | dict(token_types=1, position_offset=2, output_activation="gelu", activation="swish"),
    "distilbert": BERT | dict(token_types=0, pooler=False, pooler_activation="relu"),
    "albert": BERT | dict(embedding_width=11, hidden_groups=2, inner_group_size=2, depth=3, activation="gelu_tanh"),
    "deberta, first": DEBERTA
    | dict(
        share_att_key=False,
        norm_rel_embeddings=False,
        key_bias=False,
        token_types=2,
        absolute=True,
        max_relative_positions=5,
    ),
    "deberta, second": DEBERTA | dict(position_buckets=6, kernel=5, kernel_groups=3, embedding_width=11),
    "deberta, third": DEBERTA | dict(position_buckets=8),
}
HEADS = {
    "words": MaskedLM,
    "labels": lambda body: Classifier(body, ["a", "b", "c"]),
    "tokens": lambda body: TokenClassifier(body, ["a", "b", "c"]),
    "spans": SpanClassifier,
}


def made(model: dict[str, Any]) -> TextEncoder:
    network = build(model, vocabulary=TOKENS).eval()
    assert isinstance(network, TextEncoder)
    return randomised(network)


def randomised(network: Any) -> Any:
    """Biases and norms too: zeros and ones would hide what they do."""
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, mean=float(isinstance(module, nn.LayerNorm)), std=0.3)
    return network


@pytest.fixture(params=MODELS)
def network(request) -> TextEncoder:
    return made(MODELS[request.param])


def texts(network: TextEncoder, rows: int = 4, length: int = 13) -> TokenBatch:
    tokens = torch.randint(0, TOKENS, (rows, length))
    segments = torch.randint(0, network.config.token_types, tokens.shape) if network.config.token_types else None
    return TokenBatch(tokens, torch.tensor([13, 6, 1, 9])[:rows], segments)


def of(text: TokenBatch, row: int) -> TokenBatch:
    """One row without its padding."""
    length = int(text.lengths[row])
    segments = None if text.segments is None else text.segments[row : row + 1, :length]
    return TokenBatch(text.tokens[row : row + 1, :length], text.lengths[row : row + 1], segments)


def test_every_such_family_is_tested_here() -> None:
    """But recurrent ones, without blocks and segments: test_recurrent.py, test_elmo.py; of images: test_vision.py."""
    encoders = {name for name, each in FAMILIES.items() if each.is_encoder and each.input_type is TokenBatch}
    assert {model["family"] for model in MODELS.values()} == encoders - {"elmo", "recurrent"}


@torch.no_grad()
def test_padding_and_other_sequences_in_the_batch_change_nothing(network: TextEncoder) -> None:
    text = texts(network)
    together = network.encode(text)
    garbage = TokenBatch(torch.where(text.real, text.tokens, 7), text.lengths, text.segments)
    assert torch.equal(network.encode(garbage)[text.real], together[text.real])
    for row, length in enumerate(text.lengths.tolist()):
        alike(network.encode(of(text, row))[0], together[row, :length])


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
def test_heads_depend_on_the_hidden_states_of_a_text_only(network: TextEncoder, head: str) -> None:
    headed: Any = randomised(HEADS[head](network).eval())
    text = texts(network)
    found = headed(text)
    for row, length in enumerate(text.lengths.tolist()):
        alone = headed(of(text, row))[0]
        alike(alone, found[row] if head == "labels" else found[row, :length])


@torch.no_grad()
def test_every_position_attends_to_the_entire_text(network: TextEncoder) -> None:
    text = texts(network, rows=1)
    for changed in (0, 12):
        tokens = text.tokens.clone()
        tokens[0, changed] = (tokens[0, changed] + 1) % TOKENS
        moved = network.encode(text._replace(tokens=tokens)) - network.encode(text)
        assert (moved.abs().amax(-1) > 1e-4).all()


@torch.no_grad()
def test_positions_and_segments_change_the_output(network: TextEncoder) -> None:
    text = texts(network, rows=1)
    order = torch.arange(13).flip(0)
    turned = TokenBatch(text.tokens[:, order], text.lengths)
    straight = TokenBatch(text.tokens, text.lengths)
    assert not torch.allclose(network.encode(turned), network.encode(straight)[:, order], atol=1e-4)
    if network.config.token_types > 1:
        zeros, ones = (torch.full_like(text.tokens, number) for number in (0, 1))
        assert torch.equal(network.encode(text._replace(segments=zeros)), network.encode(straight))
        assert not torch.allclose(network.encode(text._replace(segments=ones)), network.encode(straight), atol=1e-2)


@torch.no_grad()
def test_tokens_are_predicted_only_at_the_given_positions(network: TextEncoder) -> None:
    headed, text = randomised(MaskedLM(network).eval()), texts(network)
    at = text.real & (torch.rand(text.tokens.shape) < 0.3)
    alike(headed(text, at), headed(text)[at])
    assert headed(text, at).shape == (int(at.sum()), TOKENS)


def test_both_tasks_of_pre_training_come_from_one_pass() -> None:
    network = made(BERT)
    headed, text = randomised(Pretraining(network).eval()), texts(network)
    words, relation = headed(text)
    states = network.encode(text)
    assert torch.equal(words, headed.lm_head(states))
    assert relation.shape == (4, 2)
    assert torch.equal(relation, headed.nsp_head(network.pooled(states)))


def test_every_parameter_gets_a_gradient(network: TextEncoder) -> None:
    headed, text = (Pretraining if network.pooler is not None else MaskedLM)(network), texts(network)
    found = headed(text)
    parts: tuple[Tensor, ...] = tuple(found) if isinstance(found, tuple) else (found,)
    sum((part.square().mean() for part in parts), torch.zeros(())).backward()
    idle = [name for name, parameter in headed.named_parameters() if parameter.grad is None]
    assert not idle


@torch.no_grad()
def test_layers_with_shared_weights_have_sites_of_their_own(network: TextEncoder) -> None:
    """And weights · values are the context that was used, at each of them."""
    with record(prove=True) as recorder:
        network.encode(texts(network, rows=1))
    trace, turns = Trace(recorder), network.config.depth * getattr(network.config, "inner_group_size", 1)
    assert trace.sites == [f"encoder.blocks.{number}.self" for number in range(turns)]
    for site in trace.sites:
        alike(*trace.proof(site))
    first, last = trace.weights(trace.sites[0]), trace.weights(trace.sites[-1])
    assert not torch.allclose(first, last, atol=1e-3)


COUNTS = {  # of the published models without a head, pooler included where they have one
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "distilbert-base": 66_362_880,
    "albert-base": 11_683_584,
    "albert-large": 17_683_968,
    "albert-xlarge": 58_724_864,
    "albert-xxlarge": 222_595_584,
}
VOCABULARIES = {"roberta": 50265, "albert": 30000}


def test_presets_have_their_published_sizes() -> None:
    assert set(COUNTS) == set(FAMILIES["bert"].presets)
    for preset, count in COUNTS.items():
        with torch.device("meta"):
            network = build(
                {"family": "bert", "preset": preset}, vocabulary=VOCABULARIES.get(preset.split("-")[0], 30522)
            )
        assert sum(parameter.numel() for parameter in network.parameters()) == count, preset


def test_clinicalbert_is_bert_with_a_cased_vocabulary() -> None:
    """Alsentzer et al. 2019: bert-base-cased, trained on; its 28,996 tokens are all that differs."""
    with torch.device("meta"):
        network = build({"family": "bert", "preset": "base"}, vocabulary=28996)
    assert sum(parameter.numel() for parameter in network.parameters()) == 108_310_272
