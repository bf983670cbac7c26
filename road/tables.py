"""The tables of the page, and the sentences that are computed from them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from road.markdown import listed, table
from road.measure import BEAMS
from road.plan import Rung
from road.published import LADDER_SOURCE, WMT14
from road.sections import changed
from road.sheet import CHANCE, MISSING, Sheet, figure, millions, signed, threads, verdict
from road.theory import LAYERS, Layer, Sizes

BY_LENGTH = (
    "A vector of one size has less room for each word the more words there are. Bahdanau et al. 2015 (figure 2) drew "
    "BLEU over the length of the source to show it; the groups below have about equally many sentences each."
)
LEGEND = (
    "From the highest BLEU down. *tokens/s* are target tokens a second in training, the median of the journal; "
    "*seconds* are for translating the test part greedily. Minutes and speeds are those of the one run, on a machine "
    "that other work may have shared."
)
TRAVEL = (
    "After Vaswani et al. 2017, table 1: orders of growth, without constants and without what a layer does at each "
    "place alone. n is the mean number of pieces of a source in the test part, as the first rung of the row cuts "
    "them; d, k and w (the places that a local attention sees) are that rung's. *Waits* are steps of which each needs "
    "the one before, while a sequence is read. *Within* is the path between two pieces of the source, *across* that "
    "from a piece of the source to the one being written. The shorter the path, the easier it is to learn what "
    "depends on what."
)
PIECES = (
    "One small Transformer, whole, and then each time without one of its pieces. The difference is that to the whole, "
    "tested in pairs."
)
LANGUAGE = "Two of the models once more, on the English and French descriptions of the same photographs."
PUBLISHED = (
    f"On the same test part, greedy, lower case, about ten epochs: {LADDER_SOURCE}. Its BLEU is counted on spaCy's "
    "tokens, ours is sacreBLEU's on its own; its models, pieces and budgets differ from ours as well. So only the "
    "order and the rough size of the steps compare."
)
WMT = "The papers themselves had a far larger corpus, WMT 2014. BLEU as they give it:"


def protocol(sheet: Sheet) -> str:
    """What all figures rest on, in words."""
    first = sheet.settings[sheet.plan.road[0].name]
    files = ", ".join(f"{part} `{first[f'data.{part}']}`" for part in ("train", "validation", "test"))
    said = [f"- **Data**: {files}{_counted(sheet)}. `REGARD_DATA` names the folder."]
    said.append(f"- **Pieces**: {_pieces(sheet)}")
    seeds = sorted({each["seed"] for each in sheet.settings.values()})
    seed = listed([str(seed) for seed in seeds])
    said.append(f"- **Training**: one run a rung, seed {seed}; the checkpoint that is best on validation.")
    if not sheet.measured:
        return "\n".join(said)
    found = list(sheet.measured.values())
    for name, metric in (("BLEU", "bleu"), ("chrF", "chrf")):
        signatures = sorted({each[way][metric]["signature"] for each in found for way in ("greedy", "beam")})
        said.append(f"- **{name}**: sacreBLEU, {listed([f'`{each}`' for each in signatures])}.")
    ways = sorted({(each["greedy"]["batch"], each["greedy"]["threads"]) for each in found})
    told = listed([f"{batch} sentences at once with {threads(count)}" for batch, count in ways])
    said.append(f"- **Translating**: greedily, and by beam search with {BEAMS} beams; {told}.")
    said.append(f"- **p**: paired bootstrap resampling (Koehn 2004), told as more than chance below {CHANCE:g}.")
    machines = sorted({_machine(each["machine"]) for each in found})
    said.append(f"- **Machine**: {'; '.join(machines)}.")
    said.append(
        "- **±** is the half-width of a 95 % bootstrap interval: how far other test sentences might move a figure. "
        "Another seed might move it too, and that is not measured. The rungs differ in epochs, minutes and sizes too; "
        "the tables have them. So a step from one rung to the next is that of the idea and of what it was given."
    )
    return "\n".join(said)


def _counted(sheet: Sheet) -> str:
    first = sheet.of(sheet.plan.road[0])
    return f" ({listed([f'{count:,}' for count in first['pairs'].values()])} pairs)" if first else ""


def _pieces(sheet: Sheet) -> str:
    """Which rungs cut text alike."""
    ways: dict[str, list[str]] = {}
    for rung in sheet.plan.rungs:
        each = sheet.settings[rung.name]
        size = "" if each["tokenizer.kind"] == "characters" else f" of at most {each['tokenizer.vocab_size']:,}"
        case = ", lower case" if each["tokenizer.lowercase"] else ""
        joint = ", one vocabulary for both sides" if each["tokenizer.joint"] else ""
        ways.setdefault(f"{each['tokenizer.kind']}{size}{case}{joint}", []).append(rung.title)
    common = max(ways, key=lambda way: len(ways[way]))
    others = [f"for {listed(titles)}: {way}" for way, titles in ways.items() if way != common]
    return "; ".join([common, *others]) + "."


def _machine(machine: dict[str, Any]) -> str:
    device = f", {machine['cuda']}" if machine["cuda"] else ""
    return f"{machine['cpu']}, {machine['cores']} cores{device}, Python {machine['python']}, torch {machine['torch']}"


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "parameters": lambda found: millions(found["parameters"]),
    "BLEU": lambda found: figure(found["greedy"]["bleu"]),
    f"beam {BEAMS}": lambda found: figure(found["beam"]["bleu"]),
    "chrF": lambda found: figure(found["greedy"]["chrf"]),
    "epochs": lambda found: f"{found['training']['epochs']:g}",
    "minutes": lambda found: f"{found['training']['minutes']:.0f}",
    "threads": lambda found: str(found["training"]["threads"]),
    "tokens/s": lambda found: f"{found['training']['tokens_per_second']:,}",
    "seconds": lambda found: f"{found['greedy']['seconds']:.0f}",
}


def summary(sheet: Sheet, rungs: tuple[Rung, ...]) -> str:
    """The rungs from the highest BLEU down, each with its place in the order of the papers."""
    rows = []
    for rung in sorted(rungs, key=sheet.bleu, reverse=True):
        found = sheet.of(rung)
        told = [tell(found) for tell in COLUMNS.values()] if found else [MISSING, *[""] * (len(COLUMNS) - 1)]
        rows.append([sheet.link(rung), str(rungs.index(rung) + 1), *told])
    return table(["<rung", "its place", *COLUMNS], rows)


def told(sheet: Sheet) -> str:
    """What the table says, computed."""
    measured = [rung for rung in sheet.plan.road if sheet.of(rung)]
    if not measured:
        return ""
    best = max(measured, key=sheet.bleu)
    said = f"Highest BLEU: {sheet.link(best)}, {sheet.score(best)}."
    steps = [pair for pair in pairwise(sheet.plan.road) if sheet.of(pair[0]) and sheet.of(pair[1])]
    if steps:
        earlier, later = max(steps, key=lambda pair: sheet.bleu(pair[1]) - sheet.bleu(pair[0]))
        size = signed(sheet.bleu(later) - sheet.bleu(earlier))
        said += f" Largest step from one rung to the next: {size}, from {sheet.link(earlier)} to {sheet.link(later)}."
    return said


def by_length(sheet: Sheet) -> str:
    """BLEU of each rung by group of length, and how far the last group is from the rung's highest."""
    measured = [rung for rung in sheet.plan.road if sheet.of(rung)]
    groups = [_span(row["words"]) for row in sheet.measured[measured[0].name]["by_length"]]
    rows = []
    for rung in measured:
        values = [row["bleu"] for row in sheet.measured[rung.name]["by_length"]]
        rows.append([sheet.link(rung), *(f"{value:.1f}" for value in values), signed(values[-1] - max(values))])
    return table(["<words in the source", *groups, "longest − highest"], rows)


