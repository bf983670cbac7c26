"""The model card (README.md): what a folder contains, how it was trained, how to open it, and its limitations."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from regard.config.recipe import Recipe
from regard.data.processor import Processor
from regard.interop.heads import MEAN_NOTE, MEAN_POOLED, UNPUBLISHED_NOTE, head_of, is_unpublished
from regard.interop.layout import PRETRAINING, TEACHER
from regard.interop.native import PREFIX
from regard.layers.inputs import AudioBatch, Batch, ImageBatch, TokenBatch
from regard.layers.protocols import Network
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, family_of
from regard.models.whisper import Whisper
from regard.text.vocabulary import Vocabulary

OPEN = """
Or, with transformers:

    from transformers import AutoTokenizer, {auto}
    tokenizer, model = AutoTokenizer.from_pretrained("FOLDER"), {auto}.from_pretrained("FOLDER")
    inputs = tokenizer("…", return_tensors="pt"{types})
    print({result})
"""

OPEN_CAPTIONER = """
Or, with transformers:

    from PIL import Image
    from transformers import AutoImageProcessor, AutoTokenizer, {auto}
    processor, tokenizer = AutoImageProcessor.from_pretrained("FOLDER"), AutoTokenizer.from_pretrained("FOLDER")
    model = {auto}.from_pretrained("FOLDER")
    inputs = processor(Image.open("image.jpg"), return_tensors="pt")
    print({result})
"""

OPEN_SPEECH = """
Or, with transformers (`samples` at 16 kHz):

    from transformers import AutoFeatureExtractor, AutoTokenizer, AutoModelForSpeechSeq2Seq
    processor, tokenizer = AutoFeatureExtractor.from_pretrained("FOLDER"), AutoTokenizer.from_pretrained("FOLDER")
    model = AutoModelForSpeechSeq2Seq.from_pretrained("FOLDER")
    inputs = processor(samples, sampling_rate=16000, return_tensors="pt")
    print({result})
"""

OPEN_IMAGES = """
Or, with transformers:

    from PIL import Image
    from transformers import AutoImageProcessor, {auto}
    processor, model = AutoImageProcessor.from_pretrained("FOLDER"), {auto}.from_pretrained("FOLDER")
    inputs = processor(Image.open("image.jpg"), return_tensors="pt")
    print({result})
"""

GENERATED = "tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0], skip_special_tokens=True)"

PREDICTED = {
    "single_label": "model.config.id2label[int(model(**inputs).logits.argmax())]",
    "multi_label": "[model.config.id2label[i] for i in (model(**inputs).logits[0] >= 0).nonzero()[:, 0].tolist()]",
    "regression": "float(model(**inputs).logits[0, 0])",
}


class TaskCard(NamedTuple):
    """What the cards of all models of a task say."""

    kind: str
    pipeline_tag: str  # of the Hugging Face Hub
    auto_class: str  # of transformers
    limitation: str


TASK_CARDS = {
    "translate": TaskCard("Sequence-to-sequence model", "translation", "MarianMTModel",
                          "Outputs may be wrong or incomplete; nothing compares them with the source."),
    "generate": TaskCard("Causal language model", "text-generation", "AutoModelForCausalLM",
                         "Generated text may be false or offensive."),
    "classify": TaskCard("Text classifier", "text-classification", "AutoModelForSequenceClassification",
                         "Probabilities are not calibrated."),
    "fill": TaskCard("Masked language model", "fill-mask", "AutoModelForMaskedLM",
                     "Probabilities are not calibrated."),
    "tag": TaskCard("Token classifier", "token-classification", "AutoModelForTokenClassification",
                    "Probabilities are not calibrated; only the labels above are predicted."),
    "answer": TaskCard("Extractive question-answering model", "question-answering", "AutoModelForQuestionAnswering",
                       "An answer is always a span of the context, which need not answer the question."),
    "embed": TaskCard("Encoder", "feature-extraction", "AutoModel",
                      "Similarities of its vectors are relative: choose thresholds on your own data."),
}  # fmt: skip

IMAGE_CARDS = {
    "caption": TaskCard("Image captioning model", "image-to-text", "VisionEncoderDecoderModel",
                        "Captions may name what is not in the image."),
    "classify": TaskCard("Image classifier", "image-classification", "AutoModelForImageClassification",
                         "Probabilities are not calibrated."),
    "embed": TaskCard("Image encoder", "image-feature-extraction", "AutoModel",
                      "Similarities of its vectors are relative: choose thresholds on your own data."),
}  # fmt: skip

AUDIO_CARDS = {
    "transcribe": TaskCard("Speech recognition model", "automatic-speech-recognition", "AutoModelForCTC",
                           "Transcripts may be wrong, and may contain words that nobody said."),
    "classify": TaskCard("Audio classifier", "audio-classification", "AutoModelForAudioClassification",
                         "Probabilities are not calibrated."),
    "embed": TaskCard("Audio encoder", "feature-extraction", "AutoModel",
                      "Similarities of its vectors are relative: choose thresholds on your own data."),
}  # fmt: skip

MODALITY_CARDS: dict[type[Batch], dict[str, TaskCard]] = {
    TokenBatch: TASK_CARDS,
    ImageBatch: IMAGE_CARDS,
    AudioBatch: AUDIO_CARDS,
}
EXAMPLES: dict[type[Batch], str] = {TokenBatch: '"…"', ImageBatch: '"image.jpg"', AudioBatch: '"speech.wav"'}

MAX_LABELS = 20  # that are listed


class Training(NamedTuple):
    """How a model was trained: its recipe, and its metrics on the validation data at some step."""

    recipe: Recipe
    step: int = 0
    metrics: Mapping[str, float] = {}


def card_of(
    network: Network, processor: Processor, model_type: str, base: str = "", training: Training | None = None
) -> str:
    """The text of README.md; that of an adapter names its base model."""
    card = MODALITY_CARDS[network.input_type][network.task]
    parameters = sum(parameter.numel() for parameter in network.parameters())
    decoding = "" if FAMILIES[family_of(network)].is_encoder else " Decoding options: `generation_config.json`."
    verb = "embed" if network.task == "embed" else "run"
    inputs = '{"question": "…", "context": "…"}' if network.task == "answer" else EXAMPLES[network.input_type]
    limit = _limit(network)
    adapter = f"\nThis folder has only the LoRA adapter (PEFT layout) of the base model `{base}`." if base else ""
    metrics = "".join(f"\n- {name}" for name in training.metrics if name != "loss") if training else ""
    metrics = f"\nmetrics:{metrics}" if metrics else ""
    return f"""---
