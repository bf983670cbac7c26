"""`regard search`: the best texts of files for each query."""

import sys

from regard.cli.options import Output, read_texts
from regard.cli.output import escape_controls, to_json
from regard.model import Model
from regard.tasks.embed.search import Index, SearchResult, Source, chunks, find_all


def search_all(
    model: Model, source: Source, queries: list[str] | None, top: int, size: int, truncate: bool, output: Output
) -> None:
    """Print the best texts for each query: the arguments, else the lines of stdin."""
    index = Index.of(model, source, truncate, size, output.quiet or output.json)
    if index.facts["truncated"] and not output.quiet:
        print(f"warning: {index.facts['truncated']} texts were truncated to the model's context", file=sys.stderr)
    nonblank = (query for query in read_texts(queries) if query.strip())
    interactive = not queries and sys.stdin.isatty()
    single = queries is not None and len(queries) == 1
    for batch in chunks(nonblank, 1 if interactive else size):
        for result in find_all(model, source, index, batch, top, truncate):
            print(to_json(result, indent=None) if output.json else format_result(result, single), flush=interactive)


def format_result(result: SearchResult, single: bool) -> str:
    """A line per text with its score and location; below the query unless it is the only one."""
    lines = []
    for hit in result.hits:
        text = escape_controls(" ".join(hit.text.split()))
        lines.append(f"{hit.score:.3f}  {hit.file}:{hit.line}  {text}")
    return "\n".join(lines if single else [escape_controls(result.query), *(f"  {line}" for line in lines), ""])
