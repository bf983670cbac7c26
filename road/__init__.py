"""The road on one corpus: every rung is trained and measured, and the page is written from what was measured."""
