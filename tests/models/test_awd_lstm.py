"""AWD-LSTM: a causal language model with the laws of all others, the dropout of its paper, and a classifier on it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import regard
from regard.config.recipe import DecodeOptions, load_recipe
from regard.decoding.search import search
from regard.layers.autoregressive import EMPTY
from regard.layers.dropout import Dropout, VariationalDropout
from regard.layers.inputs import TokenBatch, pad
from regard.layers.protocols import CausalLM, TruncatableLM
from regard.layers.pytree import State, reorder
from regard.layers.recurrent import WeightDropLSTM
from regard.models.awd_lstm import AWDLSTM, PRESETS
from regard.models.heads.sequence import Classifier
from regard.models.registry import build
from regard.tasks.generate.likelihood import window_log_probabilities
from regard.training.build import resume, start
from regard.training.layerwise import layer_groups
from tests.models.test_laws import alike

TOKENS = 31
MODELS: dict[str, dict[str, Any]] = {
    "three layers": {},
    "one layer": {"depth": 1},
    "untied": {"depth": 2, "tied": False},
}
RATES = ("embedding_dropout", "input_dropout", "hidden_dropout", "weight_dropout", "dropout")


def made(**options: Any) -> Any:
    torch.manual_seed(0)
    network = build({"family": "awd_lstm", "width": 14, "hidden_width": 22, **options}, vocabulary=TOKENS).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    assert isinstance(network, AWDLSTM)
    return network


def only(rate: str, value: float = 0.5) -> Any:
    """A network in training with one kind of dropout."""
    return made(**{name: value * (name == rate) for name in RATES}).train()


@pytest.fixture(params=MODELS)
def network(request: pytest.FixtureRequest) -> Any:
    return made(**MODELS[request.param])


def texts(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, TOKENS, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_it_is_a_causal_lm_whose_state_cannot_be_taken_back(network: Any) -> None:
    assert isinstance(network, CausalLM) and not isinstance(network, TruncatableLM)


@torch.no_grad()
def test_logits_are_those_of_the_equations(network: Any) -> None:
    """Hochreiter & Schmidhuber 1997 with forget gates, a step at a time; the output shares the embedding if tied."""
    tokens = texts(3, 9)
    x = list(network.embed.table.weight[tokens].unbind(1))
    for layer in network.decoder:
        hidden = cell = torch.zeros(3, layer.hidden_size)
        for index, token in enumerate(x):
            gates = layer.weight_ih_l0 @ token.T + layer.weight_hh_l0 @ hidden.T
            gates = gates.T + layer.bias_ih_l0 + layer.bias_hh_l0
            enter, forget, candidate, leave = gates.chunk(4, -1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            x[index] = hidden
    table = network.embed.table.weight if network.config.tied else network.output.weight
    alike(network(tokens), torch.stack(x, 1) @ table.T + network.output.bias)
    assert (network.output.weight is network.embed.table.weight) == network.config.tied


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 17, [3, 1, 9, 2, 2]])
def test_any_division_into_steps_gives_the_same_logits(network: Any, chunks: list[int]) -> None:
    tokens, state, pieces = texts(3, 17), EMPTY, []
    for chunk in tokens.split(chunks, 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(tokens))
    assert network.state_length(state) == 17


@torch.no_grad()
def test_the_future_does_not_change_the_past(network: Any) -> None:
    tokens = texts(2, 17)
    changed = torch.cat([tokens[:, :9], texts(2, 8, seed=5)], 1)
    assert torch.equal(network(tokens)[:, :9], network(changed)[:, :9])
    assert not torch.equal(network(tokens)[:, 9:], network(changed)[:, 9:])


@torch.no_grad()
def test_prompts_of_other_lengths_change_nothing(network: Any) -> None:
    tokens, lengths, more = texts(5, 13), torch.tensor([13, 6, 1, 9, 6]), texts(5, 7, seed=3)
    state = network.start(TokenBatch(tokens, lengths))
    assert network.state_length(state) == 12
    last = tokens.gather(1, lengths[:, None] - 1)
    together, state = network.step(torch.cat([last, more[:, :3]], 1), state)
    order = torch.tensor([4, 2, 2, 0, 1])
    later, _ = network.step(more[order, 3:], State(None, reorder(state.hypothesis, order)))
    for row, length in enumerate(lengths.tolist()):
        alone = network(torch.cat([tokens[row, :length], more[row]])[None])
        alike(together[row], alone[0, length - 1 : length + 3])
        for index in torch.nonzero(order == row)[:, 0]:
            alike(later[index], alone[0, length + 3 :])


def test_greedy_is_the_argmax_of_full_passes_beside_any_other_prompt(network: Any) -> None:
    prompts = [texts(1, length, seed=length)[0].tolist() for length in (9, 2, 13, 1)]
    begin = torch.tensor([[-1] * (13 - len(prompt)) + prompt for prompt in prompts])
    answers = search(network, pad(prompts, 0), begin, -1, DecodeOptions(), 8, read=12)
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        tokens = list(prompt)
        for _ in range(8):
            tokens.append(int(network(torch.tensor([tokens]))[0, -1].argmax()))
        assert answer.tokens == tokens[len(prompt) :]


@torch.no_grad()
def test_the_perplexity_of_windows_is_that_of_full_passes(network: Any) -> None:
    tokens = texts(1, 30)[0].tolist()
    windows = [(0, 20, 1), (10, 30, 20)]
    sums = list(window_log_probabilities(network, tokens, iter(windows), 2))
    for (begin, end, first), (total, count) in zip(windows, sums, strict=True):
        logs = network(torch.tensor([tokens[begin:end]])).log_softmax(-1)[0]
        expected = [float(logs[index - begin - 1, tokens[index]]) for index in range(first, end)]
        assert (total, count) == (pytest.approx(sum(expected), abs=1e-3), len(expected))


@torch.no_grad()
def test_bfloat16_runs_step_by_step(network: Any) -> None:
    network = network.to(torch.bfloat16)
    logits, _ = network.step(texts(2, 1), network.start(pad(texts(2, 5).tolist(), 0)))
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


def test_every_parameter_gets_a_gradient(network: Any) -> None:
    network.train()(texts(2, 9)).square().mean().backward()
    assert not [name for name, parameter in network.named_parameters() if parameter.grad is None]


# ── dropout ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_there_is_no_dropout_in_evaluation_and_without_rates() -> None:
    tokens = texts(2, 7)
    quiet = made(**dict.fromkeys(RATES, 0.0)).train()
    assert torch.equal(quiet(tokens), made()(tokens))
    assert torch.equal(made()(tokens), made()(tokens))


@pytest.mark.parametrize("rate", RATES)
def test_each_rate_changes_the_output_in_training(rate: str) -> None:
    network, tokens = only(rate), texts(2, 7)
    assert not torch.equal(network(tokens), network(tokens))
    assert torch.equal(network.eval()(tokens), made()(tokens))


def test_variational_dropout_has_one_mask_for_all_positions_of_a_row() -> None:
    dropped = VariationalDropout(0.4)(torch.ones(50, 7, 20))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(), torch.tensor(1.0), atol=0.15, rtol=0)
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.6, rel=1e-3)]


def test_a_dropped_word_is_dropped_wherever_it_occurs() -> None:
    network = only("embedding_dropout")
    tokens = torch.arange(TOKENS).repeat(2, 3)
    x = network.embed(tokens)
    scale = (x / network.embed.table(tokens)).mean(-1)
    assert torch.equal(x.view(6, TOKENS, -1)[0], x.view(6, TOKENS, -1)[5])
    assert {round(value, 3) for value in scale.flatten().tolist()} == {0.0, 2.0}


def test_weights_are_dropped_between_states_only_and_the_same_at_all_positions() -> None:
    """The outputs are those of an LSTM with the dropped weights, which are a masked, scaled copy."""
    layer: Any = WeightDropLSTM(5, 7, 0.5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        weights = layer.weight_dropout(layer.weight_hh_l0).detach()
        torch.manual_seed(3)
        zeros = torch.zeros(2, 7)
        out, (hidden, _) = layer(torch.ones(2, 11, 5), (zeros, zeros))
    kept = weights != 0
    assert 0.2 < kept.float().mean() < 0.8
    torch.testing.assert_close(weights[kept], 2 * layer.weight_hh_l0[kept])
    plain: Any = nn.LSTM(5, 7, batch_first=True)
    plain.load_state_dict({name: tensor for name, tensor in layer.state_dict().items() if name.endswith("_l0")})
    with torch.no_grad():
        plain.weight_hh_l0.copy_(weights)
    expected, (last, _) = plain(torch.ones(2, 11, 5))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(hidden, last[0])
    out.sum().backward()
    assert layer.weight_hh_l0.grad is not None and not layer.weight_hh_l0.grad[~kept].any()


def test_a_recipe_may_replace_all_rates() -> None:
    network = made()
    regard.layers.dropout.set_dropout(network, 0.0)
    assert not [module for module in network.modules() if isinstance(module, Dropout) and module.keep_threshold]


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("preset", "vocabulary", "millions"),
    [("merity2018", 10_000, 24), ("merity2018", 33_278, 33), ("small", 8_000, 4.3), ("tiny", 8_000, 0.7)],
)
def test_presets_have_their_parameter_counts(preset: str, vocabulary: int, millions: float) -> None:
    """Merity et al. 2018, tables 1 and 2: 24M on Penn Treebank, 33M on WikiText-2."""
    with torch.device("meta"):
        network = build({"family": "awd_lstm", "preset": preset}, vocabulary=vocabulary)
    assert sum(parameter.numel() for parameter in network.parameters()) / 1e6 == pytest.approx(millions, rel=0.05)
    assert set(PRESETS) == {"merity2018", "small", "tiny"}


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────────

RECIPE = """
task = "generate"
[data]
train = "text.txt"
validation = "text.txt"
max_length = 23
[tokenizer]
kind = "characters"
vocab_size = 64
[model]
{model}
[train]
batch_size = 4
max_steps = {steps}
eval_steps = {every}
save_steps = {every}
learning_rate = 3e-2
schedule = "constant"
warmup_steps = 20
threads = 1
"""
NEW = 'family = "awd_lstm"\npreset = "tiny"\nwidth = 24\nhidden_width = 40\nmax_positions = 50'
TEXT = "the cat sat on the mat. the dog sat on the log. "


def lay_out(folder: Path, steps: int, *overrides: str, name: str = "run", model: str = NEW, every: int = 4) -> Any:
    (folder / "text.txt").write_text(TEXT * 9)
    (folder / f"{name}.toml").write_text(RECIPE.format(steps=steps, model=model, every=every))
    return load_recipe(folder / f"{name}.toml", [f"output={folder / name}", *overrides])


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the text."""
    folder = tmp_path_factory.mktemp("language")
    start(lay_out(folder, 120, "train.dropout=0.0", every=120), quiet=True)
    return folder / "run"


