"""Bounds on the sensitivity of Wasserstein gradients: closed forms, tight instances, adversarial search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsw.mathematics.transport import ranks, sliced
from fedsw.privacy.sensitivity import Bound, Sensitivity, Side, loss_sensitivity, swd_sensitivity, worst
from tests.adversary import Attack, aligned_jacobians, ascend, explicit_movement, movement, random_jacobians

ONE = torch.ones((1, 1), dtype=torch.float64)


def delta(
    own_l: float,
    other_l: float,
    *,
    bound: Bound = "auto",
    m: float = 1.0,
    a: float = 1.0,
    n: int = 1,
    spread: float | None = None,
    order: float = 2.0,
) -> float:
    return swd_sensitivity(Side(n, m, own_l), Side(n, a, other_l), bound=bound, spread=spread, order=order).value


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


# Closed forms


@pytest.mark.parametrize(
    ("d", "no_other", "both", "prior"),
    [
        (1, 9.657, 10.000, 11.211),
        (2, 7.464, 8.000, 8.123),
        (3, 6.667, 7.333, 7.055),
        (6, 5.764, 6.599, 5.915),
        (16, 5.031, 5.750, 5.068),
        (64, 4.504, 4.9375, 4.509),
    ],
)
def test_vector_bound_at_orthogonal_blocks(d: int, no_other: float, both: float, prior: float) -> None:
    assert delta(1, 0, bound="vector", spread=1 / d) == pytest.approx(no_other, abs=6e-4)
    assert delta(1, 1, bound="vector", spread=1 / d) == pytest.approx(both, abs=6e-4)
    assert delta(1, 0, bound="vector", spread=1 / d, m=1.5) == pytest.approx(prior, abs=6e-4)


def test_slice_and_paper_bounds_at_the_settings_of_the_literature() -> None:
    assert [delta(1, 0, bound=b) for b in ("paper", "slice")] == [12, 8]
    assert [delta(1, 1, bound=b) for b in ("paper", "slice")] == [16, 8]
    assert [delta(1, 0, bound=b, m=1.5) for b in ("paper", "slice")] == [18, 10]
    assert delta(2, 2, bound="slice", m=3, a=3, n=100) == pytest.approx(8 * 3 * 2 / 100)


def best_proof(own_l: float, other_l: float, m: float, a: float, spread: float) -> float:
    """The vector bound before its closed form: least over L2' >= L2 of the greatest over the cosine."""
    cosines = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    raised = other_l + torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None] ** 2 * 3 * own_l

    def greatest(norm: Tensor) -> Tensor:
        gain, loss = m * norm, a * own_l
        square = (gain**2 + loss**2 - 2 * gain * loss * cosines).clamp(min=0)
        return ((spread * square).sqrt() + spread * m * own_l * cosines).amax(dim=-1)

    return 4 * (own_l * a + float(greatest(raised).min()))


@pytest.mark.parametrize("spread", [1.0, 0.5, 1 / 6])
@pytest.mark.parametrize(("m", "a"), [(1, 1), (1.5, 1), (1, 4), (10, 1), (0.3, 1)])
@pytest.mark.parametrize(("own_l", "other_l"), [(1, 0), (1, 0.3), (1, 1), (1, 5), (0.2, 1), (0, 1)])
def test_vector_bound_is_the_least_maximum_of_its_proof(
    own_l: float, other_l: float, m: float, a: float, spread: float
) -> None:
    value = delta(own_l, other_l, bound="vector", m=m, a=a, spread=spread)
    assert value == pytest.approx(best_proof(own_l, other_l, m, a, spread), rel=1e-4)


@pytest.mark.parametrize(("own_l", "other_l"), list(product([0, 0.2, 1, 3], [0, 0.5, 1, 4])))
@pytest.mark.parametrize(("m", "a"), [(1, 1), (2, 1), (1, 2), (1, 10), (0, 1), (1, 0)])
def test_auto_is_the_least_bound_and_slice_never_exceeds_paper(
    own_l: float, other_l: float, m: float, a: float
) -> None:
    for order in (2.5, 3, 7):
        orders = [delta(own_l, other_l, bound=b, m=m, a=a, order=order) for b in ("auto", "slice", "paper")]
        assert orders[0] == orders[1] <= orders[2] * (1 + 1e-12)
    for spread in (1.0, 0.4, 0.05):
        each = [delta(own_l, other_l, bound=b, m=m, a=a, spread=spread) for b in ("paper", "slice", "vector")]
        assert delta(own_l, other_l, m=m, a=a, spread=spread) == min(each)
        assert each[1] <= each[0]
    assert delta(own_l, other_l, m=m, a=a) == each[1]


