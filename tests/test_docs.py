"""The documentation agrees with the code: links, anchors, commands, options, keys, defaults, recipes and examples."""

import importlib.util
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
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
import typer
import yaml
from needs import need
from PIL import Image

from regard.attention.variants import SCORES
from regard.cli.main import app
from regard.config.options import AugmentOptions
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
from regard.data.synthetic.shapes import scene
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
OF_TASKS = {"data": DataOptions, "train": TrainOptions, "augment": AugmentOptions}  # tables with keys of each task


def of_all_tasks(section: str) -> list[Field[Any]]:
    """The keys of a table, with those that single tasks add; where defaults differ by task, the common one."""
    own = {option.name: option for task in TASKS for option in fields(getattr(tables_of(task), section))}
    return list((own | {option.name: option for option in fields(OF_TASKS[section])}).values())


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHOICES = ("family", "preset", "from", "new_head", "pooling", *ADAPTERS)  # of [model], besides the fields of a family


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
def test_every_documented_command_and_option_exists(page: Path) -> None:
    for command in commands(page):
        for word in command.words:
            if word.startswith("-"):
                assert word in options_of(command.verb), command


@every_page
def test_every_recipe_exists_and_accepts_the_overrides_shown(page: Path) -> None:
    for command in commands(page):
        recipe, *overrides = [word for word in command.words if not word.startswith("-")] or ["RECIPE"]
        if command.verb not in (("train",), ("doctor",)) or recipe.isupper() or recipe.endswith(".toml"):
            continue
        assert recipe in shipped_recipes(), command
        load_recipe(
            recipe, [word for word in overrides if "=" in word], note=lambda text: None
        )  # what they replace is no problem


def test_every_shipped_recipe_is_documented() -> None:
    text = section(ROOT / "docs" / "recipes.md", "## Built-in recipes")
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


def test_every_command_and_every_option_is_documented() -> None:
    page = ROOT / "docs" / "cli.md"
    shared = section(page, "## Shared options")
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
    top = [each for each in fields(Recipe) if each.name not in (*SECTIONS, *OF_TASKS, "model")]
    assert_documented(table(section(page, "## Top level")), top, "")
    for name, options in SECTIONS.items():
        assert is_dataclass(options)
        assert_documented(table(section(page, f"## {name}")), list(fields(options)), f"{name}.")
    for name in OF_TASKS:
        if options := of_all_tasks(name):
            assert_documented(table(section(page, f"## {name}")), options, f"{name}.")


def test_every_key_of_a_family_is_documented_with_its_default() -> None:
    page = ROOT / "docs" / "recipes.md"
    for name, family in FAMILIES.items():
        own = [each for each in fields(family.config) if "vocabulary" not in each.name]
        assert_documented(table(section(page, f'### family = "{name}"')), own, "model.")
    shared = section(page, "## model").split("### family", 1)[0]
    assert set(table(shared)) == {f"model.{name}" for name in CHOICES}


def test_every_dotted_key_anywhere_is_a_key() -> None:
    keys = {f"{name}.{each.name}" for name, options in SECTIONS.items() for each in fields(options)}
    keys |= {f"{name}.{each.name}" for name in OF_TASKS for each in of_all_tasks(name)}
    keys |= {f"model.{each.name}" for family in FAMILIES.values() for each in fields(family.config)}
    keys |= {f"model.{name}" for name in CHOICES}
    for page in PAGES:
        for span in re.findall(r"`([^`\n]+)`", prose(page)):
            match = re.match(r"((?:data|tokenizer|train|decode)\.[a-z_]{4,})(?![\w./(])", span)  # no train.de
            if match and not span.endswith(".json"):
                assert match[1] in keys, f"{page.name}: `{span}`"


def test_every_preset_score_and_context_is_documented() -> None:
    models, attention, data = ((ROOT / "docs" / name).read_text() for name in ("models.md", "attention.md", "data.md"))
    for name, family in FAMILIES.items():
        shown = section(ROOT / "docs" / "models.md", f"## {name}").split("### Presets")[1]
        assert set(re.findall(r"^\| `([\w.-]+)` \|", shown, re.MULTILINE)) == set(family.presets)
    assert all(f'| `"{way}"` |' in models for way in CONTEXTS)
    assert all(f"| `{score}` |" in attention for score in SCORES)
    assert all(f"| `{name}` |" in data for name in GENERATORS)


def test_the_counts_of_the_changelog_are_those_of_the_code() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    counts = re.search(r"(\w+) tasks, ([\w-]+) model families with (\d+) presets, \d+ .*, (\d+) built-in recipes", text)
    assert counts is not None
    presets = sum(len(family.presets) for family in FAMILIES.values())
    written = {8: "eight", 9: "nine", 10: "ten", 20: "twenty", 22: "twenty-two", 24: "twenty-four"}
    expected = (written[len(TASKS)], written[len(FAMILIES)], str(presets), str(len(shipped_recipes())))
    assert counts.groups() == expected


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────

