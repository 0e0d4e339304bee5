"""The objective of a run over its rounds, from what `outputs.curves` measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulations.papers.study import Result


def objective(result: Result) -> NDArray[np.float64]:
    """(1 - alpha) loss + alpha penalty on held-out records, at the rounds at which they were measured (t,).

    The penalty is W2^2 between the groups, or its mean over the true classes where the run's is equality of odds.
    """
    alpha, arrays = float(result.point["alpha"]), result.arrays
    gap = (arrays["curve_od_0"] + arrays["curve_od_1"]) / 2 if by_class(result) else arrays["curve_w2_squared"]
    return np.asarray((1 - alpha) * arrays["curve_loss"].astype(np.float64) + alpha * gap.astype(np.float64))


def by_class(result: Result) -> bool:
    """Whether the run's penalty compares groups within each true class."""
    settings = result.about.get("settings") or {}
    return (settings.get("objective") or {}).get("penalty") == "equality-of-odds"
