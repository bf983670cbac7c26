"""The one training loop, its optimizer, checkpoints and processes."""
