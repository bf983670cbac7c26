"""Write the API part of docs/python.md from signatures, docstrings and comments: `python docs/tools/api.py`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"
BEGIN = "<!-- api: written by docs/tools/api.py -->"
END = "<!-- end of api -->"

API = {
    "Models": ["regard.model:load", "regard.model:Model", "regard.errors:UserError"],
    "Predictions": [
        "regard.tasks.classify.predictions:Label",
        "regard.tasks.classify.predictions:LabelSet",
        "regard.tasks.classify.predictions:Value",
        "regard.tasks.tag.predictions:Tags",
        "regard.tasks.tag.predictions:TaggedSpan",
        "regard.tasks.answer.predict:SpanAnswer",
        "regard.tasks.translate.predict:Translation",
        "regard.tasks.caption.predict:Caption",
        "regard.tasks.transcribe.transcript:Transcript",
        "regard.tasks.transcribe.timing:TimedText",
        "regard.tasks.generate.text_generator:Continuation",
        "regard.tasks.fill.predict:FilledText",
        "regard.tasks.fill.predict:Candidate",
        "regard.tasks.embed.predict:Vector",
    ],
    "Attention": ["regard.attention.trace:Trace"],
    "Semantic search": [
        "regard.tasks.embed.search:Source",
        "regard.tasks.embed.search:Index",
        "regard.tasks.embed.search:find_all",
        "regard.tasks.embed.search:SearchResult",
        "regard.tasks.embed.search:Hit",
    ],
    "Training": ["regard.config.recipe:load_recipe", "regard.training.build:start", "regard.training.build:resume"],
}
"""Section → objects, as module:name."""


def find(name: str) -> tuple[ast.ClassDef | ast.FunctionDef, list[str]]:
    """The definition of module:name, and the lines of its file."""
    module, _, name = name.partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node, source.splitlines()
    raise SystemExit(f"docs/tools/api.py: no {name} in {module}; adapt the table API")


def signature(node: ast.FunctionDef, name: str) -> str:
    """The call with its types, without `self`."""
    arguments = ast.unparse(node.args)
    for first in ("self", "cls"):
        arguments = arguments.removeprefix(f"{first}, ").removeprefix("/, ") if arguments != first else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    arguments = re.sub(r"(?<=[\w\]])=(?=\S)", " = ", arguments)
    return f"{name}({arguments}){returns}".replace("'", '"')


def comment(line: str) -> str:
    return line.partition("  # ")[2].strip()


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def fields(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """Rows of the table of a class: its annotated fields and its properties."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield row(item.target.id, item.annotation, comment(lines[item.lineno - 1]))
    for method in methods(node):
        if is_property(method):
            yield row(method.name, method.returns, ast.get_docstring(method) or "")


def row(name: str, annotation: ast.expr | None, text: str) -> str:
    kind = ast.unparse(annotation).replace("'", "") if annotation is not None else ""
    return f"| `{name}` | `{cell(kind)}` | {cell(text)} |"


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Public methods and properties."""
    return (each for each in node.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"))


def is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).rpartition(".")[2] in ("property", "cached_property") for each in node.decorator_list)


def describe(name: str) -> str:
    """One object: heading, signature, docstring; of a class also its fields and methods."""
    node, lines = find(name)
    public = {"regard.model:load": "regard.load", "regard.errors:UserError": "regard.UserError"}
    module, _, plain = name.partition(":")
    parts = [f"#### {plain}"]
    if isinstance(node, ast.FunctionDef):
        parts += [f"```text\n{signature(node, public.get(name, plain))}\n```"]
    parts += [f"`{public[name]}`" if name in public else f"`from {module} import {plain}`"]
    parts += [ast.get_docstring(node) or ""]
    if isinstance(node, ast.ClassDef):
        if rows := list(fields(node, lines)):
            parts += ["| field | type | |\n|---|---|---|\n" + "\n".join(rows)]
        for method in methods(node):
            if not is_property(method):
                parts += [
                    f"```text\n{signature(method, f'{plain}.{method.name}')}\n```",
                    ast.get_docstring(method) or "",
                ]
    return "\n\n".join(part for part in parts if part)


def api() -> str:
    """The generated part of the page."""
    sections = [f"### {title}\n\n" + "\n\n".join(map(describe, names)) for title, names in API.items()]
    return f"{BEGIN}\n\n" + "\n\n".join(sections) + f"\n\n{END}"


def updated(page: str) -> str:
    """The page with its generated part renewed."""
    head, _, rest = page.partition(BEGIN)
    return head + api() + rest.partition(END)[2]


if __name__ == "__main__":
    text = updated(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
