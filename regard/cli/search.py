"""`regard search`: the best texts of files for each query, printed."""

import sys
from typing import Any

from regard.cli.options import Output, given_texts
from regard.cli.output import document, harmless
from regard.tasks.embed.search import Found, Index, Source, chunks, find_all


def search_all(
    model: Any, source: Source, queries: list[str] | None, top: int, size: int, truncate: bool, output: Output
) -> None:
    """Print the best texts for each query: those given, else each line of stdin."""
    index = Index.of(model, source, truncate, size, output.quiet or output.json)
    if index.facts["cut"] and not output.quiet:
        print(f"warning: {index.facts['cut']} texts were cut to what the model reads", file=sys.stderr)
    asked = (query for query in given_texts(queries) if query.strip())
    talking, alone = not queries and sys.stdin.isatty(), queries is not None and len(queries) == 1
    for some in chunks(asked, 1 if talking else size):
        for found in find_all(model, source, index, some, top, truncate):
            print(document(found, indent=None) if output.json else told(found, alone), flush=talking)


def told(found: Found, alone: bool) -> str:
    """For people: a line each, with score and place; where several were asked, each under what was asked."""
    shown = [f"{hit.score:.3f}  {hit.file}:{hit.line}  {harmless(' '.join(hit.text.split()))}" for hit in found.hits]
    return "\n".join(shown if alone else [harmless(found.query), *(f"  {line}" for line in shown), ""])
