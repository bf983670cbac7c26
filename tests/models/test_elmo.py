"""ELMo: words from their characters, two directions of layers, their learned mix, and the language model below it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from regard.config.recipe import load_recipe
from regard.errors import UserError
from regard.layers.autoregressive import EMPTY
from regard.layers.inputs import TokenBatch
from regard.layers.protocols import CausalLM, TruncatableLM
from regard.models.elmo import BEGIN, END, BidirectionalLM, Elmo
from regard.models.heads.sequence import Classifier
from regard.models.registry import build, configure
from regard.training.build import resume, start
from regard.training.layerwise import layer_groups
from tests.models.test_laws import alike

WORDS = ["", "a", "ab", "abc", "Ünlü", "attention", "extraordinarily", *(f"w{index}" for index in range(24))]
SIZES = dict(family="elmo", width=14, hidden_width=11, filters=(5, 6, 3), character_width=4, max_characters=12)


def made(**options: Any) -> Any:
    torch.manual_seed(0)
    network = build(SIZES | options, vocabulary=len(WORDS)).eval()
    assert isinstance(network, Elmo)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.4)
    network.spell(WORDS)
    return network


def language_model(**options: Any) -> Any:
    network: Any = BidirectionalLM(made(**options)).eval()
    nn.init.normal_(network.output.weight, std=0.3)
    return network


def texts(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, len(WORDS), (rows, length), generator=torch.Generator().manual_seed(seed))


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_word_is_spelled_by_its_bytes_between_marks() -> None:
    spelling = made().embed.spelling.weight.long()
    assert spelling[3].tolist() == [BEGIN, *(byte + 1 for byte in b"abc"), END] + [0] * 7
    assert spelling[6].tolist() == [BEGIN, *(byte + 1 for byte in b"extraordin"), END]
    assert spelling[4].tolist()[1:7] == [byte + 1 for byte in "Ünlü".encode()]


@torch.no_grad()
def test_a_word_is_its_convolutions_highways_and_projection() -> None:
    """A window begins at each character of the word, and reads nothing after its last one."""
    cnn: Any = made().embed
    for token, word in enumerate(WORDS):
        spelled = [BEGIN, *(byte + 1 for byte in word.encode()[:10]), END]
        characters = [*cnn.characters.weight[spelled], *torch.zeros(3, 4)]
        features = []
        for kernel, convolution in enumerate(cnn.convolutions, 1):
            windows = [torch.stack(characters[begin : begin + kernel], 1) for begin in range(len(spelled))]
            outputs = [(convolution.weight * window).sum((1, 2)) + convolution.bias for window in windows]
            features.append(torch.stack(outputs).max(0).values)
        x = torch.cat(features).clamp(min=0)
        for highway in cnn.highways:
            gate = torch.sigmoid(highway.gate.weight @ x + highway.gate.bias)
            x = gate * x + (1 - gate) * (highway.transform.weight @ x + highway.transform.bias).clamp(min=0)
        expected = cnn.projection.weight @ x + cnn.projection.bias
        alike(cnn(torch.tensor([[token]]))[0, 0], expected)
        alike(cnn(torch.tensor([[5, token], [token, 6]]))[1, 0], expected)  # whatever else is in the batch


# ── layers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def projected_lstm(layer: Any, x: Tensor) -> Tensor:
    """(length, width) → outputs of an LSTM whose hidden state is projected. Sak et al. 2014."""
    hidden, cell = torch.zeros(layer.proj_size), torch.zeros(layer.hidden_size)
    outputs = []
    for token in x:
        gates = layer.weight_ih_l0 @ token + layer.bias_ih_l0 + layer.weight_hh_l0 @ hidden + layer.bias_hh_l0
        enter, forget, candidate, leave = gates.chunk(4)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        hidden = layer.weight_hr_l0 @ (leave.sigmoid() * cell.tanh())
        outputs.append(hidden)
    return torch.stack(outputs)


@torch.no_grad()
def test_layers_are_projected_lstms_with_residuals_in_both_directions() -> None:
    network = made()
    text = TokenBatch(texts(3, 9), torch.tensor([9, 1, 5]))
    layers = network.layers(text)
    encoder: Any = network.encoder
    for row, length in enumerate(text.lengths.tolist()):
        x = network.embed(text.tokens[row, None, :length])[0]
        alike(layers[0][row, :length], torch.cat([x, x], -1))
        forwards, backwards = x, x.flip(0)
        for index in range(2):
            residual = forwards, backwards
            forwards = projected_lstm(encoder.forwards[index], forwards) + (residual[0] if index else 0)
            backwards = projected_lstm(encoder.backwards[index], backwards) + (residual[1] if index else 0)
            alike(layers[index + 1][row, :length], torch.cat([forwards, backwards.flip(0)], -1))
    mix: Any = network.mix
    shares = mix.weight.softmax(0)
    alike(network.encode(text), mix.scale * sum(share * layer for share, layer in zip(shares, layers, strict=True)))


@torch.no_grad()
def test_a_new_mix_is_the_mean_of_the_layers() -> None:
    network: Any = build(SIZES, vocabulary=7).eval()
    text = TokenBatch(torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    alike(network.encode(text), torch.stack(network.layers(text)).mean(0))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["concat", "last", "mean", "attention"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_padding_and_other_texts_in_the_batch_change_nothing(pooling: str, depth: int) -> None:
    classifier = Classifier(made(pooling=pooling, depth=depth), ("a", "b", "c")).eval()
    text = TokenBatch(texts(3, 11), torch.tensor([11, 3, 7]))
    for row, length in enumerate(text.lengths.tolist()):
        alone = TokenBatch(text.tokens[row : row + 1, :length], text.lengths[row : row + 1])
        alike(classifier(alone)[0], classifier(text)[row])


def test_every_parameter_but_the_spelling_gets_a_gradient() -> None:
    network = made().train()
    network.encode(TokenBatch(texts(2, 9), torch.tensor([9, 4]))).square().mean().backward()
    assert [name for name, each in network.named_parameters() if each.grad is None] == ["embed.spelling.weight"]
    model = language_model().train()
    (model(texts(2, 9)).square().mean() + model.backward_logits(texts(2, 9)).square().mean()).backward()
    idle = [name for name, each in model.named_parameters() if each.grad is None]
    assert sorted(idle) == ["body.embed.spelling.weight", "body.mix.scale", "body.mix.weight"]


# ── the language model ───────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_a_causal_lm_whose_state_cannot_be_taken_back() -> None:
    network = language_model()
    assert isinstance(network, CausalLM) and not isinstance(network, TruncatableLM)


@torch.no_grad()
def test_each_direction_reads_its_side_only_and_is_a_half_of_the_top_layer() -> None:
    network, tokens = language_model(), texts(2, 9)
    top = network.body.layers(TokenBatch(tokens, torch.tensor([9, 9])))[-1]
    alike(network(tokens), network.output(top[..., :7]))
    alike(network.backward_logits(tokens), network.output(top[..., 7:]))
    changed = torch.cat([tokens[:, :4], (tokens[:, 4:5] + 1) % len(WORDS), tokens[:, 5:]], 1)
    assert torch.equal(network(tokens)[:, :4], network(changed)[:, :4])
    assert torch.equal(network.backward_logits(tokens)[:, 5:], network.backward_logits(changed)[:, 5:])
    assert not torch.equal(network(tokens)[:, 4:], network(changed)[:, 4:])


@torch.no_grad()
@pytest.mark.parametrize("depth", [1, 2])
def test_any_division_into_steps_gives_the_same_logits(depth: int) -> None:
    network, tokens, state, pieces = language_model(depth=depth), texts(3, 11), EMPTY, []
    for chunk in tokens.split([1, 4, 1, 3, 2], 1):
        logits, state = network.step(chunk, state)
        pieces.append(logits)
    alike(torch.cat(pieces, 1), network(tokens))


@torch.no_grad()
def test_prompts_of_other_lengths_change_nothing() -> None:
    network, tokens, lengths = language_model(), texts(4, 9), torch.tensor([9, 1, 4, 6])
    state = network.start(TokenBatch(tokens, lengths))
    logits, _ = network.step(tokens.gather(1, lengths[:, None] - 1), state)
    for row, length in enumerate(lengths.tolist()):
        alike(logits[row, 0], network(tokens[row, None, :length])[0, -1])


@pytest.mark.parametrize(("preset", "millions"), [("small", 13.6), ("medium", 28.0), ("original", 93.6)])
def test_published_parameter_counts(preset: str, millions: float) -> None:
    """AllenNLP's table of models, which leaves out the output layer."""
    network = build({"family": "elmo", "preset": preset}, vocabulary=3)
    count = sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert count / 1e6 == pytest.approx(millions, rel=0.003)


