"""The documentation cannot rot: its links, recipes, verbs, options, keys, defaults and examples are the code's."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from regard.attention.variants import SCORES
from regard.cli.main import app
from regard.config.recipe import (
    ADAPTERS,
    DataOptions,
    DecodeOptions,
    DistilOptions,
    Recipe,
    TokenizerOptions,
    TrainOptions,
    load_recipe,
)
from regard.config.recipe_files import shipped_recipes
from regard.data.synthetic.pairs import GENERATORS
from regard.models.registry import FAMILIES, outline
from regard.models.seq2seq import CONTEXTS
from regard.tasks.registry import TASKS
from regard.tasks.registry import options_of as tables_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
SECTIONS = {  # the tables that all tasks share; [data] and [train] of a task may have more keys
    "tokenizer": TokenizerOptions,
    "distil": DistilOptions,
    "decode": DecodeOptions,
}


def of_all_tasks(section: str) -> list[Field[Any]]:
    """The keys of a table, with those that single tasks add; where defaults differ by task, the common one."""
    common = {"data": DataOptions, "train": TrainOptions}[section]
    own = {option.name: option for task in TASKS for option in fields(getattr(tables_of(task), section))}
    return list((own | {option.name: option for option in fields(common)}).values())


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHOICES = ("family", "preset", "from", "pooling", *ADAPTERS)  # what [model] has besides the family's own fields


def page_id(page: Path) -> str:
    return page.name


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    plain = re.sub(r"[`*\"]", "", heading.lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next one of its rank or a higher one."""
    rank = re.match("#+", heading)
    assert rank is not None
    text = page.read_text(encoding="utf-8")
    assert f"\n{heading}\n" in text, f"{page.name} has no heading '{heading}'"
    rest = text.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{1,{len(rank[0])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def leads_to_heading(page: Path, anchor: str) -> bool:
    return anchor in anchors(page)


def leads_to_lines(source: Path, anchor: str) -> bool:
    """Whether #L3-L7 are lines of the file."""
    lines = re.fullmatch(r"L(\d+)-L(\d+)", anchor)
    count = len(source.read_text(encoding="utf-8").splitlines())
    return lines is not None and 1 <= int(lines[1]) <= int(lines[2]) <= count


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name}: {target}"
        assert not anchor or (leads_to_lines if other.suffix == ".py" else leads_to_heading)(other, anchor), target


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(([^)\s#]+)\)", prose(ROOT / "README.md")))
    assert {f"docs/{page.name}" for page in DOCS} <= linked


def test_the_map_has_every_file_and_folder_of_the_package() -> None:
    shown, package = prose(ROOT / "docs/architecture.md"), ROOT / "regard"
    files = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    folders = {f"regard/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    absent = [name for name in sorted(files | folders) if not re.search(rf"[`/]{re.escape(name)}`", shown)]
    assert not absent, f"docs/architecture.md says nothing of {absent}"


def test_the_readme_names_the_two_commands_and_stays_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {line.split("  ")[0] for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()}
    assert {"make demo", "make test"} <= shown
    assert len(text.splitlines()) <= 150
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("check", "prove", "bench", "road"):
        assert f"make {target}" in contributing
    for target in set(re.findall(r"(?:`|^)make ([a-z]+)", contributing + text, re.MULTILINE)):
        assert f"\n{target}:" in makefile


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Command(NamedTuple):
    page: str
    verb: tuple[str, ...]
    words: list[str]  # after the verb


def options_of(verb: tuple[str, ...]) -> set[str]:
    """Every spelling of every option of a verb."""
    found: Any = typer.main.get_command(app)
    for name in verb:
        found = found.commands[name]
    return {name for each in found.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}


def verbs() -> dict[str, tuple[str, ...]]:
    """The verbs, and for those that have some, the verbs under them."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name: tuple(getattr(command, "commands", ())) for name, command in commands.items()}


def commands(page: Path) -> Iterator[Command]:
    """Each `regard VERB …` in shell blocks and in inline code."""
    inline = re.findall(r"`([^`\n]+)`", prose(page))
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    known = verbs()
    for line in [*inline, *lines]:
        for part in re.split(r"\s(?:[|>;#]|&&)(?:\s|$)", line):
            match = re.search(r"(?:^|\s)regard ([a-z]\S*)(.*)", part)
            if not match:
                continue
            name, rest = match.groups()
            assert name in known, f"{page.name}: `{line}`: '{name}' is no verb"
            words = shlex.split(rest.replace("…", ""))
            below = (words.pop(0),) if known[name] and words and not words[0].startswith("-") else ()
            assert not below or below[0] in known[name], f"{page.name}: `{line}`: '{below}' is no verb of {name}"
            yield Command(page.name, (name, *below), words)


@every_page
def test_every_verb_and_option_is_one_of_the_command_line(page: Path) -> None:
    for command in commands(page):
        for word in command.words:
            if word.startswith("-"):
                assert word in options_of(command.verb), command


@every_page
def test_every_recipe_ships_and_takes_the_overrides_shown(page: Path) -> None:
    for command in commands(page):
        recipe, *overrides = [word for word in command.words if not word.startswith("-")] or ["RECIPE"]
        if command.verb not in (("train",), ("doctor",)) or recipe.isupper() or recipe.endswith(".toml"):
            continue
        assert recipe in shipped_recipes(), command
        load_recipe(recipe, [word for word in overrides if "=" in word])


def test_every_shipped_recipe_is_documented() -> None:
    text = section(ROOT / "docs" / "recipes.md", "## Recipes that ship")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(shipped_recipes())


def test_figures_of_the_road_are_those_measured() -> None:
    """The README and the recipes' table repeat some of docs/road.md; they are the same numbers."""
    found = 0
    for page in ("README.md", "docs/recipes.md"):
        rows = re.findall(
            r"`regard train (multi30k-[\w-]+)` \|.* ([\d.]+) BLEU \(beam 5: ([\d.]+)\)", (ROOT / page).read_text()
        )
        for name, greedy, beam in rows:
            measured = json.loads((ROOT / "road" / "measured" / f"{name}.json").read_text(encoding="utf-8"))
            values = (measured[way]["bleu"]["value"] for way in ("greedy", "beam"))
            assert (greedy, beam) == tuple(f"{value:.1f}" for value in values), f"{page}: {name}"
            found += 1
    assert found


def test_every_verb_and_every_option_is_documented() -> None:
    page = ROOT / "docs" / "cli.md"
    shared = section(page, "## Options that verbs share")
    for verb, below in verbs().items():
        text = section(page, f"## regard {verb}")
        assert any(command.verb[0] == verb for command in commands(page))
        options = set[str]().union(*(options_of((verb, *name)) for name in [(each,) for each in below] or [()]))
        said = set(re.findall(r"`(--[a-z-]+)", text))
        assert said <= options, f"{verb}: {said - options}"
        missing = {each for each in options - {"--help"} if each.startswith("--") and f"`{each}" not in text + shared}
        assert not missing, f"{verb}: {missing}"


def test_every_environment_variable_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    read = {name for file in (ROOT / "regard").rglob("*.py") for name in re.findall(r"REGARD_[A-Z]+", file.read_text())}
    assert set(re.findall(r"REGARD_[A-Z]+", text)) == read


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(text: str) -> dict[str, str]:
    """The rows `key` | default | … of the tables in a text: default by key."""
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", text, re.MULTILINE))


def equals(shown: str, option: Field[Any]) -> bool:
    """Whether a cell states an option's default; words, not code, where there is none."""
    if option.default_factory is not MISSING:
        return tomllib.loads(f"value = {shown.strip('`')}")["value"] == option.default_factory()
    if option.default is MISSING:
        return not re.fullmatch(r"`[^`]+`", shown)
    stated = tomllib.loads(f"value = {shown.strip('`')}")["value"]
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    return stated == default and isinstance(stated, bool) == isinstance(default, bool)


def assert_documented(shown: dict[str, str], options: list[Field[Any]], prefix: str) -> None:
    assert set(shown) == {prefix + option.name for option in options}
    for option in options:
        assert equals(shown[prefix + option.name], option), f"{prefix}{option.name}: {shown[prefix + option.name]}"


def test_every_key_of_a_recipe_is_documented_with_its_default() -> None:
    page = ROOT / "docs" / "recipes.md"
    top = [each for each in fields(Recipe) if each.name not in (*SECTIONS, "data", "train", "model")]
    assert_documented(table(section(page, "## The top")), top, "")
    for name, options in SECTIONS.items():
        assert is_dataclass(options)
        assert_documented(table(section(page, f"## {name}")), list(fields(options)), f"{name}.")
    for name in ("data", "train"):
        assert_documented(table(section(page, f"## {name}")), of_all_tasks(name), f"{name}.")


def test_every_key_of_a_family_is_documented_with_its_default() -> None:
    page = ROOT / "docs" / "recipes.md"
    for name, family in FAMILIES.items():
        own = [each for each in fields(family.config) if "vocabulary" not in each.name]
        assert_documented(table(section(page, f'### family = "{name}"')), own, "model.")
    shared = section(page, "## model").split("### family", 1)[0]
    assert set(table(shared)) == {f"model.{name}" for name in CHOICES}


def test_every_dotted_key_anywhere_is_a_key() -> None:
    keys = {f"{name}.{each.name}" for name, options in SECTIONS.items() for each in fields(options)}
    keys |= {f"{name}.{each.name}" for name in ("data", "train") for each in of_all_tasks(name)}
    keys |= {f"model.{each.name}" for family in FAMILIES.values() for each in fields(family.config)}
    keys |= {f"model.{name}" for name in CHOICES}
    for page in PAGES:
        for span in re.findall(r"`([^`\n]+)`", prose(page)):
            match = re.match(r"((?:data|tokenizer|train|decode)\.[a-z_]{4,})(?![\w./(])", span)  # no train.de
            if match and not span.endswith(".json"):
                assert match[1] in keys, f"{page.name}: `{span}`"


def test_every_preset_score_and_way_is_documented() -> None:
    models, attention, data = ((ROOT / "docs" / name).read_text() for name in ("models.md", "attention.md", "data.md"))
    for name, family in FAMILIES.items():
        shown = section(ROOT / "docs" / "models.md", f"## {name}").split("### Presets")[1]
        assert set(re.findall(r"^\| `([\w.-]+)` \|", shown, re.MULTILINE)) == set(family.presets)
    assert all(f'| `"{way}"` |' in models for way in CONTEXTS)
    assert all(f"| `{score}` |" in attention for score in SCORES)
    assert all(f"| `{name}` |" in data for name in GENERATORS)


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_page
def test_recipes_shown_can_be_read(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        shown = tomllib.loads(text)
        path = tmp_path / "shown.toml"
        whole = {"data": '[data]\ntrain = "pairs.tsv"\n', "model": '[model]\nfamily = "transformer"\n'}
        whole["train"] = "[train]\nbatch_size = 3\nmax_steps = 5\n"
        missing = "".join(part for name, part in whole.items() if name not in shown)
        path.write_text(('task = "translate"\n' if "task" not in shown else "") + text + missing, encoding="utf-8")
        recipe = load_recipe(path)
        if "from" not in recipe.model:
            outline(recipe.model)


@every_page
def test_python_shown_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, f"{page.name}", "exec")


def shell(script: str, folder: Path) -> None:
    """Run a script as a reader would, with `regard` and `python` of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_getting_started_runs_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "getting-started.md"
    pieces = FENCE.findall(page.read_text(encoding="utf-8"))
    for kind, text in pieces:
        if kind == "toml":
            assert "minutes = 3" in text
            (tmp_path / "mine.toml").write_text(text.replace("minutes = 3", "max_steps = 4"), encoding="utf-8")
        elif kind == "sh":
            shell(text, tmp_path)
        elif kind == "python":
            shell(f"python - <<'END'\n{text}\nEND", tmp_path)
    made = ("runs/mine/best.json", "runs/other/best.json", "answers.txt", "attention.html", "exported/config.json")
    for name in made:
        assert (tmp_path / name).is_file(), name
    assert len((tmp_path / "answers.txt").read_text().splitlines()) == 100


@pytest.mark.slow
def test_the_python_of_readme_and_docs_runs(tmp_path: Path) -> None:
    for recipe in ("dates", "dates-transformer"):
        small = f"data.train=500 data.test=20 train.max_steps=4 output=runs/demo/{recipe}"
        shell(f"regard train {recipe} {small} --quiet", tmp_path)
    for name in ("README.md", "docs/python.md", "docs/attention.md"):
        script = "import webbrowser\nwebbrowser.open = lambda address: True\n"
        script += "\n".join(blocks(ROOT / name, "python")).replace("train.max_steps=20", "train.max_steps=2")
        shell(f"python - <<'END'\n{script}\nEND", tmp_path)
