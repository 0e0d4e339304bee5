"""Laws of many settings in one call: bounds as those of single ones, close to them, and read from proved spectra."""

import math

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.accounting import (
    DeltaTooSmall,
    Setting,
    Step,
    Wish,
    batch,
    batch_transform,
    delta_of,
    epsilon,
    epsilons,
    noise_multiplier,
    noise_multipliers,
    step_profile,
)
from fedsw.accounting.batch_reading import Readings, epsilons_on_grid
from fedsw.accounting.batch_steps import Steps, nodes_up_to
from fedsw.accounting.batch_transform import NEGLIGIBLE, Circle, Masses
from fedsw.accounting.comparison import gaussian_epsilon
from fedsw.accounting.harmonics import Harmonics
from fedsw.accounting.pld import TAIL, round_off
from fedsw.accounting.profiles import curves
from tests.accounting.brute import bracket_of_delta

CPU = torch.device("cpu")
TOLERANCE = 1e-3
RATES = st.floats(-3, 0).map(lambda exponent: 10.0**exponent)
MULTIPLIERS = st.floats(-0.3, 1.3).map(lambda exponent: 10.0**exponent)
DELTAS = st.floats(-9, -2).map(lambda exponent: 10.0**exponent)
SETTINGS = st.builds(Setting, RATES, MULTIPLIERS, st.integers(1, 5000), DELTAS)
few = settings(deadline=None, derandomize=True, max_examples=12)


def table(count, seed=0):
    """Settings of the kind that plans and what-if tables ask about."""
    draw = np.random.default_rng(seed)
    rates, times = draw.choice([0.001, 0.01, 0.05, 0.3], count), draw.choice([100, 500, 1000, 5000], count)
    multipliers, deltas = np.exp(draw.uniform(-0.6, 2.3, count)), draw.choice([1e-7, 1e-5], count)
    return [
        Setting(*map(float, row[:2]), int(row[2]), float(row[3]))
        for row in zip(rates, multipliers, times, deltas, strict=True)
    ]


def circle_of(step, count, spacing, size, side="symmetric"):
    steps = Steps.of([step], side, CPU)
    circle = Circle(size, math.ceil(float(steps.longest) / spacing), CPU)
    return circle, Masses(
        *steps.masses((circle.nodes * spacing)[None]), torch.tensor([float(count)], dtype=torch.float64)
    )


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
def test_many_settings_cost_what_each_costs_alone(sampling):
    rows = table(40)
    alone = [
        epsilon({Step(row.sampling_rate, 1 / row.noise_multiplier, sampling): row.steps}, row.delta) for row in rows
    ]
    assert epsilons(rows, sampling=sampling) == pytest.approx(alone, rel=TOLERANCE, abs=1e-9)


@few
@given(st.lists(SETTINGS, min_size=1, max_size=6))
def test_any_settings_cost_what_each_costs_alone(rows):
    found = epsilons(rows)
    for row, value in zip(rows, found, strict=True):
        alone = epsilon({Step(row.sampling_rate, 1 / row.noise_multiplier): row.steps}, row.delta)
        assert value == pytest.approx(alone, rel=TOLERANCE, abs=1e-6)


def test_full_batches_are_never_below_the_closed_form_of_the_gaussian():
    rows = [
        Setting(1.0, multiplier, count, delta)
        for multiplier in (0.2, 1.0, 7.0, 80.0)
        for count in (1, 30, 900)
        for delta in (1e-9, 1e-5, 0.1)
    ]
    for sampling in ("without-replacement", "poisson"):
        for row, found in zip(rows, epsilons(rows, sampling=sampling), strict=True):
            exact = gaussian_epsilon(math.sqrt(row.steps) / row.noise_multiplier, row.delta)
            assert exact * (1 - 1e-11) <= found <= exact * (1 + TOLERANCE + (0.01 if row.delta < 1e-8 else 0)) + 1e-9


