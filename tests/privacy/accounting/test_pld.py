"""Laws of the grid: coarser never looks more private, and neither wrapping nor round-off hides mass."""

import math

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from fedsw.privacy.accounting import Step, pld, step_profile
from fedsw.privacy.accounting.pld import (
    TAIL,
    TRUNCATION,
    Distribution,
    Harmonics,
    LossGrid,
    Spectrum,
    Spread,
    dominating_masses,
    grid_masses,
    round_off,
    step_moments,
)
from fedsw.privacy.accounting.profiles import curves, orientations, reach

RATES = st.floats(-3, 0).map(lambda exponent: 10.0**exponent)
MUS = st.floats(-1.3, 0.6).map(lambda exponent: 10.0**exponent)
STEPS = st.builds(Step, RATES, MUS, st.sampled_from(["without-replacement", "poisson"]))
SPACINGS = st.integers(4, 10).map(lambda exponent: 2.0**-exponent)
quick = settings(deadline=None, derandomize=True, max_examples=25)


def composed(step, count, spacing, side=None):
    side = side or orientations(step)[0]
    spread = Spread(spacing, side)
    spread.extend({step: count})
    grid = spread.window()
    spectrum = Spectrum(spacing, grid.size, side, "cpu")
    spectrum.extend({step: count})
    return spectrum.distribution(grid.first)


@quick
@given(STEPS, st.lists(st.integers(1, 400), min_size=3, max_size=3), SPACINGS)
def test_what_others_composed_before_changes_no_digit(step, counts, spacing):
    """Small transforms of a step are kept for all compositions, with as many arguments as one has asked for."""

    def read():
        return [composed(step, count, spacing).delta(0.3) for count in counts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pld, "_kept_transform", vars(pld)["_transform"])
        alone = read()
    assert read() == alone == read()


@quick
@given(STEPS, SPACINGS, st.floats(0.0, 5.0))
def test_one_discretised_step_is_never_more_private_than_the_step(step, spacing, at):
    for side in orientations(step):
        below, centre, above = grid_masses(step, side, spacing, "cpu")
        up = spacing * np.arange(1, len(above) + 1)
        upwards, _ = curves(step, side)
        found = float((above * -np.expm1((at - up).clip(max=0))).sum()) + float(upwards(up[-1]))
        assert found >= float(upwards(np.array(at))) - 1e-15
        assert float(below.sum() + centre + above.sum()) == pytest.approx(1.0, abs=1e-12)
        # E_P e^-L = Q(L < inf) <= 1: both masses of the pair are kept.
        down = spacing * np.arange(1, len(below) + 1)
        q = (below * np.exp(down)).sum() + centre + (above * np.exp(-up)).sum()
        assert float(q) <= 1.0 + 1e-12


