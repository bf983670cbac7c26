"""`regard tokenizer …`: train a tokenizer, or inspect and apply one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regard.cli.command import verb
from regard.cli.options import Output, read_texts
from regard.config.options import MAX_VOCABULARY
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.text.tokenizer import Tokenizer

tokenizer = typer.Typer(
    help="Train a tokenizer, or tokenize and detokenize text.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TokenizerPath = Annotated[Path, typer.Argument(metavar="MODEL", help="tokenizer.json, or a folder that contains one.")]

Side = Annotated[Literal["source", "target"], typer.Option(help="Which one, if the folder has two tokenizers.")]

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Text; if omitted, one per line from stdin.")]

TokenIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Token ids of one text; if omitted, one text per line from stdin."),
]


@verb(tokenizer, "tokenizer train corpus.txt --output tokenizer.json --kind bpe --vocab-size 8000")
def train(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Text files, also .gz.")],
    save: Annotated[Path, typer.Option("--output", "-o", help="File to write (tokenizer.json).")],
    output: Output,
    kind: Annotated[
        Literal["bpe", "unigram", "wordpiece", "words", "characters", "bytes", "byte_bpe"],
        typer.Option(help="Tokenizer type."),
    ] = "bpe",
    vocab_size: Annotated[int, typer.Option(min=5, max=MAX_VOCABULARY, help="Maximum size of the vocabulary.")] = 8000,
    min_frequency: Annotated[int, typer.Option(min=1, help="Minimum frequency of a token in the text.")] = 2,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lowercase all text.")] = False,
) -> None:
    """Train a tokenizer on lines of text."""
    from regard.cli.output import emit
    from regard.config.recipe import TokenizerOptions
    from regard.data.documents import TRAINER_CHUNK, read_chunks
    from regard.data.files import lines
    from regard.text.train_tokenizer import train_tokenizer

    if save.exists():
        raise UserError(f"{save} exists; choose another --output or remove it first")
    options = TokenizerOptions(kind=kind, vocab_size=vocab_size, lowercase=lowercase, min_frequency=min_frequency)
    running = kind in ("bytes", "byte_bpe")  # line breaks are text to them
    texts = (text for path in files for text in (read_chunks(path, size=TRAINER_CHUNK) if running else lines(path)))
    trained = train_tokenizer(texts, options)
    trained.save(save)
    emit({"tokenizer": str(save), "size": trained.size}, output, "tokenizer")


@verb(tokenizer, 'tokenizer encode runs/mine/checkpoint-500 "the 25th of June" --pieces')
def encode(
    model: TokenizerPath,
    output: Output,
    texts: Texts = None,
    side: Side = "source",
    pieces: Annotated[bool, typer.Option("--pieces", help="Print token strings instead of ids (▁ = space).")] = False,
) -> None:
    """Tokenize text: one line of token ids per input."""
    from regard.cli.output import printable, to_json

    loaded = _load(model, side)
    for text in read_texts(texts):
        ids = loaded.encode(text)
        if output.json:
            print(to_json({"text": text, "ids": ids, "pieces": loaded.pieces(ids)}, indent=None))
        else:
            shown = [piece.replace(" ", "▁") for piece in loaded.pieces(ids)] if pieces else map(str, ids)
            print(printable(" ".join(shown)))


@verb(tokenizer, "tokenizer decode tokenizer.json 17 4 256")
def decode(model: TokenizerPath, output: Output, ids: TokenIds = None, side: Side = "target") -> None:
    """Detokenize: text of token ids."""
    from regard.cli.output import printable, to_json

    loaded = _load(model, side)
    for line in [" ".join(ids)] if ids else read_texts(None):
        words = line.split()
        if invalid := [word for word in words if not word.isdecimal() or int(word) >= loaded.size]:
            raise UserError(f"'{invalid[0]}' is not a token id; possible: 0 to {loaded.size - 1}")
        tokens = [int(word) for word in words]
        text = loaded.decode(tokens)
        print(to_json({"ids": tokens, "text": text}, indent=None) if output.json else printable(text))


@verb(tokenizer, "tokenizer show tokenizer.json")
def show(model: TokenizerPath, output: Output, side: Side = "source") -> None:
    """Show a tokenizer's vocabulary size, special tokens and a few of its tokens."""
    from regard.cli.output import emit

    loaded = _load(model, side)
    special = {name: getattr(loaded, name) for name in ("pad", "begin", "end", "unknown")}
    ordinary = [token for token in range(loaded.size) if token not in special.values()]
    samples = {"first": loaded.pieces(ordinary[:20]), "last": loaded.pieces(ordinary[-20:])}
    emit({"size": loaded.size, **special, **samples}, output, str(model))


def _load(path: Path, side: str) -> "Tokenizer":
    from regard.text.tokenizer import Tokenizer
    from regard.text.vocabulary import Vocabulary

    if not path.exists():
        raise UserError(f"no tokenizer at {path}: name a tokenizer.json, or a checkpoint's folder")
    return getattr(Vocabulary.load(path), side) if path.is_dir() else Tokenizer.load(path)
