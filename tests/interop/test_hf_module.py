"""The adapter with Hugging Face's tensor names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import MODELS, alike, batch, reference, vocabulary, write_reference
from language_checkpoints import language_model, logits_of, text, write

import regard
from regard.errors import UserError
from regard.interop.folder import load, save
from regard.interop.hf_module import HFModule
from regard.models.registry import FAMILIES, build


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_outputs_are_the_same_with_padding_on_either_side(model: dict[str, Any]) -> None:
    network = build(model, source_vocabulary=53, target_vocabulary=53).eval()
    source, target = batch()
    right = HFModule(network)(source.tokens, target, source.real.long())
    assert torch.equal(right.logits, network(source, target))
    left = HFModule(network)(source.tokens.flip(1), target, source.real.flip(1).long())
    flipped = [row[:length].flip(0) for row, length in zip(source.tokens, source.lengths, strict=True)]
    again = torch.nn.utils.rnn.pad_sequence(flipped, batch_first=True)
    expected = HFModule(network)(again, target, source.real)
    assert torch.equal(left.logits, expected.logits)
    holes = torch.zeros(5, 27, dtype=torch.long).index_add_(1, torch.arange(1, 27, 2), source.tokens)
    mask = torch.zeros(5, 27).index_add_(1, torch.arange(1, 27, 2), source.real.float())
    holey = HFModule(network)(holes, target, mask)
    torch.testing.assert_close(holey.logits, right.logits)
    if right.encoder_last_hidden_state is not None and holey.encoder_last_hidden_state is not None:
        torch.testing.assert_close(holey.encoder_last_hidden_state[:, 1::2], right.encoder_last_hidden_state)
        assert not holey.encoder_last_hidden_state[:, 0::2].any()


@torch.no_grad()
def test_the_adapter_gives_transformers_encoder_states(tmp_path: Path) -> None:
    model = reference()
    write_reference(model, tmp_path, vocabulary())
    source, target = batch()
    ours = HFModule(load(tmp_path).network)(source.tokens, target, source.real).encoder_last_hidden_state
    assert ours is not None
    mask = source.real.long()
    theirs = model(input_ids=source.tokens, attention_mask=mask, decoder_input_ids=target).encoder_last_hidden_state
    assert alike(ours, theirs * mask[:, :, None])


LANGUAGE_MODELS = {
    "gpt": {
        "family": "gpt",
        "width": 22,
        "heads": 2,
        "depth": 2,
        "attention_pattern": "gl",
        "window": 3,
        "max_positions": 17,
    },
    "gpt1": {"family": "gpt", "width": 22, "heads": 2, "depth": 2, "norm": "post", "max_positions": 17},
    "llama": {"family": "llama", "width": 30, "heads": 3, "key_heads": 1, "depth": 2, "max_positions": 17},
}


@pytest.mark.parametrize("model", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
@torch.no_grad()
def test_a_row_of_a_language_model_is_the_same_with_padding_on_either_side(model: dict[str, Any]) -> None:
    """And whatever the padding contains, also more of it than the maximum length."""
    network: Any = build(model, vocabulary=53).eval()
    rows = [torch.randint(0, 53, (length,)) for length in (13, 1, 7)]
    ids, mask = torch.full((3, 29), -100), torch.zeros(3, 29, dtype=torch.long)
    places = [torch.arange(29 - 13, 29), torch.tensor([17]), torch.arange(2, 16, 2)]
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        ids[number, place], mask[number, place] = row, 1
    found = HFModule(network)(input_ids=ids, attention_mask=mask)
    assert found.last_hidden_state is not None
    assert found.logits.shape == (3, 29, 53)
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        alone = HFModule(network)(input_ids=row[None])
        torch.testing.assert_close(alone.logits, network(row[None]))
        torch.testing.assert_close(found.logits[number, place], alone.logits[0])
        assert alone.last_hidden_state is not None
        torch.testing.assert_close(found.last_hidden_state[number, place], alone.last_hidden_state[0])
    assert not found.logits[mask == 0].any()
    assert not found.last_hidden_state[mask == 0].any()


@pytest.mark.parametrize("kind", ["gpt2", "openai-gpt", "gpt_neo", "llama"])
@torch.no_grad()
def test_the_adapter_gives_transformers_last_states(kind: str, tmp_path: Path) -> None:
    model, tokens = language_model(kind), text()
    found = HFModule(load(write(model, tmp_path)).network)(input_ids=tokens)
    assert found.last_hidden_state is not None
    assert alike(found.last_hidden_state, model.base_model(input_ids=tokens).last_hidden_state)
    assert alike(found.logits, logits_of(model, tokens))


CONTINUING = {
    "an id too large": ({"input_ids": torch.full((2, 3), 53)}, "input_ids holds 53, .* 0 … 52"),
    "two texts": ({"decoder_input_ids": torch.full((2, 3), 5)}, "not an encoder–decoder model; pass input_ids only"),
    "a text too long": ({"input_ids": torch.full((2, 18), 5)}, "18 real tokens, but the model's context is 17 tokens"),
}


@pytest.mark.parametrize(("inputs", "message"), CONTINUING.values(), ids=CONTINUING)
def test_wrong_inputs_of_a_language_model_are_errors(inputs: dict[str, Any], message: str) -> None:
    network = build(LANGUAGE_MODELS["llama"], vocabulary=53)
    with pytest.raises(UserError, match=message):
        HFModule(network)(**({"input_ids": torch.full((2, 3), 5)} | inputs))


ADAPTER = {
    "ids are whole numbers": ({"input_ids": torch.zeros(2, 3)}, "input_ids should be integers"),
    "an id too large": ({"decoder_input_ids": torch.full((2, 3), 53)}, "decoder_input_ids holds 53, .* 0 … 52"),
    "a mask of another shape": (
        {"attention_mask": torch.ones(2, 4)},
        r"attention_mask is \(2, 4\), input_ids \(2, 3\)",
    ),
    "a mask that is no mask": ({"attention_mask": torch.full((2, 3), -1)}, "1 for real tokens"),
    "an empty row": ({"attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "row 1 has no real token"),
    "one text": ({"decoder_input_ids": None}, "decoder_input_ids is missing"),
    "rows apart": ({"decoder_input_ids": torch.full((3, 3), 5)}, "input_ids has 2 rows, decoder_input_ids 3"),
}


@pytest.mark.parametrize(("inputs", "message"), ADAPTER.values(), ids=ADAPTER)
def test_wrong_inputs_are_errors(inputs: dict[str, Any], message: str) -> None:
    network = build(MODELS["transformer"], source_vocabulary=53, target_vocabulary=53)
    ids = torch.full((2, 3), 5)
    with pytest.raises(UserError, match=message):
        HFModule(network)(**({"input_ids": ids, "decoder_input_ids": ids} | inputs))


TRAINED = {
    "gpt": LANGUAGE_MODELS["gpt"],
    "llama": LANGUAGE_MODELS["llama"],
    "bert": {"family": "bert", "width": 22, "heads": 2, "depth": 2, "max_positions": 17},
    "transformer": MODELS["transformer"],
}


@pytest.mark.parametrize("name", TRAINED)
def test_the_module_of_a_loaded_model_is_a_torch_module(name: str, tmp_path: Path) -> None:
    """Also after the network was rewritten for inference: modes, parameters, state, hooks and gradients."""
    sizes = FAMILIES[TRAINED[name]["family"]].vocabularies
    network: Any = build(TRAINED[name], **dict.fromkeys(sizes, 53))
    save(tmp_path, network, vocabulary(), {})
    model: Any = regard.load(tmp_path, device="cpu")
    module = model.module
    assert module is model.module and isinstance(module, torch.nn.Module)
    assert not module.training and module.train() is module and model.network.training
    assert not module.eval().training and not model.network.training

    names = [f"network.{ours}" for ours, _ in network.named_parameters()]
    assert [ours for ours, _ in module.named_parameters()] == names
    assert set(names) <= set(module.state_dict())
    ids = torch.randint(4, 53, (3, 7))
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if len(sizes) > 1 else {})
    seen: list[Any] = []
    module.register_forward_hook(lambda _, given, output: seen.append(output))
    out = module(**inputs)
    assert seen == [out]

    result = out.last_hidden_state if out.logits is None else out.logits
    result.square().mean().backward()
    with_gradient = {ours for ours, parameter in module.named_parameters() if parameter.grad is not None}
    assert with_gradient >= {ours for ours in names if "pooler" not in ours}
    before = {ours: tensor.clone() for ours, tensor in module.state_dict().items()}
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    changed = module(**inputs)
    changed = changed.last_hidden_state if changed.logits is None else changed.logits
    assert not torch.equal(changed, result)
    module.load_state_dict(before)
    with torch.no_grad():
        again = module(**inputs)
    again = again.last_hidden_state if again.logits is None else again.logits
    torch.testing.assert_close(again, result)
    assert {parameter.dtype for parameter in module.to(torch.float64).parameters()} == {torch.float64}
