"""`fedsw audit EXPERIMENT --canary`: the released path on the worst neighbours of the experiment's own bound."""

from __future__ import annotations

import math
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fedsw.accounting import Step, epsilon
from fedsw.audit import judged
from fedsw.audit.canary_finding import Claim, Measured, finding
from fedsw.audit.finding import Finding
from fedsw.audit.neighbours import require_room, worst_neighbours
from fedsw.audit.released import Released
from fedsw.experiment import Experiment, ExperimentError

if TYPE_CHECKING:
    from fedsw.federation.trust.central.rounds import Aggregate

TRIALS = 10_000_000
CONFIDENCE = 0.9999
DRAWS = 100_000
SINGLE = 500
ROUNDS = 20

_PRESENT = 20.0  # rounds without the canary until its absence is reported: exp(-20) by chance


def audit(
    experiment: Experiment,
    *,
    trials: int | None = None,
    show: bool = False,
    confidence: float = CONFIDENCE,
    draws: int | None = None,
    singly: int | None = None,
) -> Finding:
    """Attack the releases of an experiment by whoever knows everything but one record.

    Args:
        experiment: of trust `central`; its seed is left out, so that sampling and noise are drawn for real.
        trials: releases of each neighbour; `TRIALS` unless given.
        show: whether to say what is going on.
        confidence: of everything that the shown epsilon rests on, together.
        draws: of batches, where records are sampled; `DRAWS` unless given.
        singly: of the releases, how many are made and charged one by one; `SINGLE` unless given.

    Raises:
        ExperimentError: for a trust model or an objective without worst neighbours here, naming those that have them.
        FederationError: if a client or the server refuses a round.
    """
    attacked = _attackable(experiment)
    status = Console(stderr=True, quiet=not show).status("sizes and plan")
    with tempfile.TemporaryDirectory() as folder, status:
        with Released(attacked, None, Path(folder) / "sizes", canary=False) as plain:
            require_room(plain.task)
            cell, claim = _claim(plain)
            neighbours = worst_neighbours(plain.task, cell, plain.holder(cell))
        with (
            Released(attacked, neighbours, Path(folder) / "with", canary=True) as one,
            Released(attacked, neighbours, Path(folder) / "without", canary=False) as other,
        ):
            status.update("real rounds on both neighbours")
            aggregates, shift, rounds, present = _real_rounds(one, other, claim)
            status.update("releases with real noise")
            releases = trials or TRIALS
            singly = min(SINGLE if singly is None else singly, releases)
            scores, repeated = _scores((one, other), aggregates, claim, shift, (singly, releases - singly))
            attack = judged(*scores, threshold=shift / claim.sigma / 2)
            drawn = None
            if claim.rate < 1.0:
                status.update("draws of batches")
                draws = draws or DRAWS
                drawn = (one.times_drawn(neighbours, draws), draws)
        cell_name = one.task.objective.cells[cell]
    measured = Measured(shift, rounds, present, attack, drawn, repeated, scores)
    return finding(experiment.name, cell_name, neighbours.why, claim, measured, confidence)


def _attackable(experiment: Experiment) -> Experiment:
    privacy, goal = experiment.privacy, experiment.objective
    if privacy.trust != "central" or not privacy.noisy:
        raise ExperimentError(
            f"privacy.trust is {privacy.trust!r}{'' if privacy.noisy else ' without noise'}; --canary attacks what the "
            "server of trust 'central' releases with noise"
        )
    if goal.also:
        raise ExperimentError(
            "objective.also has more penalties; --canary has worst neighbours of one. Leave objective.also out"
        )
    if goal.penalty == "distribution-matching":
        raise ExperimentError(
            f"objective.penalty is {goal.penalty!r}; --canary has worst neighbours of 'statistical-parity', "
            "'equality-of-odds' and 'prior-matching'"
        )
    data = experiment.data.model_copy(update={"row_norm": None})  # the worst case is not written in unit rows
    return experiment.model_copy(update={"seed": None, "unsafe_metrics": False, "data": data})


def _claim(plain: Released) -> tuple[int, Claim]:
    """The cell that decides the experiment's epsilon, and what is claimed of its records."""
    plan, rounds = plain.plan, plain.task.experiment.training.rounds
    claims = [
        Claim(rate, bound.value, plain.sigma, rounds, plan.epsilon, plan.delta)
        for rate, bound in zip(plan.rates, plan.sensitivities, strict=True)
    ]
    cell = max(range(len(claims)), key=lambda j: epsilon({Step(claims[j].rate, claims[j].mu): rounds}, plan.delta))
    return cell, claims[cell]


def _real_rounds(one: Released, other: Released, claim: Claim) -> tuple[tuple[Aggregate, Aggregate], float, int, int]:
    """Rounds of both until the canary was in enough of them; the pair of sums that it moved least.

    Public randomness (directions, a prior's points) is that of the round and attempt, the same for both; batches are
    each one's own. Where the canary is not drawn the sums are equal.
    """
    enough = 1 if claim.rate == 1.0 else 3
    least, pair, present = math.inf, None, 0
    for rounds in range(1, math.ceil(_PRESENT / claim.rate) + ROUNDS + 1):
        round_ = (rounds - 1) % claim.rounds + 1
        sums = one.sum(round_), other.sum(round_)
        shift = float((sums[0].vector - sums[1].vector).norm())
        if shift > 0.01 * claim.sensitivity:
            present += 1
            if shift < least:
                least, pair = shift, sums
        if rounds >= min(ROUNDS, claim.rounds) and present >= enough:
            break
    if pair is None:
        raise ExperimentError(f"the canary moved no sum in {rounds} rounds; its rate is said to be {claim.rate:g}")
    return pair, least, rounds, present


def _scores(
    federations: tuple[Released, Released],
    pair: tuple[Aggregate, Aggregate],
    claim: Claim,
    shift: float,
    releases: tuple[int, int],
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], int]:
    """What the attacker computes of each release: its part along what the canary moves, in units of sigma.

    With it, how many of the releases that were made one by one are equal to an earlier one.
    """
    start, along = pair[1].vector.numpy(), (pair[0].vector - pair[1].vector).numpy() / shift
    singly, together = releases
    found, repeated = [], 0
    for federation, aggregate in zip(federations, pair, strict=True):
        alone = list(federation.release_singly(aggregate, singly))
        repeated += len(alone) - len({part.tobytes() for part in alone})
        parts = chain(alone, federation.release(aggregate, together))
        found.append(np.concatenate([(part - start) @ along for part in parts]) / claim.sigma)
    return (found[0], found[1]), repeated
