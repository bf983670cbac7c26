"""MkDocs hooks: anchors as Git forges make them, pages of the repository's root, and no links to source files."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}


def anchor(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"] = {"slugify": anchor, "permalink": False}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """CONTRIBUTING.md and CHANGELOG.md are in the repository's root, where forges look for them."""
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, ROOT_PAGES[name], content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links that leave docs/: to pages of the root, else only their text."""

    def replace(link: re.Match[str]) -> str:
        path, _, fragment = link[2].partition("#")
        if path in ROOT_PAGES:
            return f"[{link[1]}]({ROOT_PAGES[path]}{'#' + fragment if fragment else ''})"
        return link[1]

    return re.sub(r"\[([^\]]+)\]\(\.\./([^)\s]+)\)", replace, markdown)
