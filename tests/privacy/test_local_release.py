"""Laws of the one-shot release: exact projections, and the budget it claims against the worst pair of records."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.denoise import image_side
from fedsw.privacy.local_release import RecordRelease, project_ball
from tests.doors import privatise

GAUSSIAN = RecordRelease(epsilon=2.0, delta=1e-5, radius=1.5)
LAPLACE = RecordRelease(epsilon=2.0, delta=0.0, radius=1.5, norm="l1", mechanism="laplace")

rows = st.integers(1, 12).flatmap(
    lambda p: st.lists(
        st.lists(st.floats(-1e6, 1e6, allow_subnormal=True), min_size=p, max_size=p), min_size=1, max_size=4
    )
)


def at_most(row: list[float], radius: float, norm: str) -> bool:
    """Whether the exact norm of a stored row is at most the radius."""
    exact = [Fraction(value) for value in row]
    if norm == "l1":
        return sum(abs(value) for value in exact) <= Fraction(radius)
    return sum(value * value for value in exact) <= Fraction(radius) ** 2


@given(rows, st.floats(1e-3, 1e3), st.sampled_from(["l1", "l2"]))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_projected_row_is_in_the_ball_exactly_and_stays_where_it_is(values, radius, norm):
    once = project_ball(torch.tensor(values, dtype=torch.float64), radius, norm)
    assert all(at_most(row, radius, norm) for row in once.tolist())
    torch.testing.assert_close(project_ball(once, radius, norm), once, rtol=1e-12, atol=1e-14 * radius)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_rounding_never_leaves_the_ball_even_with_many_coordinates(norm):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 784, generator=generator, dtype=torch.float64)
    values[:50] *= torch.logspace(-3, 12, 50, dtype=torch.float64).unsqueeze(1)
    values[50:55] = 1e-3
    for radius in (1.0, 0.1, 28.0):
        assert all(at_most(row, radius, norm) for row in project_ball(values, radius, norm).tolist())


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_projection_is_the_nearest_point_of_the_ball(norm):
    generator = np.random.default_rng(1)
    for p in (1, 2, 5, 9):
        values = generator.normal(size=(6, p)) * generator.choice([0.3, 1.0, 30.0], size=(6, 1))
        ours = project_ball(torch.from_numpy(values), 1.0, norm).numpy()
        for row, projected in zip(values, ours, strict=True):
            np.testing.assert_allclose(projected, nearest(row, norm), atol=1e-6)


def nearest(row: np.ndarray, norm: str) -> np.ndarray:
    """The nearest point of the unit ball: by a root for the multiplier of its constraint (l1), by scaling (l2)."""
    if norm == "l2":
        return row / max(1.0, float(np.linalg.norm(row)))
    size = np.abs(row)
    if size.sum() <= 1:
        return row
    excess = lambda threshold: np.maximum(size - threshold, 0).sum() - 1  # noqa: E731
    threshold = optimize.brentq(excess, 0.0, size.max(), xtol=1e-15)
    return np.sign(row) * np.maximum(size - threshold, 0)


def test_no_point_of_the_ball_is_nearer_than_the_l1_projection():
    generator = torch.Generator().manual_seed(2)
    row = torch.randn(1, 6, generator=generator, dtype=torch.float64) * 3
    others = torch.randn(20_000, 6, generator=generator, dtype=torch.float64)
    others = others / others.abs().sum(dim=1, keepdim=True)
    distance = torch.linalg.vector_norm(row - project_ball(row, 1.0, "l1"))
    assert distance <= torch.linalg.vector_norm(row - others, dim=1).min()


def test_rows_far_outside_keep_their_largest_coordinates():
    values, expected = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)
    values[0, :3], expected[0, :3] = (
        torch.tensor([1e300, -1e300, 1e299], dtype=torch.float64),
        torch.tensor([0.5, -0.5, 0.0]),
    )
    values[1, :3], expected[1, :3] = torch.tensor([-1e18, 0.0, 3.0]), torch.tensor([-1.0, 0.0, 0.0])
    values[2, 1], expected[2, 1] = 1.7e308, 1.0
    torch.testing.assert_close(project_ball(values, 1.0, "l1"), expected)


# --- the budget -------------------------------------------------------------------------------------------------------


def pair_delta(epsilon: float, distance: float, sigma: float) -> float:
    """Exact delta of N(distance, sigma^2) against N(0, sigma^2)."""
    mu = distance / sigma
    return float(stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2)))


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("calibration", ["analytic", "rco"])
@pytest.mark.parametrize("dct", [False, True])
def test_the_worst_pair_of_records_never_shows_more_than_delta(norm, calibration, dct):
    release = replace(GAUSSIAN, norm=norm, calibration=calibration, dct=dct)
    worst = worst_move(release)
    assert worst == pytest.approx(release.sensitivity, rel=1e-9)
    delta = pair_delta(release.epsilon, worst, release.scale)
    assert delta <= release.delta
    assert calibration == "rco" or delta >= 0.999 * release.delta  # the attack is the worst, so nothing is wasted


def worst_move(release: RecordRelease) -> float:
    """How far two records on opposite sides move what is released, with the same noise, beyond the ball's edge too."""
    p = 16
    direction = torch.zeros(1, p, dtype=torch.float64)
    direction[0, 5] = 1.0
    direction = release.decode(direction)  # an axis of the released space
    ends = [privatise(sign * 1e6 * direction, release, Stream.seeded(5)) for sign in (1, -1)]
    ordinary = privatise(torch.full((1, p), 0.1), release, Stream.seeded(5))
    order = 2 if release.mechanism == "gaussian" else 1
    moves = [float(torch.linalg.vector_norm(a - b, ord=order)) for a, b in ((*ends,), (ends[0], ordinary))]
    assert moves[1] < moves[0]
    return moves[0]


