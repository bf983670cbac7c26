"""What `regard.load` returns: one object that runs, generates, embeds, traces and saves."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.trace import Trace
from regard.config.recipe import DecodeOptions, Recipe
from regard.decoding.options import WAYS, accepted
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.speculative import DraftModel, DraftProposer, PromptLookup
from regard.errors import UserError, nearest
from regard.interop import folder as folders
from regard.interop.generation_config import decode_fields
from regard.interop.hf_module import HFModule
from regard.interop.sentence_transformers import POOLINGS, Pooling, pooling_of, write_pooling
from regard.layers.protocols import CausalLM
from regard.models.heads.sequence import Classifier
from regard.models.registry import FAMILIES, family_of
from regard.runtime.device import choose_device
from regard.runtime.machine import use_huge_pages
from regard.runtime.optimize import optimize_for_inference
from regard.tasks.answer.predict import asked, look_for
from regard.tasks.classify.dataset import PairEncoder
from regard.tasks.classify.predict import apart, look_over, read_rows
from regard.tasks.embed.predict import BATCH, Read, embed, look_at, read_texts
from regard.tasks.generate.predict import GenerationStream, Writer
from regard.tasks.generate.tracing import look_back
from regard.tasks.running import RUNNERS, is_one
from regard.tasks.translate.alignment import look
from regard.tasks.translate.predict import generate, read
from regard.text.vocabulary import Vocabulary
from regard.training.run_folder import find_model, open_run

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}  # int8: of the weights
LARGE = 1 << 26  # bytes of weights: more than caches hold


@dataclass
class Model:
    """A network with its vocabulary and its way of decoding."""

    network: Any
    vocabulary: Vocabulary
    generation: dict[str, Any]
    config: dict[str, Any]
    recipe: Recipe | None = None
    folder: Path | None = None
    precision: str = "float32"
    pooling: Pooling | None = None  # how its folder makes one vector of a text, if it says

    @property
    def task(self) -> str:
        """The task it was trained for, else the one its network declares."""
        return self.network.task if self.recipe is None else self.recipe.task

    @property
    def is_causal_lm(self) -> bool:
        """Whether it goes on with a text, as a language model does."""
        return isinstance(self.network, CausalLM)

    @property
    def is_encoder(self) -> bool:
        """Whether it reads texts and writes none, as BERT does."""
        return FAMILIES[family_of(self.network)].is_encoder

    @property
    def is_classifier(self) -> bool:
        """Whether it says what a text is called."""
        return isinstance(self.network, Classifier)

    def run(self, inputs: str | Mapping[str, str] | Sequence[Any], *, task: str = "", **options: Any) -> Any:
        """An answer to one text, or a list of answers to a list. Options are the words of a recipe's [decode]."""
        task = task or self.task
        if task not in (self.task, "embed"):
            raise UserError(f"this model cannot '{task}'; possible: {', '.join(dict.fromkeys((self.task, 'embed')))}")
        if not isinstance(inputs, Iterable):
            raise UserError(f"inputs should be a text or a list of them, not {inputs!r:.60}")
        alone = is_one(inputs, task)
        texts = [inputs] if alone else list(inputs)
        ways = {name: options.pop(name) for name in WAYS if name in options}
        if type(size := ways.get("batch_size", 1)) is not int or size < 1:
            raise UserError(f"batch_size = {size!r} should be a whole number of at least 1")
        answers = RUNNERS[task](self, texts, ways, options)
        return answers[0] if alone else answers

    @property
    def texts(self) -> PairEncoder:
        """Texts as a network that tells labels reads them."""
        return PairEncoder(self.vocabulary.target, bool(self.network.paired))

    def stream(
        self, prompt: str | Sequence[int], *, truncate: bool = False, recall: PrefixCache | None = None, **options: Any
    ) -> GenerationStream:
        """A continuation while it is written: iterate for its text, piece by piece; then it has an `answer`.

        `recall` remembers the text from one call to the next: what both have in common is read once.
        """
        self._only("stream", is_causal_lm=True)
        writer = self.writer()
        if isinstance(prompt, str):
            (row,) = writer.prompts([prompt], truncate)
        else:
            row = writer.row(self._checked(prompt), truncate)
        return GenerationStream(writer, row, self.decoding(**options), recall)

    def writer(self, draft: "Model | str | Path | None" = None, lookup: bool = False) -> Writer:
        """The language model at work; a smaller `draft`, or a look into the prompt, may guess ahead of it."""
        self._only("continue texts", is_causal_lm=True)
        if lookup and draft is not None:
            raise UserError("a draft model and a look into the prompt cannot both guess: give one of draft and lookup")
        if self.precision == "int8" and (lookup or draft is not None):
            raise UserError(
                "in int8 one row and several are rounded differently, so guessing ahead would change answers: "
                "load the model in float32, or the draft alone in int8"
            )
        guess: Callable[[], DraftProposer] | None = PromptLookup if lookup else None
        if draft is not None:
            smaller = draft if isinstance(draft, Model) else load(draft, device=str(self.device))
            self._require_same_tokens(smaller)
            guess = partial(DraftModel, smaller.network, self.device)
        return Writer(self.network, self.vocabulary.target, self.ends, guess)

    def _require_same_tokens(self, draft: "Model") -> None:
        if not draft.is_causal_lm or draft.vocabulary.target.table != self.vocabulary.target.table:
            raise UserError("a draft must be a language model with the same tokens as the model it guesses for")

    def generate(self, ids: Any, **options: Any) -> Any:
        """New ids for prompt ids, or for an encoder–decoder's source ids; nested as given, without the end."""
        if self.is_classifier or self.is_encoder:
            raise UserError(f"this model cannot generate: it was made to {self.task}")
        rows = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids
        if not isinstance(rows, Sequence) or isinstance(rows, str):
            raise UserError(f"ids should be a list of whole numbers, or of such lists, not {ids!r}")
        single = not rows or isinstance(rows[0], int | np.integer)
        rows = [self._checked(row) for row in ([rows] if single else rows)]
        if self.is_causal_lm:
            writer = self.writer(options.pop("draft", None), options.pop("lookup", False))
            found = writer.search_all(rows, self.decoding(**options))
        else:
            rows = [self._source_ids(row) for row in rows]
            found = generate(self.network, self.vocabulary, rows, self.decoding(**options))
        new = [best.tokens for best, *_ in found]
        return new[0] if single else new

    def _checked(self, row: Any) -> list[int]:
        """Ids of the vocabulary."""
        size = self.rows
        row = list(row) if isinstance(row, Sequence | np.ndarray) and not isinstance(row, str) else [row]
        for token in row:
            if isinstance(token, bool) or not isinstance(token, int | np.integer):
                raise UserError(f"ids should be whole numbers, or lists of them, not {token!r}")
            if not 0 <= token < size:
                raise UserError(f"id {token} is not in the vocabulary of {size} tokens")
        return [int(token) for token in row]

    @property
    def rows(self) -> int:
        """How many tokens the network knows: of its source, if it has one."""
        config = self.network.config
        return config.source_vocabulary if FAMILIES[family_of(self.network)].is_encoder_decoder else config.vocabulary

    def _source_ids(self, row: list[int]) -> list[int]:
        """Ids as the network is given them, without their end."""
        row = row[:-1] if row and row[-1] == self.vocabulary.source.end else row
        if len(row) >= self.network.max_positions:
            raise UserError(f"{len(row)} ids are more than the {self.network.max_positions - 1} that the model reads")
        return row

    def embed(
        self,
        texts: str | Sequence[Any],
        batch_size: int = BATCH,
        truncate: bool = False,
        pooling: str = "",
        normalise: bool | None = None,
    ) -> np.ndarray:
        """One vector for each text: float32 (texts, width), or (width,) for one text.

        Its states become one as its folder says or as is said here, else they are averaged.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        vectors = self.vectors(self.readings(given, truncate), batch_size, pooling, normalise)
        return vectors[0] if isinstance(texts, str) else vectors

    def vectors(
        self,
        rows: Sequence[Read],
        batch_size: int = BATCH,
        pooling: str = "",
        normalise: bool | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> np.ndarray:
        """The same of texts as the network is given them."""
        if pooling and pooling not in POOLINGS:
            raise UserError(f"pooling = '{pooling}' is unknown{nearest(pooling, POOLINGS)}")
        said = self.pooling or Pooling()
        how = said._replace(kind=pooling or said.kind, normalise=said.normalise if normalise is None else normalise)
        return embed(self.network, rows, how, batch_size, progress)

    def readings(self, texts: list[Any], truncate: bool = False) -> list[Read]:
        """Texts as the network is given them."""
        if self.is_encoder:
            texts = [apart(text, self.network.paired if self.is_classifier else False) for text in texts]
            limit = (
                min(self.network.max_positions, self.pooling.max_length if self.pooling else 0)
                or self.network.max_positions
            )
            return read_texts(self.vocabulary.target, texts, limit, truncate)
        if self.is_causal_lm:
            return [Read(row.tokens, [], row.truncated) for row in self.writer().prompts(texts, truncate)]
        if self.is_classifier:
            return [Read(row.tokens, [], row.truncated) for row in read_rows(self.network, self.texts, texts, truncate)]
        end = [self.vocabulary.source.end]
        rows = read(self.network, self.vocabulary, texts, truncate)
        return [Read(row.tokens + end, [], row.truncated) for row in rows]

    def trace(self, text: str, target: str | None = None, prove: bool = False, **options: Any) -> Trace:
        """What is attended to while `target`, or the model's own answer, is written: one pass over all of it."""
        truncate = options.pop("truncate", False)
        if self.task == "answer":
            ask = asked(text, 1, options.pop("context", None))
            return look_for(self.network, self.vocabulary.target, ask, truncate, prove)
        if self.is_encoder:
            (reading,) = self.readings([text], truncate)
            return look_at(self.network, self.vocabulary.target, reading, prove)
        if self.is_causal_lm:
            return self._trace_back(text, target, prove, truncate, options)
        if self.is_classifier:
            ((row, _),) = read_rows(self.network, self.texts, [text], truncate)
            return look_over(self.network, self.vocabulary.target, row, prove)
        ((row, _),) = read(self.network, self.vocabulary, [text], truncate)
        if target is None:
            answer = generate(self.network, self.vocabulary, [row], self.decoding(**options))[0][0].tokens
        else:
            answer = self.vocabulary.target.encode(target)
        if len(answer) >= self.network.max_positions:
            raise UserError(
                f"the target has {len(answer)} tokens, the model writes at most {self.network.max_positions - 1}"
            )
        return look(self.network, self.vocabulary, row, answer, prove)

    def _trace_back(self, text: str, target: str | None, prove: bool, truncate: bool, options: dict[str, Any]) -> Trace:
        """Of a language model: over the prompt and what follows it."""
        writer, tokenizer = self.writer(), self.vocabulary.target
        ((prompt, _),) = writer.prompts([text], truncate)
        if target is None:
            answer = writer.search([prompt], self.decoding(**options))[0][0].tokens
        else:
            answer = tokenizer.prompt(text + target)[len(prompt) :]
        if len(prompt) + len(answer) > self.network.max_positions:
            raise UserError(
                f"prompt and answer have {len(prompt) + len(answer)} tokens, the model sees at most "
                f"{self.network.max_positions} at once: ask for fewer max_new_tokens"
            )
        return look_back(self.network, tokenizer, prompt, answer, prove)

    def save(self, folder: str | Path) -> None:
        """A folder of Hugging Face's shape: config, weights, tokenizer, card."""
        if self.precision == "int8":
            raise UserError("weights of eight bits are not saved: load the model in float32 and save that")
        folders.save(Path(folder), self.network, self.vocabulary, self.generation, config=self.config)
        if self.pooling is not None:
            write_pooling(Path(folder), self.pooling, self.network.config.width)

    @cached_property
    def module(self) -> HFModule:
        """The network as a torch module with the call signature of transformers."""
        return HFModule(self.network)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end an answer: the tokenizer's, and those that the checkpoint names beside it."""
        named = self.generation.get("eos_token_id", self.config.get("eos_token_id"))
        named = [named] if isinstance(named, int) else named or []
        return tuple(dict.fromkeys(each for each in (self.vocabulary.target.end, *named) if 0 <= each < self.rows))

    def decoding(self, **options: Any) -> DecodeOptions:
        """The checkpoint's own way of decoding, with what is given laid over it."""
        found = DecodeOptions(**(decode_fields(self.generation, self.is_causal_lm) | accepted(options)))
        if found.stop and not self.is_causal_lm:
            raise UserError(f"stop = {list(found.stop)}: only the answers of a language model end at a text")
        for name, tokens in (("logit_bias", found.logit_bias), ("suppress_tokens", found.suppress_tokens)):
            if wrong := [token for token in tokens if not 0 <= int(token) < self.rows]:
                raise UserError(f"{name}: id {wrong[0]} is not in the vocabulary of {self.rows} tokens")
        return found

    def _only(self, deed: str, is_causal_lm: bool) -> None:
        if self.is_causal_lm != is_causal_lm:
            raise UserError(f"this model cannot {deed}: it was made to {self.task}")


