"""Privacy profiles of one noisy step: the exact delta(epsilon) of a subsampled Gaussian.

Source: docs/guarantees/accounting.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from fedsw.privacy.accounting._arrays import Values, library, like, quiet, special
from fedsw.privacy.accounting.slicing import Slicing, gaussian_mixture
from fedsw.privacy.accounting.stated import Stated
from fedsw.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE, Sampling

Orientation = Literal["symmetric", "remove", "add", "triangle"]
Curve: TypeAlias = Callable[[Any], Any]
"""A privacy profile: of epsilon >= 0, in numpy's arrays or torch's, to delta in the same."""


_RELATION_OF: dict[Sampling, str] = {"without-replacement": REPLACE_ONE, "poisson": ADD_OR_REMOVE}


@dataclass(frozen=True)
class Step:
    """One release: a sum over a random batch plus Gaussian noise.

    Attributes:
        sampling_rate: p in [0, 1], of the record's group in a batch of fixed size; Poisson, of a record.
        mu: sensitivity / sigma in [0, inf], the inverse of the noise multiplier: the full replacement sensitivity
            without replacement (||v - v'|| over both values of the record), and ||v|| for Poisson.
        sampling: ``"without-replacement"`` (neighbours: one record replaced) or ``"poisson"`` (added or removed).
        slicing: the release goes through random directions, and mu is that before slicing: the diameter s of the
            features (the replacement bound on ||x - x'||) / sigma. Without replacement it may be of the batch's rows,
            in uniformly random order; Poisson, only of a sum of contributions.
        stated: the release is any mechanism with this profile, of all records (`stated_step`).
    """

    sampling_rate: float
    mu: float
    sampling: Sampling = "without-replacement"
    slicing: Slicing | None = None
    stated: Stated | None = None

    def __post_init__(self) -> None:
        of_all = (self.sampling_rate, self.sampling, self.slicing) == (1.0, "without-replacement", None)
        if self.stated is not None and not (of_all and self.mu == self.stated.size):
            raise ValueError("a stated profile is of all records, without slicing; make its step with stated_step.")
        if not 0.0 <= self.sampling_rate <= 1.0:
            raise ValueError(f"sampling_rate is {self.sampling_rate}; it must lie in [0, 1].")
        if not self.mu >= 0.0:
            raise ValueError(f"mu = sensitivity / sigma is {self.mu}; it must be >= 0 (inf: no noise).")
        if self.sampling not in get_args(Sampling):
            raise ValueError(f"sampling is {self.sampling!r}; choose one of {', '.join(get_args(Sampling))}.")

    @property
    def costless(self) -> bool:
        """True if the step reveals nothing: no record is sampled, or none moves the release."""
        return self.sampling_rate == 0.0 or self.mu == 0.0

    @property
    def relation(self) -> str:
        """The neighbouring relation its guarantee is for."""
        return _RELATION_OF[self.sampling]

    @property
    def typical_mu(self) -> float:
        """mu after slicing, in root mean square; mu itself without."""
        return self.mu if self.slicing is None else self.mu * math.sqrt(self.slicing.share)

    @property
    def reduced(self) -> Step:
        """An equal step without slicing, its mu smaller, where slices keep a fixed share of a move; else this step."""
        if self.slicing is None or not self.slicing.fixed:
            return self
        return replace(self, mu=self.typical_mu, slicing=None)


def stated_step(stated: Stated) -> Step:
    """The step of a mechanism of which only a profile is known."""
    return Step(1.0, stated.size, stated=stated)


def gaussian_profile(epsilon: Values, mu: float | Values) -> Values:
    """Exact delta(epsilon) of N(mu, 1) against N(0, 1), for epsilon >= 0: float64 of numpy or torch, of any shape.

    With x = epsilon/mu - mu/2, phi the normal density and M = Phi(-.) / phi, Phi(-x) - e^epsilon Phi(-x - mu) is
    phi(x) (M(x) - M(x + mu)): no exponential of epsilon, absolute errors of a few 1e-16 for any mu, and relative
    accuracy far into the tail.

    Source: Balle and Wang 2018, Theorem 8.
    """
    x = (epsilon / mu - mu / 2).clip(max=1e100)
    density = _density(x)
    further = _mills(x + mu)
    tail = density * (_mills(x.clip(min=0.0)) - further)
    bulk = special(x).ndtr(-x) - density * further
    profile: Values = library(x).where(x > 0.0, tail, bulk).clip(min=0.0)
    return profile


def joint(*mus: float) -> float:
    """mu of several releases computed from one batch: sqrt(sum of squares).

    Releases of one batch are not several steps: given the batch they compose as normal mechanisms, to a normal one of
    this mu, and sampling amplifies the whole, ``Step(p, joint(...))``. A step for each of them would let every release
    hide in a batch of its own, and claim too small an epsilon. ValueError for a mu that is not >= 0.
    """
    for mu in mus:
        if not mu >= 0.0:
            raise ValueError(f"mu = sensitivity / sigma is {mu}; it must be >= 0 (inf: no noise).")
    return math.hypot(*mus)


def step_profile(step: Step, epsilon: Values) -> Values:
    """Exact delta(epsilon) of one step, for epsilon >= 0: float64 of numpy or torch, of any shape; above it for slices.

    Guarantee: without replacement this is the profile of C_p(G_mu), which bounds every fixed-size batch
    release of the given sensitivity under replacement; for Poisson it is the larger of the two directions
    (a record removed, a record added).

    Source: Dong, Roth, Su 2022, Theorem 4.2.
    """
    if step.costless:
        return library(epsilon).zeros_like(epsilon)  # type: ignore[no-any-return]
    step = step.reduced
    first, *others = (curves(step, orientation)[0](epsilon) for orientation in orientations(step))
    largest: Values = first
    for other in others:
        largest = library(epsilon).maximum(largest, other)
    return largest


_ORIENTATIONS_OF: dict[Sampling, tuple[Orientation, ...]] = {
    "without-replacement": ("symmetric",),
    "poisson": ("remove", "add"),
}


def orientations(step: Step) -> tuple[Orientation, ...]:
    """The ordered pairs of neighbours to account for; a composition reports the worst of them."""
    return _ORIENTATIONS_OF[step.sampling]


def curves(step: Step, orientation: Orientation) -> tuple[Curve, Curve]:
    """Profiles, for epsilon >= 0, of the step's dominating pair (P, Q) and of the pair turned round (Q, P).

    "triangle" is a lower pair without a profile in closed form: here it has those of the pair that dominates it.
    """
    p, full = step.sampling_rate, _full_profile(step)

    def sampled(epsilon: Any) -> Any:
        return p * full(_unmixed(epsilon, p))

    def against_sampled(epsilon: Any) -> Any:
        unmixed, of = _unmixed_down(epsilon, p), library(epsilon)
        with quiet():
            delta = p * of.exp(epsilon - unmixed) * full(unmixed)
        return of.where(of.isinf(unmixed), of.zeros_like(delta), delta)

    above = against_sampled if orientation == "add" else sampled
    below = against_sampled if orientation == "remove" else sampled
    return above, below


def reach(step: Step, orientation: Orientation, tail: float) -> tuple[float, float]:
    """Extent of the privacy loss of the dominating pair (P, Q): (above, below) zero.

    The profile of (P, Q) is at most ``tail`` beyond the first; P has at most ``tail`` of mass below minus the second.
    """
    p, mu = step.sampling_rate, step.mu
    if step.stated is not None:
        longest = step.stated.reach(tail)
        return longest, min(longest, -math.log(tail))
    if step.slicing is not None:
        mu = float(gaussian_mixture(step.slicing, mu)[0][-1])  # of the mixture, none has a higher profile
    quantile = math.sqrt(2 * max(math.log(p / tail), 0.0))  # Phi(-z) <= exp(-z^2 / 2)
    gaussian = mu * mu / 2 + mu * quantile
    if gaussian < 1.0:
        mixture = math.log1p(p * math.expm1(gaussian))
    else:
        mixture = gaussian + math.log(p + (1.0 - p) * math.exp(-gaussian))
    against = -math.log1p(p * math.expm1(-gaussian)) if p < 1.0 else gaussian
    above = against if orientation == "add" else mixture
    below = against if orientation == "remove" else mixture
    return above, min(below, -math.log(tail))


def lowest_mu(step: Step) -> float:
    """The least mu that the step's slices may leave; its mu without slices."""
    return step.mu if step.slicing is None else float(gaussian_mixture(step.slicing, step.mu)[0][0])


def _full_profile(step: Step) -> Curve:
    """Profile of the step if every record were sampled."""
    if step.stated is not None:
        return step.stated.profile
    if step.slicing is None:
        return lambda epsilon: gaussian_profile(epsilon, step.mu)
    means, weights = gaussian_mixture(step.slicing, step.mu)

    def mixed(epsilon: Any) -> Any:
        profiles = gaussian_profile(epsilon[..., None], like(means, epsilon))
        return profiles @ like(weights, epsilon)

    return mixed


def _mills(x: Values) -> Values:
    """Phi(-x) / phi(x)."""
    scaled: Values = special(x).erfcx(x / math.sqrt(2))
    return math.sqrt(math.pi / 2) * scaled


def _unmixed(epsilon: Values, p: float) -> Values:
    """ln(1 + (e^epsilon - 1) / p), without overflow for large epsilon and accurate for tiny p."""
    of = library(epsilon)
    small = of.log1p(of.expm1(epsilon.clip(max=1.0)) / p)
    large = epsilon - math.log(p) + of.log1p(-(1.0 - p) * of.exp(-epsilon.clip(min=1.0)))
    unmixed: Values = of.where(epsilon > 1.0, large, small)
    return unmixed


def _unmixed_down(epsilon: Values, p: float) -> Values:
    """-ln(1 + (e^-epsilon - 1) / p); inf where the mixture cannot lose that much."""
    if p == 1.0:
        return epsilon  # where (1 - p) e^epsilon would be 0 * inf
    of = library(epsilon)
    with quiet():
        small = -of.log1p((of.expm1(-epsilon.clip(max=1.0)) / p).clip(min=-1.0))
        large = epsilon + math.log(p) - of.log1p((-(1.0 - p) * of.exp(epsilon)).clip(min=-1.0))
    unmixed: Values = of.where(epsilon > 1.0, large, small)
    return unmixed


LARGEST_MU = 10.0
"""Beyond it the pair is left out of the bracket: its quadrature would take too many nodes."""

_ENDS = 9.5  # the normal law has less than 1e-20 beyond
_CELLS = 2**21  # of one piece of the quadrature
_CONDITIONAL = math.sqrt(0.75)  # deviation of one coordinate given the other, at correlation 1/2


def exceedances(losses: Values, p: float, mu: float) -> tuple[Values, Values]:
    """P(L > l) and Q(L > l), l >= 0, of the loss L of P = (1-p)R + pA against Q = (1-p)R + pB; float64, elementwise.

    R, A and B are normal laws of unit covariance in the plane, at distance mu from each other. With s and t the
    coordinates along A and B from R, L = g(s) - g(t), g(s) = ln(1 - p + p e^(mu s - mu^2/2)): it exceeds l where
    s > s(t), mu s(t) - mu^2/2 = ln(e^l e^z + (e^l - 1)(1-p)/p), z = mu t - mu^2/2. Given t, s is normal, so that each
    of the three laws has that region's mass as one integral over t of a positive function that is analytic in a strip
    of half-width pi/mu and falls like a normal density: sums over even nodes err by less than e^-38, and by a few 2^-53
    of what they sum.

    Losses are (n,), p is in (0, 1] and mu in (0, `LARGEST_MU`].
    """
    step = min(0.4, 0.5 / mu)
    t = like(np.arange(-_ENDS, _ENDS + mu + step, step), losses)
    rows = max(1, _CELLS // len(t))
    parts = [_piece(losses[start : start + rows], t, p, mu) for start in range(0, len(losses), rows)]
    above, below = (step * library(losses).concatenate(column) for column in zip(*parts, strict=True))
    return above, below


def triangle_masses(nodes: Values, p: float, mu: float) -> tuple[Values, Values, Values]:
    """P-masses of the loss rounded to the nearest node, at minus the nodes, at 0 and at the nodes.

    The pair turned round is its mirror image: P has at -l what Q has at l. Rounding to the nearest of even nodes keeps
    the mean and adds a twelfth of the squared spacing to the variance: like the discretisation from above, half of it.

    Nodes are (n,) increasing and positive; what exceeds the last by more than half a cell is left out.
    """
    of = library(nodes)
    before = of.concatenate([of.zeros_like(nodes[:1]), nodes])
    every = of.concatenate([before, nodes[-1:] + (nodes[-1:] - before[-2:-1])])
    above, below = exceedances((every[1:] + every[:-1]) / 2, p, mu)
    centre = (1.0 - above[0] - below[0]).clip(min=0.0)
    return (below[:-1] - below[1:]).clip(min=0.0), centre, (above[:-1] - above[1:]).clip(min=0.0)


def _piece(losses: Values, t: Values, p: float, mu: float) -> tuple[Values, Values]:
    of, ndtr = library(losses), special(losses).ndtr
    lift = math.log1p(-p) - math.log(p) if p < 1.0 else -math.inf
    with quiet():
        raised = of.log(of.expm1(losses)) + lift
    reached = of.logaddexp(losses[:, None] + (mu * t - mu * mu / 2), raised[:, None])
    s = (reached + mu * mu / 2) / mu
    beyond = ndtr((t / 2 - s) / _CONDITIONAL)
    moved = ndtr((t / 2 + 0.75 * mu - s) / _CONDITIONAL)
    rest, one, other = beyond @ _density(t), moved @ _density(t - mu / 2), beyond @ _density(t - mu)
    return (1 - p) * rest + p * one, (1 - p) * rest + p * other


def _density(x: Values) -> Values:
    density: Values = library(x).exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return density
