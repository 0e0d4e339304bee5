"""Whether noise is on every coordinate, of the declared scale, and drawn anew: exact quantiles, for secret noise too.

A test that passes noise of the declared law fails by chance less often than once in 10^9 times.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import contextmanager

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedsw.privacy.mechanisms import MECHANISMS

CHANCE = 1e-9


def require_gaussian(added: Tensor, sigma: float) -> None:
    """Refuse noise (draws, coordinates) that is not N(0, sigma^2) at every place, independent between any two.

    Squares of one coordinate follow a chi-squared law, and so do those of one draw, and half of those of the difference
    and of the sum of any two: noise that is used twice, or turned round, has none left there.
    """
    z = added.to(torch.float64) / sigma
    _require_squares(z.square(), lambda size: stats.chi2(size))
    for rows in (z, z.T):
        if len(rows) == 1:
            continue
        size, pairs = rows.shape[1], torch.combinations(torch.arange(len(rows)))
        chance = CHANCE / 16 / len(pairs)
        low, high = stats.chi2.ppf(chance, size), stats.chi2.isf(chance, size)
        for sign in (1, -1):
            half = (rows[pairs[:, 0]] + sign * rows[pairs[:, 1]]).square().sum(dim=1) / 2
            assert low < float(half.min()) and float(half.max()) < high, "two draws or coordinates share their noise"


def require_laplace(added: Tensor, scale: float) -> None:
    """The same for Laplace noise of a scale: its absolute values follow an exponential law, its signs are fair."""
    z = added.to(torch.float64) / scale
    _require_squares(z.abs(), lambda size: stats.gamma(size))
    positive, count = int((z > 0).sum()), z.numel()
    assert CHANCE / 6 < stats.binom.cdf(positive, count, 0.5) < 1 - CHANCE / 6, "noise leans to one side"
    assert len({tuple(row) for row in z.tolist()}) == len(z), "two draws share their noise"


def _require_squares(sizes: Tensor, law) -> None:
    """Sums of every row, every column and of all of it within what their law allows, all together."""
    for name, sums, size in (
        ("coordinate", sizes.sum(dim=0), sizes.shape[0]),
        ("draw", sizes.sum(dim=1), sizes.shape[1]),
        ("whole", sizes.sum().reshape(1), sizes.numel()),
    ):
        chance = CHANCE / 12 / len(sums)
        low, high = law(size).ppf(chance), law(size).isf(chance)
        least, most = float(sums.min()), float(sums.max())
        assert math.isfinite(most) and low < least and most < high, (
            f"noise of a {name}: {low} < {least}, {most} < {high}"
        )


def replace_noise(monkeypatch, noised, name: str = "gaussian") -> None:
    """Let values leave with another law than a mechanism's, for a test."""
    changed = dataclasses.replace(MECHANISMS.get(name), noised=noised)
    monkeypatch.setitem(MECHANISMS._things, name, changed)


@contextmanager
def other_noise(noised, *names: str):
    """The same while a block runs, where there is no monkeypatch."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names or ("gaussian",):
            replace_noise(patch, noised, name)
        yield
