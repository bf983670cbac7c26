"""Speech recognition from files to transcripts, on tones: training, prediction, times, traces, evaluation, `doctor`."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import regard
from regard.cli.main import main
from regard.config.recipe import Recipe, load_recipe
from regard.errors import UserError
from regard.explorer.alignment import LABEL, LINE, MARGIN, ROW, SPECTROGRAM
from regard.interop.folder import save
from regard.metrics.alignment import monotonicity
from regard.tasks.transcribe.timing import to_vtt
from regard.training.build import prepare_network, prepare_task, resume, start
from regard.training.doctor import examine
from tests.tones import RATE, sentences, speak, write_recordings

RECIPE = """
task = "transcribe"
output = "{output}"
[data]
train = "{table}"
validation = 0.2
sampling_rate = 4000
dynamic_range = 40.0
normalisation = "recording"
{data}
[model]
bins = 12
max_frames = 400
dropout = 0.0
{model}
[train]
batch_size = 16
max_steps = {steps}
eval_steps = {steps}
save_steps = 4
learning_rate = 1e-2
schedule = "constant"
warmup_steps = 10
threads = 1
{more}
"""
CTC = 'family = "speech_recurrent"\nwidth = 32\ndepth = 2\nhalvings = 1'
TRANSFORMER = 'family = "speech_transformer"\nwidth = 24\nheads = 3\ndepth = 1\nfeedforward = 37\nchannels = 4'
LAS = """family = "las"
encoder_width = 16
depth = 2
halvings = 1
embedding_width = 8
width = 32
filters = 3
kernel = 5
ctc_weight = 0.5"""
MODELS = {"ctc": (CTC, 600), "las": (LAS, 400)}


def recipe_of(
    folder: Path, table: Path, model: str, steps: int, name: str = "run", data: str = "", more: str = ""
) -> Recipe:
    path = folder / f"{name}.toml"
    path.write_text(RECIPE.format(output=folder / name, table=table, model=model, steps=steps, data=data, more=more))
    return load_recipe(path)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings"), 400)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=MODELS)
def trained(request: Any, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    start(recipe_of(folder, table, *MODELS[request.param]), quiet=True)
    return folder / "run"


@pytest.fixture(scope="module")
def model(trained: Path) -> Any:
    return regard.load(trained)


def unseen(count: int) -> list[str]:
    return sentences(count, seed=9)


def test_tones_are_recognised_without_error(model):
    texts = unseen(20)
    recordings = [(speak(text, 1000 + index).samples, RATE) for index, text in enumerate(texts)]
    for options in ({}, {"num_beams": 4}):
        assert [each.text for each in model.run(recordings, **options)] == texts


def test_one_alone_is_as_in_a_batch_and_files_are_as_arrays(model, table):
    names = [str(table.parent / f"{index}.wav") for index in range(5)]
    together = model.run(names)
    for name, transcript in zip(names, together, strict=True):
        alone = model.run(name)
        assert alone.text == transcript.text
        assert alone.score == pytest.approx(transcript.score, abs=1e-4)


def test_times_of_words_are_those_of_the_tones(model):
    errors = []
    for index, text in enumerate(text for text in unseen(30) if " " in text):
        spoken = speak(text, index)
        transcript = model.run((spoken.samples, RATE), timestamps=True)
        assert [word.text for word in transcript.words] == text.split()
        assert " ".join(segment.text for segment in transcript.segments) == text
        gap = text.index(" ")
        errors += [
            abs(transcript.words[0].start - spoken.times[0][0]),
            abs(transcript.words[1].start - spoken.times[gap + 1][0]),
        ]
    assert np.median(errors) < 0.08


def test_the_trace_has_output_units_and_seconds_as_axes(model):
    spoken = speak("ab cd", 3)
    trace = model.trace((spoken.samples, RATE), prove=True)
    assert trace.picture.pixels.shape[1] == len(spoken.samples) // (RATE // 100)
    if not trace.sites:
        return  # a recurrent network with CTC has no attention
    weights = trace.weights("decoder.cross")[0]
    rows, columns = trace.labels("decoder.cross")
    assert rows == ["a", "b", "␣", "c", "d", "</s>"]
    assert columns[:3] == ["0.00 s", "0.02 s", "0.04 s"]
    assert weights.shape == (len(rows), len(columns))
    letters = torch.tensor([0, 1, 3, 4])
    peaks = 0.02 * weights[letters].argmax(-1)
    expected = torch.tensor([spoken.times[index] for index in letters]).mean(-1)
    assert (peaks - expected).abs().max() < 0.25
    assert monotonicity(weights[letters].numpy()) == 1.0
    computed, used = trace.proof("decoder.cross")
    torch.testing.assert_close(computed, used, atol=1e-5, rtol=0)


def test_attention_over_the_recording_moves_forward(model):
    """Learned, not a law: so on average over recordings of distinct letters."""
    if not any(site == "decoder.cross" for site in model.trace((speak("ab", 3).samples, RATE)).sites):
        return  # a recurrent network with CTC has no attention
    measured = []
    for index in range(8):
        letters = "abcdabcd"[index % 4 : index % 4 + 4]
        weights = model.trace((speak(f"{letters[:2]} {letters[2:]}", index).samples, RATE)).weights("decoder.cross")[0]
        measured.append(monotonicity(weights.numpy()[[0, 1, 3, 4]]))
    assert np.mean(measured) > 0.8  # of reversed attention 0, of random attention one half


def test_a_saved_model_transcribes_the_same(model, tmp_path):
    model.save(tmp_path / "saved")
    recordings = [(speak(text, index).samples, RATE) for index, text in enumerate(unseen(5))]
    again = regard.load(tmp_path / "saved")
    assert again.task == "transcribe"
    assert [each.text for each in again.run(recordings)] == [each.text for each in model.run(recordings)]


def test_a_loaded_encoder_with_its_head_is_the_saved_one(table, tmp_path):
    """Also where it is rewritten to compute no padding."""
    recipe = recipe_of(tmp_path, table, TRANSFORMER, 4)
    loaded = prepare_network(recipe)
    save(tmp_path / "saved", loaded.network, loaded.processor, {"num_beams": 3})
    model = regard.load(tmp_path / "saved")
    audio = loaded.processor.source([speak(text, index).samples for index, text in enumerate(unseen(3))])
    with torch.no_grad():
        emissions, expected = model.network(audio), loaded.network.eval()(audio)
    assert emissions.lengths.tolist() == expected.lengths.tolist()
    for row, length in enumerate(expected.lengths.tolist()):
        torch.testing.assert_close(emissions.logits[row, :length], expected.logits[row, :length], atol=1e-5, rtol=0)
    assert model.predictor().decode_options().num_beams == 3
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["SpeechTransformerForCTC"]
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config | {"vocab_size": 99}))
    with pytest.raises(UserError):
        regard.load(tmp_path / "saved")


def output_of(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as exit:
        main([*map(str, arguments)])
    printed = capfd.readouterr()
    assert not exit.value.code, printed.err
    return printed.out


def test_the_command_line_prints_transcripts_times_and_subtitles(trained, table, capfd):
    files = [table.parent / "0.wav", table.parent / "1.wav"]
    texts = [line.split("\t")[1] for line in table.read_text().splitlines()[1:3]]
    assert output_of(capfd, "run", trained, *files, "-q").splitlines() == [
        f"{file}\t{text}" for file, text in zip(files, texts, strict=True)
    ]
    timed = output_of(capfd, "run", trained, files[0], "--timestamps")
    assert re.fullmatch(r"\[00:00:00\.\d{3} → 00:00:00\.\d{3}\] " + texts[0] + "\n", timed)
    srt = output_of(capfd, "run", trained, files[0], "--srt")
    assert re.match(r"1\n00:00:00,\d{3} --> 00:00:00,\d{3}\n" + texts[0], srt)
    assert output_of(capfd, "run", trained, files[0], "--vtt").startswith("WEBVTT\n\n00:00:00.")
    fields = json.loads(output_of(capfd, "run", trained, files[0], "--json"))
    assert fields["text"] == texts[0]


def test_evaluation_counts_edits(trained, table, tmp_path, capfd):
    results = json.loads(output_of(capfd, "evaluate", trained, "--json"))
    assert {score["name"]: score["value"] for score in results["scores"]} == {"wer": 0.0, "cer": 0.0}
    wrong = tmp_path / "wrong.tsv"
    wrong.write_text(f"audio\ttext\n{table.parent}/0.wav\t{sentences(400)[0]} abc\n")
    edits = json.loads(output_of(capfd, "evaluate", trained, wrong, "--json"))["edits"]
    assert edits["wer"]["deletions"] == 1
    assert edits["cer"]["deletions"] == 4
    assert edits["cer"]["substitutions"] == edits["cer"]["insertions"] == 0


@pytest.mark.parametrize("model", [LAS, TRANSFORMER], ids=["las", "transformer"])
def test_a_resumed_run_ends_with_the_same_weights(model, table, tmp_path):
    more = "[augment]\nspeeds = [0.9, 1.0, 1.1]\ntime_masks = 1\ntime_mask_width = 5"
    through = recipe_of(tmp_path, table, model.replace("0.0", "0.1"), 8, "through", more=more)
    start(through, quiet=True)
    start(recipe_of(tmp_path, table, model, 8, "stopped", more=more), quiet=True)
    run = tmp_path / "stopped"
    for folder in run.glob("checkpoint-8"):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    resume(run, quiet=True)
    ours, theirs = (load_file(folder / "checkpoint-8" / "model.safetensors") for folder in (run, tmp_path / "through"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def prepared(folder: Path, table: Path, model: str = CTC, **more: str) -> Any:
    recipe = recipe_of(folder, table, model, 4, **more)
    return prepare_task(recipe, prepare_network(recipe))


def written(folder: Path, rows: list[tuple[str, str]]) -> Path:
    path = folder / "table.tsv"
    path.write_text("\n".join(["audio\ttext", *map("\t".join, rows)]) + "\n")
    return path


def test_doctor_reports_what_cannot_be_used(table, tmp_path):
    names = [str(table.parent / f"{index}.wav") for index in range(40)]
    rows = [(name, "abc") for name in names[:36]]
    rows += [(names[36], ""), (names[37], "a" * 80), (str(tmp_path / "missing.wav"), "abc")]
    damaged = tmp_path / "damaged.wav"
    damaged.write_bytes(b"RIFFnothing")
    rows.append((str(damaged), "abc"))
    recipe = recipe_of(tmp_path, written(tmp_path, rows), CTC, 4)
    findings = examine(recipe)
    text = "\n".join(findings.warnings)
    assert "1 × more tokens than CTC has states" in text
    assert "1 × recording not found" in text
    assert "1 × unreadable recording" in text
    assert "1 × empty target" in text


def test_doctor_reports_units_that_are_not_in_train(table, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    validation = written(other, [(str(table.parent / "0.wav"), "xyz")])
    recipe = recipe_of(tmp_path, table, CTC, 4, data=f'test = "{validation}"')
    assert any("units are not in train" in warning and "'x'" in warning for warning in examine(recipe).warnings)


def test_phonemes_with_times_are_read_and_silence_is_ignored(table, tmp_path):
    names = [str(table.parent / f"{index}.wav") for index in range(8)]
    timed = written(tmp_path, [(name, "0.00:0.05:SIL 0.05:0.11:AH0 0.11:0.20:T") for name in names])
    data = 'units = "phonemes"\nignore = ["SIL"]\nvalidation = 0.3'
    more = '[tokenizer]\nkind = "words"'
    path = tmp_path / "phonemes.toml"
    text = RECIPE.format(output=tmp_path / "p", table=timed, model=CTC, steps=4, data="", more=more)
    path.write_text(text.replace("validation = 0.2", data))
    recipe = load_recipe(path)
    task = prepare_task(recipe, prepare_network(recipe))
    assert task.scores == ("per", "loss")
    assert task.training.text(0).target == "AH0 T"
    assert len(task.training.target(0)) == 2


def test_words_stand_for_values_of_a_column(table, tmp_path):
    names = [str(table.parent / f"{index}.wav") for index in range(20)]
    rows = [(name, "12"[index % 2]) for index, name in enumerate(names)]
    words = 'words = { 1 = "one", 2 = "two" }'
    task = prepared(tmp_path, written(tmp_path, rows), data=words)
    assert {task.training.text(index).target for index in range(len(task.training))} == {"one", "two"}
    with pytest.raises(UserError, match=r"'2' is not in data\.words"):
        prepared(tmp_path, written(tmp_path, rows), data='words = { 1 = "one" }')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1.0}, "temperature is for models with a decoder"),
        ({"ctc_weight": 2}, "ctc_weight = 2: expected a number from 0 to 1"),
        ({"num_beam": 2}, "num_beams"),
    ],
)
def test_options_that_do_not_fit(options, message, model):
    if "temperature" in options and model.network.config.__class__.__name__ == "LASConfig":
        return
    with pytest.raises(UserError, match=message):
        model.run((speak("abc").samples, RATE), **options)


def test_too_long_recordings_are_an_error_or_truncated(model):
    samples = np.zeros(5 * RATE, np.float32)
    with pytest.raises(UserError, match="the model reads at most 4:"):
        model.run((samples, RATE))
    assert model.run((samples, RATE), truncate=True).truncated


def test_webvtt_escapes_markup():
    from regard.tasks.transcribe.timing import TimedText

    assert "a &lt; b &amp; c" in to_vtt([TimedText("a < b & c", 0.0, 3661.5)])
    assert "01:01:01.500" in to_vtt([TimedText("a", 0.0, 3661.5)])


def test_figures_show_the_spectrogram_and_the_alignment(model, tmp_path):
    trace = model.trace((speak("abc da", 3).samples, RATE))
    if not trace.sites:
        with pytest.raises(UserError, match="no attention"):
            trace.overlay(tmp_path / "figure.png")
        return
    pixels = np.asarray(Image.open(trace.overlay(tmp_path / "figure.png")))
    rows, columns = trace.labels("decoder.cross")
    drawn = pixels[MARGIN + LINE + SPECTROGRAM :, LABEL:-MARGIN].astype(int)
    brightest = [drawn[ROW * index + ROW // 2].sum(-1).argmax() / drawn.shape[1] for index in range(len(rows))]
    weights = trace.weights("decoder.cross")[0].argmax(-1) / len(columns)
    np.testing.assert_allclose(brightest, weights, atol=1.5 / len(columns))
    page = trace.explore(tmp_path / "page.html").read_text()
    assert "data:image/png;base64" in page
    assert '"rows":1' in page