def test_bounds_grow_with_every_norm_and_radius_and_with_the_spread() -> None:
    grid = list(product([0.1, 1, 3], [0, 0.5, 2], [0.5, 1, 8], [0.5, 1, 8], [0.1, 0.5, 1]))
    for bound in ("slice", "vector", "auto"):
        for own_l, other_l, m, a, spread in grid:
            value = delta(own_l, other_l, m=m, a=a, spread=spread, bound=bound)
            grown = (
                delta(1.1 * own_l, other_l, m=m, a=a, spread=spread, bound=bound),
                delta(own_l, 1.1 * other_l + 0.01, m=m, a=a, spread=spread, bound=bound),
                delta(own_l, other_l, m=1.1 * m, a=a, spread=spread, bound=bound),
                delta(own_l, other_l, m=m, a=1.1 * a, spread=spread, bound=bound),
                delta(own_l, other_l, m=m, a=a, spread=min(1, 1.1 * spread), bound=bound),
            )
            assert min(grown) >= value * (1 - 1e-12)


def test_a_public_prior_and_a_learned_generator_have_their_own_bounds() -> None:
    latents, prior = Side(100, 1.5, 2.0), Side(50, 1.0, 0.0, private=False)
    assert swd_sensitivity(latents, prior, bound="slice").value == pytest.approx(4 * 2 * 2.5 / 100)
    assert swd_sensitivity(latents, prior, spread=1 / 6).value == pytest.approx(5.915 * 2 / 100, rel=1e-4)
    records, generator = Side(100, 1.5, 0.0), Side(50, 9.0, 2.0, private=False)
    assert swd_sensitivity(records, generator, bound="slice").value == pytest.approx(4 * 1.5 * 2 / 100)
    vector = swd_sensitivity(records, generator, bound="vector", spread=1 / 6)
    assert vector.value == pytest.approx(4 * 1.5 * math.sqrt(1 / 6) * 2 / 100)
    assert vector.public == (*swd_sensitivity(records, records).public, "the other sample")
    with pytest.raises(ValueError, match="replaced side is public"):
        swd_sensitivity(prior, latents)


# Tight instances, with actual data, Jacobians and cotangents


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize(
    ("own_l", "other_l", "m", "a", "value"),
    [
        (1, 0, 1, 1, 8),
        (1, 1, 1, 1, 8),
        (1, 3, 1, 1, 16),
        (0.2, 1, 1, 1, 4.8),
        (1, 0, 1.5, 1, 10),
        (1, 0.2, 1, 4, 32),
        (1, 3, 1, 4, 40),
        (1, 1, 10, 1, 80),
        (0, 1, 3, 1, 12),
    ],
)
def test_slice_bound_is_attained(n: int, own_l: float, other_l: float, m: float, a: float, value: float) -> None:
    step = 1e-8
    spread_target = [-a] + [0.0] * (n - 2) + [a]
    instances = [
        Attack(column(*[m] * n), column(*[-a] * n), 0, column(m)[0], ONE),
        Attack(column(m, *[m - step / 2] * (n - 1)), column(*spread_target), 0, column(m - step)[0], ONE),
        Attack(column(m, *[0.0] * (n - 1)), column(*[a] * n), 0, column(-m)[0], ONE),
        Attack(column(m, *[step / 2 - m] * (n - 1)), column(*spread_target), 0, column(-m)[0], ONE),
    ]
    assert delta(own_l, other_l, m=m, a=a, n=n, bound="slice") * n == pytest.approx(value, rel=1e-12)
    for order in (2.0, 2.5, 3.0, 6.0):
        attacks = [dataclasses.replace(attack, order=order) for attack in instances]
        reached = max(explicit_movement(attack, aligned_jacobians(attack, own_l, other_l)) for attack in attacks)
        assert reached == pytest.approx(delta(own_l, other_l, m=m, a=a, n=n, bound="slice", order=order), rel=1e-6)


