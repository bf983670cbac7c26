"""Checkpoint folders in Hugging Face's shape ↔ our networks: the only place with foreign names."""
