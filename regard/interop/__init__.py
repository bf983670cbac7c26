"""Checkpoint folders of other libraries ↔ our networks: the only package with foreign names."""
