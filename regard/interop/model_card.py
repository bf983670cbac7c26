"""The model card: what a folder contains and how to open it."""

from typing import Any

from regard.interop.heads import head_of, is_unpublished
from regard.interop.layout import PRETRAINING
from regard.interop.native import PREFIX
from regard.models.registry import FAMILIES, family_of
from regard.text.vocabulary import Vocabulary

OPEN = """
Or, with transformers:

    from transformers import AutoTokenizer, {auto}
    tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), {auto}.from_pretrained("FOLDER")
    inputs = tokenizer("…", return_tensors="pt"{types})
    print({result})
"""

GENERATED = "tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0], skip_special_tokens=True)"

PREDICTED = {
    "single_label": "model.config.id2label[int(model(**inputs).logits.argmax())]",
    "multi_label": "[model.config.id2label[i] for i in (model(**inputs).logits[0] >= 0).nonzero()[:, 0].tolist()]",
    "regression": "float(model(**inputs).logits[0, 0])",
}

KINDS = {
    "translate": "A sequence-to-sequence model",
    "generate": "A language model",
    "classify": "A text classifier",
    "fill": "A masked language model",
    "tag": "A token classifier",
    "answer": "An extractive question-answering model",
    "embed": "An encoder",
}

AUTO_CLASSES = {
    "translate": "MarianMTModel",
    "generate": "AutoModelForCausalLM",
    "classify": "AutoModelForSequenceClassification",
    "fill": "AutoModelForMaskedLM",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "embed": "AutoModel",
}


def card_of(network: Any, vocabulary: Vocabulary, config: dict[str, Any], base: str = "") -> str:
    """A short README.md: what the model is, its size, how to open it; an adapter's names its base model."""
    task = network.task
    parameters = sum(parameter.numel() for parameter in network.parameters())
    sizes = f"{vocabulary.target.size:,} tokens"
    if task == "translate" and vocabulary.joint:
        sizes += " for both sides"
    elif task == "translate":
        sizes = f"{vocabulary.source.size:,} source and {vocabulary.target.size:,} target tokens"
    elif task == "classify":
        sizes += f", {len(network.labels)} labels"
    if base:
        sizes += f".\nThis folder has only what was added to the weights of `{base}` (LoRA, in the layout of PEFT)"
    is_encoder = FAMILIES[family_of(network)].is_encoder
    decoding = "" if is_encoder else ", its decoding options in `generation_config.json`"
    verb = "embed" if task == "embed" else "run"
    inputs = '{"question": "…", "context": "…"}' if task == "answer" else '"…"'
    return f"""---
library_name: regard
---

# {type(network).__name__} ({config["model_type"]})

{KINDS[task]} with {parameters:,} parameters; {sizes}.
Its architecture is in `config.json`{decoding}.

    import regard
    model = regard.load("FOLDER")
    print(model.{verb}({inputs}))
    model.trace({inputs}).explore()          # the attention weights of every head
{"" if base else _with_transformers(network, vocabulary, config)}"""


def _with_transformers(network: Any, vocabulary: Vocabulary, config: dict[str, Any]) -> str:
    """How transformers opens the same folder, if it can."""
    task = network.task
    if config["model_type"].startswith(PREFIX) or is_unpublished(network):
        return ""
    if task == "translate" and not vocabulary.joint:
        return ""  # transformers has no second tokenizer.json
    auto = "AutoModelForPreTraining" if head_of(network) == PRETRAINING else AUTO_CLASSES[task]
    result = GENERATED if task in ("translate", "generate") else "model(**inputs)"
    result = PREDICTED[network.problem_type] if task == "classify" else result
    types = "" if getattr(network.config, "token_types", 0) else ", return_token_type_ids=False"
    return OPEN.format(auto=auto, types=types, result=result)