def _span(words: str) -> str:
    low, _, high = words.partition("–")
    return low if low == high else words


def sentence(sheet: Sheet, rungs: tuple[Rung, ...]) -> str:
    """The sentence that each rung translates below."""
    found = next((found for rung in rungs if (found := sheet.of(rung))), None)
    if found is None:
        return ""
    shown = found["sentence"]
    return (
        "Each rung shows its greedy translation of one sentence that is in no part of the corpus, and where it "
        "attends, what it looked at meanwhile, averaged over the heads; of several layers it is the last but one.\n\n"
        f"> {shown['source']}\\\n> ({shown['meaning']})"
    )


def travel(sheet: Sheet) -> str:
    names = [rung.name for rung in sheet.plan.road]
    rows = []
    for layer in LAYERS:
        sizes = _sizes(sheet, layer)
        places = ", ".join(str(names.index(name) + 1) for name in layer.rungs if name in names)
        formulas = layer.work, layer.waits, layer.within, layer.across
        rows.append([layer.name, places, f"{sizes.n:.1f}" if sizes else "", *(each.at(sizes) for each in formulas)])
    return table(["<layer", "<rungs", "n", "<operations", "<waits", "<within", "<across"], rows)


def _sizes(sheet: Sheet, layer: Layer) -> Sizes | None:
    """The sizes of the layer's first rung, once it is measured."""
    name = layer.rungs[0]
    if name not in sheet.measured:
        return None
    chosen = sheet.settings[name]
    window = 2 * chosen.get("model.reach", 0) + 1
    return Sizes(sheet.measured[name]["source"]["pieces"], chosen["model.width"], chosen.get("model.kernel", 0), window)


def published(sheet: Sheet) -> list[str]:
    """Others' figures beside ours, with what keeps them from being the same."""
    rows = []
    for rung in sheet.plan.road:
        if rung.published:
            ours = sheet.say(rung, lambda found: millions(found["parameters"]))
            theirs = rung.published
            rows.append(
                [sheet.link(rung), theirs.name, theirs.parameters, f"{theirs.bleu:.1f}", ours, sheet.score(rung)]
            )
    head = ["<rung", "<published", "parameters", "BLEU", "ours: parameters", "ours: BLEU"]
    wmt = [[*row[:1], row[1] or "–", row[2] or "–", row[3]] for row in WMT14]
    return [
        PUBLISHED,
        table(head, rows),
        WMT,
        table(["<system", "English → German", "English → French", "<where"], wmt),
    ]


def pieces(sheet: Sheet) -> str:
    head = ["<rung", "<changed", "parameters", "BLEU", "difference", "p", "<by the paired test", "chrF"]
    rows = []
    for rung in sheet.plan.pieces:
        reference = sheet.plan.reference(rung)
        what = changed(sheet, rung, reference) if reference else ""
        size = sheet.say(rung, lambda found: millions(found["parameters"]))
        row = [sheet.link(rung), what, size, sheet.score(rung)]
        tested = (sheet.against(rung) or {}).get("bleu")
        row += [signed(tested["difference"]), f"{tested['p']:.3f}", verdict(tested)] if tested else ["", "", ""]
        rows.append([*row, sheet.score(rung, metric="chrf") if sheet.of(rung) else ""])
    return table(head, rows)
