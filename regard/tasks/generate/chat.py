"""A conversation with a language model: what was said, what the model is shown of it, and its next answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from regard.errors import UserError
from regard.text.chat_template import Message, Template, template_of

SPARE = 4  # this part of the context is kept for an answer whose length nobody says


class Shown(NamedTuple):
    """What the model is shown, and how much that is older is left out, in the form's own unit."""

    tokens: list[int]
    left_out: int = 0


class Form(Protocol):
    """How messages become one prompt."""

    unit: str

    def tokens(self, messages: Sequence[Message]) -> list[int]: ...

    def fit(self, messages: Sequence[Message], room: int) -> Shown:
        """The newest of the messages, in as many tokens; the system message always stays."""
        ...


class Templated:
    """As the model's chat template says. The oldest turns are left out, each a question with its answer."""

    unit = "turns"

    def __init__(self, tokenizer: Any, template: Template):
        self.tokenizer, self.template = tokenizer, template

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode(self.template.render(messages))

    def fit(self, messages: Sequence[Message], room: int) -> Shown:
        system, turns = _system(messages), list(messages[len(_system(messages)) :])
        left_out = 0
        while len(tokens := self.tokens([*system, *turns])) > room and len(turns) > 2:
            turns, left_out = turns[2:], left_out + 1
        return Shown(tokens, left_out)


class Running:
    """One running text: what is typed is appended to what was written, and the model goes on. Its head is left out."""

    unit = "tokens"

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        text = ""
        for message in messages:
            said = message["content"]
            apart = message["role"] == "assistant" or not text or text[-1].isspace() or said[:1].isspace()
            text += said if apart else "\n" + said  # what is typed begins a line
        return self.tokenizer.prompt(text)

    def fit(self, messages: Sequence[Message], room: int) -> Shown:
        tokens = self.tokens(messages)
        if len(tokens) <= room:
            return Shown(tokens)
        head = len(self.tokens(_system(messages)))  # with what stands before every text
        return Shown(tokens[:head] + tokens[len(tokens) - room + head :], len(tokens) - room)


@dataclass(frozen=True)
class Answer:
    """The model's turn. `finish` is a Continuation's, or "interrupt"; `left_out` says how much was not shown to it."""

    role: str
    content: str
    finish: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    left_out: int = 0


class Conversation:
    """What was said so far, and the model that answers; what it has read of it is not read again."""

    def __init__(self, model: Any, system: str = "", **options: Any):
        if not model.is_causal_lm:
            raise UserError(f"this model cannot chat: it was made to {model.task}")
        from regard.decoding.prefix_cache import PrefixCache  # torch

        tokenizer = model.vocabulary.target
        template = template_of(tokenizer)
        self.model, self.messages, self.prefix_cache = model, list[Message](), PrefixCache(model.network)
        self.form: Form = Running(tokenizer) if template is None else Templated(tokenizer, template)
        self.options: dict[str, Any] = {}
        self.choose(**options)
        self.system = system

    @property
    def limit(self) -> int:
        return self.model.network.max_positions

    @property
    def system(self) -> str:
        """How the model should be; the first message, where there is one."""
        return next((message["content"] for message in _system(self.messages)), "")

    @system.setter
    def system(self, text: str) -> None:
        first = [{"role": "system", "content": text}] if text else []
        self.messages = first + self.messages[len(_system(self.messages)) :]

    def choose(self, **options: Any) -> None:
        """Options of decoding, refused at once where they cannot be."""
        found = self.model.predictor("generate").decode_options(**options)
        if found.num_beams > 1 or found.num_return_sequences > 1:
            raise UserError("a chat shows one answer while it is written: num_beams = 1 and num_return_sequences = 1")
        self.options = options

    def reset(self) -> None:
        """Only the system message stays."""
        self.messages = _system(self.messages)

    def undo(self) -> bool:
        """Takes the last turn back; False where there is none."""
        first = len(_system(self.messages))
        taken = len(self.messages) - first >= 2
        self.messages = self.messages[:-2] if taken else self.messages
        return taken

    def answer(self, text: str, show: Callable[[str], None] = lambda piece: None) -> Answer:
        """The model's answer, shown while it is written. Ctrl-C ends it; what was said by then is kept."""
        asked = [*self.messages, {"role": "user", "content": text}]
        shown = self._shown(asked)
        left = self.limit - len(shown.tokens)
        wanted = self.model.predictor("generate").decode_options(**self.options)
        most = min(wanted.max_new_tokens or left, left)
        limits = {"max_new_tokens": most, "min_new_tokens": min(wanted.min_new_tokens, most)}
        writing = self.model.stream(shown.tokens, prefix_cache=self.prefix_cache, **self.options | limits)
        said, finish = "", "interrupt"
        try:
            for piece in writing:
                said += piece
                show(piece)
            finish = writing.answer.finish
        except KeyboardInterrupt:
            pass
        self.messages = [*asked, {"role": "assistant", "content": said}]
        return Answer("assistant", said, finish, tuple(writing.tokens), len(shown.tokens), shown.left_out)

    def _shown(self, asked: list[Message]) -> Shown:
        """What the model is shown: the question at least, and as much before it as leaves room for an answer."""
        least = len(self.form.tokens([*_system(asked), asked[-1]]))
        if least >= self.limit:
            raise UserError(
                f"the message comes to {least:,} tokens, but the model's context of {self.limit:,} must hold an answer "
                "too: shorten it"
            )
        spare = min(
            self.model.predictor("generate").decode_options(**self.options).max_new_tokens or self.limit // SPARE,
            self.limit // 2,
        )
        return self.form.fit(asked, max(least, self.limit - spare))


def _system(messages: Sequence[Message]) -> list[Message]:
    """The first message, if it is the system's."""
    return [message for message in messages[:1] if message["role"] == "system"]
