"""Training tokenizers: bpe, unigram, wordpiece, words, characters, bytes, byte_bpe; equal texts make equal ones.

Spaces become ▁ at the start of a piece and punctuation is split off, so that decoding loses nothing:

    "Ein Mann, der …"  →  ▁Ein ▁Mann , ▁der ▁…

Characters and bytes also keep line breaks and every space; bytes are represented as in GPT-2 (detokenizer.py).
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import UserError, nearest
from regard.progress import Progress, shown
from regard.text.detokenizer import BYTE_TO_UNICODE
from regard.text.tokenizer import MISSING, ROLES, SPACE, SPECIALS, Tokenizer

if TYPE_CHECKING:
    from regard.config.recipe import TokenizerOptions

MAX_WORD = 1000  # characters; training and longest-match tokenization take quadratic time in it

CHARACTER_STEP = 1e-4  # the unigram trainer's arbitrary order among characters it must keep


def train_tokenizer(
    texts: Iterable[str], options: "TokenizerOptions", extra: Sequence[str] = (), append_eos: bool = True
) -> Tokenizer:
    """Train a tokenizer on a stream of texts; `extra` are additional tokens such as "<de_DE>", recognised as typed.

    `append_eos`: other tools that open its tokenizer.json append </s>; translation needs it, a prompt must not have it.
    """
    if options.kind not in MODELS:
        raise UserError(f"tokenizer.kind = '{options.kind}' is unknown{nearest(options.kind, MODELS)}")
    _reject_clashes(extra, options)
    stream = iter(texts)
    first = next((text for text in stream if text.strip()), None)
    if first is None:
        raise UserError("no text to train a tokenizer on: every line is empty")
    with shown(f"training a vocabulary of {options.vocab_size:,} on {{}} lines") as show:
        model = MODELS[options.kind](_counted(itertools.chain([first], stream), show), options)
    inner = _pipeline(model, options)
    inner.add_special_tokens(list(SPECIALS))
    inner.add_tokens([AddedToken(token, special=False, normalized=True) for token in dict.fromkeys(extra)])
    end = SPECIALS[2]
    if append_eos:
        inner.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, SPECIALS.index(end))]
        )
    return Tokenizer(inner, {role: index for index, role in enumerate(ROLES)})


def from_vocabulary(tokens: Sequence[str], options: "TokenizerOptions") -> Tokenizer:
    """A tokenizer with these characters or words, in the order of their ids; its special tokens are among SPECIALS."""
    table = {token: index for index, token in enumerate(tokens)}
    if options.kind == "characters":
        model: models.Model = models.BPE(table, [], unk_token="<unk>")
    else:
        pieces = {token if token in SPECIALS else SPACE + token: index for token, index in table.items()}
        model = models.WordLevel(pieces, unk_token="<unk>")
    inner = _pipeline(model, options)
    inner.add_special_tokens([special for special in SPECIALS if special in table])
    return Tokenizer(inner, {role: table.get(special, MISSING) for role, special in zip(ROLES, SPECIALS, strict=True)})


def _reject_clashes(extra: Sequence[str], options: "TokenizerOptions") -> None:
    """Additional tokens must differ from one another and from the special ones after normalisation."""
    normalizer = _pipeline(models.BPE(), options).normalizer
    seen = {special: special for special in SPECIALS}
    for token in dict.fromkeys(extra):
        other = seen.setdefault(normalizer.normalize_str(token) if normalizer else token, token)
        if other in SPECIALS:
            raise UserError(f"the token {token} is reserved ({' '.join(SPECIALS)}); use another value")
        if other != token:
            raise UserError(
                f"the tokens {other} and {token} are the same after normalisation: rename one, "
                "or set tokenizer.lowercase = false where they differ in case alone"
            )


def _counted(texts: Iterator[str], show: Progress) -> Iterator[str]:
    for count, text in enumerate(texts, 1):
        if count % 1000 == 1:
            show(count)
        yield text


def _pipeline(model: models.Model, options: "TokenizerOptions") -> tokenizers.Tokenizer:
    """The pipeline around the model: how text is normalised, split into words, and joined again."""
    inner = tokenizers.Tokenizer(model)
    if options.kind in ("bytes", "byte_bpe"):
        # Without merges no token can span two words, and splitting into words takes most of the time.
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=options.kind == "byte_bpe")
        inner.decoder = decoders.ByteLevel()
        return inner
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if options.lowercase else []
    steps.append(normalizers.NFC())
    if options.kind == "characters":
        inner.decoder = decoders.Fuse()
    else:
        # A leading space is kept: the pre-tokenizer uses it as the ▁ that it would otherwise add.
        steps += [normalizers.Replace(Regex(rf"[\s{SPACE}]+"), " "), normalizers.Strip(left=False, right=True)]
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Punctuation("isolated")]
        )
        inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.normalizer = normalizers.Sequence(steps)
    return inner


def _trained(
    model: models.Model, trainer: type, texts: Iterator[str], options: "TokenizerOptions", **settings: Any
) -> tokenizers.Tokenizer:
    """The pipeline around a model trained on texts, in which a word longer than MAX_WORD is split."""
    inner = _pipeline(model, options)
    limited = pre_tokenizers.Split(Regex(f"(?m).{{1,{MAX_WORD}}}"), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([inner.pre_tokenizer, limited])
    settings |= {"vocab_size": options.vocab_size, "special_tokens": list(SPECIALS), "show_progress": False}
    inner.train_from_iterator(texts, trainer(**settings))
    return inner


def _too_small(options: "TokenizerOptions", least: int | None = None) -> UserError:
    needed = f"at least {least}" if least else "more"
    return UserError(
        f"tokenizer.vocab_size = {options.vocab_size}: the characters of the text alone need {needed}; raise it, "
        "or use kind = 'words', which may leave some text unknown, or 'bytes', which never does"
    )


def _require_bytes(options: "TokenizerOptions") -> None:
    least = len(SPECIALS) + len(BYTE_TO_UNICODE)
    if options.vocab_size < least:
        raise UserError(
            f"tokenizer.vocab_size = {options.vocab_size}: the 256 bytes and {len(SPECIALS)} special tokens alone "
            f"need {least}; raise it, or use kind = 'characters'"
        )


def _bpe(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """Byte-pair encoding over characters (Sennrich et al. 2016); every character of the text has a piece."""
    model = models.BPE(unk_token="<unk>")
    inner = _trained(model, trainers.BpeTrainer, texts, options, min_frequency=options.min_frequency)
    if inner.get_vocab_size() > options.vocab_size:
        raise _too_small(options, inner.get_vocab_size())
    return inner.model


def _wordpiece(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """Longest match first (Schuster & Nakajima 2012) over tokens trained as for BPE, with ▁ and without ##."""
    inner = _pipeline(_bpe(texts, options), options)
    return models.WordPiece(
        inner.get_vocab(), unk_token="<unk>", continuing_subword_prefix="", max_input_chars_per_word=MAX_WORD
    )