@pytest.mark.parametrize("order", [2, 2.5, 3, 4])
def test_bounds_of_every_order_at_unit_norms(order: float) -> None:
    factor = order * 2 ** (order - 1)
    assert delta(1, 0.5, bound="paper", order=order) == pytest.approx(factor * ((order + 1) + 0.5 * (order - 1)))
    assert delta(1, 0.5, bound="slice", order=order) == pytest.approx(factor * 2)
    assert delta(1, 3, bound="slice", order=order) == pytest.approx(factor * 4)
    assert delta(1, 3, order=order, spread=1.0) <= delta(1, 3, bound="slice", order=order)


def test_vector_bounds_and_orders_below_2_are_refused() -> None:
    with pytest.raises(ValueError, match="'vector' is proven for order 2, and the order is 3: use 'slice' or 'auto'"):
        delta(1, 1, bound="vector", spread=0.5, order=3)
    for order in (1.99, 1, 65, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"order is .*; a penalty's order is from 2 to 64: below"):
            delta(1, 1, order=order)
        with pytest.raises(ValueError, match=r"order is .*; a penalty's order"):
            sliced.cotangents(column(0.0), column(1.0), ONE, order=order)


@pytest.mark.parametrize("radius", [1e-6, 1e6])
def test_powers_that_numbers_do_not_hold_are_refused_and_never_a_bound_of_0(radius: float) -> None:
    with pytest.raises(ValueError, match=r"powers of order 64 are no exact numbers: clip them to a radius nearer 1"):
        delta(1, 1, m=radius, a=radius, order=64)
    assert delta(1, 1, m=6e-5, a=6e-5, order=64) > 0 and math.isfinite(delta(1, 1, m=4e3, a=4e3, order=64))


def test_slice_bound_is_attained_in_any_dimension_by_a_single_direction() -> None:
    theta = sliced.directions(3, 1, normals=torch.eye(3, dtype=torch.float64)[:, :1])
    ends = theta.T.expand(4, 3)
    attack = Attack(ends, -ends, 0, ends[0], theta)
    reached = explicit_movement(attack, aligned_jacobians(attack, 1, 1))
    assert 4 * reached == pytest.approx(delta(1, 1, spread=sliced.spread(theta)), abs=1e-6)


def test_stationary_cosine_above_one_is_cut_not_ignored() -> None:
    """Own radius 10, other radius 1: treating a cosine above 1 like one below -1 would report 8, not 80."""
    attack = Attack(column(10, 0), column(1, 1), 0, column(-10)[0], ONE)
    reached = 2 * explicit_movement(attack, aligned_jacobians(attack, 1, 1))
    assert reached == pytest.approx(80)
    assert delta(1, 1, m=10, a=1, spread=1.0, bound="vector") >= reached


@pytest.mark.parametrize("d", [2, 3, 6])
def test_vector_bound_is_attained_by_a_generator_of_fixed_private_records(d: int) -> None:
    theta = torch.eye(d, dtype=torch.float64)
    corner = torch.full((1, d), 1 / math.sqrt(d), dtype=torch.float64)
    own = torch.cat([corner, -corner.expand(d - 1, d)])
    attack = Attack(own, theta, 0, -corner[0], theta)
    reached = explicit_movement(attack, aligned_jacobians(attack, 0, 1))
    assert reached == pytest.approx(delta(0, 1, n=d, spread=1 / d), rel=1e-12)


# Search


def points(kind: str, n: int, d: int, radius: float, generator: torch.Generator) -> Tensor:
    normals = torch.randn((n, d), generator=generator, dtype=torch.float64)
    if kind == "inside":
        return sliced.project(normals * radius / 2, radius)
    if kind == "saturated":
        return sliced.project(normals * 1e6, radius)
    axis = torch.randn((1, d), generator=generator, dtype=torch.float64)
    ends = sliced.project(axis * 1e6, radius)
    signs = torch.randint(0, 2, (n, 1), generator=generator) * 2 - 1
    return ends * (signs if kind == "two-ended" else torch.ones_like(signs))


KINDS = st.sampled_from(["inside", "saturated", "two-ended", "tied"])
NORMS = st.sampled_from([(1.0, 0.0), (1.0, 1.0), (1.0, 3.0), (0.2, 1.0), (0.0, 1.0), (1.0, 0.1)])
RADII = st.sampled_from([(1.0, 1.0), (1.5, 1.0), (1.0, 3.0), (10.0, 1.0), (0.1, 1.0)])
GEOMETRIES = st.sampled_from([(1, 1), (2, 2), (2, 7), (3, 3), (3, 5), (5, 5)])


