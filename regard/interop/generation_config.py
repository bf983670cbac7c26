"""generation_config.json ↔ DecodeOptions: the same words, but each says "off" in its own way."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from regard.config.recipe import DecodeOptions
from regard.config.schema import build
from regard.errors import UserError

FIELDS = [field.name for field in fields(DecodeOptions)]

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")

READ = ("max_length", "min_length", "bad_words_ids", "do_sample", *FIELDS)

HARMLESS = (
    "forced_eos_token_id",
    "early_stopping",
    "renormalize_logits",
)  # the best answer is the same, or the search's

OTHERS: dict[
    str, Any
] = {  # what changes answers and is not done here: the value at which it changes none; nor does null
    "forced_bos_token_id": None,
    "forced_decoder_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "watermarking_config": None,
    "stop_strings": None,
    "max_time": None,
    "token_healing": False,
}

OTHERS_SAMPLING: dict[str, Any] = {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}

LEGACY = (*READ, *HARMLESS, *OTHERS, *OTHERS_SAMPLING)  # once stood in config.json


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


def decode_fields(generation: dict[str, Any], is_causal_lm: bool = False) -> dict[str, Any]:
    """From the file: what it says of DecodeOptions' fields, in our words.

    Their max_length is a limit of new tokens, and of the begin token, for what is written from a source alone; of a
    text that `continues`, it would count the prompt too, and is left to max_new_tokens and the model's context.
    """
    said = {name: generation[name] for name in FIELDS if generation.get(name) is not None}
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    banned = [words[0] for words in generation.get("bad_words_ids") or ()]
    if banned or "suppress_tokens" in found:
        found["suppress_tokens"] = (*found.get("suppress_tokens", ()), *banned)
    for ours, theirs in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if generation.get(theirs) and not is_causal_lm:
            found.setdefault(ours, generation[theirs] - 1)
    if not generation.get("do_sample", False):
        return {name: value for name, value in found.items() if name not in SAMPLING}
    return {"temperature": 1.0, "top_k": 50} | found  # their defaults


def check(generation: dict[str, Any], place: str, vocabulary: int) -> None:
    """Refuse values that cannot be decoded with, by the file's name and theirs."""
    for problem in _problems(generation, vocabulary):
        raise UserError(f"{place}: {problem}")
    found = decode_fields(generation)
    lists = {name: list(value) for name, value in found.items() if isinstance(value, tuple)}
    build(DecodeOptions, found | lists, "", lambda _: place)


def _problems(generation: dict[str, Any], vocabulary: int) -> Iterator[str]:
    others = OTHERS | (OTHERS_SAMPLING if generation.get("do_sample") else {})
    for key, neutral in others.items():
        value = generation.get(key)
        if value not in (None, neutral, [], {}):
            yield f"{key} = {value} changes what is written, and only {key} = {neutral} is known; remove it to go on"
    for key, least in (("max_length", 2), ("min_length", 0)):
        value = generation.get(key)
        if value is not None and (type(value) is not int or value < least):
            yield f"{key} = {value} should be a whole number of at least {least}"
    suppressed, words = generation.get("suppress_tokens") or [], generation.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) and len(word) == 1 for word in words):
        yield f"bad_words_ids = {words} should be a list of tokens [[…], […]]: words of several are unknown"
        return
    for key, ids in (("suppress_tokens", suppressed), ("bad_words_ids", [word[0] for word in words])):
        for token in ids if isinstance(ids, list | tuple) else [ids]:
            if type(token) is not int or not 0 <= token < vocabulary:
                yield f"{key} holds {token!r}, but the vocabulary's ids are 0 … {vocabulary - 1}"


def of_config(config: dict[str, Any]) -> dict[str, Any]:
    """Older folders keep these settings in config.json."""
    return {key: config[key] for key in LEGACY if key in config}