@quick
@given(STEPS, SPACINGS)
def test_at_its_nodes_a_discretised_step_is_exact(step, spacing):
    side = orientations(step)[0]
    _, _, above = grid_masses(step, side, spacing, "cpu")
    up = spacing * np.arange(1, len(above) + 1)
    upwards, _ = curves(step, side)
    for node in (0, len(up) // 3):
        at = float(up[node])
        found = float((above * -np.expm1((at - up).clip(max=0))).sum()) + float(upwards(up[-1]))
        assert found == pytest.approx(float(upwards(up[node])), rel=1e-9, abs=1e-15)


@quick
@given(STEPS, st.integers(1, 400), st.integers(5, 9), st.floats(-9, -1).map(lambda exponent: 10.0**exponent))
def test_doubling_the_grid_never_lowers_epsilon_and_refining_never_raises_it(step, count, exponent, delta):
    for side in orientations(step):
        readings = [composed(step, count, 2.0**-k, side).epsilon(delta) for k in range(exponent, exponent + 4)]
        assert all(coarse >= fine - 1e-9 for coarse, fine in zip(readings, readings[1:], strict=False))


@quick
@given(STEPS, st.integers(1, 3000), st.integers(6, 10))
def test_the_window_leaves_out_no_more_than_its_tail(step, count, exponent):
    """What a window four times as wide finds above it."""
    spacing = 2.0**-exponent
    side = orientations(step)[0]
    spread = Spread(spacing, side)
    spread.extend({step: count})
    grid = spread.window()
    if grid is None or grid.size > 2**18:
        return
    wide = Spectrum(spacing, 4 * grid.size, side, "cpu")
    wide.extend({step: count})
    mass = np.fft.irfft(np.exp(wide._modulus + 1j * wide._argument), n=4 * grid.size)
    mass = np.roll(mass, grid.size - grid.first)  # index grid.size is now the window's first loss
    above = float(mass[2 * grid.size :].clip(min=0).sum())
    assert above <= TAIL + round_off({step: count})


def test_the_tails_of_the_window_are_those_of_the_gaussian():
    spread = Spread(2.0**-9, "symmetric")
    spread.extend({Step(1.0, 0.2): 25})
    grid = spread.window()
    highest = (grid.first + grid.size) * grid.spacing
    assert norm.sf(highest, loc=0.5) <= TAIL and norm.cdf(grid.first * grid.spacing, loc=0.5) <= TAIL


def test_moments_for_the_window_bound_those_of_the_even_grid():
    """An upper bound E exp(r L) from some other discretisation would let mass above the window vanish."""
    for step in (Step(0.01, 1.0), Step(5e-8, 3.0, "poisson"), Step(0.3, 4.0), Step(1.0, 30.0)):
        for side in orientations(step):
            for spacing in (2.0**-6, 2.0**-10):
                below, centre, above = grid_masses(step, side, spacing, "cpu")
                down = -spacing * np.arange(1, len(below) + 1)
                up = spacing * np.arange(1, len(above) + 1)
                losses = np.concatenate([down, [0.0], up])
                mass = np.concatenate([below, [centre], above])
                rate = np.logspace(-3, 8, 111)[::5]
                exact = logsumexp(rate[:, None] * losses, b=mass, axis=1)
                bound = step_moments(step, side, spacing).tails[0][::5]
                assert bool((bound >= exact - 1e-12 * np.abs(exact) - 1e-14).all())


@quick
@given(STEPS, st.integers(60, 3000))
def test_few_frequencies_tell_the_same_as_the_whole_grid(step, count):
    side = orientations(step)[0]
    spread = Spread(2.0**-8, side)
    spread.extend({step: count})
    grid = spread.window()
    spectrum = Spectrum(2.0**-8, grid.size, side, "cpu")
    spectrum.extend({step: count})
    full = np.exp(spectrum._modulus + 1j * spectrum._argument)
    excess = round_off({step: count})
    dense = Distribution(grid, np.roll(np.fft.irfft(full, n=grid.size), -grid.first).clip(min=0), excess)
    read = spectrum.distribution(grid.first)
    for at in (0.0, 2.0**-8, 0.3, 1.7, 9.0):
        assert read.delta(at) == pytest.approx(dense.delta(at), rel=1e-9, abs=1e-12)
    for delta in (1e-8, 1e-4, 0.1):
        assert read.epsilon(delta) == pytest.approx(dense.epsilon(delta), rel=1e-5, abs=1e-12)


def test_long_runs_are_read_from_few_frequencies():
    assert isinstance(composed(Step(0.01, 1.0), 1000, 2.0**-10), Harmonics)
    assert isinstance(composed(Step(0.01, 1.0), 2, 2.0**-10), Distribution)


@pytest.mark.parametrize("first", [-40, 10, 700])
def test_both_readings_hold_on_windows_that_do_not_contain_zero(first):
    """Losses around (first + 500) / 64 on 1024 points; Distribution and Harmonics against the sum itself."""
    spacing, size = 1 / 64, 1024
    index = np.arange(first, first + size)
    mass = np.exp(-(((index - first - 500) / 60.0) ** 2) / 2)
    mass /= mass.sum()
    grid = LossGrid(spacing, first, size)
    dense = Distribution(grid, mass, 0.0)
    coefficients = np.fft.rfft(np.roll(mass, first))[:200]
    sparse = Harmonics(spacing, first, size, coefficients, 0.0)
    for at in (0.0, 0.1, 5.0, 9.0, 13.0):
        exact = float((mass * -np.expm1(np.minimum(at - index * spacing, 0.0))).sum())
        assert dense.delta(at) == pytest.approx(exact, abs=1e-14)
        assert sparse.delta(at) == pytest.approx(exact, abs=1e-13)
    for delta in (1e-6, 0.01, 0.3, 0.9, 0.99999):
        at = dense.epsilon(delta)
        assert sparse.epsilon(delta) == pytest.approx(at, rel=1e-6)
        if at > 0:
            assert float((mass * -np.expm1(np.minimum(at - index * spacing, 0.0))).sum()) == pytest.approx(
                delta, rel=1e-9
            )


@pytest.mark.parametrize(("p", "mu", "count"), [(0.01, 1.0, 5000), (1.0, 0.001, 100_000), (0.1, 0.25, 1000)])
def test_round_off_stays_below_what_is_set_aside_for_it(p, mu, count):
    """The same masses composed in extended precision (80 bits) by repeated squaring."""
    step, spacing = Step(p, mu), 2.0**-10
    spread = Spread(spacing, "symmetric")
    spread.extend({step: count})
    grid = spread.window()
    spectrum = Spectrum(spacing, grid.size, "symmetric", "cpu")
    spectrum.extend({step: count})
    below, centre, above = grid_masses(step, "symmetric", spacing, "cpu")
    circle = np.zeros(grid.size, dtype=np.longdouble)
    np.add.at(circle, np.arange(1, len(above) + 1) % grid.size, above.astype(np.longdouble))
    np.add.at(circle, -np.arange(1, len(below) + 1) % grid.size, below.astype(np.longdouble))
    circle[0] += float(centre)
    mass = np.roll(scipy.fft.irfft(_power(scipy.fft.rfft(circle), count), n=grid.size), -grid.first)
    losses = (np.arange(grid.size) + grid.first) * spacing
    elsewhere = Spectrum(spacing, grid.size, "symmetric", torch.device("cpu"))  # by torch, which knows no 80 bits
    elsewhere.extend({step: count})
    for read, part in ((spectrum.distribution(grid.first), 0.01), (elsewhere.distribution(grid.first), 1.0)):
        for at in (0.0, 0.5, 2.0, 6.0):
            exact = float((mass * -np.expm1(np.minimum(at - losses, 0.0))).sum())
            assert abs(read.delta(at) - read.excess - exact) <= part * read.excess
            assert read.delta(at) >= exact


def _power(values, exponent):
    result = np.ones_like(values)
    while exponent:
        if exponent & 1:
            result = result * values
        values = values * values
        exponent >>= 1
    return result


def test_steps_longer_than_the_window_wrap_round_without_losing_mass():
    step = Step(0.2, 2.0)
    spectrum = Spectrum(2.0**-6, 64, "symmetric", "cpu")
    spectrum.extend({step: 1})
    assert math.exp(spectrum._modulus[0]) == pytest.approx(1.0, abs=1e-12)


def test_the_grid_reaches_to_the_stated_truncation():
    step = Step(0.01, 1.0)
    end, _ = reach(step, "symmetric", TRUNCATION)
    assert float(step_profile(step, np.array(end))) <= TRUNCATION
    above, below = curves(step, "symmetric")
    nodes = np.linspace(0.01, end, 300)
    masses = dominating_masses(above, below, nodes, nodes)
    assert math.isclose(float(sum(part.sum() for part in masses)), 1.0, abs_tol=1e-12)
