"""Invariants of causal language models of Transformer blocks: GPT and Llama, in every configuration."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.recording import record
from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions
from regard.decoding.search import search
from regard.decoding.speculative import DraftModel, PromptLookup, speculate
from regard.layers.autoregressive import EMPTY, TransformerLM
from regard.layers.inputs import TokenBatch, pad
from regard.layers.pytree import State, reorder
from regard.models.registry import FAMILIES, build
from regard.tasks.generate.likelihood import ending_log_probabilities, log_probabilities
from tests.models.test_laws import alike

TOKENS, LIMIT = 31, 41
GPT = dict(family="gpt", width=24, heads=3, depth=3, feedforward=37, max_positions=LIMIT)
LLAMA = dict(family="llama", width=24, heads=6, depth=3, feedforward=37, max_positions=LIMIT)
MODELS: dict[str, dict[str, Any]] = {
    "gpt-1": GPT | dict(norm="post"),
    "gpt-2": GPT,
    "gpt-2, untied, no biases": GPT | dict(tied=False, bias=False, activation="relu"),
    "gpt-3": GPT | dict(attention_pattern="gl", window=5),
    "gpt-neo": GPT | dict(attention_pattern="ggl", window=3, score="dot", projection_bias=False),
    "scores by depth": GPT | dict(scale_by_layer=True),
    "llama": LLAMA,
    "grouped keys": LLAMA | dict(key_heads=2, head_width=10, tied=True),
    "stretched": LLAMA
    | dict(
        rope_scaling="llama3", rope_factor=4.0, original_max_positions=16, key_heads=1, bias=True, feedforward_bias=True
    ),
}


@pytest.fixture(params=MODELS)
def network(request) -> TransformerLM:
    return made(MODELS[request.param])


def made(model: dict[str, Any], seed: int = 0, vocabulary: int = TOKENS) -> TransformerLM:
    torch.manual_seed(seed)
    network = build(model, vocabulary=vocabulary).eval()
    for parameter in network.parameters():  # biases too: zeros would hide what they do
        nn.init.normal_(parameter, std=0.3)
    assert isinstance(network, TransformerLM)
    return network


def texts(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, TOKENS, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_every_such_family_is_tested_here() -> None:
    """Those whose state is a KV cache; test_awd_lstm has the other."""
    assert {model["family"] for model in MODELS.values()} == {
        name for name, family in FAMILIES.items() if issubclass(family.network, TransformerLM)
    }


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 17, [3, 1, 9, 2, 2], [16, 1]])
def test_any_division_into_steps_gives_the_same_logits(network: TransformerLM, chunks: list[int]) -> None:
    tokens, state, pieces = texts(3, 17), EMPTY, []
    for chunk in tokens.split(chunks, 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(tokens))


@torch.no_grad()
def test_the_future_does_not_change_the_past(network: TransformerLM) -> None:
    tokens = texts(2, 17)
    changed = tokens.clone()
    changed[:, 9:] = texts(2, 8, seed=5)
    assert torch.equal(network(tokens)[:, :9], network(changed)[:, :9])


@torch.no_grad()
def test_prompts_of_other_lengths_change_nothing(network: TransformerLM) -> None:
    tokens, lengths, more = texts(4, 13), torch.tensor([13, 6, 1, 9]), texts(4, 7, seed=3)
    state = network.start(TokenBatch(tokens, lengths))
    last = tokens.gather(1, lengths[:, None] - 1)
    together, state = network.step(torch.cat([last, more[:, :3]], 1), state)
    later, _ = network.step(more[:, 3:], state)
    for row, length in enumerate(lengths.tolist()):
        alone = network(torch.cat([tokens[row, :length], more[row]])[None])
        alike(torch.cat([together, later], 1)[row], alone[0, length - 1 :])


@torch.no_grad()
def test_a_preallocated_memory_equals_a_growing_one(network: TransformerLM) -> None:
    """Watched steps, reordered rows and a text cut back give what a fresh reading gives."""
    tokens = texts(3, 11)
    state = network.prefill(tokens)
    rows = torch.tensor([2, 0, 0, 1])
    picked = State(None, reorder(state.hypothesis, rows))
    logits, picked = network.step(texts(4, 3, seed=8), picked)
    again = network(torch.cat([tokens[rows], texts(4, 3, seed=8)], 1))
    alike(logits, again[:, -3:])
    back = State(None, picked.hypothesis.truncate(7))
    logits, _ = network.step(texts(4, 2, seed=9), back)
    alike(logits, network(torch.cat([tokens[rows, :7], texts(4, 2, seed=9)], 1))[:, -2:])


@torch.no_grad()
def test_generation_may_exceed_the_context(network: TransformerLM) -> None:
    """What is forgotten has no influence any more, and what is kept is seen."""
    tokens, other = texts(1, 3 * LIMIT), texts(1, 3 * LIMIT, seed=4)
    last = []
    for head in (tokens, other):
        state = EMPTY
        for token in torch.cat([head[:, :LIMIT], tokens[:, LIMIT:]], 1).split(1, 1):
            logits, state = network.step(token, state)
            assert state.hypothesis.memories[0].length <= LIMIT
        last.append(logits)
    assert last[0].isfinite().all()
    if network.rotary is None:  # computed again from the first position: the same as a text that begins there
        alike(last[0], last[1])
        kept = state.hypothesis.tokens
        alike(last[0][:, -1], network(kept)[:, -1])


@torch.no_grad()
def test_traced_is_untraced_and_weights_times_values_are_the_context(network: TransformerLM) -> None:
    tokens = texts(1, 17)
    with record(prove=True) as recorder:
        traced = network(tokens)
    assert torch.equal(traced, network(tokens))
    trace = Trace(recorder)
    assert trace.sites == [f"decoder.blocks.{number}.self" for number in range(3)]
    for site in trace.sites:
        mixed, used = trace.proof(site)
        alike(mixed, used)
        torch.testing.assert_close(trace.weights(site).sum(-1), torch.ones(mixed.shape[:2]))
        assert torch.equal(trace.weights(site), trace.weights(site).tril())


@torch.no_grad()
def test_a_local_block_attends_to_its_window_only() -> None:
    network = made(MODELS["gpt-3"])
    with record() as recorder:
        network(texts(1, 17))
    trace = Trace(recorder)
    places = torch.arange(17)
    far = places[:, None] - places >= 5
    assert trace.weights("decoder.blocks.1.self")[:, far].eq(0).all()
    assert trace.weights("decoder.blocks.0.self")[:, far].gt(0).all()


def test_every_parameter_gets_a_gradient(network: TransformerLM) -> None:
    network.train()(texts(2, 9)).square().mean().backward()
    assert not [name for name, parameter in network.named_parameters() if parameter.grad is None]


@torch.no_grad()
def test_log_probabilities_are_the_softmax(network: TransformerLM) -> None:
    tokens = texts(3, 9)
    expected = network(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    alike(log_probabilities(network, tokens), expected)
    prompts, endings = [row.tolist()[:4] for row in tokens], [tokens[0, 4:].tolist(), tokens[1, 4:6].tolist(), [7]]
    found = ending_log_probabilities(network, prompts, endings, batch_size=2)
    assert found[0] == pytest.approx(float(expected[0, 3:].sum()), abs=1e-3)
    assert found[1] == pytest.approx(float(expected[1, 3:5].sum()), abs=1e-3)


def continuations(network: TransformerLM, prompts: list[list[int]], options: DecodeOptions, limit: int, **more: Any):
    """What a search writes after prompts of any lengths."""
    longest = max(map(len, prompts))
    begin = torch.tensor([[-1] * (longest - len(prompt)) + prompt for prompt in prompts])
    return search(network, pad(prompts, 0), begin, -1, options, limit, read=longest - 1, **more)


WAYS = [
    DecodeOptions(),
    DecodeOptions(num_beams=3, num_return_sequences=2),
    DecodeOptions(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, no_repeat_ngram_size=2),
    DecodeOptions(temperature=0.9, top_k=9, top_p=0.9, seed=5, logit_bias={"3": 2.0, "4": -9.0}),
]


@pytest.mark.parametrize("options", WAYS)
def test_sequences_of_other_lengths_in_the_batch_do_not_change_an_answer(
    network: TransformerLM, options: DecodeOptions
) -> None:
    prompts = [texts(1, length, seed=length)[0].tolist() for length in (9, 2, 13, 1)]
    keys = [11, 12, 13, 14]
    together = continuations(network, prompts, options, 8, keys=keys)
    for prompt, key, expected in zip(prompts, keys, together, strict=True):
        (alone,) = continuations(network, [prompt], options, 8, keys=[key])
        assert [each.tokens for each in alone] == [each.tokens for each in expected]


def test_greedy_is_the_argmax_of_full_forward_passes(network: TransformerLM) -> None:
    tokens = texts(1, 5)
    (found,) = continuations(network, tokens.tolist(), DecodeOptions(), 12)
    for _ in range(12):
        tokens = torch.cat([tokens, network(tokens)[:, -1:].argmax(-1)], 1)
    assert found[0].tokens == tokens[0, 5:].tolist()


@pytest.mark.parametrize("limit", [20, LIMIT + 9])
@pytest.mark.parametrize("options", [DecodeOptions(), WAYS[2]])
def test_speculative_decoding_changes_nothing(network: TransformerLM, options: DecodeOptions, limit: int) -> None:
    """Also beyond the context, and with any draft: the network itself, another one, or the prompt."""
    for seed in range(2):
        prompt = texts(1, 7, seed)
        (expected,) = continuations(network, prompt.tolist(), options, limit)
        for guess in (
            PromptLookup(),
            DraftModel(network, torch.device("cpu")),
            DraftModel(made(MODELS["gpt-2"], seed=9), torch.device("cpu")),
        ):
            found = speculate(network, prompt, (), options, limit, guess)
            assert found.answer.tokens == expected[0].tokens
            assert found.answer.log_probability == pytest.approx(expected[0].log_probability, abs=1e-2)
            assert found.steps + found.accepted == limit


def test_a_perfect_draft_is_always_accepted() -> None:
    network = made(MODELS["llama"])
    found = speculate(network, texts(1, 7), (), DecodeOptions(), 30, DraftModel(network, torch.device("cpu")))
    assert found.accepted == found.proposed > 20
    assert found.steps < 9


def test_prompt_lookup_proposes_earlier_continuations() -> None:
    guess = PromptLookup()
    text = [5, 6, 7, 8, 9, 1, 6, 7]
    assert guess(text, 3) == [8, 9, 1]
    assert guess([*text, 8], 2) == [9, 1]
    assert guess([*text, 8, 30], 2) == []


COUNTS = [
    ("gpt", "gpt1", 40478, 116_534_784),
    ("gpt", "gpt2", 50257, 124_439_808),
    ("gpt", "gpt2-medium", 50257, 354_823_168),
    ("gpt", "gpt2-large", 50257, 774_030_080),
    ("gpt", "gpt2-xl", 50257, 1_557_611_200),
    ("llama", "stories260k", 512, 260_032),
    ("llama", "stories15m", 32000, 15_191_712),
    ("llama", "tinyllama-1.1b", 32000, 1_100_048_384),
    ("llama", "llama-7b", 32000, 6_738_415_616),
    ("llama", "llama2-70b", 32000, 68_976_648_192),
    ("llama", "llama3-8b", 128256, 8_030_261_248),
    ("llama", "llama3.2-1b", 128256, 1_235_814_400),
]
PRINTED = {  # Brown et al. 2020, table 2.1, in millions
    "gpt3-small": 125, "gpt3-medium": 350, "gpt3-large": 760, "gpt3-xl": 1300, "gpt3-2.7b": 2700, "gpt3-6.7b": 6700,
    "gpt3-13b": 13000, "gpt3-175b": 175000,
}  # fmt: skip


def parameters(family: str, preset: str, vocabulary: int) -> int:
    with torch.device("meta"):
        network = build({"family": family, "preset": preset}, vocabulary=vocabulary)
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("family", "preset", "vocabulary", "count"), COUNTS)
def test_published_sizes(family: str, preset: str, vocabulary: int, count: int) -> None:
    assert parameters(family, preset, vocabulary) == count


@pytest.mark.parametrize("preset", PRINTED)
def test_gpt3_has_the_printed_sizes(preset: str) -> None:
    assert parameters("gpt", preset, 50257) / 1e6 == pytest.approx(PRINTED[preset], rel=0.03)
