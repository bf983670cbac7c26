"""generation_config.json ↔ DecodeOptions: the same words, but each says "off" in its own way."""

from dataclasses import fields
from typing import Any

from regard.recipe import DecodeOptions
from regard.schema import build

FIELDS = [field.name for field in fields(DecodeOptions)]
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
LEGACY = ("max_length", "bad_words_ids", "forced_eos_token_id", "early_stopping", *FIELDS)  # once stood in config.json


def written(generation: dict[str, Any]) -> dict[str, Any]:
    """For the file: our temperature 0 is their do_sample = false; a limit of 0 is no limit and stays out."""
    out = dict(generation)
    if out.get("max_new_tokens") == 0:
        del out["max_new_tokens"]
    if "temperature" in out and "do_sample" not in out:
        out["do_sample"] = out["temperature"] > 0
        if not out["do_sample"]:
            out = {key: value for key, value in out.items() if key not in SAMPLING}
    return out


def decode_fields(generation: dict[str, Any]) -> dict[str, Any]:
    """From the file: what it says of DecodeOptions' fields, in our words."""
    found = {name: generation[name] for name in FIELDS if generation.get(name) is not None}
    banned = [words[0] for words in generation.get("bad_words_ids") or () if len(words) == 1]
    if banned or "suppress_tokens" in found:
        found["suppress_tokens"] = (*found.get("suppress_tokens", ()), *banned)
    if not generation.get("do_sample", False):
        return {name: value for name, value in found.items() if name not in SAMPLING}
    return {"temperature": 1.0, "top_k": 50} | found  # their defaults


def check(generation: dict[str, Any], place: str) -> None:
    """Refuse values that cannot be decoded with, by the file's name and theirs."""
    found = decode_fields(generation)
    lists = {name: list(value) for name, value in found.items() if isinstance(value, tuple)}
    build(DecodeOptions, found | lists, "", lambda _: place)


def of_config(config: dict[str, Any]) -> dict[str, Any]:
    """Older folders keep these settings in config.json."""
    return {key: config[key] for key in LEGACY if key in config}
