"""A section of the page for each rung."""

import json
from typing import Any

from road.code import link
from road.markdown import listed
from road.plan import Rung
from road.sheet import MISSING, Sheet, millions, signed, threads, verdict


def section(sheet: Sheet, rung: Rung) -> list[str]:
    """The idea, its equation and its code; what it changes, what it reached, and what it looked at."""
    parts = [f"### {sheet.heading(rung)}", f"{' '.join(rung.idea)} ({rung.paper})"]
    parts.append(f"```text\n{rung.equation.strip()}\n```")
    parts.append(f"Recipe: `{rung.name}`. In code: {listed([link(symbol) for symbol in rung.code])}.")
    reference = sheet.plan.reference(rung)
    if reference:
        parts.append(f"**Changed** against {sheet.link(reference)}: {changed(sheet, rung, reference)}.")
    found = sheet.of(rung)
    if found is None:
        return [*parts, f"**Reached:** {MISSING}."]
    parts.append(f"**Reached:** {reached(sheet, rung, found)}")
    if reference and (tested := sheet.against(rung)):
        parts.append(f"**Step** from {sheet.link(reference)}: {step(tested)}.")
    parts.append(f"> {found['sentence']['answer'] or '(nothing)'}")
    if found["sentence"]["looks"]:
        told = f"Attention of “{rung.title}”: a row for each piece written, a column for each piece read"
        parts.append(f"![{told}](figures/road/{rung.name}.svg)")
    return parts


def changed(sheet: Sheet, rung: Rung, reference: Rung) -> str:
    """The keys whose values differ between two recipes; what a family alone has is told apart."""
    differing = sheet.changes(rung, reference)
    both = {key: pair for key, pair in differing.items() if None not in pair}
    new = {key: now for key, (then, now) in differing.items() if then is None}
    other = "model.family" in both  # whose keys go without saying
    gone = [key for key, (_, now) in differing.items() if now is None and not (other and key.startswith("model."))]
    said = [", ".join(f"`{key}` {_value(then)} → {_value(now)}" for key, (then, now) in both.items())]
    if new:
        said.append("new: " + ", ".join(f"`{key}` {_value(now)}" for key, now in new.items()))
    if gone:
        said.append("gone: " + ", ".join(f"`{key}`" for key in gone))
    return "; ".join(part for part in said if part) or "nothing in the recipe"


def _value(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def reached(sheet: Sheet, rung: Rung, found: dict[str, Any]) -> str:
    training = found["training"]
    return (
        f"BLEU {sheet.score(rung)} greedy, {sheet.score(rung, 'beam')} with beam {found['beam']['beams']}; "
        f"chrF {sheet.score(rung, metric='chrf')} and {sheet.score(rung, 'beam', 'chrf')}. "
        f"{millions(found['parameters'])} parameters; {training['steps']:,} steps, {training['epochs']:g} epochs, "
        f"{training['minutes']:.0f} minutes with {threads(training['threads'])}, "
        f"{training['tokens_per_second']:,} target tokens a second; "
        f"the test part translated in {found['greedy']['seconds']:.0f} s."
    )


def step(tested: dict[str, Any]) -> str:
    names = {"bleu": "BLEU", "chrf": "chrF"}
    said = [f"{name} {signed(tested[key]['difference'])} (p = {tested[key]['p']:.3f}: {verdict(tested[key])})"
            for key, name in names.items()]  # fmt: skip
    return ", ".join(said)
