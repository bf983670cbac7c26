"""Decoding: one search over any model, logits processors and sampling."""

from regard.decoding.search import Decodable, Hypothesis, search

__all__ = ["Decodable", "Hypothesis", "search"]
