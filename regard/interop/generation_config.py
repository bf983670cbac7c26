"""generation_config.json ↔ DecodeOptions: the same names, but different values for "off"."""

from collections.abc import Set
from dataclasses import fields

from regard.config.options import MAX_COUNT
from regard.config.recipe import DecodeOptions
from regard.config.schema import build
from regard.errors import UserError
from regard.interop.config_keys import Json, naming

FIELDS = [field.name for field in fields(DecodeOptions)]

MAX_BEAMS = 64  # of a file, so that it cannot exhaust the memory

BOUNDS = {
    "max_length": (2, MAX_COUNT),
    "min_length": (0, MAX_COUNT),
    "num_beams": (1, MAX_BEAMS),
    "num_return_sequences": (1, MAX_BEAMS),
}

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")

READ = ("max_length", "min_length", "bad_words_ids", "do_sample", *FIELDS)

IGNORED = ("forced_eos_token_id", "early_stopping", "renormalize_logits")  # do not change the best hypothesis

UNSUPPORTED: Json = {  # keys that change the output: the value that has no effect; null has none either
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

UNSUPPORTED_SAMPLING: Json = {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}

LEGACY = (*READ, *IGNORED, *UNSUPPORTED, *UNSUPPORTED_SAMPLING)  # in config.json of older folders


def to_file(generation: Json) -> Json:
    """For the file: our temperature 0 is their do_sample = false; a limit of 0 is no limit and is left out."""
    keys = dict(generation)
    if keys.get("max_new_tokens") == 0:
        del keys["max_new_tokens"]
    if "temperature" in keys and "do_sample" not in keys:
        keys["do_sample"] = keys["temperature"] > 0
        if not keys["do_sample"]:
            keys = {key: value for key, value in keys.items() if key not in SAMPLING}
    return keys


def decode_fields(generation: Json, is_causal_lm: bool = False) -> Json:
    """From the file: the fields of DecodeOptions.

    In an encoder–decoder, their max_length counts new tokens and the start token. In a causal LM it also counts the
    prompt, and is ignored: max_new_tokens and the context length apply.
    """
    values = {name: generation[name] for name in FIELDS if generation.get(name) is not None}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    banned = [words[0] for words in generation.get("bad_words_ids") or ()]
    if banned or "suppress_tokens" in options:
        options["suppress_tokens"] = (*options.get("suppress_tokens", ()), *banned)
    for ours, theirs in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if generation.get(theirs) and not is_causal_lm:
            options.setdefault(ours, generation[theirs] - 1)
    if not generation.get("do_sample", False):
        return {name: value for name, value in options.items() if name not in SAMPLING}
    return {"temperature": 1.0, "top_k": 50} | options  # their defaults


def check(generation: Json, path: str, vocabulary: int, supported: Set[str] = frozenset()) -> None:
    """Reject unsupported and invalid values, except of keys that this model supports; the error names file and key."""
    unsupported = UNSUPPORTED | (UNSUPPORTED_SAMPLING if generation.get("do_sample") else {})
    with naming(path):
        for key, neutral in unsupported.items():
            value = generation.get(key)
            if value not in (None, neutral, [], {}) and key not in supported:
                raise UserError(
                    f"{key} = {value} is not supported (only {neutral}); remove it to load the model without it"
                )
        for key, (least, most) in BOUNDS.items():
            value = generation.get(key)
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise UserError(f"{key} = {value} should be an integer of at least {least} and at most {most}")
        words = generation.get("bad_words_ids") or []
        if not isinstance(words, list) or not all(isinstance(word, list) and len(word) == 1 for word in words):
            raise UserError(
                f"bad_words_ids = {words} should be a list [[…], […]] of single tokens; longer words are not supported"
            )
        suppressed = generation.get("suppress_tokens") or []
        if not isinstance(suppressed, list | tuple):
            raise UserError(f"suppress_tokens = {suppressed} should be a list of token ids")
        for key, ids in (("suppress_tokens", suppressed), ("bad_words_ids", [word[0] for word in words])):
            for token in ids:
                if type(token) is not int or not 0 <= token < vocabulary:
                    raise UserError(f"{key} holds {token!r}, but the vocabulary's ids are 0 … {vocabulary - 1}")
    options = decode_fields(generation)
    lists = {name: list(value) for name, value in options.items() if isinstance(value, tuple)}
    build(DecodeOptions, options | lists, "", lambda _: path)


def of_config(config: Json) -> Json:
    """The same settings from the config.json of older folders."""
    return {key: config[key] for key in LEGACY if key in config}
