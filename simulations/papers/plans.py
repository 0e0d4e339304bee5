"""Plans of today for results that are stored: rules and bounds change, and a result says what it was planned with.

`Numbers` are what a plan settles, `planned` makes those of an experiment by the code as it is, `stored` reads those of
a result, and `differences` says in words where two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsw._tools.text import to_float
from fedsw.data.sources import load_dataset, owners
from fedsw.experiment import Experiment
from fedsw.federation.exchange.participants import Site
from fedsw.federation.server.settling import settled
from fedsw.learning.tasks.problem import Problem
from simulations.papers.store import Stored

_CLOSE, _CLOSE_SCALED = 1e-3, 3e-3
"""Relative difference up to which two numbers are one: calibrations stop at such widths, and get better ones.

Ratios of sensitivities that have released moments in them move with the noise of these: by up to .0013 among seeds.
"""


@dataclass(frozen=True)
class Numbers:
    """What a run is planned with: noise multiplier, and sensitivities and sampling rates by stratum.

    Where they are ``scaled`` the run puts released moments into its clips, and sensitivities are known up to a factor.
    """

    multiplier: float
    sensitivities: Mapping[str, float]
    rates: Mapping[str, float]
    scaled: bool = False


def planned(experiment: Experiment) -> Numbers:
    """The numbers of an experiment by today's rules and bounds; no private record is learnt from, and nothing is spent.

    Codes are those of an autoencoder that has learnt nothing: how many they are is all that a plan reads of them.

    Raises:
        FileNotFoundError: if its data are not here. ExperimentError, FederationError: if it cannot be run today.
    """
    ready = settled(_untrained(experiment))
    problem = Problem.from_experiment(ready)
    records, clients = load_dataset(ready.record_source).train, ready.federation.clients
    owner = owners(records, ready.partition, clients)
    held = np.stack([np.bincount(owner[rows], minlength=clients) for rows in problem.cells_of(records)], axis=1)
    plan = problem.experiment.privacy.model.plan(problem, [Site(0, np.arange(clients), held, None, None)])
    return Numbers(
        plan.multiplier,
        {name: bound.value for name, bound in zip(plan.strata, plan.sensitivities, strict=True)},
        dict(zip(plan.strata, plan.rates, strict=True)),
        scaled=bool(ready.privacy.moments),
    )


def _untrained(experiment: Experiment) -> Experiment:
    """The experiment without the training of `data.encoded`, where it has such codes."""
    if experiment.data.encoded is None:
        return experiment
    return experiment.model_copy(update={"data": experiment.data.model_copy(update={"encoder_epochs": 0})})


def stored(result: Stored) -> Numbers | None:
    """The numbers that a stored run was planned with; None for a computation."""
    said: Mapping[str, Any] | None = result.about.get("guarantee")
    if said is None or "sensitivities" not in said:
        return None
    return Numbers(
        to_float(said["noise_multiplier"]) or 0.0,
        {name: float(to_float(value) or 0.0) for name, value in said["sensitivities"].items()},
        {name: float(value) for name, value in said["sampling_rates"].items()},
    )


def differences(then: Numbers, now: Numbers) -> Iterator[str]:
    """A phrase for every number that is another one today: what it was, and what it is."""
    if not _alike(then.multiplier, now.multiplier):
        yield f"noise multiplier {then.multiplier:.6g}, {now.multiplier:.6g} today"
    for name, before, after in (
        ("sensitivity", _alone(then, now), _alone(now, now)),
        ("sampling rate", then.rates, now.rates),
    ):
        if before.keys() != after.keys():
            yield f"a {name} for each of {', '.join(before)}; for {', '.join(after)} today"
            continue
        close = _CLOSE_SCALED if now.scaled and name == "sensitivity" else _CLOSE
        for stratum, value in before.items():
            if not _alike(value, after[stratum], close):
                yield f"{name} of {stratum} {value:.6g}, {after[stratum]:.6g} today"


def _alone(numbers: Numbers, now: Numbers) -> Mapping[str, float]:
    """Sensitivities, or where they are known up to a factor their ratios to the largest."""
    largest = max(numbers.sensitivities.values(), default=0.0) if now.scaled else 1.0
    return {stratum: value / (largest or 1.0) for stratum, value in numbers.sensitivities.items()}


def _alike(one: float, other: float, close: float = _CLOSE) -> bool:
    return one == other or abs(one - other) <= close * max(abs(one), abs(other))
