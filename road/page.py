"""docs/road.md: every figure on it is read from what was measured, every setting from the recipes."""

import tempfile
from pathlib import Path

from regard.training.checkpoint import write_atomically
from road import figures, tables
from road.markdown import listed
from road.plan import Plan, Rung
from road.sections import section
from road.sheet import Sheet

PAGE, FIGURES = Path("docs/road.md"), Path("docs/figures/road")


def write(plan: Plan, measured: Path, home: Path) -> list[Path]:
    """Write the page and its pictures; a picture that no longer belongs to it is removed."""
    files = render(plan, measured)
    (home / FIGURES).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_atomically(home / path, text)
    for old in (home / FIGURES).glob("*.svg"):
        if FIGURES / old.name not in files:
            old.unlink()
    return list(files)


def render(plan: Plan, measured: Path) -> dict[Path, str]:
    """The text of every file."""
    sheet = Sheet(plan, measured)
    with tempfile.TemporaryDirectory() as aside:
        drawn = {path.name: path.read_text(encoding="utf-8") for path in figures.draw(sheet, Path(aside))}
    files = {FIGURES / name: text for name, text in drawn.items()}
    return {PAGE: "\n\n".join(filter(None, _parts(sheet))) + "\n"} | files


def _parts(sheet: Sheet) -> list[str]:
    plan = sheet.plan
    parts = [OPENING.strip(), *_warnings(sheet), "## How it was measured", tables.protocol(sheet)]
    parts += ["## The ladder", tables.summary(sheet, plan.road), tables.LEGEND, tables.told(sheet)]
    measured = [rung for rung in plan.road if sheet.of(rung)]
    if measured:
        parts += [f"![BLEU of each rung, greedy, with 95 % intervals](figures/road/{figures.LADDER})"]
        parts += ["### By length of the source", tables.BY_LENGTH, tables.by_length(sheet)]
    if any(rung.line for rung in measured):
        parts += [f"![BLEU by length of the source](figures/road/{figures.LENGTHS})"]
    parts += ["## The rungs", SYMBOLS.strip(), tables.sentence(sheet, plan.road), *_sections(sheet, plan.road)]
    parts += ["## How far a piece must travel", tables.TRAVEL, tables.travel(sheet)]
    parts += ["## Beside what was published", *tables.published(sheet)]
    if plan.pieces:
        parts += ["## What each piece of the Transformer buys", tables.PIECES, tables.pieces(sheet)]
        parts += _sections(sheet, plan.pieces)
    if plan.language:
        parts += ["## Another language", tables.LANGUAGE, tables.summary(sheet, plan.language)]
        parts += [tables.sentence(sheet, plan.language), *_sections(sheet, plan.language)]
    return [*parts, "## How this page is made", MAKING.strip()]


def _sections(sheet: Sheet, rungs: tuple[Rung, ...]) -> list[str]:
    return [part for rung in rungs for part in section(sheet, rung)]


def _warnings(sheet: Sheet) -> list[str]:
    """What the page does not show, said at its top."""
    said = []
    if missing := sheet.missing():
        said.append(f"**Not measured yet:** {listed([f'`{rung.name}`' for rung in missing])}.")
    for title, keys in sheet.outdated().items():
        said.append(f"**{title}** was measured before its recipe changed ({', '.join(f'`{key}`' for key in keys)}).")
    return said


OPENING = """\
# The road on one corpus

How did translation by neural networks come from one vector for a whole sentence to the Transformer? This page walks
that road rung by rung: each is one idea of one paper, built on the same core, trained on the same sentences, measured
by the same test. The figures come from runs of the recipes in this repository, and one command makes all of them again.
"""

SYMBOLS = """
In the equations xᵢ is a piece that is read (as a vector), hᵢ what the reader makes of it, n the number of pieces; yₜ
is the piece given to the decoder at step t, which is the one written last, sₜ the decoder's state, f a recurrent step.
W, U and v are learnt, another one in every place; [a; b] is one vector behind the other, ⊙ multiplies element by
element. D is `model.reach`.
"""

MAKING = """\
```sh
make road                        # or: python -m road
```

It trains every rung whose run is not finished, measures those whose weights or recipe are new, and writes this page.
The files of Multi30k must lie in the working directory or in a folder that `REGARD_DATA` names
([recipes](recipes.md#recipes-that-ship)).

- It may be stopped at any moment, by Ctrl-C or by force. The same command goes on where it was, and repeats nothing
  that is finished.
- `python -m road --only multi30k-bahdanau multi30k-luong` does these rungs alone; `--runs FOLDER` says where the runs
  are kept.
- `python -m road --jobs 2` trains two rungs at once, with a thread each. Measuring always has the machine to itself.
- `python -m road --write` only writes the page and its pictures again; needed whenever the code that it links to moves.

Each rung's figures are kept in `road/measured/` as JSON, beside the sha256 of the weights and the whole recipe that
they were taken with; the greedy answers lie beside the run. `road/rungs.py` and `road/pieces.py` have the words of
each rung, `road/published.py` the figures of others. A run of another recipe is refused rather than measured, and a
figure that was taken before a recipe changed is named at the top of this page.
"""