def test_its_layers_are_stacked() -> None:
    classifier = Classifier(made(), ("a", "b"))
    names = {parameter: name for name, parameter in classifier.named_parameters()}
    bottom, *layers, head = [{names[parameter] for parameter in group} for group in layer_groups(classifier)]
    assert all(name.startswith("body.embed.") for name in bottom)
    for index, layer in enumerate(layers):
        assert {".".join(name.split(".")[2:4]) for name in layer} == {f"forwards.{index}", f"backwards.{index}"}
    assert {name.split(".")[0] for name in head - {"body.mix.weight", "body.mix.scale"}} == {"pool", "head"}
    assert {"body.mix.weight", "body.mix.scale"} <= head


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 15}, "width 15 should be even"),
        ({"hidden_width": 7}, "hidden_width 7 should be more than the 7"),
        ({"max_characters": 2}, "max_characters 2 leaves nothing"),
    ],
)
def test_sizes_that_do_not_fit_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        configure(SIZES | options, vocabulary=9)


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MODEL = """family = "elmo"
preset = "tiny"
width = 16
hidden_width = 24
filters = [6, 6]
max_characters = 12
dropout = 0.1"""
LANGUAGE = """
task = "generate"
[data]
train = "text.txt"
validation = "text.txt"
max_length = 13
[tokenizer]
kind = "words"
min_frequency = 1
[model]
{model}
[train]
batch_size = 4
max_steps = {steps}
eval_steps = 50
save_steps = 2
learning_rate = 2e-2
schedule = "constant"
warmup_steps = 2
threads = 1
"""
TEXT = "the cat sat on the mat. the dog sat on the log. "


