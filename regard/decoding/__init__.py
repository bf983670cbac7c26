"""From a generator's step to whole sequences: one search, its rules, and drawing."""

from regard.decoding.search import Generator, Hypothesis, search

__all__ = ["Generator", "Hypothesis", "search"]
