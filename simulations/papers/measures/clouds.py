"""Samples in the plane, and what RLL's bound for two private sides says of either."""

from __future__ import annotations

import numpy as np

from fedsw._tools.text import to_float
from fedsw.experiment import resolve_delta
from fedsw.privacy.accounting import Step, epsilon_by
from fedsw.privacy.sensitivity import Side, swd_sensitivity
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_POINTS = 800


def points(run: Finished) -> Measured:
    """Generated points (800, 2) as `samples`, held-out ones as `reference`; float32."""
    outputs = run.record.outputs
    if outputs is None:
        raise ValueError(f"the run in {run.directory} left no samples")
    samples, reference = outputs.values[:_POINTS], outputs.extra["reference"][:_POINTS]
    return Measured(arrays={"samples": samples.astype(np.float32), "reference": reference.astype(np.float32)})


def both_sides(run: Finished) -> Measured:
    """Epsilon for the generator's inputs as `epsilon_x`, and for the target's records as `epsilon_z`, by RLL's bound.

    The noise is one; a replaced input moves the gradient by 12 M L / n, a replaced target record by 4 M L / n (Theorem
    4.1 with L_2 = 0). Both are by the run's own accountant, so with "gdp-clt-uniform" they are RLL's, and no guarantee.
    The inputs are public normal numbers: their epsilon promises nobody anything, and is here because the paper has it.
    """
    experiment, guarantee = run.experiment, run.record.summary["guarantee"]
    clip, records = experiment.clip, len(run.dataset.train)
    rate = max(float(rate) for rate in guarantee["sampling_rates"].values())
    sigma = float(to_float(guarantee["noise_multiplier"]) or 0.0) * max(guarantee["sensitivities"].values())
    batch, delta = round(rate * records), resolve_delta(experiment.privacy.delta, records=records)
    moving, still = Side(batch, clip.output, clip.jacobian), Side(batch, clip.output, 0.0)
    found = {}
    for name, own, other in (("epsilon_x", moving, still), ("epsilon_z", still, moving)):
        mu = swd_sensitivity(own, other, bound="paper").value / sigma
        found[name] = epsilon_by(experiment.accountant, {Step(rate, mu): experiment.training.rounds}, delta)
    return Measured(found)
