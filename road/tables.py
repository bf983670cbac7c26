"""The tables of the page, and the sentences that are computed from them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from road.markdown import listed, table
from road.measure import BEAMS
from road.plan import Experiment
from road.published import PUBLISHED_SOURCE, WMT14
from road.sections import changed
from road.sheet import MISSING, SIGNIFICANCE, Sheet, figure, millions, signed, threads, verdict
from road.theory import LAYERS, Layer, Sizes

BY_LENGTH = (
    "A vector of a fixed size is a bottleneck for long sentences. Bahdanau et al. 2015 (figure 2) showed this by BLEU "
    "over the length of the source; the groups below have about equally many sentences each."
)
LEGEND = (
    "Sorted by BLEU. *tokens/s*: target tokens per second in training, median over the run; *seconds*: for translating "
    "the test split greedily. Times are of one run, on a machine that other work may have shared."
)
COMPLEXITY = (
    "After Vaswani et al. 2017, table 1: orders of growth, without constants and without position-wise layers. n is "
    "the mean number of source tokens in the test split, by the tokenizer of the row's first model; d (width), "
    "k (kernel) and w (window of a local attention) are that model's. *Sequential operations* are those of the "
    "encoder. *Within* is the maximum path length between two source tokens, *across* that from a source token to the "
    "token being generated. The shorter the path, the easier it is to learn a dependency."
)
ABLATIONS = (
    "One small Transformer, complete, and without one component each. Differences are to the complete model, with a "
    "paired bootstrap test."
)
LANGUAGE = "Two of the models on the English and French descriptions of the same photographs."
PUBLISHED = (
    f"On the same test split, greedy, lower case, about ten epochs: {PUBLISHED_SOURCE}. Its BLEU is computed on "
    "spaCy's tokens, ours by sacreBLEU; its models, vocabularies and budgets differ as well. So only the order and the "
    "rough size of the differences are comparable."
)
WMT = "The papers used a far larger corpus, WMT 2014. BLEU as published:"


def protocol(sheet: Sheet) -> str:
    """The protocol of all measurements."""
    first = sheet.settings[sheet.plan.comparison[0].name]
    files = ", ".join(f"{split} `{first[f'data.{split}']}`" for split in ("train", "validation", "test"))
    lines = [f"- **Data**: {files}{_counted(sheet)}. `REGARD_DATA` names the folder."]
    lines.append(f"- **Tokenizer**: {_tokenizers(sheet)}")
    seeds = sorted({each["seed"] for each in sheet.settings.values()})
    seed = listed([str(seed) for seed in seeds])
    lines.append(f"- **Training**: one run per model, seed {seed}; the checkpoint with the best validation score.")
    if not sheet.measured:
        return "\n".join(lines)
    results = list(sheet.measured.values())
    for name, metric in (("BLEU", "bleu"), ("chrF", "chrf")):
        signatures = sorted({each[way][metric]["signature"] for each in results for way in ("greedy", "beam")})
        lines.append(f"- **{name}**: sacreBLEU, {listed([f'`{each}`' for each in signatures])}.")
    ways = sorted({(each["greedy"]["batch"], each["greedy"]["threads"]) for each in results})
    batches = listed([f"{batch} sentences at once with {threads(count)}" for batch, count in ways])
    lines.append(f"- **Decoding**: greedy, and beam search with {BEAMS} beams; {batches}.")
    lines.append(f"- **p**: paired bootstrap resampling (Koehn 2004); significant below {SIGNIFICANCE:g}.")
    machines = sorted({_machine(each["machine"]) for each in results})
    lines.append(f"- **Machine**: {'; '.join(machines)}.")
    lines.append(
        "- **±** is the half-width of a 95 % bootstrap confidence interval over the test sentences. The variance over "
        "seeds is not measured. The models also differ in epochs, minutes and parameters (see the tables), so a "
        "difference between two of them is not due to the idea alone."
    )
    return "\n".join(lines)


def _counted(sheet: Sheet) -> str:
    first = sheet.of(sheet.plan.comparison[0])
    return f" ({listed([f'{count:,}' for count in first['pairs'].values()])} pairs)" if first else ""


def _tokenizers(sheet: Sheet) -> str:
    """Which models share a tokenizer."""
    ways: dict[str, list[str]] = {}
    for experiment in sheet.plan.experiments:
        each = sheet.settings[experiment.name]
        size = "" if each["tokenizer.kind"] == "characters" else f" of at most {each['tokenizer.vocab_size']:,}"
        case = ", lower case" if each["tokenizer.lowercase"] else ""
        joint = ", one vocabulary for both sides" if each["tokenizer.joint"] else ""
        ways.setdefault(f"{each['tokenizer.kind']}{size}{case}{joint}", []).append(experiment.title)
    common = max(ways, key=lambda way: len(ways[way]))
    others = [f"for {listed(titles)}: {way}" for way, titles in ways.items() if way != common]
    return "; ".join([common, *others]) + "."


def _machine(machine: dict[str, Any]) -> str:
    device = f", {machine['cuda']}" if machine["cuda"] else ""
    return f"{machine['cpu']}, {machine['cores']} cores{device}, Python {machine['python']}, torch {machine['torch']}"


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "parameters": lambda results: millions(results["parameters"]),
    "BLEU": lambda results: figure(results["greedy"]["bleu"]),
    f"beam {BEAMS}": lambda results: figure(results["beam"]["bleu"]),
    "chrF": lambda results: figure(results["greedy"]["chrf"]),
    "epochs": lambda results: f"{results['training']['epochs']:g}",
    "minutes": lambda results: f"{results['training']['minutes']:.0f}",
    "threads": lambda results: str(results["training"]["threads"]),
    "tokens/s": lambda results: f"{results['training']['tokens_per_second']:,}",
    "seconds": lambda results: f"{results['greedy']['seconds']:.0f}",
}


def summary(sheet: Sheet, experiments: tuple[Experiment, ...]) -> str:
    """The models sorted by BLEU, each with its number in the order of the papers."""
    rows = []
    for experiment in sorted(experiments, key=sheet.bleu, reverse=True):
        results = sheet.of(experiment)
        cells = [show(results) for show in COLUMNS.values()] if results else [MISSING, *[""] * (len(COLUMNS) - 1)]
        rows.append([sheet.link(experiment), str(experiments.index(experiment) + 1), *cells])
    return table(["<model", "number", *COLUMNS], rows)


def highlights(sheet: Sheet) -> str:
    """The best model, and the largest difference between neighbours."""
    measured = [experiment for experiment in sheet.plan.comparison if sheet.of(experiment)]
    if not measured:
        return ""
    best = max(measured, key=sheet.bleu)
    summary = f"Highest BLEU: {sheet.link(best)}, {sheet.score(best)}."
    steps = [pair for pair in pairwise(sheet.plan.comparison) if sheet.of(pair[0]) and sheet.of(pair[1])]
    if steps:
        earlier, later = max(steps, key=lambda pair: sheet.bleu(pair[1]) - sheet.bleu(pair[0]))
        size = signed(sheet.bleu(later) - sheet.bleu(earlier))
        summary += (
            f" Largest improvement over the preceding model: {size}, {sheet.link(later)} over {sheet.link(earlier)}."
        )
    return summary


def by_length(sheet: Sheet) -> str:
    """BLEU of each model by source length, and the difference between its last and its highest group."""
    measured = [experiment for experiment in sheet.plan.comparison if sheet.of(experiment)]
    groups = [_span(row["words"]) for row in sheet.measured[measured[0].name]["by_length"]]
    rows = []
    for experiment in measured:
        values = [row["bleu"] for row in sheet.measured[experiment.name]["by_length"]]
        rows.append([sheet.link(experiment), *(f"{value:.1f}" for value in values), signed(values[-1] - max(values))])
    return table(["<words in the source", *groups, "longest − highest"], rows)


def _span(words: str) -> str:
    low, _, high = words.partition("–")
    return low if low == high else words


def sentence(sheet: Sheet, experiments: tuple[Experiment, ...]) -> str:
    """The sentence that each model translates below."""
    results = next((results for experiment in experiments if (results := sheet.of(experiment))), None)
    if results is None:
        return ""
    shown = results["sentence"]
    return (
        "Each model shows its greedy translation of one sentence that is not in the corpus, and its attention weights "
        "averaged over heads; of several layers, those of the last but one.\n\n"
        f"> {shown['source']}\\\n> ({shown['meaning']})"
    )


def complexity(sheet: Sheet) -> str:
    """Cost, sequential operations and path lengths of each type of layer."""
    names = [experiment.name for experiment in sheet.plan.comparison]
    rows = []
    for layer in LAYERS:
        sizes = _sizes(sheet, layer)
        numbers = ", ".join(str(names.index(name) + 1) for name in layer.experiments if name in names)
        formulas = (layer.work, layer.sequential, layer.within, layer.across)
        rows.append([layer.name, numbers, f"{sizes.n:.1f}" if sizes else "", *(each.at(sizes) for each in formulas)])
    return table(["<layer", "<models", "n", "<operations", "<sequential operations", "<within", "<across"], rows)


def _sizes(sheet: Sheet, layer: Layer) -> Sizes | None:
    """The sizes of the layer's first model, once it is measured."""
    name = layer.experiments[0]
    if name not in sheet.measured:
        return None
    chosen = sheet.settings[name]
    window = 2 * chosen.get("model.local_window", 0) + 1
    return Sizes(sheet.measured[name]["source"]["tokens"], chosen["model.width"], chosen.get("model.kernel", 0), window)


