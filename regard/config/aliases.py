"""Names of recipe keys that were renamed, and the names that other tools use for the same options."""

from collections.abc import Mapping
from typing import Any

OLD_KEYS = {
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

BY_FAMILY = {
    "bytenet": {"stretch": "stretch"},  # another option of the same name
    "deberta": {"reach": "max_relative_positions"},
}

OLD_VALUES = {"context": {"first": "none", "every": "last"}}
"""Values of [model] that were renamed, by their new key."""

OLD_TARGETS = {"widen": "up", "narrow": "down"}
"""Words of model.lora_targets that were renamed."""

OTHER_TOOLS = {
    "hidden_size": "width", "d_model": "width", "n_embd": "width",
    "num_hidden_layers": "depth", "n_layer": "depth", "num_layers": "depth",
    "num_attention_heads": "heads", "n_head": "heads", "num_key_value_heads": "key_heads", "head_dim": "head_width",
    "intermediate_size": "feedforward", "n_inner": "feedforward", "d_ff": "feedforward",
    "max_position_embeddings": "max_positions", "n_positions": "max_positions", "block_size": "max_positions",
    "hidden_act": "activation", "activation_function": "activation", "hidden_dropout_prob": "dropout",
    "layer_norm_eps": "epsilon", "rms_norm_eps": "epsilon", "tie_word_embeddings": "tied",
    "type_vocab_size": "token_types", "embedding_size": "embedding_width",
    "num_hidden_groups": "hidden_groups", "inner_group_num": "inner_group_size",
    "lora_r": "lora_rank",
}  # fmt: skip
"""Keys of [model] in other tools: Hugging Face's and nanoGPT's."""


def current_model_keys(
    model: Mapping[str, Any], family: str = "", others: Mapping[str, str] = OTHER_TOOLS
) -> dict[str, Any]:
    """A [model] table under the present names of its keys; of a key given under two names, the later one counts."""
    renamed = {old.removeprefix("model."): new.removeprefix("model.") for old, new in OLD_KEYS.items()}
    renamed |= {**others} | BY_FAMILY.get(family or str(model.get("family")), {})
    table = {}
    for key, value in model.items():
        name = renamed.get(key, key)
        if isinstance(value, str):
            value = OLD_VALUES.get(name, {}).get(value, value)
        if name == "lora_targets" and isinstance(value, str):
            value = " ".join(OLD_TARGETS.get(word, word) for word in value.split())
        table[name] = value
    return table
