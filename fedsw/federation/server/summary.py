"""A run in words and numbers that may be shown: what was trained, for whom it is private, and how well."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedsw.accounting import ACCOUNTANTS
from fedsw.errors import FederationError
from fedsw.experiment import Experiment, planned_releases
from fedsw.federation.budgets.held_out import PUBLIC
from fedsw.federation.budgets.local import local_accountant
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.trust.plan import Plan
from fedsw.runs.evaluation import HeldOut, measured_on
from fedsw.runs.verdict import signal_to_noise, warnings_of

_PACKAGES = ("fedsw", "torch", "numpy", "flwr", "POT", "cryptography")


def describe_plan(plan: Plan, *, members: int) -> dict[str, Any]:
    """What is fixed before the first round; public."""
    cells = plan.task.objective.cells
    experiment = plan.task.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "rounds": experiment.training.rounds,
        "clients": members,
        "epsilon": plan.epsilon,
        "delta": _delta(plan),
        "nominal": _nominal(experiment),
        "noise_multiplier": plan.multiplier,
        "sigma": plan.multiplier * max(bound.value for bound in plan.sensitivities),
        "groups": dict(zip(cells, plan.sizes, strict=True)),
        "batch": dict(zip(cells, plan.batch, strict=True)),
        "sensitivities": {cell: bound.value for cell, bound in zip(cells, plan.sensitivities, strict=True)},
    }


def summarise(
    experiment: Experiment,
    plan: Plan,
    *,
    engine: str,
    clients: int,
    stopped: str,
    released: int,
    spent: float,
    spent_by_client: Mapping[int, float],
    held_out: HeldOut,
    seconds: float,
    begun: str | None,
    traffic: Traffic,
    history: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The summary of a run: also summary.json.

    `epsilon` is that of the planned rounds, or what was spent if that is more: stopping early does not lower it.
    `seconds` and bytes are of all processes of a run that was resumed, which began at `begun` and ended at `date`.
    """
    epsilon = max(plan.epsilon, spent) if experiment.privacy.noisy else math.inf
    quality = held_out.quality
    return {
        "name": experiment.name,
        "title": experiment.title,
        "status": stopped,
        "engine": engine,
        "clients": clients,
        "rounds": experiment.training.rounds,
        "released_rounds": released,
        "epsilon": epsilon,
        "epsilon_spent": spent,
        "epsilon_spent_by_client": {str(client): value for client, value in spent_by_client.items()},
        "delta": _delta(plan),
        "nominal": _nominal(experiment),
        "epsilon_of_reader": math.inf if experiment.unsafe_metrics or experiment.data.shows_private_rows else epsilon,
        "guarantee": _guarantee(experiment, plan, epsilon),
        "held_out": dict(held_out.metrics),
        "held_out_by_group": {group: dict(numbers) for group, numbers in held_out.by_group.items()},
        "held_out_measured_on": dict(held_out.measured_on),
        "measured_on": measured_on(experiment),
        "constant": dict(quality.constant),
        "constant_answers": quality.answer,
        "best_threshold": dict(quality.best_threshold),
        "held_out_standard_errors": dict(quality.standard_errors),
        "signal_to_noise": signal_to_noise(history, plan.task.parameters),
        "warnings": _warnings(experiment, held_out, epsilon, stopped),
        "seconds": seconds,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "seed": experiment.seed,
        "versions": versions(),
        "hardware": hardware(experiment),
        "begun": begun,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _warnings(experiment: Experiment, held_out: HeldOut, epsilon: float, stopped: str) -> tuple[str, ...]:
    """What a reader must know first; why a planned release of kept records is missing before everything else."""
    found = warnings_of(
        metrics=held_out.metrics,
        quality=held_out.quality,
        records=held_out.measured_on.get("records", 0),
        start=held_out.start,
        epsilon=epsilon,
        noisy=experiment.privacy.noisy,
        completed=stopped == "completed",
        at_clients=experiment.data.held_out_fraction > 0,
    )
    return (held_out.missing, *found) if held_out.missing else found


def versions(*others: str) -> dict[str, str]:
    """The versions of Python, of what every run computes with, and of other packages by name."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *others):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def hardware(experiment: Experiment) -> dict[str, Any]:
    """The machine, its cores, and the device that an experiment computes on."""
    return {"machine": platform.machine(), "cores": os.cpu_count(), "device": _device(experiment)}


def describe_failure(failure: BaseException) -> str:
    """Why a run broke off, in words that are safe to publish: a client's words may quote a record and are left out."""
    if not isinstance(failure, Exception):
        return "interrupted"
    if isinstance(failure, FederationError):
        return f"failed: {failure.recorded}"
    if isinstance(failure, OSError | sqlite3.Error):
        return f"failed: {failure}"
    return f"failed: {type(failure).__name__}, in words that only the server's output has"


def _guarantee(experiment: Experiment, plan: Plan, epsilon: float) -> dict[str, Any]:
    privacy, task = experiment.privacy, plan.task
    bounds = plan.sensitivities
    return {
        "relation": bounds[0].relation,
        "unit": experiment.data.unit or "record",
        "protects": _protects(experiment),
        "against": _against(experiment),
        "public": sorted({item for bound in bounds for item in bound.public} | set(_public_of_kept(experiment))),
        "bound": " + ".join(sorted({bound.bound for bound in bounds})),
        "accountant": local_accountant(experiment),
        "accountant_is_guarantee": ACCOUNTANTS[local_accountant(experiment)].guarantee,
        "sampling": _sampling(experiment),
        "trust": privacy.trust,
        "noise_multiplier": plan.multiplier,
        "sensitivities": {c: b.value for c, b in zip(task.objective.cells, bounds, strict=True)},
        "sampling_rates": dict(zip(task.objective.cells, plan.rates, strict=True)),
        "statement": _statement(experiment, plan, epsilon),
    }


def _public_of_kept(experiment: Experiment) -> tuple[str, ...]:
    return PUBLIC if experiment.data.held_out_released else ()


def _sampling(experiment: Experiment) -> str:
    privacy = experiment.privacy
    if privacy.sketch:
        return "none: all records, once"
    return "each client's own" if privacy.local else privacy.sampling


def _protects(experiment: Experiment) -> str:
    unit = experiment.data.unit
    each = "each record of every client" if unit is None else f"each {unit!r} of every client, with all of its records"
    return f"{each}, by its own client's noise and ledger" if experiment.privacy.local else each


def _against(experiment: Experiment) -> str:
    if not experiment.privacy.noisy:
        return "nobody: no noise was added"
    if experiment.privacy.local:
        return "everyone, including the server and the other clients"
    if experiment.privacy.sketch:
        return (
            "readers of the sketch, of the generator and its samples, and of this record; server and clients are "
            "trusted to follow the protocol"
        )
    counts = "" if experiment.privacy.sampling == "stratified" else ", not of counts per client and round"
    return f"readers of the models and of this record{counts}; server and clients are trusted to follow the protocol"


def _statement(experiment: Experiment, plan: Plan, epsilon: float) -> str:
    if not experiment.privacy.noisy:
        return "No privacy: epsilon = infinity (non-private reference)."
    accountant = local_accountant(experiment)
    kind = "nominal: sampling and noise are reproducible from the seed, " if _nominal(experiment) else ""
    releases = planned_releases(experiment)
    what = f"all {releases} rounds together" if releases > 1 else "the one release"
    unit = experiment.data.unit
    replaced = "one record" if unit is None else f"all records of one {unit!r}"
    neighbours = f"replacement of {replaced}" + (
        ", its label and group included" if experiment.privacy.sketch else " within its group"
    )
    words = (
        f"{_promise(plan, accountant, epsilon)} ({kind}{neighbours}) of {what}, "
        f"{'scale b/Delta' if accountant == 'laplace' else 'noise multiplier sigma/Delta'} = {plan.multiplier:.4g}."
    )
    if experiment.data.held_out_released:
        words += (
            " Records that were kept out of training have the same guarantee, in one release of counts and sums over "
            "them."
        )
    if experiment.data.shows_private_rows:
        words += (
            " It is for the models alone: the held-out metrics may be those of private records (data.held_out_overlap "
            "= 'allow'), and for a reader of this record epsilon = infinity."
        )
    if ACCOUNTANTS[accountant].guarantee:
        return words
    return f"No guarantee: what the accountant {accountant} says may fall below the truth. It says {words}"


def _promise(plan: Plan, accountant: str, epsilon: float) -> str:
    if accountant == "laplace":
        return f"pure {epsilon:.4g}-differential privacy, delta = 0"
    return f"({epsilon:.4g}, {plan.delta:.3g})-differential privacy"


def _delta(plan: Plan) -> float:
    """The guarantee's delta: 0 for Laplace noise, whatever delta the ledgers have."""
    return 0.0 if local_accountant(plan.task.experiment) == "laplace" else plan.delta


def _nominal(experiment: Experiment) -> bool:
    return experiment.seed is not None


def _device(experiment: Experiment) -> str:
    if experiment.training.device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or "cpu"
