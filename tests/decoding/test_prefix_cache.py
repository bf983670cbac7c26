"""What a network remembers of its last text changes no answer to the next one."""

from typing import Any

import pytest
import torch

from regard.config.recipe import DecodeOptions
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.search import BeamSearch, Hypothesis
from regard.layers.inputs import pad
from regard.tasks.generate.text_generator import TextGenerator
from regard.text.tokenizer import Tokenizer
from tests.models.test_language_models import LIMIT, MODELS, TOKENS, made, texts


def decode(network: Any, prompt: list[int], writer: TextGenerator, options: DecodeOptions) -> Hypothesis:
    return BeamSearch(network, pad([prompt], 0), writer.decode_start([prompt], options), options).run()[0][0]


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", MODELS)
def test_a_conversation_has_the_answers_of_a_new_computation(kind: str, temperature: float) -> None:
    network = made(MODELS[kind])
    writer = TextGenerator(network, Tokenizer.__new__(Tokenizer), eos_ids=TOKENS - 1)
    cache, first = PrefixCache(network), texts(1, 9)[0].tolist()
    text, new = list(first), texts(1, 40, seed=6)[0].tolist()
    for turn, length in enumerate((7, 5, 3, 40, 6)):  # the fourth outgrows the context
        options = DecodeOptions(max_new_tokens=length, temperature=temperature, seed=turn)
        answer = decode(cache, text, writer, options)
        alone = decode(network, text, writer, options)
        assert answer.tokens == alone.tokens
        assert answer.score == pytest.approx(alone.score, abs=1e-4)
        text = (text + answer.tokens + new[3 * turn : 3 * turn + 3])[: LIMIT - 8]
        if turn == 2:  # taken back
            text = text[: len(first) + 2] + new[:2]
    assert decode(cache, first[:1], writer, DecodeOptions(max_new_tokens=4)).tokens


def test_only_new_tokens_are_computed() -> None:
    network = made(MODELS["llama"])
    writer, options = TextGenerator(network, Tokenizer.__new__(Tokenizer), eos_ids=-1), DecodeOptions(max_new_tokens=5)
    cache, prompt = PrefixCache(network), texts(1, 11)[0].tolist()
    answer = decode(cache, prompt, writer, options)
    assert cache.read == 11
    assert cache.tokens == prompt + answer.tokens[:-1]
    decode(cache, [*prompt, *answer.tokens, 3, 4], writer, options)
    assert cache.read == 3  # the answer's last token was written, not read
    decode(cache, [*prompt[:6], (prompt[6] + 1) % TOKENS, 6], writer, options)
    assert cache.read == 2
    decode(cache, [(prompt[0] + 1) % TOKENS, *prompt[1:]], writer, options)
    assert cache.read == 11
