"""Laws of what the papers print about their noise, computed again by the accountant that each of them names."""

from __future__ import annotations

import math

import pytest

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting import rdp  # noqa: E402

DELTA, BATCH, RECORDS = 1e-5, 250, 30_000


def _moments_accountant(multiplier: float, steps: int) -> float:
    """Epsilon of Poisson batches by the moments accountant of Abadi et al. 2016: the best order of its tail bound."""
    orders = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64))
    accountant = rdp.RdpAccountant(orders=orders)
    step = dp_accounting.PoissonSampledDpEvent(BATCH / RECORDS, dp_accounting.GaussianDpEvent(multiplier))
    accountant.compose(step, steps)
    divergences = zip(accountant._orders, accountant._rdp, strict=True)
    return min(float(divergence + math.log(1 / DELTA) / (order - 1)) for order, divergence in divergences)


@pytest.mark.parametrize(("multiplier", "steps", "epsilon"), [(0.68, 4200, 9.88), (0.9, 4200, 4.85), (0.9, 2400, 3.79)])
def test_what_spf_print_of_their_noise_are_multipliers_of_the_sensitivity(
    multiplier: float, steps: int, epsilon: float
) -> None:
    """SPF, Appendix C.3: .68 for epsilon 10 and .9 for epsilon 5, at 35 passes; at 20 passes .9 would be 3.79."""
    assert _moments_accountant(multiplier, steps) == pytest.approx(epsilon, abs=0.005)