def _unigram(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """A unigram language model over pieces (Kudo 2018), in an order that depends on no thread or hash."""
    try:
        inner = _trained(models.Unigram(), trainers.UnigramTrainer, texts, options, unk_token="<unk>")
    except Exception as error:  # the library raises bare Exceptions
        if "not large enough" in str(error):
            raise _too_small(options) from None
        raise
    # Tokens by score. The trainer orders characters that it must keep by their hashes: here they share the floor.
    scores = {piece: score for piece, score in json.loads(inner.to_str())["model"]["vocab"] if piece not in SPECIALS}
    floor = min(scores.values())
    near = floor + CHARACTER_STEP * (1 + sum(len(piece) == 1 for piece in scores))
    level = {piece: floor if len(piece) == 1 and score <= near else score for piece, score in scores.items()}
    # Sums differ in the last bits with the number of threads.
    rounded = {piece: round(score, 6) for piece, score in level.items()}
    ordered = sorted(rounded.items(), key=lambda item: (-item[1], item[0]))
    vocabulary = [(special, 0.0) for special in SPECIALS] + ordered
    return models.Unigram(vocabulary, unk_id=SPECIALS.index("<unk>"), byte_fallback=False)


def _words(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """The most frequent words and punctuation characters; all others are unknown."""
    model = models.WordLevel(unk_token="<unk>")
    return _trained(model, trainers.WordLevelTrainer, texts, options, min_frequency=options.min_frequency).model


def _characters(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """Every character of the text, spaces and line breaks too."""
    normalizer = _pipeline(models.BPE(), options).normalizer
    counts = Counter(itertools.chain.from_iterable(normalizer.normalize_str(text) for text in texts))
    if len(counts) + len(SPECIALS) > options.vocab_size:
        raise _too_small(options, len(counts) + len(SPECIALS))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    table = {token: index for index, token in enumerate([*SPECIALS, *ranked])}
    return models.BPE(table, [], unk_token="<unk>")


def _bytes(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """Each of the 256 bytes; there is nothing to learn."""
    _require_bytes(options)
    return models.BPE({token: index for index, token in enumerate([*SPECIALS, *BYTE_TO_UNICODE])}, [])


def _byte_bpe(texts: Iterator[str], options: "TokenizerOptions") -> models.Model:
    """Byte-pair encoding over bytes within words (Radford et al. 2019): no text is unknown, and none is changed."""
    _require_bytes(options)
    settings = {"min_frequency": options.min_frequency, "initial_alphabet": BYTE_TO_UNICODE}
    return _trained(models.BPE(), trainers.BpeTrainer, texts, options, **settings).model


MODELS: dict[str, Callable[[Iterator[str], "TokenizerOptions"], models.Model]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "words": _words,
    "characters": _characters,
    "bytes": _bytes,
    "byte_bpe": _byte_bpe,
}
