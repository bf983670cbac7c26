"""Write the tables of docs/results.md from recorded runs: `python docs/tools/results.py`."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results.md"
BEGIN = "<!-- results: written by docs/tools/results.py -->"
END = "<!-- end of results -->"
HEADER = ["dataset", "split", "model", "result", "parameters", "minutes", "machine", "command"]


def table(rows: list[dict[str, str]]) -> str:
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    return "\n".join(lines + [f"| {' | '.join(row[name] for name in HEADER)} |" for row in rows])


def recorded() -> dict[str, list[dict[str, str]]]:
    """Rows of results.toml, by section."""
    sections: dict[str, list[dict[str, str]]] = {}
    records = tomllib.loads((ROOT / "docs" / "tools" / "results.toml").read_text(encoding="utf-8"))
    for record in records["result"]:
        command = f"`{record.get('command') or 'regard train ' + record['recipe']}`"
        sections.setdefault(record["section"], []).append(record | {"command": command})
    return sections


def score(found: dict[str, Any]) -> str:
    return f"{found['value']:.1f} ± {found['interval']:.1f}"


def multi30k() -> list[dict[str, str]]:
    """Rows of the ablation study, best first."""
    rows = []
    for path in (ROOT / "road" / "measured").glob("*.json"):
        run = json.loads(path.read_text(encoding="utf-8"))
        greedy, beam = run["greedy"], run["beam"]
        training = run["training"]
        languages = "English → French" if "-fr-" in path.stem else "German → English"
        result = f"BLEU {score(greedy['bleu'])} greedy, {score(beam['bleu'])} beam 5; chrF {score(greedy['chrf'])}"
        row = {
            "dataset": f"Multi30k {languages}",
            "split": "test 2016 Flickr, 1,000 pairs",
            "model": f"`{path.stem}`",
            "parameters": f"{run['parameters'] / 1e6:.1f}M",
            "result": result,
            "minutes": f"{training['minutes']:.0f}",
            "machine": f"Xeon 2.80 GHz, {training['threads']} core{'s' if training['threads'] > 1 else ''}",
            "command": f"`regard train {path.stem}`",
        }
        rows.append((languages, -greedy["bleu"]["value"], row))
    return [row for *_, row in sorted(rows, key=lambda each: each[:2])]


def in_context() -> list[dict[str, str]]:
    """Rows of the study of in-context learning: without examples, and with the most."""
    runs = json.loads((ROOT / "road" / "in-context.json").read_text(encoding="utf-8"))
    names = {"in-context": "colours of words (synthetic)", "text-to-sql": "text-to-SQL (synthetic)"}
    rows = []
    for recipe, dataset in names.items():
        run = runs[recipe]
        shots = {each["shots"]: f"{each['accuracy']:.1f} ± {each['interval']:.1f} %" for each in run["shots"]}
        most = max(shots)
        metric = "execution accuracy" if recipe == "text-to-sql" else "accuracy"
        rows.append(
            {
                "dataset": dataset,
                "split": "test tasks that training does not have",
                "model": "Llama, from scratch",
                "parameters": f"{run['parameters'] / 1e6:.1f}M",
                "result": f"{metric} {shots[most]} with {most} examples, {shots[0]} with none",
                "minutes": f"{run['minutes']:.1f}",
                "machine": f"{run['threads']} cores",
                "command": f"`regard train {recipe}`",
            }
        )
    return rows


def results() -> str:
    """The generated part of the page."""
    sections = recorded() | {"Translation: Multi30k": multi30k(), "In-context learning": in_context()}
    return f"{BEGIN}\n\n" + "\n\n".join(f"## {name}\n\n{table(rows)}" for name, rows in sections.items()) + f"\n\n{END}"


def updated(page: str) -> str:
    """The page with its generated part renewed."""
    head, _, rest = page.partition(BEGIN)
    return head + results() + rest.partition(END)[2]


if __name__ == "__main__":
    text = updated(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
