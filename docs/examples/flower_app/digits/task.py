"""The network, and each client's digits, of which the last ones are held out."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def network() -> nn.Module:
    """A small network of 64 pixels and 10 digits, the same everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def load(part: int, parts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One client's pixels (n, 64) and digits (n,), and those that are held out."""
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    own = slice(part, 1500, parts)
    return x[own], y[own], x[1500:], y[1500:]
