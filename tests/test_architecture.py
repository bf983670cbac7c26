"""The package layout: which modules exist at the root, which way imports point, and what importing a package loads."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "regard"
ROOT_MODULES = {"__init__", "__main__", "errors", "progress", "model"}
LAYERS = (  # lower ones first; packages of one line may import each other
    ("errors", "progress"),
    ("config",),
    ("kernels",),
    ("attention",),
    ("layers",),
    ("models", "runtime"),
    ("text", "image", "audio", "data"),
    ("decoding", "interop"),
    ("metrics",),
    ("tasks",),
    ("training",),
    ("rlhf",),
    ("model",),
    ("explorer", "server"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
UPWARD = {  # (importing module, imported package): late imports that must point up
    ("config.recipe", "tasks"),  # the registry, which loads no torch
    ("config.recipe", "models"),  # the fields of the family that an override chooses
    ("attention.trace", "explorer"),  # Trace.explore
    ("tasks.generate.predict", "model"),  # a draft model by its folder
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path


def imports(path: Path) -> Iterator[str]:
    """Every module of the package that a file imports, also inside functions; not for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "regard":
            for alias in node.names:
                inner = node.module.removeprefix("regard").removeprefix(".")
                path_of_name = PACKAGE / inner.replace(".", "/") / f"{alias.name}.py"
                yield f"{inner}.{alias.name}".lstrip(".") if path_of_name.is_file() or not inner else inner
        elif isinstance(node, ast.Import):
            yield from (each.name.removeprefix("regard.") for each in node.names if each.name.startswith("regard."))


def test_only_the_listed_modules_are_at_the_root() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == ROOT_MODULES


def test_every_package_has_a_level() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= LEVEL.keys()


def test_no_module_has_an_empty_name() -> None:
    assert not [path for _, path in modules() if path.stem in ("utils", "helpers", "common", "misc")]


def test_imports_point_one_way() -> None:
    wrong = []
    for name, path in modules():
        package = name.split(".")[0]
        if package not in LEVEL:
            continue  # the package's own __init__ and __main__
        for imported in imports(path):
            target = imported.split(".")[0]
            allowed = (name, target) in UPWARD or target not in LEVEL
            if not allowed and LEVEL[target] > LEVEL[package]:
                wrong.append(f"{name} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_task_imports_another() -> None:
    wrong = []
    for name, path in modules():
        if name.count(".") != 2 or not name.startswith("tasks."):
            continue
        task = name.split(".")[1]
        others = [each for each in imports(path) if each.startswith("tasks.") and each.count(".") >= 2]
        wrong += [f"{name} imports {each}" for each in others if each.split(".")[1] != task]
    assert not wrong, "\n".join(wrong)


def test_text_is_encoded_where_the_library_is_guarded() -> None:
    """A foreign tokenizer may panic, or return ids over its vocabulary."""
    unguarded = [name for name, path in modules() if re.search(r"\.inner\.(en|de)code", path.read_text())]
    assert unguarded == ["text.tokenizer"]


def loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("package", ["attention", "layers", "models", "runtime", "kernels"])
def test_tensor_packages_load_no_tokenizer_and_no_file_reader(package: str) -> None:
    names = [f"regard.{name}" for name, _ in modules() if name.split(".")[0] == package]
    loaded = loaded_by(", ".join(names))
    forbidden = ("tokenizers", "safetensors", "sentencepiece", "regard.text", "regard.data", "regard.interop")
    assert not {name for name in loaded if name.startswith(forbidden)}


@pytest.mark.parametrize("task", sorted(path.parent.name for path in (PACKAGE / "tasks").glob("*/__init__.py")))
def test_importing_a_task_loads_no_other(task: str) -> None:
    names = [f"regard.{name}" for name, _ in modules() if name.startswith(f"tasks.{task}.")]
    tasks = {name.split(".")[2] for name in loaded_by(", ".join(names)) if name.startswith("regard.tasks.")}
    packages = {path.parent.name for path in (PACKAGE / "tasks").glob("*/__init__.py")}
    assert tasks & packages == {task}


def test_options_of_tasks_load_no_torch() -> None:
    names = [f"regard.{name}" for name, _ in modules() if name.startswith("tasks.") and name.endswith(".options")]
    assert len(names) >= 7
    assert "torch" not in loaded_by(", ".join([*names, "regard.config.recipe", "regard.tasks.registry"]))
