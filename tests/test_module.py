"""The adapter with Hugging Face's tensor names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import MODELS, alike, batch, reference, vocabulary, write_reference

from regard.errors import UserError
from regard.interop.folder import load
from regard.interop.module import Module
from regard.models import build


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_the_adapter_gives_the_same_wherever_padding_lies(model: dict[str, Any]) -> None:
    network = build(model, source_vocabulary=53, target_vocabulary=53).eval()
    source, target = batch()
    right = Module(network)(source.tokens, target, source.real.long())
    assert torch.equal(right.logits, network(source, target))
    left = Module(network)(source.tokens.flip(1), target, source.real.flip(1).long())
    flipped = [row[:length].flip(0) for row, length in zip(source.tokens, source.lengths, strict=True)]
    again = torch.nn.utils.rnn.pad_sequence(flipped, batch_first=True)
    expected = Module(network)(again, target, source.real)
    assert torch.equal(left.logits, expected.logits)
    holes = torch.zeros(5, 27, dtype=torch.long).index_add_(1, torch.arange(1, 27, 2), source.tokens)
    mask = torch.zeros(5, 27).index_add_(1, torch.arange(1, 27, 2), source.real.float())
    holey = Module(network)(holes, target, mask)
    torch.testing.assert_close(holey.logits, right.logits)
    if right.encoder_last_hidden_state is not None and holey.encoder_last_hidden_state is not None:
        torch.testing.assert_close(holey.encoder_last_hidden_state[:, 1::2], right.encoder_last_hidden_state)
        assert not holey.encoder_last_hidden_state[:, 0::2].any()


@torch.no_grad()
def test_the_adapter_gives_transformers_encoder_states(tmp_path: Path) -> None:
    model = reference()
    write_reference(model, tmp_path, vocabulary())
    source, target = batch()
    ours = Module(load(tmp_path).network)(source.tokens, target, source.real).encoder_last_hidden_state
    assert ours is not None
    mask = source.real.long()
    theirs = model(input_ids=source.tokens, attention_mask=mask, decoder_input_ids=target).encoder_last_hidden_state
    assert alike(ours, theirs * mask[:, :, None])


ADAPTER = {
    "ids are whole numbers": ({"input_ids": torch.zeros(2, 3)}, "input_ids should be whole numbers"),
    "an id too large": ({"decoder_input_ids": torch.full((2, 3), 53)}, "decoder_input_ids holds 53, .* 0 … 52"),
    "a mask of another shape": (
        {"attention_mask": torch.ones(2, 4)},
        r"attention_mask is \(2, 4\), input_ids \(2, 3\)",
    ),
    "a mask that is no mask": ({"attention_mask": torch.full((2, 3), -1)}, "1 where a token is real"),
    "an empty row": ({"attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "row 1 has no real token"),
    "rows apart": ({"decoder_input_ids": torch.full((3, 3), 5)}, "input_ids has 2 rows, decoder_input_ids 3"),
}


@pytest.mark.parametrize(("inputs", "message"), ADAPTER.values(), ids=ADAPTER)
def test_the_adapter_says_what_is_wrong(inputs: dict[str, Any], message: str) -> None:
    network = build(MODELS["transformer"], source_vocabulary=53, target_vocabulary=53)
    ids = torch.full((2, 3), 5)
    with pytest.raises(UserError, match=message):
        Module(network)(**({"input_ids": ids, "decoder_input_ids": ids} | inputs))