TASK_SECTIONS = ["Quickstart", "Data format", "Train", "Predict", "Evaluate", "Load and export"]
TASK_PAGES = {  # page → terms that users search for
    "text-classification": "text classification, single-label, multi-label, regression, accuracy, F1, fine-tun",
    "image-classification": "image classification, ViT, augmentation, mixup, RandAugment, accuracy, acc@5, fine-tun",
    "token-classification": "token classification, named-entity recognition, NER, CoNLL, precision, recall, F1",
    "question-answering": "extractive question answering, SQuAD, context, span, exact match, F1, fine-tun",
    "audio-classification": "audio classification, keyword spotting, log-mel, MFCC, SpecAugment, accuracy, fine-tun",
    "speech-recognition": "speech recognition, CTC, attention, word error rate, CER, phoneme, SpecAugment, subtitles",
    "captioning": "image captioning, encoder, decoder, cross-attention, CIDEr, BLEU, beam search, attention weights",
    "translation": "translation, seq2seq, encoder, decoder, parallel, BLEU, chrF, beam search, attention weights",
    "language-modelling": "causal language model, perplexity, GPT, Llama, prompt, context window, pre-train",
    "chat": "chat template, system prompt, context window, language model",
    "masked-lm": "masked language model, masked token, next sentence prediction, continued pre-training, fill-mask",
    "distillation": "knowledge distillation, teacher, student, temperature, DistilBERT",
    "embeddings": "sentence embedding, semantic search, cosine similarity, mean pooling, STS, paraphrase",
    "few-shot": "few-shot, in-context, prompt, shots, accuracy",
}


@pytest.mark.parametrize("name", TASK_PAGES)
def test_task_pages_have_the_same_sections_and_the_standard_terms(name: str) -> None:
    page = ROOT / "docs" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", FENCE.sub("", text), re.MULTILINE)
    assert headings[: len(TASK_SECTIONS)] == TASK_SECTIONS
    plain = " ".join(text.lower().split())
    absent = [term for term in TASK_PAGES[name].split(", ") if term.lower() not in plain]
    assert not absent, f"{page.name} does not contain: {', '.join(absent)}"


def test_the_first_screen_of_the_readme_names_the_tasks() -> None:
    screen = " ".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:12]).lower()
    terms = "text classification, ner, question answering, translation, language modelling, masked language model"
    for term in f"{terms}, sentence embeddings, semantic search, attention weights, hugging face, pytorch".split(", "):
        assert term in screen, term


def nav_pages(entry: Any) -> Iterator[str]:
    """The pages of a section of mkdocs.yml's nav."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from nav_pages(below)


def test_the_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = sorted(nav_pages(yaml.safe_load(text)["nav"]))
    assert listed == sorted([page.name for page in DOCS] + ["contributing.md", "changelog.md"])


def tool(name: str) -> ModuleType:
    """A script of docs/tools."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("page", "script"), [("python.md", "api"), ("results.md", "results")])
