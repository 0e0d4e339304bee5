"""How much noise an autoencoder's gradient takes: RLL's bound and ours, at equal (epsilon, delta), rounds and batch."""

from __future__ import annotations

from collections.abc import Sequence

from fedsw.mathematics.transport.sliced import orthogonal_spread
from fedsw.privacy.accounting import noise_multiplier
from fedsw.privacy.sensitivity import Bound, Side, loss_sensitivity, swd_sensitivity
from simulations.papers.store import Measured

_DIMENSION = 6
_PRIOR_RADIUS, _WEIGHT = 1.0, 0.1


def of_the_autoencoder(
    epsilons: Sequence[float], delta: float, records: int, batch: int, rounds: int, directions: int
) -> Measured:
    """Standard deviations of the noise per coordinate with RLL's clips (C = 1, M = 1.5, L = sqrt 6), 6 dimensions.

    As printed: their bound 12 M L and their accountant (CLT of Gaussian DP, which is no guarantee). Ours: the smallest
    of the proven bounds for orthogonal directions and a prior in the unit ball, and the exact accountant. For every
    epsilon `ratio_<epsilon>`; `ratio_worst` is the largest of them, and `ratio_of_bounds` leaves the accountants out.

    Args:
        epsilons, delta: of all rounds together.
        records, batch: how many there are, and in a round.
        rounds: how many.
        directions: of a round, rounded up to whole orthogonal blocks.
    """
    spread = orthogonal_spread(_DIMENSION, directions)
    printed, ours = _sensitivity("paper", batch, None), _sensitivity("auto", batch, spread)
    values = {"ratio_of_bounds": ours / printed}
    for epsilon in epsilons:
        theirs, exact = (
            noise_multiplier(epsilon, delta, sampling_rate=batch / records, steps=rounds, accountant=accountant)
            for accountant in ("gdp-clt-uniform", "pld")
        )
        name = f"{epsilon:g}"
        values |= {
            f"sigma_printed_{name}": theirs * printed,
            f"sigma_{name}": exact * ours,
            f"ratio_{name}": exact * ours / (theirs * printed),
        }
    return Measured({**values, "ratio_worst": max(values[f"ratio_{epsilon:g}"] for epsilon in epsilons)})


def _sensitivity(bound: Bound, batch: int, spread: float | None) -> float:
    """Of the weighted sum of loss and distance, whose prior is public and has no parameters."""
    own, prior = Side(batch, 1.5, _DIMENSION**0.5), Side(batch, _PRIOR_RADIUS, 0.0, private=False)
    distance = swd_sensitivity(own, prior, bound=bound, spread=spread)
    return _WEIGHT * distance.value + (1 - _WEIGHT) * loss_sensitivity(1.0, batch).value
