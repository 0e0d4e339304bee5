"""In float32, with the default margins, no Jacobian leaves the engine above its bound."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Safety, clip_cotangents, record
from tests.mathematics.clipping.layers import NAMES, make
from tests.mathematics.clipping.naive import weighed_sum

RATIOS = (10.0, 1e2, 1e3, 1e4)


def stretched_head(d, ratio, seed):
    """A head whose Jacobian has one singular value about `ratio` times the others, in a random basis."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(d, d, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(d, d, generator=generator))[0]
    stretch = torch.ones(d)
    stretch[0] = ratio
    mix = left @ torch.diag(stretch) @ right
    return lambda raw: raw @ mix


def excess(model, x, head, ratio, safety):
    """||J clipped|| / L - 1 for ||J|| / L = ratio, as released, read off in three orthonormal bases."""
    tape = record(model, x)
    outputs = head(tape.raw)
    gram = tape.gram(outputs)
    values, vectors = torch.linalg.eigh(gram[0])
    bound, d = float(values[-1]) ** 0.5 / ratio, len(values)
    worst = -1.0
    for basis in (vectors, torch.eye(d, dtype=torch.float64), torch.linalg.qr(torch.randn_like(vectors))[0]):
        rows = [
            weighed_sum(tape, [(outputs, clip_cotangents(gram, basis[:, k][None], bound, safety=safety))])
            for k in range(d)
        ]
        worst = max(worst, float(torch.linalg.matrix_norm(torch.stack(rows), ord=2)) / bound - 1)
    return worst


def network(width, d, seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, d)]
    return nn.Sequential(*layers), torch.randn(1, 8)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_stretched_jacobians_stay_below_the_bound(d, ratio):
    for width in (16, 256):
        for seed in range(4):
            model, x = network(width, d, seed)
            assert excess(model, x, stretched_head(d, ratio, seed), ratio, Safety()) <= 0


def test_without_margins_float32_lets_stretched_jacobians_through():
    found = [excess(*network(64, 3, seed), stretched_head(3, 1e4, seed), 1e4, Safety.off()) for seed in range(6)]
    assert max(found) > 1e-4


@pytest.mark.parametrize("ratio", [10.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_stays_below_the_bound(name, ratio):
    model, x = make(name, 3, True, 1)
    assert excess(model, x, stretched_head(3, ratio, 0), ratio, Safety()) <= 0


@pytest.mark.parametrize("ratio", RATIOS)
def test_equal_singular_values_stay_below_the_bound(ratio):
    torch.manual_seed(0)
    model, x = nn.Linear(5, 4), torch.randn(1, 5)
    assert excess(model, x, lambda raw: raw, ratio, Safety()) <= 0


@pytest.mark.parametrize("ratio", RATIOS)
def test_dependent_outputs_stay_below_the_bound(ratio):
    model, x = network(16, 2, 0)
    repeat = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert excess(model, x, lambda raw: raw @ repeat, ratio, Safety()) <= 0


@pytest.mark.parametrize("width", [1, 4097])
def test_saturated_outputs_stay_below_the_bound(width):
    model, x = network(8, 2, 1)
    assert excess(model, x * width, lambda raw: torch.tanh(raw / 3), 1e4, Safety()) <= 0


def test_contributions_are_added_in_float64(monkeypatch):
    monkeypatch.setattr("fedsw.mathematics.clipping.tape._block_rows", lambda module, tensors: 1)
    model = nn.Linear(1, 1, bias=False)
    x = torch.cat([torch.tensor([[2.0**25]]), torch.ones(64, 1)])
    tape = record(model, x)
    total = weighed_sum(tape, [(tape.raw, torch.ones(65, 1))])
    assert total.dtype == torch.float64 and float(total) == 2.0**25 + 64