def test_generated_parts_are_up_to_date(page: str, script: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert tool(script).updated(text) == text, f"run: python docs/tools/{script}.py"


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    need(importlib.util.find_spec("mkdocs"), "pip install mkdocs, or make docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "text-classification.html").is_file()


def test_the_site_has_the_anchors_of_a_forge() -> None:
    need(importlib.util.find_spec("mkdocs"), "pip install mkdocs, or make docs")
    make = tool("site").anchor
    headings = [heading for page in PAGES for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)]
    plain = [re.sub(r"[`*\"]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    assert [make(heading) for heading in plain] == [slug(heading) for heading in plain]


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_page
def test_recipes_shown_can_be_read(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        shown = tomllib.loads(text)
        path = tmp_path / "shown.toml"
        defaults = {"data": '[data]\ntrain = "pairs.tsv"\n', "model": '[model]\nfamily = "transformer"\n'}
        defaults["train"] = "[train]\nbatch_size = 3\nmax_steps = 5\n"
        missing = "".join(table for name, table in defaults.items() if name not in shown)
        path.write_text(('task = "translate"\n' if "task" not in shown else "") + text + missing, encoding="utf-8")
        recipe = load_recipe(path)
        if "from" not in recipe.model:
            outline(recipe.model)


@every_page
def test_python_shown_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, f"{page.name}", "exec")


WRAPPER = """#!/bin/bash
# `regard` of this environment; training is shortened
if [ "$1" != train ]; then exec {python} -m regard "$@"; fi
arguments=()
for argument in "$@"; do
    case "$argument" in train.minutes=*|train.epochs=*|train.max_steps=*) ;; *) arguments+=("$argument") ;; esac
done
case "$2" in dates|dates-transformer|reverse|names) small="data.train=300 data.validation=20 data.test=20" ;; esac
arguments=("${{arguments[@]:0:2}}" ${{small:-}} "${{arguments[@]:2}}")
exec {python} -m regard "${{arguments[@]}}" train.max_steps=2 train.warmup_steps=1
"""
SAMPLES = {  # files of the reader's that pages name without showing them
    "reviews.csv": "text,label\n" + "".join(f"good thing {n},positive\nbad thing {n},negative\n" for n in range(20)),
    "names.conll": "".join(f"Ada B-PER\nlives O\nin O\nTown{n} B-LOC\n. O\n\n" for n in range(30)),
    "questions.csv": "question,context,answer\n"
    + "".join(f"Who sang {n}?,Song {n}: the wind blew and Ada{n} sang.,Ada{n}\n" for n in range(30)),
    "pairs.tsv": "".join(f"eins zwei {n}\tone two {n}\n" for n in range(200)),
    "book.txt": "".join(f"It was a dark night, and {n} dogs barked at the moon.\n" for n in range(800)),
    "reports.txt": "".join(f"The patient was seen on day {n}.\n\nThe wound was clean.\n\n" for n in range(200)),
    "notes.txt": "The landlord pays for the heating.\nWe meet on Monday.\n",
    "handbook.txt": "The firm was founded in 1987 by two sisters. It has forty employees.\n",
}
NOT_RUN = re.compile(r"\s*(pip install|make|git clone|cd|source|torchrun|hf download|NANOGPT=|python -m benchmarks)\b")
EXAMPLE = re.compile(r"(<!-- not run:[^>]*-->\n+)?^```(sh|python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


PRELUDE = """
import pathlib
import subprocess
import webbrowser

webbrowser.open = lambda address: True


def run_shell(script):
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True)

"""


def executable(text: str) -> str:
    """A shell block without the lines that install or download."""
    return "\n".join(line for line in text.splitlines() if not NOT_RUN.match(line))


def shell(script: str, folder: Path) -> None:
    """Run a script as a reader would, with `regard` and `python` of this environment."""
    wrapper = folder / ".bin" / "regard"
    if not wrapper.exists():
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(WRAPPER.format(python=shlex.quote(sys.executable)))
        wrapper.chmod(0o755)
    path = os.pathsep.join([str(wrapper.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"


def prepare_folder(folder: Path, text: str) -> None:
    """What the text of a page names without making it: sample files, and the runs of the demo."""
    for name, content in SAMPLES.items():
        (folder / name).write_text(content, encoding="utf-8")
    captions = ["image,caption"]
    for index in range(40):
        example = scene(1, "train", index)
        path = folder / "photos" / example.label / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(example.image).save(path)
        captions.append(f"{path.relative_to(folder)},{example.caption}")
    (folder / "captions.csv").write_text("\n".join(captions) + "\n", encoding="utf-8")
    Image.fromarray(scene(1, "test", 0).image).save(folder / "holiday.jpg")
    soundfile.write(folder / "seven.wav", np.random.default_rng(7).normal(0, 0.1, 4000), 8000)
    for recipe in ("dates", "dates-transformer"):
        if "runs/demo" in text:
            shell(f"regard train {recipe} output=runs/demo/{recipe} --quiet", folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=page_id)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Shell and Python blocks in order, in one folder; a recipe shown as a block is mine.toml."""
    text = page.read_text(encoding="utf-8")
    examples = [(kind, block) for skip, kind, block in EXAMPLE.findall(text) if not skip]
    if any(kind != "toml" for kind, _ in examples):
        prepare_folder(tmp_path, text)
    script = [PRELUDE]  # one process, so that Python blocks know the names of earlier ones
    for kind, block in examples:
        if kind == "toml":
            if "task" in tomllib.loads(block):
                script.append(f"pathlib.Path('mine.toml').write_text({block!r}, encoding='utf-8')")
        elif kind == "sh":
            script.append(f"run_shell({executable(block)!r})")
        else:
            script.append(re.sub(r"train\.max_steps=\d+", "train.max_steps=2", block))
    if len(script) > 1:
        (tmp_path / ".page.py").write_text("\n".join(script), encoding="utf-8")
        shell("python .page.py", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("row", range(12))
def test_the_commands_of_the_readme_table_run(row: int, tmp_path: Path) -> None:
    """Each row of the table of tasks: train, then predict."""
    rows = [line for line in section(ROOT / "README.md", "## Tasks").splitlines() if line.startswith("| [")]
    assert len(rows) == 12
    prepare_folder(tmp_path, "")
    if "sst2-distilled" in rows[row]:
        shell("regard train sst2", tmp_path)  # the teacher
    for command in re.findall(r"`(regard [^`]+)`", rows[row]):
        shell(command, tmp_path)
