"""Laws of RR's and SPF's computations: the share of random directions, what noise costs, means apart, flows."""

from __future__ import annotations

import numpy as np
import pytest

from fedsw.privacy.accounting.slicing import log_moment
from simulations.papers.computed import flows, slices, stored


def test_the_simulated_share_has_the_exact_law() -> None:
    found = slices.share(d=20, k=10, draws=20_000, deltas=[1e-1, 1e-3])
    edges, drawn, exact = (np.asarray(found.arrays[name]) for name in ("edges", "drawn", "exact"))
    width = np.diff(edges)
    assert found.values["mean"] == pytest.approx(10 / 20, rel=1e-3)
    assert float((drawn * width).sum()) == pytest.approx(1, abs=0.01)
    # Kolmogorov's distance on the common bins: 1.95 / sqrt(n) at a thousandth.
    assert float(np.abs(np.cumsum(drawn * width) - np.cumsum(exact * width)).max()) < 0.016


def test_bernsteins_share_is_above_the_exact_one_and_the_central_limits_is_not() -> None:
    found = slices.share(d=784, k=200, draws=10, deltas=[1e-3, 1e-8])
    exact, bernstein, clt = (np.asarray(found.arrays[name]) for name in ("quantiles", "bernsteins", "clts"))
    assert (bernstein > exact).all() and (bernstein > 1).all()
    assert (clt < exact).all()
    assert found.values["above_clt"] > found.values["delta"]


def test_a_releases_cost_is_at_most_its_renyi_bound_and_the_published_one_is_far_above() -> None:
    case = {
        "name": "one",
        "d": 50,
        "k": 20,
        "records": 100,
        "batch": 100,
        "rounds": 1,
        "delta": 1e-5,
        "multiplier": 1.0,
    }
    found = slices.noise(cases=[case]).values
    orders = np.linspace(1.5, 60, 400)
    bound = min(20 / (a - 1) * log_moment(50, a * (a - 1) / 2) + np.log(1e5) / (a - 1) for a in orders)
    assert found["one_exact"] <= bound
    assert found["one_exact"] < found["one_clt"] < found["one_published"] <= found["one_bernstein"]


def test_the_noise_for_a_budget_has_that_budget() -> None:
    case = {"name": "x", "d": 50, "k": 20, "records": 100, "batch": 100, "rounds": 1, "delta": 1e-5}
    needed = slices.noise(cases=[{**case, "epsilon": 2.0}]).values
    for name in ("exact", "clt"):
        back = slices.noise(cases=[{**case, "multiplier": needed[f"x_{name}"]}]).values
        assert back[f"x_{name}"] == pytest.approx(2.0, rel=1e-3)


def test_smoothing_keeps_where_the_distance_is_least_and_brings_it_closer_to_flat() -> None:
    found = slices.means_apart(
        dimension=5, directions=30, order=1, distances=[0.0, 0.5, 1.0], sigmas=[1.0], sizes=[2_000], draws=2
    )
    plain, noised = found.arrays["plain"][0], found.arrays["noised"][0, 0]
    assert found.values["least_rank_correlation"] == pytest.approx(1.0)
    assert plain.argmin() == noised.argmin() == 0
    # Means a distance m apart along a direction: both are about E|m|, whatever the smoothing.
    assert noised[2] == pytest.approx(plain[2], rel=0.1)


def test_particles_follow_slices_without_noise_and_are_more_dispersed_with_it() -> None:
    found = flows.panels(
        sigmas=[0.0, 1.0], shown=[1, 40], records=600, particles=300, directions=40, step=1.0, diffusion=0.0, modes=5,
        circle=1.5, std=0.15,
    )  # fmt: skip
    assert found.arrays["particles"].shape == (2, 2, 300, 2)
    assert found.values["swd_0"] < 0.15 < found.values["swd_1"]


@pytest.mark.slow
def test_slices_noised_once_teach_the_ring_where_there_is_hardly_any_noise_and_nothing_under_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "noise_multiplier", lambda epsilon, *_, **__: 1 / epsilon)  # the exact: seconds
    found = stored.ring_once(
        epsilons=[0.2, 1000.0], records=2000, sampled=500, directions=15, steps=200, batch=200, rate=0.01, radius=0.75
    )
    assert found.values["sw2_1000"] < 0.2 < found.values["sw2_0.2"]
    assert found.values["sigma_0.2"] == pytest.approx(5 * 1.5)
    assert found.arrays["points"].shape == (2, 1500, 2)
