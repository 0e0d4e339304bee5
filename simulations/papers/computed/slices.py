"""RR's random slices: the law of a record's share of them, what noise costs by every accountant, means moving apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.sliced import public_directions
from fedsw.privacy.accounting import Slicing, Step, epsilon_by, noise_multiplier
from fedsw.privacy.accounting.slicing import bernstein_share, central_limit_share, law_of_share
from simulations.papers.store import Measured

_BINS = 80
_ACCOUNTANTS = {"bernstein-published": "published", "bernstein": "bernstein", "clt": "clt", "pld": "exact"}


def share(*, d: int, k: int, draws: int, deltas: Sequence[float], seed: int = 0) -> Measured:
    """The squared length B of a unit vector's projections on k independent directions of R^d (RR, Figure 1).

    Arrays: `edges` (b + 1,) and `drawn` (b,), the density of `draws` simulated values; `at` (b,) and `exact` (b,),
    that of the exact law; for every delta of `deltas` (t,) the value that is exceeded with that probability, by the
    exact law `quantile` (t,) and as `bernstein` (t,) and `clt` (t,) have it. Values at the smallest delta beside them.
    """
    law = law_of_share(Slicing(d, k))
    values, mass = np.asarray(law.values), np.asarray(law.mass)
    mean = float(values @ mass / mass.sum())
    deviation = math.sqrt(float((values - mean) ** 2 @ mass / mass.sum()))
    drawn = _drawn_shares(d, k, draws, seed)
    edges = np.linspace(mean - 4.5 * deviation, mean + 6 * deviation, _BINS + 1)
    exact, _ = np.histogram(values, bins=edges, weights=mass)
    above = law.lost + np.cumsum(mass[::-1])[::-1]  # P(B >= value)
    quantile = [float(values[min(len(values) - 1, int((above > delta).sum()))]) for delta in deltas]
    bernstein = [bernstein_share(d, k, delta) for delta in deltas]
    clt = [central_limit_share(d, k, delta) for delta in deltas]
    least = int(np.argmin(deltas))
    numbers = {
        "mean": mean,
        "deviation": deviation,
        "delta": float(deltas[least]),
        "quantile": quantile[least],
        "bernstein": bernstein[least],
        "clt": clt[least],
        "above_clt": float(above[int((values < clt[least]).sum())]),
    }
    arrays = {
        "edges": edges,
        "drawn": np.histogram(drawn, bins=edges)[0] / (draws * np.diff(edges)),
        "exact": exact / np.diff(edges),
        "deltas": np.array(deltas),
        "quantiles": np.array(quantile),
        "bernsteins": np.array(bernstein),
        "clts": np.array(clt),
    }
    return Measured(numbers, arrays)


def noise(*, cases: Sequence[Mapping[str, Any]]) -> Measured:
    """What releases of slices cost by every accountant: `<case>_<accountant>`.

    A case has `name`, `d`, `k`, `records`, `batch`, `rounds`, `delta`, and either `multiplier`, sigma over the
    diameter, for which epsilon is computed, or `epsilon`, for which the multiplier is. Accountants: "published"
    (Bernstein's bound as RR account for it, no guarantee over several releases), "bernstein" (its failures counted),
    "clt" (no guarantee) and "exact".
    """
    found: dict[str, Any] = {}
    for case in cases:
        slicing = Slicing(case["d"], case["k"])
        rate, rounds, delta = case["batch"] / case["records"], case["rounds"], case["delta"]
        for accountant, name in _ACCOUNTANTS.items():
            if "multiplier" in case:
                step = Step(rate, 1 / case["multiplier"], slicing=slicing)
                value = epsilon_by(accountant, {step: rounds}, delta)
            else:
                value = noise_multiplier(
                    case["epsilon"], delta, sampling_rate=rate, steps=rounds, slicing=slicing, accountant=accountant
                )
            found[f"{case['name']}_{name}"] = value
    return Measured(found)


def means_apart(
    *,
    dimension: int,
    directions: int,
    order: int,
    distances: Sequence[float],
    sigmas: Sequence[float],
    sizes: Sequence[int],
    draws: int,
) -> Measured:
    """SWD and DP-SWD between N(0, I) and N(c 1, I) over c (RR, Figure 2); both sides are smoothed.

    Arrays: `distances` (t,), `plain` (sizes, t) and `noised` (sigmas, sizes, t), means over `draws` of all samples.
    Values: the least rank correlation of a noised curve with c, and the c at which each curve is least.
    """
    plain = np.zeros((len(sizes), len(distances)))
    noised = np.zeros((len(sigmas), len(sizes), len(distances)))
    for draw in range(draws):
        for size_at, n in enumerate(sizes):
            for at, c in enumerate(distances):
                stream = Stream.seeded(draw, "means apart", n, at)
                theta = public_directions(dimension, directions, "iid", draw, "means apart", n, at)
                one, other = (torch.from_numpy(stream.normals(n * dimension)).reshape(n, dimension) for _ in range(2))
                sides = [one @ theta, (other + c) @ theta]
                plain[size_at, at] += _distance(sides, order) / draws
                for sigma_at, sigma in enumerate(sigmas):
                    rough = [
                        side + sigma * torch.from_numpy(stream.normals(side.numel())).reshape(side.shape)
                        for side in sides
                    ]
                    noised[sigma_at, size_at, at] += _distance(rough, order) / draws
    ranks = np.argsort(np.argsort(noised, axis=-1), axis=-1)
    trend = [
        float(np.corrcoef(np.argsort(np.argsort(distances)), curve)[0, 1])
        for curve in ranks.reshape(-1, len(distances))
    ]
    return Measured(
        {
            "least_rank_correlation": min(trend),
            "largest_plain": float(plain.max()),
            "largest_noised": float(noised.max()),
        },
        {
            "distances": np.array(distances),
            "sigmas": np.array(sigmas),
            "sizes": np.array(sizes),
            "plain": plain,
            "noised": noised,
        },
    )


def _distance(sides: Sequence[torch.Tensor], order: int) -> float:
    first, second = (side.sort(dim=0).values for side in sides)
    return math.pow(float((first - second).abs().pow(order).mean()), 1 / order)


def _drawn_shares(d: int, k: int, draws: int, seed: int) -> NDArray[np.float64]:
    """Shares (draws,) of k independent directions: first coordinates of normalised normal vectors, squared, added."""
    generator = np.random.default_rng(seed)
    found: NDArray[np.float64] = np.zeros(draws)
    for _ in range(k):
        first = generator.standard_normal(draws) ** 2
        found += first / (first + generator.chisquare(d - 1, draws))
    return found