@few
@given(st.lists(st.builds(Step, RATES, st.floats(-1.3, 0.6).map(lambda e: 10.0**e)), min_size=3, max_size=3), DELTAS)
def test_two_steps_are_never_below_brute_force(steps, delta):
    for step, found in zip(steps, epsilons([(s.sampling_rate, 1 / s.mu, 2, delta) for s in steps]), strict=True):
        if found > 0.0:
            lower, _ = bracket_of_delta([step, step], found)
            assert lower <= delta * (1 + 1e-9)


def test_poisson_is_never_below_dp_accountings_optimistic_reading_and_near_its_own():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution as pld

    rows = [(0.01, 1.0, 1000, 1e-5), (0.1, 2.0, 300, 1e-6), (0.001, 0.7, 5000, 1e-7), (0.3, 5.0, 100, 1e-4)]
    for (p, multiplier, count, delta), found in zip(rows, epsilons(rows, sampling="poisson"), strict=True):
        read = [
            pld.from_gaussian_mechanism(
                multiplier,
                pessimistic_estimate=pessimistic,
                value_discretization_interval=1e-4,
                sampling_prob=p,
                neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            )
            .self_compose(count)
            .get_epsilon_for_delta(delta)
            for pessimistic in (False, True)
        ]
        assert read[0] <= found <= read[1] * (1 + TOLERANCE) + 1e-3


def test_more_steps_more_sampling_or_less_noise_never_lower_an_epsilon():
    base = [(0.02, 1.5, 400, 1e-6)]
    grow = np.exp(np.linspace(0.0, 1.5, 12)).tolist()
    (p, multiplier, count, delta), slack = base[0], 1 + TOLERANCE
    ladders = [
        [(p * by, multiplier, count, delta) for by in grow],
        [(p, multiplier / by, count, delta) for by in grow],
        [(p, multiplier, int(count * by), delta) for by in grow],
        [(p, multiplier, count, delta / by) for by in grow],
    ]
    found = np.array(epsilons([row for ladder in ladders for row in ladder])).reshape(4, -1)
    assert (found[:, 1:] * slack >= found[:, :-1]).all()
    assert (found[:, -1] > 1.05 * found[:, 0]).all()


def test_a_setting_costs_the_same_in_any_company():
    rows = table(30, seed=3)
    together = epsilons(rows)
    assert epsilons(rows[::-1])[::-1] == pytest.approx(together, rel=1e-9)
    assert [epsilons([row])[0] for row in rows[:6]] == pytest.approx(together[:6], rel=TOLERANCE)


def test_nothing_costs_nothing_and_rare_settings_are_composed_alone():
    rows = [(0.0, 1.0, 10, 1e-5), (0.1, math.inf, 10, 1e-5), (0.1, 1.0, 0, 1e-5), (0.01, 0.05, 3, 1e-5)]
    assert epsilons(rows) == [0.0, 0.0, 0.0, epsilon({Step(0.01, 20.0): 3}, 1e-5)]
    assert epsilons([]) == [] and noise_multipliers([]) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((1.5, 1.0, 1, 1e-5), "setting 1: sampling_rate is 1.5"),
        ((0.5, 0.0, 1, 1e-5), "setting 1: noise_multiplier is 0.0"),
        ((0.5, 1.0, 2.5, 1e-5), "setting 1: steps is 2.5"),
        ((0.5, 1.0, -1, 1e-5), "setting 1: steps is -1"),
        ((0.5, 1.0, 1, 0.0), "setting 1: delta is 0.0"),
    ],
)
def test_the_first_setting_out_of_range_is_named(row, words):
    with pytest.raises(ValueError, match=words):
        epsilons([(0.5, 1.0, 1, 1e-5), row])


