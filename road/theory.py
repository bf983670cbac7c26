"""Path lengths between tokens, sequential operations and cost, as formulas. After Vaswani et al. 2017, table 1."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log


@dataclass(frozen=True)
class Sizes:
    """The variables of the formulas."""

    n: float  # tokens of the source
    d: int  # width
    k: int = 0  # kernel of a convolution
    w: int = 0  # positions in the window of a local attention


@dataclass(frozen=True)
class Formula:
    text: str
    value: Callable[[Sizes], float] | None = None  # none where the text is a number

    def at(self, sizes: Sizes | None) -> str:
        """The formula and its value."""
        if sizes is None or self.value is None:
            return self.text
        return f"{self.text} = {_short(self.value(sizes))}"


@dataclass(frozen=True)
class Layer:
    """A type of layer that relates the tokens of a sequence."""

    name: str
    experiments: tuple[str, ...]
    work: Formula
    sequential: Formula  # operations of which each needs the one before
    within: Formula  # path between two tokens of the source
    across: Formula  # path from a source token to the token being generated


ONE = Formula("1")
EACH = Formula("n", lambda s: s.n)
RECURRENT = Formula("n·d²", lambda s: s.n * s.d**2)
ATTENTION = Formula("n·d² + n²·d", lambda s: s.n * s.d**2 + s.n**2 * s.d)
DOUBLING = Formula("⌈log₂ n⌉", lambda s: ceil(log(s.n, 2)))  # the dilation doubles, whatever the kernel
WINDOWS = Formula("k·n·d²", lambda s: s.k * s.n * s.d**2)

LAYERS = (
    Layer("recurrent", ("multi30k-no-attention", "multi30k-context"), RECURRENT, EACH, EACH, EACH),
    Layer("recurrent, with attention", ("multi30k-bahdanau", "multi30k-luong"), ATTENTION, EACH, EACH, ONE),
    Layer(
        "recurrent, with local attention",
        ("multi30k-local-m", "multi30k-local-p"),
        Formula("n·d² + n·w·d", lambda s: s.n * s.d**2 + s.n * s.w * s.d),
        EACH,
        EACH,
        Formula("1 inside the window"),
    ),
    Layer("LSTMN", ("multi30k-lstmn",), ATTENTION, EACH, ONE, ONE),
    Layer(
        "dilated convolution",
        ("multi30k-bytenet",),
        WINDOWS,
        ONE,
        DOUBLING,
        DOUBLING,
    ),
    Layer(
        "convolution, with attention",
        ("multi30k-convs2s",),
        Formula("k·n·d² + n²·d", lambda s: s.k * s.n * s.d**2 + s.n**2 * s.d),
        ONE,
        Formula("⌈n/k⌉", lambda s: ceil(s.n / s.k)),
        ONE,
    ),
    Layer("self-attention", ("multi30k-transformer",), Formula("n²·d", lambda s: s.n**2 * s.d), ONE, ONE, ONE),
)


def _short(value: float) -> str:
    """A number in three digits or so."""
    for size, name in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"
