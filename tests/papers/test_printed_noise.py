"""Laws of what the papers print about their noise, computed again by the accountant that each of them names."""

from __future__ import annotations

import math

import pytest

from fedsw.privacy.accounting.slicing import central_limit_share
from simulations.papers.cells import cells_of
from simulations.papers.figure import load_figure
from simulations.papers.page import PRINTED
from simulations.papers.plans import stored
from simulations.papers.store import read
from tests.papers.test_reproduce import RESULTS

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting import rdp  # noqa: E402

BATCH = 250
HALVES = {"images of digits": (30_000, 1e-5), "CelebA": (81_385, 1e-6)}
"""Private records, half of a training set, and delta."""


def _moments_accountant(multiplier: float, passes: int, records: int, delta: float) -> float:
    """Epsilon of Poisson batches by the moments accountant of Abadi et al. 2016: the best order of its tail bound."""
    orders = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(11, 64))
    accountant = rdp.RdpAccountant(orders=orders)
    step = dp_accounting.PoissonSampledDpEvent(BATCH / records, dp_accounting.GaussianDpEvent(multiplier))
    accountant.compose(step, round(passes * records / BATCH))
    divergences = zip(accountant._orders, accountant._rdp, strict=True)
    return min(float(divergence + math.log(1 / delta) / (order - 1)) for order, divergence in divergences)


@pytest.mark.parametrize(
    ("data", "multiplier", "passes", "epsilon"),
    [
        ("images of digits", 0.68, 35, 9.88),
        ("images of digits", 0.9, 35, 4.85),
        ("images of digits", 0.9, 20, 3.79),
        ("CelebA", 0.59, 30, 9.93),
        ("CelebA", 0.8, 30, 3.96),
    ],
)
def test_what_spf_print_of_their_noise_are_multipliers_of_the_sensitivity(
    data: str, multiplier: float, passes: int, epsilon: float
) -> None:
    """SPF, Appendix C.3: .68 for epsilon 10 and .9 for 5, at 35 passes; at 20 passes .9 would be 3.79.

    CelebA's .59 and .8, at 30 passes, are printed for 10 and 5.
    """
    assert _moments_accountant(multiplier, passes, *HALVES[data]) == pytest.approx(epsilon, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "dimension", "above"),
    [("spf/table1", 8, {10.0: 0.155, 5.0: 0.088}), ("spf/table1-generator", 784, {10.0: 0.156, 5.0: 0.423})],
)
def test_runs_at_spfs_settings_have_so_much_more_noise_than_is_printed(
    figure: str, dimension: int, above: dict[float, float]
) -> None:
    """The printed multipliers are of the central limit's sensitivity at delta, of 70 directions."""
    sensitivity = math.sqrt(central_limit_share(dimension, 70, 1e-5))
    found = {}
    for cell in cells_of(load_figure(figure)):
        if cell.series == PRINTED and cell.point["epsilon"] in above:
            result = read(RESULTS, cell.key)
            numbers = stored(result) if result else None
            assert numbers is not None
            printed = {10.0: 0.68, 5.0: 0.9}[float(cell.point["epsilon"])]
            found[cell.point["epsilon"]] = numbers.multiplier / (printed * sensitivity) - 1
    assert found == pytest.approx(above, abs=1e-3)
    assert [2 * printed * math.sqrt(central_limit_share(8, 70, 1e-5)) for printed in (0.68, 0.9)] == pytest.approx(
        [5.09, 6.74], abs=0.005
    )


@pytest.mark.parametrize(("figure", "dimension"), [("spf/table1", 8), ("spf/table1-generator", 784)])
def test_runs_at_spfs_printed_noise_have_the_printed_multipliers_and_passes(figure: str, dimension: int) -> None:
    """Of the central limit's sensitivity; .68 for 35 passes, named 10, and .9 for 20 passes, named 5."""
    cells = [cell for cell in cells_of(load_figure(figure)) if cell.series == "printed noise"]
    assert {(cell.point["source"], cell.point["epsilon"]) for cell in cells} == {
        (source, epsilon) for source in ("mnist", "fashion-mnist") for epsilon in (10.0, 5.0)
    }
    for cell in cells:
        printed, passes = {10.0: (0.68, 35), 5.0: (0.9, 20)}[float(cell.point["epsilon"])]
        sensitivity = math.sqrt(central_limit_share(dimension, 70, 1e-5))
        assert cell.experiment.privacy.noise_multiplier == pytest.approx(printed * sensitivity, rel=1e-5)
        training = cell.experiment.training
        assert training.rounds * training.batch_fraction == pytest.approx(passes, rel=1e-3)