def test_wishes_out_of_range_and_used_up_deltas_are_named():
    for row, words in (
        ((0.0, 1.0, 1, 1e-5), "wish 0: sampling_rate"),
        ((0.5, math.inf, 1, 1e-5), "wish 0: epsilon is inf"),
        ((0.5, 1.0, 0, 1e-5), "wish 0: steps is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            noise_multipliers([row])
    with pytest.raises(DeltaTooSmall, match="1000000 steps"):
        epsilons([(1e-4, 1.0, 10**6, 1e-10)])


def test_multipliers_meet_their_wishes_and_waste_little():
    draw = np.random.default_rng(1)
    rows = [Wish(row.sampling_rate, float(draw.uniform(0.3, 9.0)), row.steps, row.delta) for row in table(10, seed=2)]
    found = noise_multipliers(rows)
    met = epsilons([(row.sampling_rate, sigma, row.steps, row.delta) for row, sigma in zip(rows, found, strict=True)])
    for row, sigma, value in zip(rows, found, met, strict=True):
        assert value <= row.epsilon
        wanted = noise_multiplier(row.epsilon, row.delta, sampling_rate=row.sampling_rate, steps=row.steps)
        assert wanted * (1 - 1e-3) <= sigma <= wanted * (1 + 1e-3)


def test_a_wish_for_hardly_any_noise_is_calibrated_alone():
    assert noise_multipliers([(0.01, 400.0, 2, 1e-5)]) == [noise_multiplier(400.0, 1e-5, sampling_rate=0.01, steps=2)]


@pytest.mark.parametrize("side", ["symmetric", "remove", "add"])
@pytest.mark.parametrize(("p", "mu"), [(0.01, 1.0), (0.3, 4.0), (1.0, 0.2), (0.001, 0.1)])
def test_steps_on_shared_nodes_dominate_the_step(p, mu, side):
    step = Step(p, mu, "without-replacement" if side == "symmetric" else "poisson")
    spacing = 2.0**-9 * p
    steps = Steps.of([step], side, CPU)
    up = nodes_up_to(math.ceil(float(steps.longest) / spacing), CPU) * spacing
    below, above = (part[0] for part in steps.masses(up[None]))
    upwards = curves(step, side)[0]
    for at in (0.0, 0.3 * spacing, 0.11 * p * mu, 0.5, 2.0):
        found = float((above * -torch.expm1((at - up).clamp(max=0))).sum()) + float(upwards(up[-1]))
        assert found >= float(upwards(torch.tensor(at, dtype=torch.float64))) - 1e-15
    q = float((below * up.exp()).sum() + (above * (-up).exp()).sum() + 1.0 - below.sum() - above.sum())
    assert q <= 1.0 + 1e-12


@pytest.mark.parametrize("last", [3, 64, 65, 1000, 10**6])
def test_nodes_are_whole_dense_near_zero_and_end_where_they_should(last):
    nodes = nodes_up_to(last, CPU)
    assert float(nodes[-1]) == last and bool((nodes == nodes.round()).all()) and bool((nodes.diff() > 0).all())
    assert bool((nodes[1:] - nodes[:-1] <= (nodes[:-1] / 64).clamp(min=1.0) + 1).all())


@few
@given(st.builds(Step, RATES, st.floats(-1, 0.5).map(lambda e: 10.0**e)), st.integers(20, 3000))
def test_frequencies_said_to_be_negligible_are_so(step, count):
    """All of them, by FFT: the proof looks at a few hundred and at how fast the others can move."""
    size = 2**12
    spacing = 2.0 ** math.ceil(math.log2(40 * step.mu * math.sqrt(count * step.sampling_rate) / size))
    circle, masses = circle_of(step, count, spacing, size)
    moduli, arguments, alone = circle.frequencies(masses)
    wrapped = np.zeros(size)
    nodes = circle.nodes.long().numpy()
    np.add.at(wrapped, nodes % size, masses.up[0].numpy())
    np.add.at(wrapped, -nodes % size, masses.down[0].numpy())
    wrapped[0] += 1.0 - float(masses.up.sum() + masses.down.sum())
    spectrum = np.fft.rfft(wrapped)
    kept = moduli.shape[1]
    if bool(alone):
        assert (count * np.log(np.abs(spectrum[kept:]) + 1e-300)).max() <= NEGLIGIBLE
    counting = count * np.log(np.abs(spectrum[:kept])) > -20
    exact = (spectrum[:kept] ** count)[counting]
    found = torch.polar(moduli[0].exp(), arguments[0]).numpy()[counting]
    assert np.abs(found - exact).max() <= 1e-11


def test_a_peak_between_the_frequencies_looked_at_is_not_missed():
    """Masses where cos(2 pi k i / size) is large have a narrow peak at k, which the middles may not see."""
    size, count, unseen = 2**14, 100.0, 0
    circle = Circle(size, size // 3, CPU)
    nodes = circle.nodes.long().numpy()
    centres, halves = batch_transform._intervals(256, size // 2)
    covered = np.concatenate([np.arange(c - h, c + h + 1) for c, h in zip(centres, halves, strict=True)])
    assert set(range(256, size // 2 + 1)) <= set(covered.tolist())
    for peak in range(5000, 8000, 53):
        near = (np.cos(2 * np.pi * (peak * nodes % size) / size) > 0.9) & (nodes > 64)
        up = torch.from_numpy(near * nodes**-1.0)
        up = (0.98 * up / up.sum())[None]
        wrapped = np.zeros(size)
        wrapped[nodes], wrapped[0] = up[0].numpy(), 0.02
        large = count * np.log(np.abs(np.fft.rfft(wrapped))) > NEGLIGIBLE
        masses = Masses(torch.zeros_like(up), up, torch.tensor([count], dtype=torch.float64))
        assert large[256:].any() and not bool(circle.frequencies(masses)[2])
        unseen += not large[centres].any()
    assert unseen > 0


@pytest.mark.parametrize(("p", "mu", "count", "spacing"), [(0.01, 1.0, 1000, 2.0**-11), (0.3, 0.4, 50, 2.0**-8)])
def test_the_circle_holds_all_but_the_tail_on_either_side(p, mu, count, spacing):
    size = 2**15
    circle, masses = circle_of(Step(p, mu), count, spacing, size)
    first, fits = circle.window(masses)
    assert bool(fits)
    grid = circle.grid(masses, torch.tensor([-(size // 2)]))[0].flip(0).numpy()  # far wider than the composition
    index = np.arange(size) - size // 2
    assert grid[index < int(first)].sum() <= TAIL + 1e-12
    few = Circle(2**10, int(circle.nodes[-1]), CPU)  # of as many points, the window has less
    assert not bool(few.window(masses)[1])
    for points in (2**11, 2**12, 2**13, 2**14):
        smaller = Circle(points, int(circle.nodes[-1]), CPU)
        begin, held = smaller.window(masses)
        if bool(held):
            assert grid[index >= int(begin) + points].sum() <= TAIL + 1e-12


@pytest.mark.parametrize(("p", "mu", "count", "spacing"), [(0.01, 1.0, 5000, 2.0**-11), (1.0, 0.002, 20_000, 2.0**-13)])
def test_round_off_of_both_readings_stays_below_what_is_set_aside(p, mu, count, spacing):
    """The same masses composed in extended precision (80 bits) by repeated squaring."""
    step, size = Step(p, mu), 2**16
    circle, masses = circle_of(step, count, spacing, size)
    first, fits = circle.window(masses)
    assert bool(fits)
    begin = int(first)
    wrapped = np.zeros(size, dtype=np.longdouble)
    nodes = circle.nodes.long().numpy()
    np.add.at(wrapped, nodes % size, masses.up[0].numpy().astype(np.longdouble))
    np.add.at(wrapped, -nodes % size, masses.down[0].numpy().astype(np.longdouble))
    wrapped[0] += np.longdouble(1.0) - wrapped.sum()
    mass = np.roll(scipy.fft.irfft(scipy.fft.rfft(wrapped) ** count, n=size), -begin)
    losses = (np.arange(size) + begin) * spacing
    aside = 2 * round_off({step: count})
    moduli, arguments, alone = circle.frequencies(masses)
    assert bool(alone)
    coefficients = torch.polar(moduli.exp(), arguments).numpy() * (moduli > NEGLIGIBLE).numpy()
    few = Harmonics(spacing, begin, size, coefficients[0], 0.0)
    grid = circle.grid(masses, first)[0].flip(0).numpy()
    for at in (0.0, 0.5, 2.0, 6.0):
        exact = float((mass * -np.expm1(np.minimum(at - losses, 0.0))).sum())
        assert abs(few.delta(at) - exact) <= aside
        assert abs(float((grid * -np.expm1(np.minimum(at - losses, 0.0))).sum()) - exact) <= aside


@pytest.mark.parametrize("first", [-40, 10, 700])
def test_rows_are_read_as_a_single_composition_is(first):
    """Losses around (first + 500) / 64 on 1024 points; both readings against those of a single composition."""
    spacing, size = 1 / 64, 1024
    index = np.arange(first, first + size)
    mass = np.exp(-(((index - first - 500) / 60.0) ** 2) / 2)
    mass /= mass.sum()
    coefficients = np.fft.rfft(np.roll(mass, first))[:200]
    single = Harmonics(spacing, first, size, coefficients, 0.0)
    targets = np.array([1e-6, 0.01, 0.3, 0.9, 0.99999])
    expected = [single.epsilon(float(target)) for target in targets]
    rows, spacings, begin = np.tile(coefficients, (5, 1)), np.full(5, spacing), np.full(5, first)
    assert Readings(rows, spacings, begin, size).epsilon(targets) == pytest.approx(expected, rel=1e-9)
    downwards = torch.from_numpy(np.tile(mass[::-1].copy(), (5, 1)))
    highest, widths = torch.full((5,), first + size - 1), torch.full((5,), spacing, dtype=torch.float64)
    found = epsilons_on_grid(downwards, highest, widths, torch.from_numpy(targets))
    assert found.numpy() == pytest.approx(expected, rel=1e-6)


def test_what_is_set_aside_counts_in_every_row(monkeypatch):
    """A row without it would read less; the difference is what doubling it adds."""
    rows = [(0.01, 1.0, 1000, 1e-9), (0.001, 1.0, 100, 1e-9)]
    before = epsilons(rows)
    real = batch.round_off
    monkeypatch.setattr(batch, "round_off", lambda counts, device: 50 * real(counts, device))
    for less, more, (p, multiplier, count, delta) in zip(before, epsilons(rows), rows, strict=True):
        assert more > less
        aside = 98 * real({Step(p, 1 / multiplier): count})
        assert delta_of({Step(p, 1 / multiplier): count}, more) == pytest.approx(delta - aside, rel=0.05)


def test_a_row_that_no_circle_proves_is_composed_alone(monkeypatch):
    rows = [(0.01, 1.0, 1000, 1e-5), (0.001, 1.0, 100, 1e-5)]
    monkeypatch.setattr(
        batch_transform.Circle, "window", lambda self, masses: (masses.counts.long(), masses.counts < 0)
    )
    assert epsilons(rows) == [epsilon({Step(p, 1 / sigma): count}, delta) for p, sigma, count, delta in rows]


def test_one_step_inverts_its_exact_profile_from_above():
    rows = [(p, 1 / mu, 1, 1e-5) for p in (0.003, 0.2, 1.0) for mu in (0.3, 1.0, 5.0)]
    for (p, multiplier, _, delta), found in zip(rows, epsilons(rows), strict=True):
        here = float(step_profile(Step(p, 1 / multiplier), torch.tensor(found, dtype=torch.float64)))
        assert here <= delta * (1 + 1e-12)
