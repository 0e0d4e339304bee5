"""Products that are formed record by record, and backprops that are weighed: both ways, one law."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record
from fedsw.mathematics.clipping import columns as engine
from fedsw.mathematics.clipping.gram import cuts
from tests.mathematics.clipping.layers import NAMES, make
from tests.mathematics.clipping.naive import Flat, double_by_default, jacobian, naive_sum
from tests.pairwise import pairwise

WAYS = ("formed", "factored")


@pytest.mark.parametrize(("name", "d", "way"), pairwise(NAMES, (1, 2, 3), WAYS), indirect=["way"])
def test_both_ways_equal_the_loop_over_samples(name, d, way):
    with double_by_default():
        model, x = make(name, d, True, 4)
        model, x = model.double(), x.double() if x.is_floating_point() else x
        q, weight = torch.randn(4, d), torch.rand(4)
        tape = record(model, x)
        terms = [Term(tape.raw, q, 0.3), Term(tape.raw.square().sum(1), weight, 0.2)]
        found = clipped_sum(tape, terms, safety=Safety.off())
        expected = naive_sum(model, x, q, 0.3) + naive_sum(
            model, x, weight, 0.2, head=lambda raw, i: raw.square().sum(1)
        )
    assert float((found - expected).norm()) <= 1e-9 * float(expected.norm())


@pytest.mark.parametrize("name", ["conv2d", "conv-transpose2d", "linear-long-sequence", "group-norm", "transformer"])
def test_gram_matrices_of_columns_are_the_same_both_ways(name):
    with double_by_default():
        model, x = make(name, 3, True, 5)
        model, x = model.double(), x.double()
        (block,) = record(model, x)._blocks
        units = [[torch.eye(3, dtype=torch.float64)[r].expand(5, 3)] for r in range(3)]
        expected = torch.stack([j @ j.T for j in (jacobian(model, x, i) for i in range(5))])
        for each in WAYS:
            found = engine.columns(block, units, each)
            torch.testing.assert_close(found.gram(slice(None)), expected, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.gram(slice(1, 3)), expected[:, 1:, 1:], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["conv2d", "conv-transpose2d", "linear-long-sequence", "group-norm", "transformer"])
def test_every_part_is_measured_as_it_is_added_both_ways(name):
    """A cut by the norm of anything else would let a record weigh more than its limit."""
    with double_by_default():
        model, x = make(name, 3, True, 5)
        model, x = model.double(), x.double()
        (block,) = record(model, x)._blocks
        units = [[torch.eye(3, dtype=torch.float64)[r].expand(5, 3)] for r in range(3)]
        for each in WAYS:
            for part in engine.columns(block, units, each).parts(torch.rand(5, 3, dtype=torch.float64)):
                measured = part.squares()
                for i in range(5):
                    added = part.rows(slice(i, i + 1)).summed(torch.ones(1, dtype=torch.float64))
                    weighs = sum(float(value.square().sum()) for value in added.values())
                    assert weighs * (1 - 1e-9) <= float(measured[i]) <= weighs * (1 + 1e-3) + 1e-12


class Difference(nn.Module):
    """A convolution, its sites minus each other: large parts that cancel."""

    def __init__(self, d):
        super().__init__()
        self.layer, self.d = nn.Conv2d(2, 3, 2), d

    def forward(self, x):
        y = self.layer(x).flatten(2)
        return (y[:, :, 0] - y[:, :, -1])[:, : self.d]


@pytest.mark.parametrize(
    ("power", "d", "dtype", "way"),
    pairwise((-44, -20, -3, 0, 8, 18, 30), (1, 3), (torch.float32, torch.float64), WAYS),
    indirect=["way"],
)
def test_one_record_leaves_at_most_its_limit_at_any_magnitude_both_ways(power, d, dtype, way):
    for seed in range(5):
        torch.manual_seed(seed)
        model = Difference(d).to(dtype)
        x = (10.0**power * (1 + 1e-3 * torch.randn(1, 2, 3, 3, dtype=torch.float64))).to(dtype)
        for size in (1e-30, 1.0, 1e30):
            q = size * torch.randn(1, d, dtype=torch.float64)
            tape = record(model, x)
            total = clipped_sum(tape, [Term(tape.raw, q, 0.7)])
            assert float(total.norm()) <= 0.7 * float(q.norm())


@pytest.mark.parametrize("power", [-290, -170, -100, 100, 150, 250])
def test_what_is_added_was_measured_at_the_ends_of_float64(power, way):
    """Weights and products whose squares underflow or overflow: the cut finds their norm, or leaves them out."""
    torch.manual_seed(0)
    model = Flat(nn.Conv1d(2, 3, 2, bias=False)).double()
    x = 10.0**power * torch.randn(2, 2, 4, dtype=torch.float64)
    (block,) = record(model, x)._blocks
    for size in (-250, -1, 0, 60, 115, 200):
        for exponent in (-80, 0, 80):
            found = engine.columns(block, [[torch.ones(2, 9, dtype=torch.float64)]])
            parts = found.parts(torch.full((2, 1), 10.0**size, dtype=torch.float64))
            limits = torch.tensor([10.0**exponent, 0.0], dtype=torch.float64)
            cut = cuts(parts, limits)
            for part in parts:
                factors = (cut * part.scale).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
                for value in part.summed(factors).values():
                    scaled = value / 10.0**exponent
                    assert float(scaled.abs().max()) <= 1 + 1e-12


def test_a_formed_record_that_overflows_contributes_nothing_and_leaves_the_others_alone(way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
    honest, q = torch.randn(5, 2, 3, 3), torch.randn(6, 2, dtype=torch.float64)
    sums = []
    for value in (math.nan, math.inf):
        tape = record(model, torch.cat([honest, torch.full((1, 2, 3, 3), value)]))
        sums.append(clipped_sum(tape, [Term(tape.raw, q, 0.3)]))
    tape = record(model, honest)
    alone = clipped_sum(tape, [Term(tape.raw, q[:5], 0.3)])
    for total in sums:
        assert float((total - alone).norm()) <= 1e-6 * float(alone.norm())


def test_formed_rows_stay_within_the_memory_that_is_theirs(monkeypatch):
    """A wide convolution with few sites is left to its factors when the room for formed rows is used up."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Flatten(2))
    model.append(nn.AdaptiveAvgPool1d(1)).append(nn.Flatten())
    (block,) = record(model, torch.randn(6, 8, 16, 16))._blocks
    rows = [[torch.ones(6, 16)]]
    kinds = []
    for floats in (2**24, 6 * 3 * (8 * 16 * 9 + 16), 0):
        monkeypatch.setattr(engine, "_FORMED_FLOATS", floats)
        monkeypatch.setattr(type(block), "floats", 0)
        kinds.append([type(call).__name__ for call in engine.columns(block, rows).calls])
    assert kinds == [["_Formed", "_Formed"], ["_Formed", "_Factored"], ["_Factored", "_Factored"]]


@pytest.mark.parametrize("size", [(6, 6), (7, 5), (1, 4)])
def test_means_over_windows_are_those_of_torch_and_so_are_their_gradients(size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d((1, 2)), nn.ELU(), nn.AvgPool2d(1), nn.Flatten()).double()
    x = torch.randn(3, 1, *size, dtype=torch.float64)
    tape = record(model, x)
    torch.testing.assert_close(tape.raw, model(x), rtol=1e-12, atol=1e-14)
    q = torch.randn_like(tape.raw)
    found = clipped_sum(tape, [Term(tape.raw, q, 1e9)], safety=Safety.off())
    plain = torch.autograd.grad((model(x) * q).sum(), list(model.parameters()))
    torch.testing.assert_close(found, torch.cat([each.reshape(-1) for each in plain]), rtol=1e-10, atol=1e-12)
