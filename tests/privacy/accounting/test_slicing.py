"""Laws of random slices: the discretised law is never below the true one, and hardly above it."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from fedsw.privacy.accounting import Composition, Slicing, Step, epsilon, epsilon_bracket, joint, step_profile
from fedsw.privacy.accounting.pld import grid_masses, step_moments
from fedsw.privacy.accounting.profiles import gaussian_profile, reach
from fedsw.privacy.accounting.slicing import (
    ShareLaw,
    bernstein_share,
    gaussian_mixture,
    law_of_share,
    log_moment,
    lost,
)

REFERENCE = Slicing(784, 200)

LAWS = {
    Slicing(2, 1): stats.beta(0.5, 0.5).sf,
    Slicing(3, 1): lambda x: 1 - np.sqrt(x),
    Slicing(784, 1): stats.beta(0.5, 391.5).sf,
    Slicing(7, 3, "orthogonal"): stats.beta(1.5, 2.0).sf,
    Slicing(784, 200, "orthogonal"): stats.beta(100, 292).sf,
    Slicing(7, 17, "orthogonal"): stats.beta(1.5, 2.0).sf,  # two whole blocks, which the law leaves out
}


def above(law: ShareLaw, points: np.ndarray) -> np.ndarray:
    """P(B > x), what the law leaves out included."""
    tail = np.append(law.mass[::-1].cumsum()[::-1], 0.0)
    return tail[np.searchsorted(law.values, points, side="right")] + law.lost


@pytest.mark.parametrize("slicing", LAWS, ids=str)
def test_the_law_of_the_share_is_never_below_the_exact_one_and_less_than_a_thousandth_above(slicing):
    law, exact = law_of_share(slicing), LAWS[slicing]
    points = np.concatenate([np.linspace(0, 1, 2001), law.values[:: len(law.values) // 2000]])
    assert (above(law, points) >= exact(points) - 1e-14).all()
    assert (above(law, points + law.raised) <= exact(points) + 1e-12).all()
    mean = integrate.quad(exact, 0, 1, limit=500, points=[1e-4, 1e-2])[0]
    assert law.raised <= 2e-3 * mean


def test_two_slices_of_space_fill_a_quarter_disc():
    """For d = 3 the cosines are uniform: P(B <= x) = pi x / 4 up to 1."""
    law, points = law_of_share(Slicing(3, 2)), np.linspace(0, 1, 1001)
    assert (above(law, points) >= 1 - math.pi / 4 * points - 1e-14).all()
    assert (above(law, points + law.raised) <= 1 - math.pi / 4 * points + 1e-12).all()


@pytest.mark.parametrize(("d", "k"), [(784, 200), (2, 3), (16, 1000)])
def test_the_mean_and_the_variance_of_a_sum_are_kept_but_for_the_rounding(d, k):
    law = law_of_share(Slicing(d, k))
    mean = law.mass @ law.values
    assert 0 <= mean - k / d <= 1e-3 * k / d
    assert law.mass @ (law.values - mean) ** 2 == pytest.approx(2 * k * (d - 1) / (d * d * (d + 2)), rel=1e-4)
    assert abs(law.mass.sum() - 1) <= lost(Slicing(d, k)) < 1e-15 * (k + 2)


@pytest.mark.parametrize("slicing", [Slicing(5, 3), Slicing(5, 3, "orthogonal"), Slicing(5, 12, "orthogonal")], ids=str)
def test_random_directions_have_the_share_of_the_law(slicing):
    """Drawn as the directions are: normal columns scaled to length 1, or Haar orthogonal blocks."""
    rng, count, z = np.random.default_rng(7), 20000, np.array([0.6, -0.8, 0, 0, 0])
    blocks, missing = [], slicing.k
    while missing:
        normals = rng.standard_normal((count, 5, 5))
        block = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        if slicing.scheme == "orthogonal":
            block, triangle = np.linalg.qr(normals)
            block = block * np.sign(np.diagonal(triangle, axis1=1, axis2=2))[:, None, :]
        blocks.append(block[:, :, : min(5, missing)])
        missing -= min(5, missing)
    share = ((z @ np.concatenate(blocks, axis=2)) ** 2).sum(axis=1)
    law = law_of_share(slicing)
    whole = slicing.k // 5 if slicing.scheme == "orthogonal" else 0
    points = whole + law.values[:: len(law.values) // 30]
    empirical = (share[:, None] > points).mean(axis=0)
    assert np.abs(empirical - above(law, points - whole)).max() < 1.95 / math.sqrt(count)


@pytest.mark.parametrize("mu", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("slicing", [Slicing(2, 1), Slicing(40, 1), *list(LAWS)[3:]], ids=str)
def test_the_step_is_the_mean_of_normal_profiles_from_above_and_close(slicing, mu):
    """Quadrature over the exact Beta law, quantile by quantile."""
    whole = slicing.k // slicing.d if slicing.scheme == "orthogonal" else 0
    left = slicing.k % slicing.d if slicing.scheme == "orthogonal" else 1
    nodes, weights = special.roots_jacobi(200, (slicing.d - left) / 2 - 1, left / 2 - 1)
    means = mu * np.sqrt(whole + (nodes + 1) / 2)
    epsilons = np.linspace(0, mu * math.sqrt(whole + 1) + mu * mu, 60)
    exact = gaussian_profile(epsilons[:, None], means) @ weights
    exact /= weights.sum()
    ours = step_profile(Step(1.0, mu, slicing=slicing), epsilons)
    tolerance = 1e-7 if mu == 8.0 or slicing.d == 2 else 1e-10  # of the quadrature, whose integrand is not smooth at 0
    assert (ours + lost(slicing) >= exact - tolerance).all()
    assert (ours <= exact * (1.02 if mu == 8.0 else 1.005) + tolerance)[exact > 1e-7].all()


def log_mean(logs, mass):
    """Logarithms of means over the last axis."""
    return special.logsumexp(logs, b=mass, axis=-1)


def divergence(alpha, d, k, mu):
    """Of one release through k independent directions, unsampled: given them, E exp(alpha (alpha - 1) mu^2 B / 2)."""
    return k / (alpha - 1) * log_moment(d, alpha * (alpha - 1) * mu * mu / 2)


@pytest.mark.parametrize(("alpha", "expected"), [(2, 0.25543), (4, 0.51413), (8, 1.05852)])
def test_the_known_renyi_divergences(alpha, expected):
    assert divergence(alpha, d=784, k=200, mu=1.0) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("d", "k", "mu"), [(784, 200, 1.0), (784, 1, 3.0), (3, 2, 0.7), (50, 400, 0.3), (10**4, 30, 2.0)]
)
def test_renyi_divergences_of_the_mixture_agree_with_the_closed_form_and_are_never_below(d, k, mu):
    means, weights = gaussian_mixture(Slicing(d, k), mu)
    for alpha in (1.5, 2, 4, 8):
        moment = np.log(weights @ np.exp(alpha * (alpha - 1) * means**2 / 2)) / (alpha - 1)
        exact = divergence(alpha, d=d, k=k, mu=mu)
        assert exact * (1 - 1e-9) <= moment <= exact * (1 + 2e-3)


def test_renyi_divergences_of_the_discretised_privacy_loss_agree_with_the_closed_form():
    step, spacing = Step(1.0, 1.0, slicing=REFERENCE), 2.0**-9
    below, centre, above_ = grid_masses(step, "symmetric", spacing, "cpu")
    losses = spacing * np.arange(-len(below), len(above_) + 1)
    mass = np.concatenate([below[::-1], [centre], above_])
    for alpha in (2, 4, 8):
        read = log_mean((alpha - 1) * losses, mass) / (alpha - 1)
        exact = divergence(alpha, d=784, k=200, mu=1.0)
        assert exact * (1 - 1e-9) <= read <= exact * (1 + 2e-3)


def test_the_moment_of_one_direction_is_the_hypergeometric_function_and_never_overflows():
    for d, t in [(784, 1e-9), (784, 3.0), (784, 499.0), (784, 501.0), (3, 650.0), (10**5, 650.0), (2, 1.0)]:
        assert log_moment(d, t) == pytest.approx(math.log(special.hyp1f1(0.5, d / 2, t)), rel=1e-9)
    for d, t in [(3, 1e5), (10, 1e9)]:  # 1F1 ~ Gamma(b) / Gamma(a) e^t t^(a - b)
        asymptotic = special.gammaln(d / 2) - special.gammaln(0.5) + t + (0.5 - d / 2) * math.log(t)
        assert log_moment(d, t) == pytest.approx(asymptotic, rel=1e-6)
    assert log_moment(1, 7.0) == 7.0 and divergence(5.0, d=3, k=2, mu=math.inf) == math.inf
    assert divergence(5.0, d=3, k=2, mu=0.0) == 0.0


@pytest.mark.parametrize(
    ("slicing", "share"),
    [(Slicing(784, 784, "orthogonal"), 1), (Slicing(5, 15, "orthogonal"), 3), (Slicing(1, 4), 4)],
    ids=str,
)
def test_full_orthonormal_blocks_are_the_plain_normal_mechanism_exactly(slicing, share):
    sliced, plain = Step(0.1, 0.5, slicing=slicing), Step(0.1, 0.5 * math.sqrt(share))
    epsilons = np.linspace(0, 3, 50)
    assert np.array_equal(step_profile(sliced, epsilons), step_profile(plain, epsilons))
    assert epsilon({sliced: 70}, 1e-6) == epsilon({plain: 70}, 1e-6)
    assert epsilon_bracket({sliced: 70}, 1e-6) == epsilon_bracket({plain: 70}, 1e-6)
    assert lost(slicing) == 0.0


def test_the_reference_costs_what_it_should_for_either_diameter():
    """The limits of finer and finer lattices are 0.96567 and 2.9649."""
    lower, upper = epsilon_bracket({Step(1 / 600, 1.0, slicing=REFERENCE): 60000}, 1e-5)
    assert 0.9660 <= upper <= 0.96567 * 1.001
    assert 0.80 < lower < 0.82
    assert 2.9649 <= epsilon({Step(1 / 600, 2.0, slicing=REFERENCE): 60000}, 1e-5) <= 2.9649 * 1.001


def test_slices_cost_at_least_what_their_mean_share_would_and_orthogonal_ones_no_more_than_independent_ones():
    counts = 60000
    by_mean = epsilon({Step(1 / 600, math.sqrt(200 / 784)): counts}, 1e-5)
    independent = epsilon({Step(1 / 600, 1.0, slicing=REFERENCE): counts}, 1e-5)
    orthogonal = epsilon({Step(1 / 600, 1.0, slicing=Slicing(784, 200, "orthogonal")): counts}, 1e-5)
    assert by_mean <= orthogonal <= independent <= 1.01 * by_mean


@pytest.mark.parametrize("p", [1.0, 0.3, 0.002])
@pytest.mark.parametrize("slicing", [Slicing(2, 1), Slicing(784, 200)], ids=str)
def test_one_discretised_slice_is_never_more_private_than_the_step(slicing, p):
    step, spacing = Step(p, 1.5, slicing=slicing), 2.0**-12
    _, _, mass = grid_masses(step, "symmetric", spacing, "cpu")
    losses = spacing * np.arange(1, len(mass) + 1)
    end = reach(step, "symmetric", 1e-20)[0]
    epsilons = np.linspace(0.0, min(end, 4.0), 97)
    share = -np.expm1((epsilons[:, None] - losses).clip(max=0.0))
    exact = step_profile(step, epsilons)
    read = (share * mass).sum(1)
    assert (read >= exact - 1e-14).all()
    assert (read <= exact * 1.001 + 1e-4 * p * spacing + 1e-14).all()


def test_moments_for_the_window_bound_those_of_the_masses():
    step, spacing = Step(0.05, 1.0, slicing=REFERENCE), 2.0**-12
    below, centre, above_ = grid_masses(step, "symmetric", spacing, "cpu")
    losses = spacing * np.arange(-len(below), len(above_) + 1)
    mass = np.concatenate([below[::-1], [centre], above_])
    rising = step_moments(step, "symmetric", spacing).tails[0]
    exact = log_mean(np.logspace(-3, 8, 111)[:, None] * losses, mass)
    assert (rising >= exact - 1e-12).all()


def test_what_a_law_leaves_out_counts_as_delta():
    step = Step(0.5, 1.0, slicing=Slicing(784, 200))
    assert Composition({step: 1000}).delta(math.inf) >= 500 * lost(step.slicing) > 0


def test_a_bernstein_share_is_exceeded_as_rarely_as_it_says():
    for slicing in (REFERENCE, Slicing(3, 10), Slicing(784, 1)):
        for failure in (0.5, 1e-3, 1e-8):
            assert above(law_of_share(slicing), np.array([bernstein_share(slicing.d, slicing.k, failure)])) <= failure


def test_two_releases_of_one_batch_are_one_step_of_their_joint_mu():
    together, apart = {Step(0.01, joint(1.0, 1.0)): 1000}, {Step(0.01, 1.0): 2000}
    assert epsilon(together, 1e-5) == pytest.approx(5.14, abs=5e-3)
    assert epsilon(apart, 1e-5) == pytest.approx(3.20, abs=5e-3)
    assert joint() == 0.0 and joint(3.0, 0.0, 4.0) == 5.0 and joint(1.0, math.inf) == math.inf
    with pytest.raises(ValueError, match="is -1"):
        joint(3.0, -1.0)
    with pytest.raises(ValueError, match="is nan"):
        joint(math.inf, math.nan)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 5), "dimension of the features, is 0"),
        ((5, 0), "number of directions, is 0"),
        ((5, 2.5), "is 2.5"),
        ((5, math.nan), "is nan"),
        ((5, True), "is True"),
        ((5, 2, "gaussian"), "'gaussian'.*iid, orthogonal"),
    ],
)
def test_impossible_slices_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        Slicing(*arguments)
