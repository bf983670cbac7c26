"""Activation functions by name."""

from torch import nn

ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),  # Hendrycks & Gimpel 2016
    "gelu_tanh": nn.GELU("tanh"),  # as GPT-2 computes it
    "swish": nn.SiLU(),  # Ramachandran et al. 2017
    "tanh": nn.Tanh(),
}