def test_it_learns_generates_streams_and_is_scored(language_model: Path) -> None:
    model: Any = regard.load(language_model)
    assert json.loads((model.folder / "config.json").read_text())["model_type"] == "regard-awd_lstm"
    assert json.loads((language_model / "best.json").read_text())["score"] < 1.0
    answer = model.run("the cat s", max_new_tokens=9)
    assert answer.text == "at on the"
    assert "".join(model.stream("the cat s", max_new_tokens=9)) == answer.text
    assert len(model.trace("the cat", max_new_tokens=3).sites) == 0
    beyond = model.run("the cat s", max_new_tokens=model.network.max_positions)
    assert not beyond.context_shifted and beyond.finish_reason == "length"


def test_its_folder_is_the_same_after_saving_again(language_model: Path, tmp_path: Path) -> None:
    model: Any = regard.load(language_model)
    model.save(tmp_path / "again")
    again: Any = regard.load(tmp_path / "again")
    assert again.network.config == model.network.config
    for (name, one), (_, two) in zip(again.network.named_parameters(), model.network.named_parameters(), strict=True):
        assert torch.equal(one, two), name


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    start(lay_out(tmp_path, 6, "train.ema_decay=0.9", name="complete"), quiet=True)
    start(lay_out(tmp_path, 4, "train.ema_decay=0.9"), quiet=True)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=6"])
    for name in ("model.safetensors", "training.safetensors", "config.json"):
        one, two = (tmp_path / run / "checkpoint-6" / name for run in ("complete", "run"))
        assert one.read_bytes() == two.read_bytes(), name


