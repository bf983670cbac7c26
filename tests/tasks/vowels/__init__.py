"""A new task as one folder: which tokens of a text begin with a vowel. The example of docs/architecture.md."""
