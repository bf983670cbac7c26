"""The study of docs/road.md: models from RNNs to the Transformer, trained and measured on Multi30k."""
