"""The commands that use a model: evaluate, run, search and chat."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.command import option_name, verb
from regard.cli.options import (
    AnswerOptions,
    AttentionOptions,
    BeamSearchOptions,
    ComputeOptions,
    DeviceOptions,
    EvalOptions,
    FewShotOptions,
    FileOptions,
    GenerationOptions,
    ModelPath,
    Output,
    Truncate,
    read_texts,
)
from regard.errors import UserError, escape_controls, report

if TYPE_CHECKING:
    from regard.model import Model
    from regard.tasks.embed.search import SearchResult

inference = typer.Typer()


@verb(inference, "evaluate runs/mine", "evaluate runs/mine test.tsv --compare runs/other --json")
def evaluate(
    model: ModelPath,
    scoring: EvalOptions,
    search: BeamSearchOptions,
    few_shot: FewShotOptions,
    compute: ComputeOptions,
    output: Output,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Test file; default: the recipe's test split, else its validation split."),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Second model; adds a paired bootstrap significance test.")
    ] = None,
) -> None:
    """Evaluate a model on a test set, or compare two models.

    Reports the standard metrics of the task (BLEU, accuracy, F1, perplexity, …) with 95 % bootstrap confidence
    intervals.
    """
    from regard.cli.evaluate import evaluate as evaluate_models
    from regard.cli.output import emit
    from regard.tasks.scoring import EvaluationRequest

    scoring.check(file)
    names = [path for path in (model, compare) if path]
    options = scoring.specified() | few_shot.specified()
    quiet = output.quiet or output.json
    request = EvaluationRequest(file, options, search.specified(), names, compute.batch_size, quiet)
    results = evaluate_models([_load(path, compute) for path in names], request)
    if "note" in results and not (output.quiet or output.json):
        report("note", results.pop("note"))
    emit(results, output, "evaluation")


@verb(
    inference,
    'run runs/demo/dates "Sat 3 May 86"',
    "run runs/classify --file reviews.csv --output predictions.csv",
    'run stories15M "Once upon a time" --temperature 0.8 --max-new-tokens 200',
    "run runs/image photo.jpg --overlay attention.png",
    "run runs/fsdd-ctc speech.wav --timestamps",
)
def run(
    model: ModelPath,
    rows: FileOptions,
    search: BeamSearchOptions,
    answering: AnswerOptions,
    attention: AttentionOptions,
    compute: ComputeOptions,
    output: Output,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT", help="Input text; if omitted, one per line from stdin.")
    ] = None,
    task: Annotated[str, typer.Option(metavar="NAME", help="Task to run, if not the model's own: embed.")] = "",
    vectors: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Save embeddings as a float32 array (with --task embed).")
    ] = None,
) -> None:
    """Run inference on texts, lines of stdin or rows of a file.

    Translates, classifies, tags, answers, fills masks, embeds or generates, as the model's task is. One output line per
    input; the continuation of a single prompt keeps its line breaks.
    """
    from regard.cli.run import check_options, run_all, write_attention, write_vectors

    if answering.log_probabilities and not output.json:
        raise typer.BadParameter("give --json too: they are one of its fields", param_hint="'--log-probabilities'")
    if vectors and rows.results:
        raise typer.BadParameter("--vectors writes embeddings, --output predictions: give one of both")
    rows.check(inputs)
    attention.check(inputs)
    answering.check(inputs)
    options = search.specified() | answering.specified()
    loaded = _warn_unused_sampling(_load(model, compute), search)
    task = task or loaded.task
    if vectors and task != "embed":
        raise UserError(f"--vectors {vectors}: the task is '{task}'; give --task embed too")
    predictor = loaded.predictor(task)
    check_options(predictor, options)
    if vectors:
        write_vectors(predictor, inputs, rows, vectors, answering.truncate, compute.batch_size, output)
    else:
        run_all(predictor, inputs, rows, options, compute.batch_size, output)
    if attention.specified():
        assert inputs
        write_attention(predictor, inputs[0], options, attention, output)


@verb(inference, 'search all-MiniLM-L6-v2 notes.txt "what did we decide about the heating?"')
def search(
    model: ModelPath,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Lines of text, .csv, .tsv or .jsonl; a folder, or a pattern: '*.md'.")
    ],
    compute: ComputeOptions,
    output: Output,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="Query; if omitted, one per line from stdin.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "--top-k", min=1, help="Results per query.")] = 5,
    column: Annotated[
        str, typer.Option(metavar="NAME", help="Column with the text, by name or number (default: text).")
    ] = "",
    truncate: Truncate = False,
) -> None:
    """Semantic search over the lines or rows of files.

    Ranks them by the similarity of their embeddings with the query's; embeddings are computed once and cached.
    """
    from regard.cli.output import to_json
    from regard.tasks.embed.search import Index, Source, chunks, find_all, refuse_empty

    refuse_empty(queries)
    if files := [query for query in queries or () if len(query) < 256 and Path(query).is_file()]:
        raise typer.BadParameter(f"'{files[0]}' is a file: one FILE is searched; for several, quote a pattern: '*.md'")
    source = Source.of(file, column)
    loaded = _load(model, compute)
    index = Index.of(loaded, source, truncate, compute.batch_size, output.quiet or output.json)
    if index.facts["truncated"] and not output.quiet:
        report("warning", f"{index.facts['truncated']} texts were truncated to the model's context")
    nonblank = (query for query in read_texts(queries) if query.strip())
    interactive = not queries and sys.stdin.isatty()
    single = queries is not None and len(queries) == 1
    for batch in chunks(nonblank, 1 if interactive else compute.batch_size):
        for result in find_all(loaded, source, index, batch, top, truncate):
            print(to_json(result, indent=None) if output.json else _format_hits(result, single), flush=interactive)


def _format_hits(result: "SearchResult", single: bool) -> str:
    """A line per text with its score and location; below the query unless it is the only one."""
    lines = [f"{hit.score:.3f}  {hit.file}:{hit.line}  {' '.join(hit.text.split())}" for hit in result.hits]
    return escape_controls("\n".join(lines if single else [result.query, *(f"  {line}" for line in lines), ""]))


@verb(inference, 'chat stories15M --system "Answer in one sentence." --temperature 0.7')
def chat(
    model: ModelPath,
    generation: GenerationOptions,
    device: DeviceOptions,
    output: Output,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
) -> None:
    """Chat with a language model in the terminal.

    Ctrl-C stops an answer and /help lists the commands; from a pipe, each line is a turn.
    """
    from regard.cli.chat import chat as run_chat

    run_chat(_warn_unused_sampling(_load(model, device), generation), system, generation.specified(), output)


def _load(path: str, options: DeviceOptions) -> "Model":
    from regard.model import load

    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    return load(path, device=options.device, precision=options.precision, model_type=options.model_type or None)


def _warn_unused_sampling(model: "Model", options: GenerationOptions) -> "Model":
    """The model, after a warning about options without effect."""
    predictor = model.predictor()
    unused = [option_name(name) for name in ("top_k", "top_p", "min_p") if getattr(options, name) is not None]
    generates = "temperature" in predictor.options
    if unused and generates and not predictor.decode_options(**options.specified()).temperature:
        problem = f"{', '.join(unused)} {'have' if len(unused) > 1 else 'has'} no effect without sampling"
        report("warning", f"{problem}; add e.g. --temperature 0.8")
    return model
