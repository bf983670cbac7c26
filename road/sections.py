"""A section of the page for each model."""

import json
from typing import Any

from road.code import link
from road.markdown import listed
from road.plan import Experiment
from road.sheet import MISSING, Sheet, millions, signed, threads, verdict


def section(sheet: Sheet, experiment: Experiment) -> list[str]:
    """The idea, its equation and its code; what it changes, its result, and its attention weights."""
    parts = [f"### {sheet.heading(experiment)}", f"{' '.join(experiment.idea)} ({experiment.paper})"]
    parts.append(f"```text\n{experiment.equation.strip()}\n```")
    parts.append(f"Recipe: `{experiment.name}`. In code: {listed([link(symbol) for symbol in experiment.code])}.")
    reference = sheet.plan.reference(experiment)
    if reference:
        parts.append(f"**Changed** against {sheet.link(reference)}: {changed(sheet, experiment, reference)}.")
    results = sheet.of(experiment)
    if results is None:
        return [*parts, f"**Result:** {MISSING}."]
    parts.append(f"**Result:** {result(sheet, experiment, results)}")
    if reference and (tested := sheet.against(experiment)):
        parts.append(f"**Difference** to {sheet.link(reference)}: {difference(tested)}.")
    parts.append(f"> {results['sentence']['answer'] or '(nothing)'}")
    if results["sentence"]["attention"]:
        text = f"Attention of “{experiment.title}”: a row for each generated token, a column for each source token"
        parts.append(f"![{text}](figures/road/{experiment.name}.svg)")
    return parts


def changed(sheet: Sheet, experiment: Experiment, reference: Experiment) -> str:
    """The keys whose values differ between two recipes; those that only one of them has are listed separately."""
    differing = sheet.changes(experiment, reference)
    both = {key: pair for key, pair in differing.items() if None not in pair}
    new = {key: now for key, (then, now) in differing.items() if then is None}
    other = "model.family" in both  # then the keys of the other family are not listed
    removed = [key for key, (_, now) in differing.items() if now is None and not (other and key.startswith("model."))]
    lines = [", ".join(f"`{key}` {_value(then)} → {_value(now)}" for key, (then, now) in both.items())]
    if new:
        lines.append("new: " + ", ".join(f"`{key}` {_value(now)}" for key, now in new.items()))
    if removed:
        lines.append("removed: " + ", ".join(f"`{key}`" for key in removed))
    return "; ".join(filter(None, lines)) or "nothing in the recipe"


def _value(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def result(sheet: Sheet, experiment: Experiment, results: dict[str, Any]) -> str:
    training = results["training"]
    return (
        f"BLEU {sheet.score(experiment)} greedy, "
        f"{sheet.score(experiment, 'beam')} with beam {results['beam']['beams']}; "
        f"chrF {sheet.score(experiment, metric='chrf')} and {sheet.score(experiment, 'beam', 'chrf')}. "
        f"{millions(results['parameters'])} parameters; {training['steps']:,} steps, {training['epochs']:g} epochs, "
        f"{training['minutes']:.0f} minutes with {threads(training['threads'])}, "
        f"{training['tokens_per_second']:,} target tokens a second; "
        f"test split translated in {results['greedy']['seconds']:.0f} s."
    )


def difference(tested: dict[str, Any]) -> str:
    names = {"bleu": "BLEU", "chrf": "chrF"}
    scores = [f"{name} {signed(tested[key]['difference'])} (p = {tested[key]['p']:.3f}: {verdict(tested[key])})"
            for key, name in names.items()]  # fmt: skip
    return ", ".join(scores)
