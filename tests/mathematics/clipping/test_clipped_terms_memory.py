"""No tensor of size n x d x r, and one forward pass, whatever the layer."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsw.mathematics.clipping import Term, clipped_sum, columns, record
from fedsw.mathematics.clipping.rules import rule


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.floats = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.floats = max(self.floats, value.untyped_storage().nbytes() // max(4, value.element_size()))
        return result


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 3)), (300,)),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Flatten(), nn.Linear(1600, 3)),
        (4, 300),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(32, 64, 5), nn.Tanh(), nn.Flatten(), nn.Linear(256, 3)),
        (32, 6, 6),
    ),
    "convolution-of-many-sites": (
        lambda: nn.Sequential(nn.Conv1d(64, 64, 9), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(256, 3)),
        (64, 160),
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose1d(64, 64, 9), nn.Tanh(), nn.Flatten(), nn.Linear(640, 3)),
        (64, 2),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_tensor_comes_near_the_size_of_the_jacobians(name, monkeypatch):
    monkeypatch.setattr(rule, "TILE", 2**16)
    monkeypatch.setattr(columns, "_FORMED_FLOATS", 0)
    build, shape = MODELS[name]
    model, n, d = build(), 64, 3
    x = torch.randn(n, *shape)
    with _Largest() as largest:
        tape = record(model, x)
        clipped_sum(tape, [Term(tape.raw, torch.ones(n, d), 1.0)])
    one_record = 2 * d * tape.size
    activations = n * max(x[0].numel(), *(p.shape[0] for p in model.parameters())) * 4
    assert largest.floats <= max(one_record, activations)
    assert largest.floats < n * d * tape.size / 8


def test_embeddings_are_measured_without_their_table():
    model = nn.Sequential(nn.Embedding(5000, 8), nn.Flatten(), nn.Linear(80, 2))
    x = torch.randint(0, 5000, (32, 10))
    with _Largest() as largest:
        tape = record(model, x)
        clipped_sum(tape, [Term(tape.raw, torch.ones(32, 2), 1.0)])
    assert largest.floats <= tape.size


def test_each_record_is_run_forward_once(caplog):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3000, 2)

        def forward(self, x):
            logging.getLogger().warning(len(x))  # an attribute is put back after the pass
            return self.layer(x)

    model = Counting()
    record(model, torch.randn(2, 3000))  # rehearsed once
    caplog.clear()
    tape = record(model, torch.randn(500, 3000))
    clipped_sum(tape, [Term(tape.raw, torch.ones(500, 2), 1.0), Term(tape.raw.sum(1), torch.ones(500), 1.0)])
    assert sum(line.msg for line in caplog.records) == 500
