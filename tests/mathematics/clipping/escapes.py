"""Small models that each lose the clip in one way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Twice(nn.Module):
    """One layer, called twice in a forward pass."""

    def __init__(self):
        super().__init__()
        self.core = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.core(x) + self.core(x)


class Tied(nn.Module):
    """Two layers that hold one parameter."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.right.weight = self.left.weight

    def forward(self, x):
        return self.left(x) + self.right(x)


class Bare(nn.Module):
    """A trainable parameter that no layer owns."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layer(x) * self.scale * 100


class Functional(nn.Module):
    """A layer's weight used once more behind the layer's back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return F.linear(self.layer(x), self.layer.weight)


class FunctionalBelow(nn.Module):
    """A layer's weight used as a function, below another layer that is called as it should be."""

    def __init__(self):
        super().__init__()
        self.below, self.above = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.above(F.linear(x, self.below.weight))


class OnlyFunctional(nn.Module):
    """A layer that is called for nothing, while its weight is used elsewhere."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        self.layer(x)
        return F.linear(x.flip(1), self.layer.weight)


class Apart(nn.Module):
    """Any function of the outputs of a linear layer."""

    def __init__(self, function, width=3):
        super().__init__()
        self.layer, self.function = nn.Linear(3, width), function

    def forward(self, x):
        return self.function(self.layer(x))
