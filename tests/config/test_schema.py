"""Overrides: a value is TOML, or text where the field is text."""

import pytest

from regard.config.recipe import key_types
from regard.config.schema import override

GIVEN = {
    "data.source=2": "2",
    "data.target=1_0": "1_0",
    "output=2024": "2024",
    "data.prefix=true": "true",
    'data.source="2"': "2",
    "data.train=3": 3,
    "train.learning_rate=1e-3": 1e-3,
    "model.width=64": 64,
    "model.cell=gru": "gru",
    "nonsense.deep.key=2": 2,
}


@pytest.mark.parametrize(("given", "value"), GIVEN.items())
def test_a_field_of_text_takes_numbers_as_text(given: str, value: object) -> None:
    table: dict = {}
    found: object = table
    for name in override(table, given, key_types("translate")).split("."):
        assert isinstance(found, dict)
        found = found[name]
    assert found == value
    assert type(found) is type(value)