def test_it_is_fine_tuned_on_other_text_with_its_tokenizer(language_model: Path, tmp_path: Path) -> None:
    start(lay_out(tmp_path, 2, "train.layer_decay=0.4", model=f'from = "{language_model}"'), quiet=True)
    one, two = (regard.load(path).processor.content() for path in (language_model, tmp_path / "run"))
    assert one == two


# ── classification ───────────────────────────────────────────────────────────────────────────────────────────────────

CLASSIFY = """
task = "classify"
[data]
train = "labels.tsv"
validation = "labels.tsv"
max_length = 40
[model]
from = "{model}"
[train]
batch_size = 8
max_steps = {steps}
eval_steps = {steps}
save_steps = 4
learning_rate = 2e-2
schedule = "slanted_triangular"
layer_decay = 0.4
unfreeze_steps = 2
threads = 1
"""


def classify(folder: Path, model: Path, steps: int, *overrides: str, name: str = "run") -> Path:
    rows = [f"{label}\t{subject} sat on the {seat}." for label, seat in (("soft", "mat"), ("hard", "log"))
            for subject in ("the cat", "the dog", "a dog", "cat", "the dog and the cat")]  # fmt: skip
    (folder / "labels.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    (folder / f"{name}.toml").write_text(CLASSIFY.format(model=model, steps=steps))
    start(load_recipe(folder / f"{name}.toml", [f"output={folder / name}", *overrides]), quiet=True)
    return folder / name


def test_a_language_model_becomes_a_classifier(language_model: Path, tmp_path: Path) -> None:
    options = ("train.unfreeze_steps=5", "train.layer_decay=0.8", "train.dropout=0.0")
    run = classify(tmp_path, language_model, 80, *options)
    model: Any = regard.load(run)
    assert model.run(["the cat sat on the log.", "a cat sat on the mat."])[0].label == "hard"
    assert [answer.label for answer in model.run(["dog sat on the mat.", "dog sat on the log."])] == ["soft", "hard"]
    model.save(tmp_path / "again")
    again: Any = regard.load(tmp_path / "again")
    assert again.run("the cat sat") == model.run("the cat sat")


def test_a_resumed_classifier_equals_an_uninterrupted_one(language_model: Path, tmp_path: Path) -> None:
    classify(tmp_path, language_model, 6, "train.schedule=constant", name="complete")
    classify(tmp_path, language_model, 4, "train.schedule=constant")
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=6"])
    for name in ("model.safetensors", "training.safetensors"):
        one, two = (tmp_path / run / "checkpoint-6" / name for run in ("complete", "run"))
        assert one.read_bytes() == two.read_bytes(), name


@torch.no_grad()
def test_concat_pooling_is_its_formula_and_padding_changes_nothing() -> None:
    classifier = Classifier(made(), ("a", "b", "c")).eval()
    nn.init.normal_(classifier.pool.dense.bias)  # type: ignore[union-attr]
    text = TokenBatch(texts(3, 11), torch.tensor([11, 3, 7]))
    states = classifier.encode(text)
    pooled = classifier.pool(states, text)
    pool: Any = classifier.pool
    for row, length in enumerate(text.lengths.tolist()):
        real = states[row, :length]
        together = torch.cat([real[-1], real.max(0).values, real.mean(0)])
        alike(pooled[row], (pool.dense.weight @ pool.norm(together) + pool.dense.bias).clamp(min=0))
        alone = TokenBatch(text.tokens[row : row + 1, :length], text.lengths[row : row + 1])
        alike(classifier(alone)[0], classifier(text)[row])


def test_its_layers_are_stacked() -> None:
    classifier = Classifier(made(), ("a", "b"))
    names = {parameter: name for name, parameter in classifier.named_parameters()}
    bottom, *layers, head = [{names[parameter] for parameter in group} for group in layer_groups(classifier)]
    assert bottom == {"body.embed.table.weight"}
    assert [{name.split(".")[2] for name in layer} for layer in layers] == [{"0"}, {"1"}, {"2"}]
    assert {name.split(".")[0] for name in head - {"body.output.bias"}} == {"pool", "head"}


def test_states_are_tensors_with_the_rows_first() -> None:
    _, state = made().step(texts(5, 3), EMPTY)
    tensors = [leaf for leaf in tree_leaves(state.hypothesis.layers) if isinstance(leaf, Tensor)]
    assert len(tensors) == 6 and all(len(tensor) == 5 for tensor in tensors)