library_name: regard
pipeline_tag: {card.pipeline_tag}{metrics}
---

# {type(network).__name__} ({model_type})

{card.kind}, {parameters:,} parameters{_sizes(network, processor)}.
Architecture: `config.json`.{decoding}{adapter}
{_training(training) if training else ""}
    import regard
    model = regard.load("FOLDER")
    print(model.{verb}({inputs}))
    model.trace({inputs}).explore()          # the attention weights of every head
{"" if base else _with_transformers(network, processor, model_type)}
## Limitations

{card.limitation} {limit}
The model has learned what is in its training data, biases included.
"""


def _limit(network: Network) -> str:
    if network.input_type is TokenBatch:
        return f"At most {network.max_positions:,} tokens at once."
    if network.input_type is AudioBatch:
        return "Recordings are resampled to the rate in `preprocessor_config.json`."
    config = getattr(network.config, "encoder", network.config)
    return "Images are resized to {} × {} pixels.".format(*config.image_shape)


def _sizes(network: Network, processor: Processor) -> str:
    sizes = [] if processor.target is None else [f"vocabulary {processor.target.size:,}"]
    if isinstance(processor, Vocabulary) and network.task == "translate":
        separate = f"vocabulary {processor.source.size:,} (source) and {processor.target.size:,} (target)"
        sizes = [f"{sizes[0]} (source and target)" if processor.joint else separate]
    labels = getattr(network, "labels", ()) if network.task in ("classify", "tag") else ()
    more = f", … ({len(labels)} labels)" if len(labels) > MAX_LABELS else ""
    sizes += [f"labels: {', '.join(labels[:MAX_LABELS])}{more}"] if labels else []
    return "".join(f", {size}" for size in sizes)


def _training(training: Training) -> str:
    recipe, step, metrics = training
    data = f"synthetic ({recipe.data.synthetic})" if recipe.data.synthetic else f"`{_public(str(recipe.data.train))}`"
    base = recipe.model.get("from")
    lines = [
        f"Base model: `{_public(base)}`" if base else "Trained from random initialisation",
        f"Training data: {data}",
        f"Distilled from: `{_public(recipe.distil.teacher)}`" if recipe.distil.teacher else "",
        f"Validation at step {step:,}: {', '.join(f'{key} {value:.4g}' for key, value in metrics.items())}"
        if metrics
        else "",
    ]
    return "\n## Training\n\n" + "".join(f"- {line}\n" for line in lines if line) + "\n## Use\n"


def _public(path: str) -> str:
    """A path for a published card: an absolute one without its parents, which name folders of this machine.

    A model of an installed package has the package's name.
    """
    folders = Path(path).parts
    if "site-packages" in folders[:-1]:
        return folders[folders.index("site-packages") + 1].replace("_", "-")
    return Path(path).name if Path(path).is_absolute() else path


def _image_class(network: Network) -> str:
    """The class of transformers that opens an image encoder with its head."""
    head = head_of(network)
    return "DeiTForImageClassificationWithTeacher" if head == TEACHER else IMAGE_CARDS[network.task].auto_class


def transformers_problem(network: Network, processor: Processor, model_type: str) -> str:
    """Why transformers cannot open what is saved, as a message; "" if it can."""
    if model_type.startswith(PREFIX):
        return f"transformers cannot open this checkpoint: model_type '{model_type}' exists only in regard"
    if is_unpublished(network):
        return f"{UNPUBLISHED_NOTE}; {MEAN_NOTE}" if head_of(network) == MEAN_POOLED else UNPUBLISHED_NOTE
    if isinstance(processor, Vocabulary) and network.task == "translate" and not processor.joint:
        return "transformers cannot open this checkpoint: it has separate tokenizers for source and target"
    return ""


def _with_transformers(network: Network, processor: Processor, model_type: str) -> str:
    """How transformers opens the same folder, or why it cannot."""
    if problem := transformers_problem(network, processor, model_type):
        return f"\nNote: {problem}.\n"
    if network.task == "caption":
        return OPEN_CAPTIONER.format(auto=IMAGE_CARDS["caption"].auto_class, result=GENERATED)
    if isinstance(network, Whisper):
        return OPEN_SPEECH.format(result=GENERATED)
    if network.input_type is ImageBatch:
        result = PREDICTED[network.problem_type] if isinstance(network, Classifier) else "model(**inputs)"
        return OPEN_IMAGES.format(auto=_image_class(network), result=result)
    task = network.task
    auto = "AutoModelForPreTraining" if head_of(network) == PRETRAINING else TASK_CARDS[task].auto_class
    result = GENERATED if task in ("translate", "generate") else "model(**inputs)"
    result = PREDICTED[network.problem_type] if isinstance(network, Classifier) else result
    types = "" if getattr(network.config, "token_types", 0) else ", return_token_type_ids=False"
    return OPEN.format(auto=auto, types=types, result=result)