def load(path: str | Path, *, device: str = "auto", precision: str = "float32", model_type: str | None = None) -> Model:
    """A run folder (its best checkpoint), a checkpoint folder, or a Hugging Face folder.

    A `model_type` such as "bert" is for a config.json that says none.
    """
    if precision not in PRECISIONS:
        raise UserError(f"precision = '{precision}' is unknown{nearest(precision, PRECISIONS)}")
    folder, run, refused = find_model(path)
    for reason in refused:
        print(f"warning: {reason}; {folder.name} is used instead", file=sys.stderr)
    recipe = open_run(run) if run else None
    loaded = folders.load(folder, model_type=model_type)
    where = choose_device(device)
    if precision == "int8" and where.type != "cpu":
        raise UserError(f"precision = 'int8' is for CPUs, not for '{where}': take bfloat16 there, or device = 'cpu'")
    loaded_bytes = sum(parameter.nbytes for parameter in loaded.network.parameters())
    network: nn.Module = loaded.network.to(where, PRECISIONS[precision]).eval()
    if where.type == "cpu" and precision != "bfloat16":
        network = optimize_for_inference(network, precision)
        if loaded_bytes >= LARGE:
            use_huge_pages()
    pooling = pooling_of(folder)
    return Model(network, loaded.vocabulary, loaded.generation, loaded.config, recipe, folder, precision, pooling)