@pytest.mark.parametrize("dct", [False, True])
def test_the_worst_pair_under_laplace_noise_has_a_likelihood_ratio_of_e_to_the_epsilon(dct):
    release = replace(LAPLACE, dct=dct)
    worst = worst_move(release)
    assert worst == pytest.approx(release.sensitivity, rel=1e-9)
    assert release.epsilon * (1 - 1e-8) <= worst / release.scale <= release.epsilon


@given(rows, rows, st.sampled_from([GAUSSIAN, replace(GAUSSIAN, norm="l1"), LAPLACE]))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_replacing_one_record_never_moves_a_release_by_more_than_the_sensitivity(first, second, release):
    p = min(len(first[0]), len(second[0]))
    one, other = (torch.tensor([values[0][:p]], dtype=torch.float64) for values in (first, second))
    move = torch.linalg.vector_norm(release.project(one) - release.project(other), ord=release.order)
    assert float(move) <= release.sensitivity * (1 + 1e-14)


def test_the_papers_diameter_is_no_guarantee_and_says_so():
    release = replace(GAUSSIAN, diameter="paper")
    assert release.sensitivity == release.radius
    worst = 2 * release.radius  # the ball is the same
    assert pair_delta(release.epsilon, worst, release.scale) > 10 * release.delta
    assert "not a guarantee" in release.guarantee
    laplace = replace(LAPLACE, diameter="paper")
    assert worst / laplace.scale > 1.9 * laplace.epsilon and "not a guarantee" in laplace.guarantee


def test_the_guarantee_names_who_is_protected_the_relation_and_the_budget():
    assert "(2, 1e-05)-local" in GAUSSIAN.guarantee and "replaced" in GAUSSIAN.guarantee
    assert "the server included" in GAUSSIAN.guarantee and "one release" in GAUSSIAN.guarantee
    assert "(2, 0)-local" in LAPLACE.guarantee


def test_the_l1_ball_that_laplace_noise_needs_contains_the_l2_ball_it_replaces():
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(500, 7, generator=generator, dtype=torch.float64) * 4
    inside = project_ball(values, 1.0, "l2")
    kept = project_ball(inside, math.sqrt(7), "l1")
    torch.testing.assert_close(kept, inside)
    corner = torch.full((7,), 1 / math.sqrt(7), dtype=torch.float64)  # the l1 diameter of the l2 ball is 2 sqrt(p)
    assert float((2 * corner).abs().sum()) == pytest.approx(2 * math.sqrt(7))


