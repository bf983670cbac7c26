"""All that was measured, at hand for the page: figures as text, "not measured" where there are none."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.config.recipe import load_recipe
from road.markdown import slug
from road.measure import read
from road.plan import Plan, Rung
from road.settings import changed_since, changes, settings

MISSING = "not measured"
CHANCE = 0.05  # a difference that chance alone makes as often as this is not told as one


@dataclass(frozen=True)
class Sheet:
    """The plan, and the folder of what was measured of it."""

    plan: Plan
    folder: Path

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        found = {rung.name: read(self.folder, rung) for rung in self.plan.rungs}
        return {name: each for name, each in found.items() if each}

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {rung.name: _resolved(settings(load_recipe(rung.recipe))) for rung in self.plan.rungs}

    def of(self, rung: Rung) -> dict[str, Any] | None:
        return self.measured.get(rung.name)

    def missing(self) -> list[Rung]:
        return [rung for rung in self.plan.rungs if not self.of(rung)]

    def outdated(self) -> dict[str, list[str]]:
        """Rungs whose recipe says something else by now, and which keys."""
        found = {}
        for rung in self.plan.rungs:
            changed = (
                changed_since(self.measured[rung.name]["recipe"], load_recipe(rung.recipe)) if self.of(rung) else {}
            )
            if changed:
                found[rung.title] = list(changed)
        return found

    def say(self, rung: Rung, told: Callable[[dict[str, Any]], str]) -> str:
        found = self.of(rung)
        return told(found) if found else MISSING

    def bleu(self, rung: Rung) -> float:
        found = self.of(rung)
        return found["greedy"]["bleu"]["value"] if found else -1.0

    def score(self, rung: Rung, way: str = "greedy", metric: str = "bleu") -> str:
        return self.say(rung, lambda found: figure(found[way][metric]))

    def against(self, rung: Rung) -> dict[str, Any] | None:
        """The paired test against the reference, where it is of what is measured now."""
        found, reference = self.of(rung), self.plan.reference(rung)
        other = self.of(reference) if reference else None
        tested = (found or {}).get("against")
        fresh = (
            found and other and tested and (tested["own"], tested["weights"]) == (found["weights"], other["weights"])
        )
        return tested if fresh else None

    def heading(self, rung: Rung) -> str:
        """A rung's heading; on the road with its number."""
        if rung in self.plan.road:
            return f"{self.plan.road.index(rung) + 1}. {rung.title}"
        return rung.title

    def link(self, rung: Rung) -> str:
        return f"[{rung.title}](#{slug(self.heading(rung))})"

    def changes(self, rung: Rung, reference: Rung) -> dict[str, tuple[Any, Any]]:
        return changes(self.settings[reference.name], self.settings[rung.name])


def _resolved(found: dict[str, Any]) -> dict[str, Any]:
    """A decoder's size that is 0 is the encoder's."""
    of_encoder = {key: found.get(key.replace("decoder_", "")) for key in found if key.startswith("model.decoder_")}
    return found | {key: found[key] or size for key, size in of_encoder.items()}


def figure(score: dict[str, Any]) -> str:
    return f"{score['value']:.1f} ± {score['interval']:.1f}"


def millions(count: int) -> str:
    return f"{count / 1e6:.1f} M"


def threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def signed(difference: float) -> str:
    return f"{difference:+.1f}".replace("-", "−")


def verdict(tested: dict[str, Any]) -> str:
    """Whether a difference is more than chance, by the paired test."""
    return "more than chance" if tested["p"] < CHANCE else "may be chance"