def published(sheet: Sheet) -> list[str]:
    """Published results next to ours."""
    rows = []
    for experiment in sheet.plan.comparison:
        if experiment.published:
            ours = sheet.show(experiment, lambda results: millions(results["parameters"]))
            theirs = experiment.published
            rows.append(
                [
                    sheet.link(experiment),
                    theirs.name,
                    theirs.parameters,
                    f"{theirs.bleu:.1f}",
                    ours,
                    sheet.score(experiment),
                ]
            )
    head = ["<model", "<published", "parameters", "BLEU", "ours: parameters", "ours: BLEU"]
    wmt = [[*row[:1], row[1] or "–", row[2] or "–", row[3]] for row in WMT14]
    return [
        PUBLISHED,
        table(head, rows),
        WMT,
        table(["<system", "English → German", "English → French", "<where"], wmt),
    ]


def ablations(sheet: Sheet) -> str:
    """Each ablation with its difference to the complete model."""
    head = ["<model", "<changed", "parameters", "BLEU", "difference", "p", "<by the paired test", "chrF"]
    rows = []
    for experiment in sheet.plan.ablations:
        reference = sheet.plan.reference(experiment)
        what = changed(sheet, experiment, reference) if reference else ""
        size = sheet.show(experiment, lambda results: millions(results["parameters"]))
        row = [sheet.link(experiment), what, size, sheet.score(experiment)]
        tested = (sheet.against(experiment) or {}).get("bleu")
        row += [signed(tested["difference"]), f"{tested['p']:.3f}", verdict(tested)] if tested else ["", "", ""]
        rows.append([*row, sheet.score(experiment, metric="chrf") if sheet.of(experiment) else ""])
    return table(head, rows)