# --- what is released -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [GAUSSIAN, LAPLACE, replace(GAUSSIAN, dct=True)])
def test_a_release_is_its_projection_plus_noise_of_the_declared_scale(release):
    features = torch.full((20_000, 16), 0.02)
    released = privatise(features, release, Stream.seeded(6))
    residual = (released - release.project(features)).numpy().ravel()
    law = stats.norm(0, release.scale) if release.mechanism == "gaussian" else stats.laplace(0, release.scale)
    assert released.dtype == torch.float64 and stats.kstest(residual, law.cdf).pvalue > 1e-3
    assert residual.std() == pytest.approx(release.deviation, rel=0.02)


def test_records_inside_the_ball_are_released_around_themselves():
    features = torch.tensor([[0.1, -0.2, 0.3, 0.0]])
    for release in (GAUSSIAN, replace(GAUSSIAN, dct=True)):
        torch.testing.assert_close(release.decode(release.project(features)), features.double(), rtol=1e-6, atol=1e-6)


def test_cosine_coefficients_are_the_orthonormal_ones_and_keep_lengths():
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(3, 64, generator=generator, dtype=torch.float64)
    release = replace(GAUSSIAN, dct=True)
    ours = release.encode(images)
    reference = scipy.fft.dctn(images.reshape(3, 8, 8).numpy(), axes=(1, 2), norm="ortho").reshape(3, 64)
    np.testing.assert_allclose(ours.numpy(), reference, atol=1e-12)
    torch.testing.assert_close(release.decode(ours), images)
    torch.testing.assert_close(torch.linalg.vector_norm(ours, dim=1), torch.linalg.vector_norm(images, dim=1))


def test_in_coefficient_space_the_l1_ball_is_one_of_coefficients():
    release = replace(LAPLACE, dct=True)
    checkerboard = torch.tensor([[1.0, -1.0, -1.0, 1.0]]) * 10
    assert float(release.project(checkerboard).abs().sum()) == pytest.approx(1.5)
    assert int((release.project(checkerboard).abs() > 1e-9).sum()) == 1  # one coefficient, where pixels would keep four


@pytest.mark.parametrize("dct", [False, True])
@pytest.mark.parametrize("kind", [GAUSSIAN, LAPLACE])
def test_a_record_that_is_not_finite_counts_as_zero_and_disturbs_no_other(kind, dct):
    release = replace(kind, dct=dct)
    features = torch.full((4, 4), 1e307, dtype=torch.float64)
    features[0, 1], features[1, 2], features[2, 3] = math.nan, -math.inf, math.inf
    rows = release.project(features)
    assert torch.isfinite(rows).all() and (rows[:3] == 0).all()
    assert float(rows[3].norm(p=release.order)) == pytest.approx(1.5)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mechanism": "laplace"}, "norm 'l1' with radius rho sqrt\\(p\\)"),
        ({"radius": 0.0}, "radius is 0.0"),
        ({"radius": math.inf}, "radius is inf"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"norm": "linf"}, "norm is 'linf'; choose one of l2, l1"),
        ({"mechanism": "cauchy"}, "choose one of gaussian, laplace"),
        ({"diameter": "half"}, "choose one of replacement, paper"),
        ({"calibration": "classic"}, "choose one of analytic, rco"),
    ],
)
def test_a_release_that_cannot_be_is_refused_when_it_is_described(change, said):
    with pytest.raises(ValueError, match=said):
        replace(GAUSSIAN, **change)


def test_records_that_do_not_fit_the_release_are_refused():
    stream = Stream.seeded(7)
    with pytest.raises(ValueError, match="5 features, which is no square image"):
        privatise(torch.zeros(2, 5), replace(GAUSSIAN, dct=True), stream)
    with pytest.raises(ValueError, match=r"shape \(2, 2, 2\)"):
        privatise(torch.zeros(2, 2, 2), GAUSSIAN, stream)
    with pytest.raises(ValueError, match="norm is 'l3'"):
        project_ball(torch.zeros(1, 1), 1.0, "l3")
    assert image_side(784) == 28
