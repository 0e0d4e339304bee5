"""A record that is not finite contributes nothing, spoils nobody's sum, and makes nothing branch or raise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Term, clipped_sum, record
from tests.mathematics.clipping.layers import NAMES, make

FLOATING = [name for name in NAMES if not name.startswith("embedding")]


def contribution(model, x, q, loss=None):
    tape = record(model, x)
    terms = [Term(tape.raw, q, 0.5)]
    if loss is not None:
        terms.append(Term(loss(tape.raw), torch.full((len(x),), 0.1), 0.2))
    return clipped_sum(tape, terms)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", FLOATING)
def test_the_sum_is_that_of_the_other_records(name, bad):
    model, x = make(name, 2, True, 6)
    q = torch.randn(6, 2)
    spoiled = x.clone()
    spoiled[2] = bad
    others = [0, 1, 3, 4, 5]
    total = contribution(model, spoiled, q)
    expected = contribution(model, x[others], q[others])
    if bad == 1e30 and bool(torch.isfinite(model(spoiled)).all()):
        expected = expected + contribution(model, spoiled[2:3], q[2:3])
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["embedding-one-token", "embedding-repeated", "embedding-repeated-and-padding"])
def test_an_overflowing_embedding_row_spoils_only_its_record(name):
    model, x = make(name, 2, True, 6)
    x[x == 4] = 3
    x[2] = 4
    with torch.no_grad():
        model.layers[0].weight[4] = math.inf
    model.layers[1] = nn.Identity()
    q, others = torch.randn(6, 2), [0, 1, 3, 4, 5]
    torch.testing.assert_close(contribution(model, x, q), contribution(model, x[others], q[others]))


def test_a_loss_that_is_not_finite_removes_the_record_from_every_term():
    model, x = make("linear", 2, True, 5)
    q = torch.randn(5, 2)
    barrier = torch.ones(5)
    barrier[3] = math.inf

    def loss(raw):
        return raw.square().sum(1) * barrier[: len(raw)]

    others = [0, 1, 2, 4]
    expected = contribution(model, x[others], q[others], lambda raw: raw.square().sum(1))
    torch.testing.assert_close(contribution(model, x, q, loss), expected)


def test_an_infinite_loss_with_a_finite_slope_removes_the_record_too():
    model, x = make("linear", 2, True, 3)
    offset, q = torch.tensor([0.0, math.inf, 0.0]), torch.randn(3, 2)
    expected = contribution(model, x[[0, 2]], q[[0, 2]], lambda raw: raw.sum(1))
    torch.testing.assert_close(contribution(model, x, q, lambda raw: raw.sum(1) + offset), expected)


def test_a_gram_matrix_that_overflows_removes_the_record_from_every_term():
    model, x = make("linear", 2, True, 3)
    model, x, q = model.double(), x.double(), torch.randn(3, 2)
    steep = torch.tensor([1.0, 1e200, 1.0], dtype=torch.float64)
    expected = contribution(model, x[[0, 2]], q[[0, 2]], lambda raw: raw.sum(1))
    found = contribution(model, x, q, lambda raw: raw.sum(1) * steep)
    torch.testing.assert_close(found, expected)


def test_a_cotangent_that_is_not_finite_removes_the_record_from_its_term():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x):
            return self.left(x), self.right(x)

    tape = record(TwoHeads(), torch.randn(2, 3))
    left, right = tape.raw
    spoiled, first, ones = torch.tensor([[1.0], [math.nan]]), torch.tensor([[1.0], [0.0]]), torch.ones(2, 1)
    both = clipped_sum(tape, [Term(left, spoiled, 1.0), Term(right, ones, 1.0)])
    torch.testing.assert_close(both, clipped_sum(tape, [Term(left, first, 1.0), Term(right, ones, 1.0)]))


def test_a_finite_loss_with_an_infinite_slope_removes_the_record():
    model = nn.Linear(2, 1, bias=False)
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    with torch.no_grad():
        model.weight.fill_(1.0)
    tape = record(model, x)
    total = clipped_sum(tape, [Term(tape.raw.sqrt().squeeze(1), torch.ones(2), 0.1)])
    alone = record(model, x[1:])
    expected = clipped_sum(alone, [Term(alone.raw.sqrt().squeeze(1), torch.ones(1), 0.1)])
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_cotangents_that_are_not_finite_in_the_model_type_contribute_nothing(bad):
    model, x = make("conv2d", 2, True, 4)
    tape = record(model, x)
    q = torch.randn(4, 2, dtype=torch.float64)
    others = q.clone()
    q[1, 0], others[1] = bad, 0.0
    found, expected = (clipped_sum(tape, [Term(tape.raw, each, 1.0)]) for each in (q, others))
    torch.testing.assert_close(found, expected)


def test_products_that_overflow_over_sites_do_not_spoil_the_sum():
    class Cancels(nn.Module):
        """Two sites whose gradients are near 1e40 and cancel: finite in the float64 Gram matrix only."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            sites = self.layer(x).squeeze(2)
            return ((sites[:, 0] - sites[:, 1]) * 1e15).unsqueeze(1)

    model = Cancels()
    with torch.no_grad():
        model.layer.weight.fill_(1.0)
    x = torch.tensor([[[1e25], [1e25]], [[1e-15], [0.0]]])
    tape = record(model, x)
    total = clipped_sum(tape, [Term(tape.raw, torch.ones(2, 1), 10.0)])
    assert float(total) == pytest.approx(1.0, rel=1e-3)
