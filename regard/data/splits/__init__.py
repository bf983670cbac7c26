"""How samples are divided into splits."""

SPLITS = ("train", "validation", "test")
