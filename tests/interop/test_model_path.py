"""A model may be named by the installed package that carries it; nothing of the package is run."""

import importlib
import shutil
from pathlib import Path

import pytest

import regard
from regard.errors import UserError
from regard.models.heads.mlm import MaskedLM
from regard.training.build import start
from tests.tasks.classify.test_task import lay_out, recipe, texts
from tests.test_model import folder

NAME = "gt-Mine.of-all"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose import would fail, with a model in a folder of it."""
    place = tmp_path / "site" / "gt_mine_of_all"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')\n")
    shutil.copytree(folder(tmp_path, MaskedLM), place / "model")
    (place / "pooling").mkdir()
    (place / "pooling" / "config.json").write_text("{}")  # without weights it is no model
    monkeypatch.syspath_prepend(str(place.parent))
    importlib.invalidate_caches()
    return place


def test_a_package_is_found_by_its_name_and_not_imported(package: Path) -> None:
    assert regard.load(NAME).folder == package / "model"
    assert regard.load(package.name).folder == package / "model"


def test_an_adapter_finds_its_base_in_a_package_of_another_path(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its absolute path was recorded; elsewhere the package name in it is enough."""
    start(recipe(lay_out(tmp_path), f'from = "{NAME}"\nlora_rank = 2', 3), quiet=True)
    before = regard.load(tmp_path / "run").run(texts())
    moved = tmp_path / "other" / package.name
    moved.parent.mkdir()
    package.rename(moved)
    monkeypatch.syspath_prepend(str(moved.parent))
    importlib.invalidate_caches()
    assert regard.load(tmp_path / "run").run(texts()) == before


def test_the_error_lists_the_searched_folders(package: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*no-such.* and no installed package 'no_such'"):
        regard.load("no-such")
    with pytest.raises(
        UserError,
        match=r"'\./a' not found: no folder a.* with config.json and weights.*hf download \S+/gpt2.*REGARD_WEIGHTS",
    ):
        regard.load("./a")
    shutil.copytree(package / "model", package / "second")
    with pytest.raises(UserError, match=r"contains several models: give the folder, such as .*model"):
        regard.load(NAME)
    shutil.rmtree(package / "model")
    shutil.rmtree(package / "second")
    with pytest.raises(UserError, match=r"model 'gt-Mine.* not found"):
        regard.load(NAME)


@pytest.mark.parametrize("name", ["bert-base-uncased", "sentence-transformers/all-MiniLM-L12-v2"])
def test_a_hub_name_gives_the_command_that_downloads_it(name: str) -> None:
    owner, _, folder = name.rpartition("/")
    name = f"{owner or 'OWNER'}/{folder}"
    with pytest.raises(
        UserError,
        match=f"does not download models.*hf download {name} --local-dir {folder}, then give the folder {folder}",
    ):
        regard.load(name.removeprefix("OWNER/"))


def test_a_misspelt_folder_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "tickets").mkdir()
    with pytest.raises(UserError, match=r"not found: no folder .*ticket; did you mean .*/tickets\?$"):
        regard.load(tmp_path / "ticket")
