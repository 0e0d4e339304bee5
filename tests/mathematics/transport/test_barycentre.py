"""Fair maps of histograms: closed forms of barycentres, a naive linear program, and the ball they must stay in."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from fedsw.mathematics.transport.barycentre import bins_of, distributions_of, fair_maps

EDGES = np.linspace(0.0, 1.0, 13)
MIDDLES = (EDGES[:-1] + EDGES[1:]) / 2


def drawn(seed: int, groups: int = 2, bins: int = 12):
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.ones(bins), size=groups), generator.dirichlet(np.ones(groups))


def largest_gap(distributions) -> float:
    rising = np.asarray(distributions).cumsum(axis=1)
    return float((rising.max(axis=0) - rising.min(axis=0)).max())


def naive_cost(distributions, weights, radius: float) -> float:
    """The same program written down entry by entry."""
    groups, b = distributions.shape
    size = groups * b * b + b
    at = lambda a, i, j: (a * b + i) * b + j  # noqa: E731
    cost, equal, right, less, limits = np.zeros(size), [], [], [], []
    for a in range(groups):
        for i in range(b):
            row = np.zeros(size)
            for j in range(b):
                cost[at(a, i, j)] = weights[a] * (MIDDLES[i] - MIDDLES[j]) ** 2
                row[at(a, i, j)] = 1
            equal.append(row)
            right.append(distributions[a, i])
        for last in range(b):
            row = np.zeros(size)
            for j in range(last + 1):
                for i in range(b):
                    row[at(a, i, j)] = 1
                row[groups * b * b + j] = -1
            less += [row, -row]
            limits += [radius / 2] * 2
    total = np.zeros(size)
    total[groups * b * b :] = 1
    found = linprog(cost, np.array(less), np.array(limits), np.array([*equal, total]), np.array([*right, 1.0]))
    assert found.status == 0
    return float(found.fun)


def test_two_points_meet_at_their_weighted_mean():
    distributions = np.zeros((2, 12))
    distributions[0, 1] = distributions[1, 9] = 1
    maps = fair_maps(distributions, np.array([0.75, 0.25]), EDGES, 0.0)
    assert maps.distributions[:, 3] == pytest.approx([1, 1])
    assert maps.cost == pytest.approx(0.75 * 0.25 * (8 / 12) ** 2)


def test_the_barycentre_of_shifted_copies_is_the_copy_between_them():
    shape = np.array([0.2, 0.5, 0.3])
    distributions = np.zeros((2, 12))
    distributions[0, 1:4], distributions[1, 7:10] = shape, shape
    maps = fair_maps(distributions, np.array([0.5, 0.5]), EDGES, 0.0)
    assert maps.barycentre[4:7] == pytest.approx(shape) and maps.cost == pytest.approx((3 / 12) ** 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("radius", [0.0, 0.1, 0.4])
def test_the_cost_is_that_of_the_program_written_entry_by_entry(seed, radius):
    distributions, weights = drawn(seed, groups=2 + seed % 2)
    assert fair_maps(distributions, weights, EDGES, radius).cost == pytest.approx(
        naive_cost(distributions, weights, radius), abs=1e-9
    )


@pytest.mark.parametrize("groups", [2, 4])
def test_results_are_distributions_within_the_radius_that_the_maps_make_of_the_groups(groups):
    distributions, weights = drawn(5, groups)
    costs = []
    for radius in (0.0, 0.2, 0.5):
        maps = fair_maps(distributions, weights, EDGES, radius)
        assert largest_gap(maps.distributions) <= radius + 1e-9
        assert maps.maps.sum(axis=2) == pytest.approx(np.ones((groups, 12)))
        assert np.einsum("ai,aij->aj", distributions, maps.maps) == pytest.approx(maps.distributions, abs=1e-8)
        costs.append(maps.cost)
    assert costs == sorted(costs, reverse=True)


def test_a_radius_that_the_groups_are_within_moves_nothing():
    distributions, weights = drawn(7)
    maps = fair_maps(distributions, weights, EDGES, min(1.0, largest_gap(distributions) + 1e-9))
    assert maps.cost == pytest.approx(0, abs=1e-12)


def test_scores_become_what_the_maps_say_group_by_group():
    distributions, weights = drawn(11)
    maps, generator = fair_maps(distributions, weights, EDGES, 0.0), np.random.default_rng(0)
    groups = np.repeat([0, 1], 20_000)
    own = np.concatenate([generator.choice(12, 20_000, p=each) for each in distributions])
    fair = maps(MIDDLES[own], groups, generator)
    for group in (0, 1):
        found = np.bincount(bins_of(fair[groups == group], EDGES), minlength=12) / 20_000
        assert found == pytest.approx(maps.distributions[group], abs=0.015)


def test_a_bin_without_mass_stays_where_it_is():
    distributions = np.zeros((2, 12))
    distributions[0, 1] = distributions[1, 9] = 1
    maps = fair_maps(distributions, np.array([0.5, 0.5]), EDGES, 0.0)
    assert maps(np.array([0.99]), np.array([0]), np.random.default_rng(0)) == pytest.approx([MIDDLES[11]])


def test_counts_become_distributions_whatever_the_noise_made_of_them():
    counts = np.array([[5.0, -2.0, 7.0, -1.0], [1.0, 1.0, 1.0, 1.0], [-3.0, -1.0, -2.0, 0.5]])
    distributions, weights = distributions_of(counts)
    assert (distributions >= 0).all() and distributions.sum(axis=1) == pytest.approx(np.ones(3))
    assert distributions[1] == pytest.approx(np.full(4, 0.25)) and weights.sum() == pytest.approx(1)


def test_counts_without_noise_are_their_own_distribution():
    counts = np.array([[3.0, 0.0, 1.0], [2.0, 2.0, 4.0]])
    distributions, weights = distributions_of(counts)
    assert distributions == pytest.approx(counts / counts.sum(axis=1, keepdims=True))
    assert weights == pytest.approx([1 / 3, 2 / 3])


def test_scores_outside_the_edges_are_in_the_first_or_the_last_bin():
    assert bins_of(np.array([-5.0, 0.0, 1.0, 9.0, np.nan]), EDGES).tolist() == [0, 0, 11, 11, 11]


@pytest.mark.parametrize(
    ("change", "words"), [({"radius": 1.5}, "radius is 1.5"), ({"edges": EDGES[:-1]}, "need 13 edges")]
)
def test_what_does_not_fit_is_refused(change, words):
    distributions, weights = drawn(0)
    with pytest.raises(ValueError, match=words):
        fair_maps(**{"distributions": distributions, "weights": weights, "edges": EDGES, "radius": 0.1, **change})
