"""What users read is written in the terms of the field: phrases of the project's former vocabulary do not return."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PHRASES = {  # phrase (a regular expression) → the term to use
    r"hidden (words?|places?|ones)\b": "masked token, masked language modelling",
    r"words? (that )?(were|was|are|is) hidden": "masked tokens",
    r"tells? (the |a )?labels?\b|labels? (is|are) told": "classifier, predicts",
    r"\b(is|are|was|were|be) told (apart|right|by|from)\b": "predicted, distinguished",
    r"that (tags|answers|embeds|fills) (words|questions|texts|masks)": "token classifier, QA model, embedding model",
    r"\blook(s|ed|ing)? (back )?at (each|every|the|all) (token|piece|word|place|state)s?\b": "attends to",
    r"\bwhat (it|they|each|a head|every head) looks? at\b|looked at\b": "attention weights, keys",
    r"go(es|ing|ne)? on with\b|\bgone on\b": "continue, resume",
    r"\bfrom nothing\b": "from scratch",
    r"film reviews?\b|reviewer of films": "sentiment classification (SST-2, MR)",
    r"kinds? of questions\b|by the kind of": "question classification (TREC)",
    r"sentences? that (say|says) the same|say the same": "paraphrase",
    r"how alike\b|nearly what": "semantic textual similarity",
    r"search(es)? by meaning|by meaning\b": "semantic search",
    r"tagg(ed|ing) words\b": "token classification, NER",
    r"\b(test|validation|training|train|held-out|test's) parts?\b": "split",
    r"a (tenth|twentieth|fiftieth|fifth) (of it )?is held out": "10 % validation split",
    r"\bon the spot\b": "synthetic, generated",
    r"\banew\b": "again, re-initialised",
    r"thin (product|projection)s?|how thick": "low-rank matrices, rank",
    r"(of|in|weights of) eight bits\b|\beight bits\b": "int8",
    r"guess(es|ing)? ahead|who guesses": "speculative decoding",
    r"(hypotheses|halves|texts) (kept )?side by side\b": "beam size, concatenated",
    r"\blikeli(est|er)\b": "most probable, more probable",
    r"letter (by|for) letter": "character-level, exact match",
    r"running text": "plain text, raw text",
    r"\babreast\b": "in parallel",
    r"there and back\b|way back\b": "forward and backward pass",
    r"batch-mates?\b": "other sequences in the batch",
    r"how finely\b": "precision",
    r"refused by name\b": "an error that names the key",
    r"settled when\b": "fixed when",
    r"that ships?\b|\bones that ship\b|recipes? ships?\b": "built-in",
    r"\bbeside (you|the (recipe|data|adapter|loss)|transformers|nanoGPT|llama)": "next to, compared with",
    r"where you are\b": "in the current directory",
    r"(at most|every|keeps?|these|asked) so (many|often)\b": "N, N times",
    r"\bstands? (in|at|before|behind|beside|inside|there|between|apart)\b": "is, occurs",
    r"\b(lies|lie) (in|on|with|below)\b": "is",
    r"\bround (a|an|the|it|each) (text|label|field|segment|word)s?": "around",
    r"was made (to|for) (translate|classify|generate|answer|tag|fill|embed)": "its task is",
    r"nothing to foresee|\bforesee\b": "nothing to predict",
    r"\bheeds?\b": "takes effect",
    r"\breckons?\b": "computes",
    r"as the model came\b": "the checkpoint's default",
    r"how (it|the model) should be\b|how to be\b": "system prompt",
    r"loses? its (head|end|tail)\b": "is truncated on the left, on the right",
    r"texts? to stop at": "stop sequences",
    r"older half (is|was) forgotten": "the oldest half was dropped",
    r"half the width of (the|its) (95|bootstrap|interval)": "half-width of the 95 % confidence interval",
    r"unseen days": "held-out days",
    r"(%|per cent) right\b|\bright rows\b": "accuracy, execution accuracy",
    r"whose mathematics it is|published family's mathematics": "the same architecture",
    r"Hugging Face's (folder )?shape": "Hugging Face checkpoint folder",
    r"\brungs?\b": "model, baseline",
    r"\bthaw(s|ed|ing)?\b": "unfreeze",
    r"\bbends?\b|\bbent\b": "activation",
    r"(is|are|be) learnt from\b": "is trained on",
    r"\bideal learner\b": "Bayes-optimal baseline",
    r"its scores flatter": "data leakage",
    r"more than chance\b": "significant",
    r"computes? no padding": "unpadded",
    r"narrow table|one table for": "embedding matrix, tied embeddings",
    r"not measured yet": "leave it out, or measure it",
}


def user_texts() -> Iterator[tuple[str, int, str]]:
    """Everything that users read, as file, line and text. The glossary explains the project's own terms."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml")]
    pages += [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "glossary.md"]
    recipes = sorted((ROOT / "regard" / "recipes").glob("*.toml")) + sorted((ROOT / "road" / "recipes").glob("*.toml"))
    static = [path for path in (ROOT / "regard" / "explorer" / "static").iterdir() if path.suffix in (".html", ".js")]
    for path in [*pages, *recipes, *static]:
        text = path.read_text(encoding="utf-8")
        if path.name == "CONTRIBUTING.md":  # states the rule with examples of both
            text = text.partition("| not | but |")[0] + text.partition("Sentences are short")[2]
        yield str(path.relative_to(ROOT)), 1, text
    for path in sorted((ROOT / "regard").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
                yield str(path.relative_to(ROOT)), node.lineno, node.value


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, int, str]]:
    return list(user_texts())


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_of_the_former_vocabulary_does_not_occur(phrase: str, texts: list[tuple[str, int, str]]) -> None:
    pattern = re.compile(phrase.replace(" ", r"\s+"), re.IGNORECASE)
    hits = [
        f"{file}:{line + text[: match.start()].count(chr(10))}: {' '.join(match[0].split())}"
        for file, line, text in texts
        for match in pattern.finditer(text)
    ]
    assert not hits, f"use instead: {PHRASES[phrase]}\n" + "\n".join(hits[:20])
