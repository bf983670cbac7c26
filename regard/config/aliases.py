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

OTHER_NAMES = {  # present key: Hugging Face's, nanoGPT's, JoeyNMT's and OpenAI's names of it
    "data.train": "train_file",
    "data.validation": "validation_file",
    "data.test": "test_file",
    "data.max_length": "max_seq_length",
    "data.stride": "doc_stride",
    "data.mask_probability": "mlm_probability",
    "tokenizer.lowercase": "do_lower_case",
    "model.width": "hidden_size d_model n_embd",
    "model.depth": "num_hidden_layers n_layer num_layers",
    "model.heads": "num_attention_heads n_head",
    "model.key_heads": "num_key_value_heads",
    "model.head_width": "head_dim",
    "model.feedforward": "intermediate_size n_inner d_ff",
    "model.max_positions": "max_position_embeddings n_positions block_size",
    "model.activation": "hidden_act activation_function",
    "model.dropout": "hidden_dropout_prob",
    "model.epsilon": "layer_norm_eps rms_norm_eps",
    "model.tied": "tie_word_embeddings",
    "model.token_types": "type_vocab_size",
    "model.embedding_width": "embedding_size",
    "model.hidden_groups": "num_hidden_groups",
    "model.inner_group_size": "inner_group_num",
    "model.patch": "patch_size",
    "model.channels": "num_channels",
    "model.drop_path": "drop_path_rate",
    "model.lora_rank": "lora_r",
    "train.learning_rate": "lr",
    "train.epochs": "num_train_epochs",
    "train.max_steps": "max_iters",
    "train.batch_size": "per_device_train_batch_size",
    "train.schedule": "lr_scheduler_type",
    "train.label_smoothing": "label_smoothing_factor",
    "train.max_grad_norm": "grad_clip",
    "train.score": "metric_for_best_model",
    "train.keep": "save_total_limit",
    "train.log_steps": "logging_steps",
    "train.patience": "early_stopping_patience",
    "decode.num_beams": "beam_size",
    "decode.max_new_tokens": "max_tokens",
    "decode.stop": "stop_sequences",
}

ALIASES = {f"{key.partition('.')[0]}.{alias}": key for key, names in OTHER_NAMES.items() for alias in names.split()}

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
    if not known:
        return f": this task has no options in [{section}]"
    renamed = {f"{section}.{option}" for option in known}
    aliases = {alias.partition(".")[2]: key for alias, key in ALIASES.items() if key in renamed}
    for close in get_close_matches(name, sorted({*known, *aliases}), n=1):
        if close not in known:
            return f"; did you mean '{aliases[close]}' (or its alias '{close}')?"
        return f"; did you mean '{f'{section}.{close}'.removeprefix('.')}'?"
    return nearest(name, known)
