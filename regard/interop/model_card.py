"""The model card: what a folder holds and how to open it."""

from typing import Any

from torch import nn

from regard.interop.native import PREFIX
from regard.layers.autoregressive import CausalLM
from regard.layers.encoder import Encoder
from regard.models.heads.base import Head
from regard.models.heads.mlm import MaskedLM, Pretraining
from regard.models.heads.sequence import Classifier
from regard.models.heads.span import SpanClassifier
from regard.models.heads.token import TokenClassifier
from regard.text.vocabulary import Vocabulary

TRANSLATOR = """
Or, with transformers:

    from transformers import AutoTokenizer, MarianMTModel
    tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), MarianMTModel.from_pretrained("FOLDER")
    inputs = tokenizer("…", return_tensors="pt", return_token_type_ids=False)
    print(tokenizer.decode(model.generate(**inputs, max_new_tokens=128)[0], skip_special_tokens=True))
"""

CONTINUER = """
Or, with transformers:

    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), AutoModelForCausalLM.from_pretrained("FOLDER")
    inputs = tokenizer("…", return_tensors="pt", return_token_type_ids=False)
    print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0], skip_special_tokens=True))
"""

LABELLER = """
Or, with transformers:

    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    model = AutoModelForSequenceClassification.from_pretrained("FOLDER")
    inputs = tokenizer("…", return_tensors="pt", return_token_type_ids=False)
    print({told})
"""

TOLD = {
    "one": "model.config.id2label[int(model(**inputs).logits.argmax())]",
    "several": "[model.config.id2label[label] for label in (model(**inputs).logits[0] >= 0).nonzero()[:, 0].tolist()]",
    "number": "float(model(**inputs).logits[0, 0])",
}

ENCODER = """
Or, with transformers:

    from transformers import AutoTokenizer, {auto}
    tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), {auto}.from_pretrained("FOLDER")
    print(model(**tokenizer("…", return_tensors="pt"{types})))
"""

AUTOS = {
    MaskedLM: "AutoModelForMaskedLM",
    Pretraining: "AutoModelForPreTraining",
    TokenClassifier: "AutoModelForTokenClassification",
    SpanClassifier: "AutoModelForQuestionAnswering",
}


def card_of(network: nn.Module, vocabulary: Vocabulary, config: dict[str, Any], base: str = "") -> str:
    """A short README.md: what it is, how large, how to open it; an adapter's names its base."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    known = not config["model_type"].startswith(PREFIX)
    if isinstance(network, CausalLM):
        kind, sides = "A language model", f"{vocabulary.target.size:,} tokens"
        elsewhere = CONTINUER if known else ""
    elif isinstance(network, Classifier):
        kind, sides = "A model that tells labels", f"{vocabulary.target.size:,} tokens, {len(network.labels)} labels"
        published = known and type(network) is Classifier and not network.averaged
        elsewhere = LABELLER.format(told=TOLD[network.kind]) if published else ""
    elif isinstance(network, Encoder | Head):
        kind, sides = "An encoder", f"{vocabulary.target.size:,} tokens"
        types = "" if network.config.segments else ", return_token_type_ids=False"
        auto = AUTOS.get(type(network), "AutoModel")  # type: ignore[arg-type]
        elsewhere = ENCODER.format(auto=auto, types=types) if known else ""
    else:
        kind, sides = "A sequence-to-sequence model", f"{vocabulary.source.size:,} tokens for both sides"
        if not vocabulary.joint:
            sides = f"{vocabulary.source.size:,} source and {vocabulary.target.size:,} target tokens"
        elsewhere = TRANSLATOR if known and vocabulary.joint else ""  # transformers knows no second tokenizer.json
    reads = isinstance(getattr(network, "body", network), Encoder)
    decodes = "" if reads else ", how it decodes in `generation_config.json`"
    verb = "embed" if isinstance(network, Encoder) else "run"
    given = '{"question": "…", "context": "…"}' if isinstance(network, SpanClassifier) else '"…"'
    if base:
        elsewhere = ""  # others open it with PEFT alone
        sides += f".\nHere is only what was added to the weights of `{base}` (LoRA, in PEFT's layout)"
    return f"""---
library_name: regard
---

# {type(network).__name__} ({config["model_type"]})

{kind} with {parameters:,} parameters; {sides}.
Its shape is in `config.json`{decodes}.

    import regard
    model = regard.load("FOLDER")
    print(model.{verb}({given}))
    model.trace({given}).explore()          # what every head looked at
{elsewhere}"""
