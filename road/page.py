"""docs/road.md: every number on it is read from the measurements, every setting from the recipes."""

import tempfile
from pathlib import Path

from regard.training.checkpoint import write_atomically
from road import figures, tables
from road.markdown import listed
from road.plan import Experiment, Plan
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
    parts = [OPENING.strip(), *_notes(sheet), "## How it was measured", tables.protocol(sheet)]
    parts += ["## Results", tables.summary(sheet, plan.comparison), tables.LEGEND, tables.highlights(sheet)]
    measured = [experiment for experiment in plan.comparison if sheet.of(experiment)]
    if measured:
        parts += [f"![BLEU of each model, greedy, with 95 % intervals](figures/road/{figures.COMPARISON_CHART})"]
        parts += ["### By length of the source", tables.BY_LENGTH, tables.by_length(sheet)]
    if any(experiment.line for experiment in measured):
        parts += [f"![BLEU by length of the source](figures/road/{figures.LENGTHS})"]
    parts += [
        "## The models",
        SYMBOLS.strip(),
        tables.sentence(sheet, plan.comparison),
        *_sections(sheet, plan.comparison),
    ]
    parts += ["## Complexity and path length", tables.COMPLEXITY, tables.complexity(sheet)]
    parts += ["## Comparison with published results", *tables.published(sheet)]
    if plan.ablations:
        parts += ["## Ablations of the Transformer", tables.ABLATIONS, tables.ablations(sheet)]
        parts += _sections(sheet, plan.ablations)
    if plan.language:
        parts += ["## Another language", tables.LANGUAGE, tables.summary(sheet, plan.language)]
        parts += [tables.sentence(sheet, plan.language), *_sections(sheet, plan.language)]
    return [*parts, "## How to reproduce this page", MAKING.strip()]


def _sections(sheet: Sheet, experiments: tuple[Experiment, ...]) -> list[str]:
    return [part for experiment in experiments for part in section(sheet, experiment)]


def _notes(sheet: Sheet) -> list[str]:
    """What is not measured, and one note on the models whose recipe changed since."""
    notes = []
    if missing := sheet.missing():
        notes.append(f"**Not measured yet:** {listed([f'`{experiment.name}`' for experiment in missing])}.")
    if outdated := sheet.outdated():
        keys = dict.fromkeys(f"`{key}`" for changed in outdated.values() for key in changed)
        current = [each.title for each in sheet.plan.experiments if sheet.of(each) and each.title not in outdated]
        names = f"all models but {listed(current)}" if 0 < len(current) < len(outdated) else listed(list(outdated))
        notes.append(f"**Note:** measured before a change of the recipe ({', '.join(keys)}): {names}.")
    return notes


OPENING = """\
# From RNN to Transformer: an ablation study on Multi30k

Ten translation models, from a recurrent encoder–decoder without attention to the Transformer. Each adds one idea of one
paper; all are built on the same attention core, trained on the same sentences and scored on the same test split. The
results come from runs of the recipes in this repository, and one command reproduces all of them.
"""

SYMBOLS = """
In the equations xᵢ is the embedding of a source token, hᵢ its encoder state, n the number of source tokens; yₜ is the
embedding of the decoder's input at step t (the previous output token), sₜ the decoder's state, f a recurrent step. W, U
and v are learned parameters, different in every use; [a; b] is a concatenation, ⊙ the element-wise product. D is
`model.local_window`.
"""

MAKING = """\
```sh
make road                        # or: python -m road
```

It trains every model whose run is not finished, measures those whose weights or recipe are new, and writes this page.
The files of Multi30k must be in the working directory or in a folder that `REGARD_DATA` names
([recipes](recipes.md#built-in-recipes)).

- It may be stopped at any moment, by Ctrl-C or by force. The same command resumes, and repeats nothing that is done.
- `python -m road --only multi30k-bahdanau multi30k-luong` trains and measures only these models; `--runs FOLDER` sets
  the folder of the runs.
- `python -m road --jobs 2` trains two models at once, with a thread each. Measurements always run alone.
- `python -m road --write` only writes the page and its figures again; needed whenever the code that it links to moves.

Measurements are kept in `road/measured/` as JSON, with the sha256 of the weights and the complete recipe; the greedy
translations are in the run folder. The descriptions are in `road/experiments.py` and `road/ablations.py`, published
results in `road/published.py`, the recipes in `road/recipes/`. A run of another recipe is rejected, and
models that were measured before their recipe changed are named at the top of this page.
"""
