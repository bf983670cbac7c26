"""Published Whisper weights transcribe as published: from files to text, times, subtitles and traces."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from needs import need, need_weights

import regard
from regard.cli.main import main
from regard.errors import UserError


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    return json.loads((need_weights("whisper-tiny-en") / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model() -> Any:
    return regard.load(need_weights("whisper-tiny-en"))


@pytest.fixture(scope="module")
def files(expected: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    import os

    archive = Path(os.environ.get("REGARD_DATA", "nowhere")) / "asterisk-prompts-en" / "flac8k.zip"
    need(archive.is_file(), "set REGARD_DATA to a folder with asterisk-prompts-en")
    folder = tmp_path_factory.mktemp("recordings")
    with ZipFile(archive) as prompts:
        members = {Path(name).name: name for name in prompts.namelist()}
        for each in expected:
            (folder / each["file"]).write_bytes(prompts.read(members[each["file"]]))
    return [str(folder / each["file"]) for each in expected]


def test_transcripts_are_those_of_the_reference(model: Any, files: list[str], expected: Any) -> None:
    found = model.run(files)
    assert [each.text for each in found] == [each["text"].strip() for each in expected]
    assert [list(each.tokens) for each in found] == [each["ids"] for each in expected]


@torch.no_grad()
def test_features_states_and_logits_are_those_of_the_reference(model: Any, files: list[str], expected: Any) -> None:
    """Of the first recording, resampled as the reference did it."""
    soundfile = pytest.importorskip("soundfile")
    signal = pytest.importorskip("scipy.signal")
    samples, rate = soundfile.read(files[0], dtype="float32")
    audio = model.processor.source([signal.resample_poly(samples, 16000, rate).astype(np.float32)])
    reference = expected[0]
    assert float(audio.frames.mean()) == pytest.approx(reference["features_mean"], abs=1e-4)
    assert float(audio.frames.std(correction=0)) == pytest.approx(reference["features_std"], abs=1e-4)
    encoded = model.network.listen(audio)
    tolerance = 1e-5 * float(encoded.states.abs().max())
    for state, name in ((encoded.states[0, 0], "encoder_first"), (encoded.states[0, -1], "encoder_last_frame")):
        assert state[:6].tolist() == pytest.approx(reference[name], abs=tolerance)
    logits = model.network.step(torch.tensor([[50257, 50362]]), model.network.start_from(encoded))[0][0, -1]
    top = logits.topk(5)
    assert top.indices.tolist() == reference["logits_top5"]
    assert top.values.tolist() == pytest.approx(reference["logits_top5_values"], abs=1e-5 * float(logits.abs().max()))


def test_times_of_words_and_segments(model: Any, files: list[str], expected: Any) -> None:
    transcript = model.run(files[1], timestamps=True)
    assert transcript.text == expected[1]["text"].strip()
    assert [word.text for word in transcript.words] == transcript.text.split()
    assert " ".join(segment.text for segment in transcript.segments) == transcript.text
    ends = [(word.start, word.end) for word in transcript.words]
    assert all(start <= end for start, end in ends)
    assert all(end == pytest.approx(start) for (_, end), (start, _) in pairwise(ends))
    assert 4.0 < transcript.words[-1].end < 5.0  # of 4.9 seconds


def test_the_command_line_prints_subtitles(files: list[str], capfd: Any, model: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", str(model.folder), files[7], "--srt"])
    assert not end.value.code
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("00:00:00,")
    assert lines[2] == "Letters of your party's first name."


def test_a_trace_has_the_attention_of_the_prompt_and_the_text(model: Any, files: list[str]) -> None:
    trace = model.trace(files[7])
    assert trace.answer.strip() == "Letters of your party's first name."
    weights = trace.weights("decoder.blocks.3.cross", head=3)
    assert weights.shape == (2 + 8, 1500)
    torch.testing.assert_close(weights.sum(-1), torch.ones(10))


def test_options_of_other_models_are_refused(model: Any, files: list[str]) -> None:
    for options, message in (
        ({"language": "de"}, "English only"),
        ({"translate": True}, "multilingual"),
        ({"ctc_weight": 0.3}, "CTC"),
        ({"language": 3}, "expected str"),
    ):
        with pytest.raises(UserError, match=message):
            model.run(files[7], **options)


def test_int8_hears_the_same_words(files: list[str], expected: Any) -> None:
    model = regard.load(need_weights("whisper-tiny-en"), precision="int8")
    assert model.run(files[1]).text == expected[1]["text"].strip()
