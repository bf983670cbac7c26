"""Other names of recipe keys: those of earlier versions (OLD_KEYS), and those that other tools use (ALIASES).

Recipes and overrides may use any of them; the resolved recipe has the present name. Two names of one key are an error.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from regard.errors import UserError, nearest

OLD_KEYS = {
    "data.generate": "data.synthetic",
    "data.text2": "data.text_pair",
    "data.label_until": "data.label_prefix_until",
    "data.label_kind": "data.problem_type",
    "data.segment": "data.segment_length",
    "data.pairs": "data.pair_task",
    "data.masked": "data.mask_probability",
    "data.whole_words": "data.whole_word_mask",
    "train.auxiliary": "train.lm_loss_weight",
    "train.average_decay": "train.ema_decay",
    "distil.soft": "distil.kl_weight",
    "distil.hard": "distil.task_weight",
    "distil.cosine": "distil.cosine_weight",
    "model.limit": "model.max_positions",
    "model.embedding": "model.embedding_width",
    "model.inform": "model.context",
    "model.comparison": "model.score_width",
    "model.reach": "model.local_window",
    "model.base": "model.rope_theta",
    "model.stretch": "model.rope_scaling",
    "model.factor": "model.rope_factor",
    "model.trained": "model.original_max_positions",
    "model.slow": "model.low_freq_factor",
    "model.fast": "model.high_freq_factor",
    "model.pattern": "model.attention_pattern",
    "model.score_by_depth": "model.scale_by_layer",
    "model.segments": "model.token_types",
    "model.first": "model.position_offset",
    "model.groups": "model.hidden_groups",
    "model.inner": "model.inner_group_size",
    "model.to_position": "model.c2p",
    "model.to_content": "model.p2c",
    "model.buckets": "model.position_buckets",
    "model.shared": "model.share_att_key",
    "model.normed": "model.norm_rel_embeddings",
}

OLD_KEYS_BY_FAMILY = {
    "bytenet": {"model.stretch": "model.stretch"},  # another option of the same name
    "deberta": {"model.reach": "model.max_relative_positions"},
}
"""Where the meaning of an old key depends on the family."""

OLD_TARGETS = {"widen": "up", "narrow": "down"}
"""Words of model.lora_targets that were renamed."""

ALIASES = {
    "data.train_file": "data.train",
    "data.validation_file": "data.validation",
    "data.test_file": "data.test",
    "data.max_seq_length": "data.max_length",
    "data.doc_stride": "data.stride",
    "data.mlm_probability": "data.mask_probability",
    "tokenizer.do_lower_case": "tokenizer.lowercase",
    "model.hidden_size": "model.width",
    "model.d_model": "model.width",
    "model.n_embd": "model.width",
    "model.num_hidden_layers": "model.depth",
    "model.n_layer": "model.depth",
    "model.num_layers": "model.depth",
    "model.num_attention_heads": "model.heads",
    "model.n_head": "model.heads",
    "model.num_key_value_heads": "model.key_heads",
    "model.head_dim": "model.head_width",
    "model.intermediate_size": "model.feedforward",
    "model.n_inner": "model.feedforward",
    "model.d_ff": "model.feedforward",
    "model.max_position_embeddings": "model.max_positions",
    "model.n_positions": "model.max_positions",
    "model.block_size": "model.max_positions",
    "model.hidden_act": "model.activation",
    "model.activation_function": "model.activation",
    "model.hidden_dropout_prob": "model.dropout",
    "model.layer_norm_eps": "model.epsilon",
    "model.rms_norm_eps": "model.epsilon",
    "model.tie_word_embeddings": "model.tied",
    "model.type_vocab_size": "model.token_types",
    "model.embedding_size": "model.embedding_width",
    "model.num_hidden_groups": "model.hidden_groups",
    "model.inner_group_num": "model.inner_group_size",
    "model.lora_r": "model.lora_rank",
    "train.lr": "train.learning_rate",
    "train.num_train_epochs": "train.epochs",
    "train.max_iters": "train.max_steps",
    "train.per_device_train_batch_size": "train.batch_size",
    "train.lr_scheduler_type": "train.schedule",
    "train.label_smoothing_factor": "train.label_smoothing",
    "train.grad_clip": "train.max_grad_norm",
    "train.metric_for_best_model": "train.score",
    "train.save_total_limit": "train.keep",
    "train.logging_steps": "train.log_steps",
    "train.early_stopping_patience": "train.patience",
    "decode.beam_size": "decode.num_beams",
    "decode.max_tokens": "decode.max_new_tokens",
    "decode.stop_sequences": "decode.stop",
}
"""Hugging Face's, nanoGPT's, JoeyNMT's and OpenAI's names."""

VALUES: dict[str, dict[str, str]] = {
    "data.problem_type": {"one": "single_label", "several": "multi_label", "number": "regression"},
    "data.pair_task": {"next": "nsp", "order": "sop"},
    "train.score": {"squared_error": "mse"},
    "model.context": {"first": "none", "every": "last"},
    "model.activation": {"silu": "swish", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
}
"""Other names of values, by present key: of earlier versions and of other tools."""

MENTIONED = {
    "fp16": 'train.precision = "bfloat16"',
    "bf16": 'train.precision = "bfloat16"',
    "num_workers": "train.threads",
    "do_sample": "decode.temperature",
    "num_proc": "train.threads",
}
"""Keys of other tools that have no equal here, and what an error names instead."""


def canonical_key(key: str, family: str = "", aliases: Mapping[str, str] = ALIASES) -> str:
    """The present name of a dotted key."""
    return OLD_KEYS_BY_FAMILY.get(family, {}).get(key) or OLD_KEYS.get(key) or aliases.get(key, key)


def canonical_value(key: str, value: object) -> object:
    """The present name of a value, by the present name of its key."""
    if not isinstance(value, str):
        return value
    if key == "model.lora_targets":
        return " ".join(OLD_TARGETS.get(word, word) for word in value.split())
    return VALUES.get(key, {}).get(value, value)


def current_model_keys(
    model: Mapping[str, Any], family: str = "", aliases: Mapping[str, str] = ALIASES
) -> dict[str, Any]:
    """A [model] table, or the config of a checkpoint, under the present names of its keys."""
    family = family or str(model.get("family"))
    table = {}
    for name, value in model.items():
        key = canonical_key(f"model.{name}", family, aliases)
        table[key.removeprefix("model.")] = canonical_value(key, value)
    return table


def rename_keys(table: dict[str, Any], location: Callable[[str], str], family: str = "") -> dict[str, str]:
    """Give the keys of a recipe's table their present names, in place; returns the names in the file by present key.

    The family is that of the recipe's base; the table's own comes first.
    """
    written: dict[str, str] = {}
    if isinstance(model := table.get("model"), dict):
        family = str(model.get("family", family))
    for section, options in table.items():
        if not isinstance(options, dict):
            continue
        renamed = {}
        for name, value in options.items():
            key = f"{section}.{name}"
            present = canonical_key(key, family)
            if present in written:
                raise UserError(f"{location(key)}: '{key}' and '{written[present]}' are the same key: give one of them")
            written[present] = key
            renamed[present.removeprefix(f"{section}.")] = canonical_value(present, value)
        table[section] = renamed
    return {present: key for present, key in written.items() if present != key}


def suggestion(name: str, section: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown key: what another tool's key is called here, or the most similar key."""
    keys = {target for alias, target in ALIASES.items() if alias.partition(".")[2] == name}
    options = [f"'{key}'" for key in sorted(keys)] + ([MENTIONED[name]] if name in MENTIONED else [])
    if options:
        return f"; did you mean {' or '.join(options)}?"
    known = set(known)
    renamed = {f"{section}.{option}" for option in known}
    aliases = {alias.partition(".")[2]: key for alias, key in ALIASES.items() if key in renamed}
    for close in get_close_matches(name, sorted({*known, *aliases}), n=1):
        if close not in known:
            return f"; did you mean '{aliases[close]}' (or its alias '{close}')?"
    return nearest(name, known)
