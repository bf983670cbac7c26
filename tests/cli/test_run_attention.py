"""`regard run --explore` and `--overlay`: the attention weights of one prediction as files."""

import re
from pathlib import Path

import pytest
from calling import Call

from tests.cli.test_run_output import classifier


def test_the_viewer_of_a_prediction_is_written(tmp_path: Path, call: Call) -> None:
    code, out, err = call("run", classifier(tmp_path), "hello", "--explore", tmp_path / "page.html")
    assert code == 0 and out.strip() in ("x", "y", "z")
    assert err == f"note: attention weights: {tmp_path / 'page.html'}\n"
    assert re.search("<title>.*hello.*</title>", (tmp_path / "page.html").read_text())


def test_the_prediction_of_the_page_is_that_of_the_output(tmp_path: Path, call: Call) -> None:
    _, out, err = call("run", classifier(tmp_path), "hello", "--explore", tmp_path / "page.html", "-q")
    assert err == ""
    assert f'"answer":"{out.strip()}"' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a", "b", "--explore", "page.html"], 2, "shows the attention of one input: give one INPUT"),
        (["--explore", "page.html"], 2, "give one INPUT"),
        (["a", "--explore", "page.txt"], 2, "expected a name that ends in .html"),
        (["a", "--overlay", "page.jpg"], 2, "expected a name that ends in .png"),
        (["a", "--head", "1"], 2, "is for --overlay: give that too"),
        (["a", "--overlay", "missing/page.png"], 1, "there is no folder missing: make it first"),
        (["a", "--overlay", "page.png"], 1, "overlays are for images"),
    ],
)
def test_wrong_use_is_explained(
    arguments: list[str], code: int, message: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = classifier(tmp_path)
    before = sorted(tmp_path.iterdir())
    found, _, err = call("run", model, *arguments)
    assert found == code and message in " ".join(err.split())
    assert sorted(tmp_path.iterdir()) == before
