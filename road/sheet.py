"""All measurements as the page shows them: numbers as text, "not measured" where there are none."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.config.recipe import load_recipe
from road.markdown import slug
from road.measure import read
from road.plan import Experiment, Plan
from road.settings import changed_since, changes, settings

MISSING = "not measured"
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Sheet:
    """The plan, and the folder of what was measured of it."""

    plan: Plan
    folder: Path

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        results = {experiment.name: read(self.folder, experiment) for experiment in self.plan.experiments}
        return {name: each for name, each in results.items() if each}

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {
            experiment.name: _resolved(settings(load_recipe(experiment.recipe))) for experiment in self.plan.experiments
        }

    def of(self, experiment: Experiment) -> dict[str, Any] | None:
        return self.measured.get(experiment.name)

    def missing(self) -> list[Experiment]:
        return [experiment for experiment in self.plan.experiments if not self.of(experiment)]

    def outdated(self) -> dict[str, list[str]]:
        """Models whose recipe has changed since they were measured, with the changed keys."""
        results = {}
        for experiment in self.plan.experiments:
            changed = (
                changed_since(self.measured[experiment.name]["recipe"], load_recipe(experiment.recipe))
                if self.of(experiment)
                else {}
            )
            if changed:
                results[experiment.title] = list(changed)
        return results

    def show(self, experiment: Experiment, to_text: Callable[[dict[str, Any]], str]) -> str:
        results = self.of(experiment)
        return to_text(results) if results else MISSING

    def bleu(self, experiment: Experiment) -> float:
        results = self.of(experiment)
        return results["greedy"]["bleu"]["value"] if results else -1.0

    def score(self, experiment: Experiment, way: str = "greedy", metric: str = "bleu") -> str:
        return self.show(experiment, lambda results: figure(results[way][metric]))

    def against(self, experiment: Experiment) -> dict[str, Any] | None:
        """The paired test against the reference, where it is of what is measured now."""
        results, reference = self.of(experiment), self.plan.reference(experiment)
        other = self.of(reference) if reference else None
        tested = (results or {}).get("against")
        fresh = (
            results
            and other
            and tested
            and (tested["own"], tested["weights"]) == (results["weights"], other["weights"])
        )
        return tested if fresh else None

    def heading(self, experiment: Experiment) -> str:
        """A model's heading; numbered in the comparison."""
        if experiment in self.plan.comparison:
            return f"{self.plan.comparison.index(experiment) + 1}. {experiment.title}"
        return experiment.title

    def link(self, experiment: Experiment) -> str:
        return f"[{experiment.title}](#{slug(self.heading(experiment))})"

    def changes(self, experiment: Experiment, reference: Experiment) -> dict[str, tuple[Any, Any]]:
        return changes(self.settings[reference.name], self.settings[experiment.name])


def _resolved(results: dict[str, Any]) -> dict[str, Any]:
    """A decoder's size that is 0 is the encoder's."""
    of_encoder = {key: results.get(key.replace("decoder_", "")) for key in results if key.startswith("model.decoder_")}
    return results | {key: results[key] or size for key, size in of_encoder.items()}


def figure(score: dict[str, Any]) -> str:
    return f"{score['value']:.1f} ± {score['interval']:.1f}"


def millions(count: int) -> str:
    return f"{count / 1e6:.1f} M"


def threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def signed(difference: float) -> str:
    return f"{difference:+.1f}".replace("-", "−")


def verdict(tested: dict[str, Any]) -> str:
    """Whether a difference is significant by the paired test."""
    return "significant" if tested["p"] < SIGNIFICANCE else "not significant"