@settings(deadline=None, derandomize=True, max_examples=400)
@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    kinds=st.tuples(KINDS, KINDS, KINDS),
    norms=NORMS,
    radii=RADII,
    geometry=GEOMETRIES,
    scheme=st.sampled_from(["orthogonal", "iid"]),
    ties=st.sampled_from(["shared", "stable"]),
    order=st.sampled_from([2.0, 2.0, 2.2, 3.0, 5.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_replacing_one_record_never_exceeds_a_bound(
    sizes: tuple[int, int],
    kinds: tuple[str, str, str],
    norms: tuple[float, float],
    radii: tuple[float, float],
    geometry: tuple[int, int],
    scheme: sliced.Scheme,
    ties: sliced.Ties,
    order: float,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    (n, m), (d, k), (own_radius, other_radius) = sizes, geometry, radii
    normals = torch.randn(sliced.direction_shape(d, k, scheme), generator=generator, dtype=torch.float64)
    theta = sliced.directions(d, k, normals=normals, scheme=scheme)
    own, other = (
        points(kinds[0], n, d, own_radius, generator),
        points(kinds[1], m, d, other_radius, generator),
    )
    if kinds[1] in ("two-ended", "tied"):
        other = own[:1] / own_radius * other_radius * torch.sign(other[:, :1])
    index = int(torch.randint(0, n, (1,), generator=generator))
    record = -own[index] if kinds[2] == "two-ended" else points(kinds[2], 1, d, own_radius, generator)[0]
    attack = Attack(own, other, index, record, theta, order=order)
    sides = Side(n, own_radius, norms[0]), Side(m, other_radius, norms[1])
    allowed = swd_sensitivity(*sides, spread=sliced.spread(theta), order=order).value * (1 + 1e-9)
    assert movement(attack, *norms, ties=ties) <= allowed
    elsewhere = dataclasses.replace(attack, row=int(torch.randint(0, n, (1,), generator=generator)))
    assert movement(elsewhere, *norms, ties=ties) <= allowed
    random = random_jacobians(attack, *norms, r=d + 1, generator=generator)
    assert explicit_movement(attack, random) <= allowed


def test_aligned_jacobians_have_the_clipped_norm_and_reach_what_the_triangle_inequality_allows() -> None:
    generator = torch.Generator().manual_seed(3)
    theta = sliced.directions(3, 6, normals=torch.randn((3, 6), generator=generator, dtype=torch.float64))
    own, other = (points("saturated", n, 3, 1.0, generator) for n in (5, 4))
    attack = Attack(own, other, 2, -own[2], theta)
    jacobians = aligned_jacobians(attack, 0.7, 1.3)
    for matrices, norm in ((jacobians.own, 0.7), (jacobians.record, 0.7), (jacobians.other, 1.3)):
        assert float(torch.linalg.matrix_norm(matrices, ord=2).max()) == pytest.approx(norm)
    assert explicit_movement(attack, jacobians) == pytest.approx(movement(attack, 0.7, 1.3))


SEARCHES = [
    # d, k, scheme, (M, A), (L1, L2), the share of the best bound that the search must reach
    (1, 1, "orthogonal", (1, 1), (1, 1), 0.999),
    (1, 1, "orthogonal", (10, 1), (1, 1), 0.999),
    (2, 2, "orthogonal", (1, 1), (1, 0), 0.68),
    (2, 4, "orthogonal", (1, 1), (1, 1), 0.78),
    (2, 2, "orthogonal", (10, 1), (1, 1), 0.97),
    (3, 5, "iid", (1.5, 1), (1, 0), 0.60),
    (3, 3, "orthogonal", (1, 1), (0.2, 1), 0.80),
    (6, 6, "orthogonal", (1.5, 1), (1, 0), 0.37),
]


@pytest.mark.parametrize(("steps", "restarts"), [(60, 32), pytest.param(300, 120, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("d", "k", "scheme", "radii", "norms", "share"), SEARCHES)
def test_gradient_ascent_comes_close_to_a_bound_and_never_exceeds_it(
    d: int,
    k: int,
    scheme: sliced.Scheme,
    radii: tuple[float, float],
    norms: tuple[float, float],
    share: float,
    steps: int,
    restarts: int,
) -> None:
    generator = torch.Generator().manual_seed(11)
    best = 0.0
    for n, m in ((1, 1), (2, 2), (4, 8)):
        normals = torch.randn(sliced.direction_shape(d, k, scheme), generator=generator, dtype=torch.float64)
        theta = sliced.directions(d, k, normals=normals, scheme=scheme)
        attack = ascend(
            theta, sizes=(n, m), radii=radii, norms=norms, steps=steps, restarts=restarts, generator=generator
        )
        sides = Side(n, radii[0], norms[0]), Side(m, radii[1], norms[1])
        for bound, ties in product(("slice", "vector"), ("shared", "stable")):
            value = swd_sensitivity(*sides, bound=bound, spread=sliced.spread(theta)).value
            assert movement(attack, *norms, ties=ties) <= value * (1 + 1e-9)
        auto = swd_sensitivity(*sides, spread=sliced.spread(theta)).value
        best = max(best, movement(attack, *norms) / auto)
    assert best >= share


# Ties


def tied_attack() -> Attack:
    """40 records saturated at M against a target at both ends; one record moves within (-M, M)."""
    own = column(*[1.0] * 40, 0.5)
    return Attack(own, column(*[-1.0] * 20, *[1.0] * 21), 40, column(-0.5)[0], ONE)


def test_ties_cost_nothing() -> None:
    for ties in ("shared", "stable"):
        assert 41 * movement(tied_attack(), 1, 1, ties=ties) <= 8
        for row in (0, 20):
            moves_through_the_block = dataclasses.replace(tied_attack(), index=39, record=column(1.0)[0], row=row)
            assert 41 * movement(moves_through_the_block, 1, 1, ties=ties) <= 8


def test_breaking_ties_by_the_data_breaks_the_bound_unless_ties_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tie_break_by_data(rows: Tensor, ties: ranks.Ties) -> ranks.Ranked:
        backwards = bool(rows.sum() < 40)
        order = torch.sort(rows.flip(-1) if backwards else rows, dim=-1, stable=True).indices
        order = rows.shape[-1] - 1 - order if backwards else order
        values = rows.gather(-1, order)
        return ranks.Ranked(values, order)

    monkeypatch.setattr(sliced, "ranked", tie_break_by_data)
    assert 41 * movement(tied_attack(), 1, 1, ties="stable") >= 120
    assert 41 * movement(tied_attack(), 1, 1, ties="shared") <= 8


# The object


def test_sensitivities_scale_and_add_with_their_description() -> None:
    loss = loss_sensitivity(5.0, 100)
    assert loss.value == 2 * 5 / 100
    both = 0.25 * loss + 0.75 * Sensitivity(0.08, "slice", public=("each record's group",))
    assert both.value == pytest.approx(0.25 * 0.1 + 0.75 * 0.08)
    assert both.bound == "loss clip + slice"
    assert both.relation == "replace-one"
    assert both.public == (*loss.public, "each record's group")
    assert (both + loss).bound == both.bound
    assert (-2 * loss).value == pytest.approx(0.2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loss.value = 0.0  # type: ignore[misc]


def test_bounds_for_different_relations_do_not_add() -> None:
    with pytest.raises(ValueError, match="'replace-one' and 'add-or-remove-one' neighbours do not add"):
        loss_sensitivity(1.0, 10) + Sensitivity(0.1, "loss clip", relation="add-or-remove-one")


def test_worst_is_the_largest_and_keeps_what_all_make_public() -> None:
    small, large = (
        swd_sensitivity(Side(90, 1, 1), Side(10, 1, 1)),
        swd_sensitivity(Side(10, 1, 1), Side(90, 1, 1)),
    )
    assert worst([small, large]).value == large.value == pytest.approx(0.8)
    assert worst([small, Sensitivity(1.0, "x", public=("y",))]).public == (*small.public, "y")
    with pytest.raises(ValueError, match="at least one"):
        worst([])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Side(0, 1, 1), "n = 0"),
        (lambda: Side(1, -1, 1), r"radius = -1"),
        (lambda: Side(1, 1, math.nan), "jacobian = nan"),
        (lambda: loss_sensitivity(-1, 5), "clip = -1"),
        (lambda: loss_sensitivity(1, 0), "n = 0"),
        (lambda: Sensitivity(math.inf, "slice"), "sensitivity = inf"),
        (lambda: delta(1, 1, bound="vector"), "needs a spread"),
        (lambda: delta(1, 1, spread=1.5), r"spread = 1.5"),
        (lambda: delta(1, 1, spread=0.0), r"spread = 0.0"),
        (lambda: delta(1, 1, bound="best"), "'best' is unknown"),  # type: ignore[arg-type]
    ],
)
def test_impossible_arguments_are_refused_by_name(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
