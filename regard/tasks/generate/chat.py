"""A conversation with a language model: its messages, the prompt made of them, and the next answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.data.files import is_text
from regard.errors import UserError
from regard.text.chat_template import Message, Template, template_of
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.tasks.predictor import LoadedModel

SPARE = 4  # 1/SPARE of the context is reserved for an answer without max_new_tokens


class ChatPrompt(NamedTuple):
    """The tokens of a prompt, and how many of the oldest turns, or of the oldest tokens, were dropped."""

    tokens: list[int]
    dropped_turns: int = 0
    dropped_tokens: int = 0


class TemplateFormat:
    """The model's chat template. The oldest turns, pairs of question and answer, are dropped first."""

    def __init__(self, tokenizer: Tokenizer, template: Template):
        self.tokenizer = tokenizer
        self.template = template

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode(self.template.render(messages))

    def fit(self, messages: Sequence[Message], max_tokens: int) -> ChatPrompt:
        """The newest messages in at most `max_tokens`; the system message always stays."""
        system = _system(messages)
        turns = list(messages[len(system) :])
        dropped = 0
        while len(tokens := self.tokens([*system, *turns])) > max_tokens and len(turns) > 2:
            turns = turns[2:]
            dropped += 1
        return ChatPrompt(tokens, dropped_turns=dropped)


class PlainFormat:
    """One text to which messages are appended, and which the model continues. The oldest tokens are dropped first."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        text = ""
        for message in messages:
            content = message["content"]
            separated = not text or text[-1].isspace() or content[:1].isspace()
            text += content if separated or message["role"] == "assistant" else "\n" + content
        return self.tokenizer.prompt(text)

    def fit(self, messages: Sequence[Message], max_tokens: int) -> ChatPrompt:
        """The newest tokens, and the system message."""
        tokens = self.tokens(messages)
        excess = len(tokens) - max_tokens
        if excess <= 0:
            return ChatPrompt(tokens)
        head = len(self.tokens(_system(messages)))  # with the tokenizer's prefix
        return ChatPrompt(tokens[:head] + tokens[head + excess :], dropped_tokens=excess)


@dataclass(frozen=True)
class Answer:
    """The model's turn. `finish_reason` and `stop_reason` are those of a Continuation, or "interrupt"."""

    role: str
    content: str
    finish_reason: str
    stop_reason: str | None
    tokens: tuple[int, ...]
    prompt_tokens: int
    dropped_turns: int = 0  # of the conversation, because the context was full
    dropped_tokens: int = 0


class Conversation:
    """The messages so far, and the model that answers; a prefix cache keeps the states of their tokens."""

    def __init__(self, model: "LoadedModel", system: str = "", **options: Any):
        if model.task != "generate":
            raise UserError(
                f"chat needs a language model (task = 'generate'), but this model's task is '{model.task}': "
                "use `regard run`"
            )
        from regard.decoding.prefix_cache import PrefixCache  # torch

        tokenizer = model.processor.target
        template = template_of(tokenizer)
        self.predictor = model.predictor("generate")
        self.limit: int = model.network.max_positions  # the context, in tokens
        self.messages: list[Message] = []
        self.prefix_cache = PrefixCache(model.network)
        self.format = TemplateFormat(tokenizer, template) if template else PlainFormat(tokenizer)
        self.options: dict[str, Any] = {}
        self.choose(**options)
        self.system = system

    @property
    def system(self) -> str:
        """The system message; empty where there is none."""
        return next((message["content"] for message in _system(self.messages)), "")

    @system.setter
    def system(self, text: str) -> None:
        first = [{"role": "system", "content": text}] if text else []
        self.messages = first + self.messages[len(_system(self.messages)) :]

    def choose(self, **options: Any) -> None:
        """Set decoding options; invalid ones are an error."""
        decode = self.predictor.decode_options(**options)
        if decode.num_beams > 1 or decode.num_return_sequences > 1:
            raise UserError("a chat streams one answer: num_beams = 1 and num_return_sequences = 1")
        self.options = options

    def reset(self) -> None:
        """Remove all messages but the system message."""
        self.messages = _system(self.messages)

    def undo(self) -> bool:
        """Remove the last turn; False where there is none."""
        if len(self.messages) - len(_system(self.messages)) < 2:
            return False
        self.messages = self.messages[:-2]
        return True

    def answer(self, text: str, show: Callable[[str], None] = lambda piece: None) -> Answer:
        """The model's answer; its pieces are passed to `show`. Ctrl-C ends it, and the text so far is kept."""
        messages = [*self.messages, {"role": "user", "content": text}]
        for message in messages:
            if not is_text(message["content"]):
                raise UserError(f"the message of the {message['role']} is not text: {message['content']!r:.60}")
        least = len(self.format.tokens([*_system(messages), messages[-1]]))
        if least >= self.limit:
            raise UserError(
                f"the message has {least:,} tokens, but the model's context of {self.limit:,} must hold an answer "
                "too: shorten it"
            )
        decode = self.predictor.decode_options(**self.options)
        spare = min(decode.max_new_tokens or self.limit // SPARE, self.limit // 2)
        prompt = self.format.fit(messages, max(least, self.limit - spare))
        available = self.limit - len(prompt.tokens)
        most = min(decode.max_new_tokens or available, available)
        limits = {"max_new_tokens": most, "min_new_tokens": min(decode.min_new_tokens, most)}
        stream = self.predictor.stream(prompt.tokens, prefix_cache=self.prefix_cache, **self.options | limits)
        content = ""
        finish: tuple[str, str | None] = ("interrupt", None)
        try:
            for piece in stream:
                content += piece
                show(piece)
            finish = (stream.answer.finish_reason, stream.answer.stop_reason)
        except KeyboardInterrupt:
            pass
        self.messages = [*messages, {"role": "assistant", "content": content}]
        tokens, *dropped = prompt
        return Answer("assistant", content, *finish, tuple(stream.tokens), len(tokens), *dropped)


def _system(messages: Sequence[Message]) -> list[Message]:
    """The first message, if it is the system's."""
    return [message for message in messages[:1] if message["role"] == "system"]
