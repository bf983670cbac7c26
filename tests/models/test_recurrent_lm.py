"""A recurrent language model implements CausalLM: it generates, streams and is scored as any other."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.config.recipe import DecodeOptions, TokenizerOptions
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.speculative import PromptLookup, speculate
from regard.errors import UserError
from regard.layers.autoregressive import EMPTY, AutoregressiveModel
from regard.layers.inputs import TokenBatch, pad
from regard.layers.protocols import CausalLM, TruncatableLM
from regard.layers.pytree import State
from regard.model import Model
from regard.models.registry import FAMILIES, Family
from regard.tasks.generate.likelihood import metrics, window_log_probabilities
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

TEXT = "the cat sat on the mat. the dog sat on the log. "


@dataclass(frozen=True)
class GRUConfig:
    vocabulary: int
    width: int = 24
    max_positions: int = 32

    CHOICES = {}

    def problem(self) -> str | None:
        return None


class GRULM(AutoregressiveModel):
    """The state is one vector, and how many tokens it has read: there is no KV cache, and no way back."""

    task = "generate"

    def __init__(self, config: GRUConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.rnn = nn.GRU(config.width, config.width, batch_first=True)
        self.output = nn.Linear(config.width, config.vocabulary)

    @property
    def dummy_inputs(self) -> tuple:
        return (TokenBatch.minimal().tokens,)

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    def start(self, source: TokenBatch) -> State:
        """Prompts are padded on the right: each row's state is the one before its last token."""
        count = source.lengths - 1
        states, _ = self.rnn(self.embed(source.tokens))
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        return State(None, (states[torch.arange(len(count)), count], int(count.max())))

    def decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        last, length = state.hypothesis or (torch.zeros(len(tokens), self.config.width), 0)
        x, last = self.rnn(self.embed(tokens), last[None].contiguous())
        return x, State(None, (last[0], length + tokens.size(1)))

    def state_length(self, state: State) -> int:
        return state.hypothesis[1] if state.hypothesis else 0

    def forward(self, tokens: Tensor, at: Tensor | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, _ = self.decode(tokens, EMPTY)
        return self.output(x if at is None else x[at])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setitem(FAMILIES, "gru", Family(GRUConfig, GRULM, {}))
    tokenizer = train_tokenizer(iter([TEXT] * 3), TokenizerOptions(kind="characters", vocab_size=64))
    torch.manual_seed(0)
    network = GRULM(GRUConfig(tokenizer.size)).eval()
    return Model(network, Vocabulary(tokenizer, tokenizer), {}, {})


def test_it_is_a_causal_lm_whose_state_cannot_be_taken_back(model: Model) -> None:
    assert isinstance(model.network, CausalLM) and not isinstance(model.network, TruncatableLM)
    assert model.is_causal_lm and model.task == "generate"


def test_it_generates_what_full_passes_predict(model: Model) -> None:
    prompts = ["the c", "the dog s", "t"]
    answers = model.run(prompts, max_new_tokens=7)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = model.processor.target.prompt(prompt)
        expected = []
        while len(expected) < 7:
            token = int(model.network(torch.tensor([tokens + expected]))[0, -1].argmax())
            if token == model.processor.target.end:
                break
            expected.append(token)
        assert list(answer.tokens) == expected
    assert model.run("the c", num_beams=3, max_new_tokens=5).text is not None
    assert model.run("the c", temperature=0.8, seed=1, max_new_tokens=5).text is not None


def test_it_streams_with_and_without_a_prefix_cache(model: Model) -> None:
    network: Any = model.network
    cache = PrefixCache(network)
    for prompt in ("the cat", "the cat sat", "the dog"):
        expected = model.run(prompt, max_new_tokens=6).text
        assert "".join(model.stream(prompt, max_new_tokens=6)) == expected
        assert "".join(model.stream(prompt, max_new_tokens=6, prefix_cache=cache)) == expected


@torch.no_grad()
def test_its_perplexity_is_that_of_full_passes(model: Model) -> None:
    tokens = model.processor.target.encode(TEXT)
    windows = [(0, 20, 1), (10, 30, 20)]
    sums = list(window_log_probabilities(model.network, tokens, iter(windows), 2))
    logs = [
        model.network(torch.tensor([tokens[begin:end]])).log_softmax(-1)[0, first - begin - 1 : -1]
        .gather(1, torch.tensor(tokens[first:end])[:, None]).sum()
        for begin, end, first in windows
    ]  # fmt: skip
    assert [total for total, _ in sums] == pytest.approx([float(log) for log in logs], abs=1e-4)
    assert metrics(sum(total for total, _ in sums), sum(count for _, count in sums), 1.0)["perplexity"] > 1


def test_speculative_decoding_is_an_error_where_it_is_not_supported(model: Model) -> None:
    prompt = pad([model.processor.target.prompt("the c")], 0).tokens
    network: Any = model.network
    with pytest.raises(UserError, match="speculative decoding is not available for GRULM: its state cannot be taken"):
        speculate(network, prompt, (), DecodeOptions(), 5, PromptLookup())