def train(folder: Path, text: str, name: str = "run", **options: Any) -> Path:
    (folder / f"{name}.toml").write_text(text)
    overrides = [f"{key}={value}" for key, value in options.items()]
    start(load_recipe(folder / f"{name}.toml", [f"output={folder / name}", *overrides]), quiet=True)
    return folder / name


def train_language_model(folder: Path, steps: int, name: str = "run") -> Path:
    (folder / "text.txt").write_text(TEXT * 9)
    return train(folder, LANGUAGE.format(model=MODEL, steps=steps), name)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_language_model(tmp_path_factory.mktemp("language"), 50)


def test_the_language_model_learns_and_its_folder_opens(pretrained: Path) -> None:
    assert json.loads((pretrained / "best.json").read_text())["score"] < 1.5
    model: Any = regard.load(pretrained)
    config = json.loads((model.folder / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("regard-elmo", ["ElmoForBidirectionalLM"])
    assert model.run("the cat sat", max_new_tokens=2).text.split() == ["on", "the"]
    tokenizer = model.processor.target
    spelled = model.network.body.embed.spelling.weight[tokenizer.encode("cat")[0]].long().tolist()
    assert bytes(each - 1 for each in spelled[1 : spelled.index(END)]).decode() == "▁cat"


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    train_language_model(tmp_path, 4, "complete")
    train_language_model(tmp_path, 2)
    resume(tmp_path / "run", quiet=True, overrides=["train.max_steps=4"])
    for name in ("model.safetensors", "training.safetensors", "config.json"):
        one, two = (tmp_path / run / "checkpoint-4" / name for run in ("complete", "run"))
        assert one.read_bytes() == two.read_bytes(), name


CLASSIFY = """
task = "classify"
[data]
train = "labels.tsv"
validation = "labels.tsv"
[model]
from = "{model}"
[train]
freeze = "body"
batch_size = 8
max_steps = 12
eval_steps = 12
save_steps = 12
learning_rate = 1e-2
threads = 1
"""


def test_its_frozen_layers_are_features_with_a_learned_mix(pretrained: Path, tmp_path: Path) -> None:
    """Only s, γ and the head are trained; the folder opens, and gives the same again."""
    rows = [f"{seat}\t{who} sat on the {seat}." for seat in ("mat", "log") for who in ("a cat", "the dog", "cat")]
    (tmp_path / "labels.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    run = train(tmp_path, CLASSIFY.format(model=pretrained))
    before = load_file(next(pretrained.glob("checkpoint-50")) / "model.safetensors")
    after = load_file(run / "checkpoint-12/model.safetensors")
    before = {name.removeprefix("body."): tensor for name, tensor in before.items()}
    after = {name.removeprefix("body."): tensor for name, tensor in after.items()}
    shared = before.keys() & after.keys()
    assert {name for name in shared if not torch.equal(before[name], after[name])} == {"mix.weight", "mix.scale"}
    assert {name.split(".")[0] for name in after.keys() - before.keys()} == {"pool", "head"}
    model: Any = regard.load(run)
    model.save(tmp_path / "again")
    assert regard.load(tmp_path / "again").run("a cat sat on the log.") == model.run("a cat sat on the log.")


def test_it_is_the_backbone_of_a_tagger(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "words.conll").write_text("the O\ncat B-ANIMAL\nsat O\n\na O\ndog B-ANIMAL\nsat O\n\n" * 4)
    text = CLASSIFY.format(model=pretrained).replace("labels.tsv", "words.conll").replace("classify", "tag")
    model: Any = regard.load(train(tmp_path, text))
    assert len(model.run("the cat sat").words) == 3


def test_masked_language_modelling_is_for_other_encoders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.family = 'elmo' does not support task = 'fill'"):
        train(tmp_path, LANGUAGE.format(model=MODEL, steps=1).replace("generate", "fill"))
