"""A run in words and numbers that may be shown: what was trained, for whom it is private, and how well."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import math
import os
import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fedsw._tools.settings import FederationError
from fedsw._tools.text import upward
from fedsw.experiment import Experiment
from fedsw.experiment.compatibility import fixed_by_neighbours, relation_of
from fedsw.experiment.penalty_names import PENALTIES, penalties_of
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.server.owed import planned_cost
from fedsw.federation.trust.budget_shares import PUBLIC
from fedsw.federation.trust.context import ServerSide
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accountants import accountant_named, doubt, is_proven
from fedsw.privacy.accounting import DeltaTooSmall, epsilon_by
from fedsw.privacy.accounting.lifetime import Cost
from fedsw.privacy.accounting.selection import Selection
from fedsw.privacy.mechanisms import ratio_of
from fedsw.runs.evaluation.evaluator import HeldOutMetrics, measured_on
from fedsw.runs.evaluation.verdict import signal_to_noise, warnings_of
from fedsw.runs.telemetry import event

_PACKAGES = ("fedsw", "torch", "numpy", "flwr", "POT", "cryptography")


def describe_plan(plan: FederationPlan, *, members: int) -> dict[str, Any]:
    """The public numbers that are fixed before the first round."""
    cells = plan.task.objective.cells
    experiment = plan.task.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "rounds": experiment.training.rounds,
        "clients": members,
        "epsilon": plan.epsilon,
        "delta": _delta(plan),
        "nominal": plan.nominal,
        "noise_multiplier": plan.multiplier,
        "sigma": plan.multiplier * max(bound.value for bound in plan.sensitivities),
        "groups": dict(zip(cells, plan.sizes, strict=True)),
        "batch": dict(zip(cells, plan.batch, strict=True)),
        "sensitivities": {cell: bound.value for cell, bound in zip(cells, plan.sensitivities, strict=True)},
    }


def line_of(
    side: ServerSide,
    traffic: Traffic,
    round_: int,
    attempt: int,
    spent: float,
    clients: int,
    numbers: Mapping[str, Any],
) -> dict[str, Any]:
    """A line of metrics.jsonl: functions of what was released, and what travelled."""
    record = {
        "round": round_,
        "attempt": attempt,
        "epsilon": spent,
        **numbers,
        "clients": clients,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
    }
    if by_client := side.epsilon_by_client():
        record["epsilon_by_client"] = {str(client): epsilon for client, epsilon in by_client.items()}
    return record


def logged(record: Mapping[str, Any]) -> dict[str, Any]:
    """The log's event for a round, from its line of metrics.jsonl."""
    names = ("round", "attempt", "epsilon", "snr", "clients", "bytes_up", "bytes_down")
    return event("round released", **{name: record[name] for name in names})


def summarise(
    experiment: Experiment,
    plan: FederationPlan,
    *,
    engine: str,
    clients: int,
    stopped: str,
    released: int,
    spent: float,
    spent_by_client: Mapping[int, float],
    held_out: HeldOutMetrics,
    seconds: float,
    begun: str | None,
    selection: Selection | None,
    traffic: Traffic,
    history: Sequence[Mapping[str, Any]] = (),
    calibration: Mapping[str, Any] | None = None,
    accounted: bool = True,
) -> dict[str, Any]:
    """The summary of a run, as in summary.json; without a guarantee unless everything released was `accounted`.

    `epsilon` is that of the planned rounds, or what was spent if that is more: stopping early does not lower it. For
    the best of several runs it is the selection's, as in its plan and its ledger. `seconds` and bytes add up over all
    processes of a resumed run, which began at `begun` and ended at `date`.
    """
    spent = spent if accounted else math.inf
    epsilon = max(plan.epsilon, spent)
    numbers = {
        "status": stopped,
        "engine": engine,
        "clients": clients,
        "rounds": experiment.training.rounds,
        "released_rounds": released,
        "epsilon": epsilon,
        "epsilon_spent": spent,
        "epsilon_spent_by_client": {str(client): value for client, value in spent_by_client.items()},
        "delta": _delta(plan),
        "nominal": plan.nominal,
        "epsilon_of_reader": epsilon_of_reader(experiment, epsilon),
        "guarantee": _guarantee(experiment, plan, epsilon, selection, accounted=accounted),
        "signal_to_noise": signal_to_noise(history, plan.task.parameters),
        "warnings": _warnings(experiment, held_out, epsilon, stopped, selection, calibration),
        "seconds": seconds,
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "begun": begun,
    }
    return described(experiment, held_out, numbers) | ({} if selection is None else {"selection": selection.as_dict()})


def epsilon_of_reader(experiment: Experiment, epsilon: float) -> float:
    """Epsilon for readers of a run's record, by that of its models: infinite if un-noised numbers are in it."""
    return math.inf if experiment.unsafe_metrics or experiment.data.shows_private_rows else epsilon


def described(
    experiment: Experiment, held_out: HeldOutMetrics, numbers: Mapping[str, Any], packages: Sequence[str] = ()
) -> dict[str, Any]:
    """Add to a run's or a baseline's own numbers what every summary has; versions include these `packages`."""
    return {
        "name": experiment.name,
        "title": experiment.title,
        **numbers,
        **held_out.said(),
        "measured_on": measured_on(experiment),
        "seed": experiment.seed,
        "versions": versions(*packages),
        "hardware": hardware(experiment),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _warnings(
    experiment: Experiment,
    held_out: HeldOutMetrics,
    epsilon: float,
    stopped: str,
    selection: Selection | None,
    calibration: Mapping[str, Any] | None,
) -> tuple[str, ...]:
    """Warnings for the reader; a missing release of held-out records comes first."""
    chosen = () if selection is None else (f"this run is {selection.words}: its epsilon is the selection's",)
    warnings = chosen + warnings_of(
        metrics=held_out.metrics,
        quality=held_out.quality,
        records=held_out.measured_on.get("records", 0),
        start=held_out.start,
        rise=held_out.rise,
        epsilon=epsilon,
        completed=stopped == "completed",
        at_clients=experiment.data.held_out_fraction > 0,
        calibration=calibration,
        groups={group: row["count"] for group, row in held_out.by_group.numbers.items() if "count" in row},
        alpha=experiment.objective.alpha,
    )
    return (held_out.missing, *warnings) if held_out.missing else warnings


def versions(*others: str) -> dict[str, str]:
    """The versions of Python, of what every run computes with, and of other packages by name."""
    return {"python": platform.python_version()} | {package: _version(package) for package in (*_PACKAGES, *others)}


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def hardware(experiment: Experiment) -> dict[str, Any]:
    """The machine, its cores, and the device that an experiment computes on."""
    return {"machine": platform.machine(), "cores": os.cpu_count(), "device": _device(experiment)}


def describe_failure(failure: BaseException) -> str:
    """Reason why a run broke off, in words safe to publish: a client's words may quote a record and are left out."""
    if not isinstance(failure, Exception):
        return "interrupted"
    if isinstance(failure, FederationError):
        return f"failed: {failure.recorded}"
    if isinstance(failure, OSError | sqlite3.Error):
        return f"failed: {failure}"
    return f"failed: {type(failure).__name__}, in words that only the server's output has"


def _guarantee(
    experiment: Experiment, plan: FederationPlan, epsilon: float, selection: Selection | None, *, accounted: bool
) -> dict[str, Any]:
    privacy, task = experiment.privacy, plan.task
    bounds, numbers = plan.sensitivities, {"epsilon": epsilon, "delta": plan.delta, "multiplier": plan.multiplier}
    stated = guarantee_of(task, **numbers, selection=selection, replaced=_of_replacement(plan))
    return {
        **stated,
        "protects": _protects(experiment),
        "against": privacy.guarantee.against(experiment),
        "public": sorted({item for bound in bounds for item in bound.public} | set(_public(experiment))),
        "bound": " + ".join(sorted({bound.bound for bound in bounds})),
        **({"noise_multiplier_of_histograms": plan.histograms} if experiment.privacy.histograms else {}),
        **({"noise_multiplier_of_moments": plan.moments} if experiment.privacy.moments else {}),
        **({"noise_multiplier_of_scores": plan.scores} if experiment.share_of_scores else {}),
        "sensitivities": {c: b.value for c, b in zip(task.objective.cells, bounds, strict=True)},
        "sampling_rates": dict(zip(task.objective.cells, plan.rates, strict=True)),
        "statement": stated["statement"] if accounted else UNACCOUNTED,
    }


def guarantee_of(
    task: Problem,
    *,
    epsilon: float,
    delta: float,
    multiplier: float,
    selection: Selection | None,
    replaced: Mapping[str, float],
) -> dict[str, Any]:
    """Promise of a run with these settings and numbers: `fedsw audit` holds a stored summary against it.

    `replaced` has epsilon for a replacement where the run's is for additions and removals only; else it is empty.
    """
    experiment = task.experiment
    return {
        "relation": relation_of(experiment),
        "unit": experiment.data.unit or "record",
        "word": task.objective.word,
        "accountant": experiment.accountant,
        "accountant_is_guarantee": is_proven(experiment.accountant, experiment.mechanism),
        "mechanism": experiment.mechanism,
        "sampling": experiment.privacy.model.sampling(experiment),
        "trust": experiment.privacy.trust,
        "noise_multiplier": multiplier,
        **replaced,
        "statement": _statement(task, epsilon, delta, multiplier, selection, replaced),
    }


def _of_replacement(plan: FederationPlan) -> dict[str, float]:
    """Epsilon of the planned noise for a replacement, where the run's is for additions and removals only.

    It is infinite if round-off, which grows with mu, leaves none that can be vouched for.
    """
    if not (plan.task.experiment.privacy.hides_sizes and plan.multiplier):
        return {}
    replaced = Cost.one(planned_cost(plan)).counted()
    try:
        epsilon = max(epsilon_by(plan.accountant, part, plan.delta) for part in replaced.parts)
    except DeltaTooSmall:
        epsilon = math.inf
    return {"epsilon_of_replacement": epsilon}


def _public(experiment: Experiment) -> Iterator[str]:
    """Public facts beyond those that the bounds name."""
    if experiment.privacy.hides_sizes:
        yield "that every client has a record"
    elif experiment.data.held_out_released:
        yield from PUBLIC
        if experiment.data.unit is not None:
            yield f"which {experiment.data.unit!r} there are at each client"
    if experiment.data.own:
        yield "the columns with their bounds, groups and classes"
    if experiment.data.occurring:
        yield f"{experiment.data.occurring} among the records, which nobody declared"
    if tells := experiment.partition.tells:
        yield f"each record's {tells}, by which its client was chosen"


def within(experiment: Experiment, drawn: tuple[str, ...] = ()) -> str:
    """Say which fields a record's replacement shares with it; `drawn` are those that strata are formed by."""
    tells = experiment.partition.tells
    fixed = {*fixed_by_neighbours(experiment), *drawn, *([tells] if tells else [])}
    return f" within its {' and '.join(sorted(fixed))}" if fixed else ", its label and group included"


def _protects(experiment: Experiment) -> str:
    unit = experiment.data.unit
    protected = "each record of every client"
    if unit is not None:
        protected = (
            f"each {unit!r} of every client, with all of its records there; one with records at several clients is "
            "protected less against all of them together"
        )
    return ", ".join(filter(None, [protected, experiment.privacy.model.guarded]))


UNACCOUNTED = "No guarantee: something was released that no ledger has a row of, and epsilon = infinity."


def _statement(
    task: Problem,
    epsilon: float,
    delta: float,
    multiplier: float,
    selection: Selection | None,
    replaced: Mapping[str, float],
) -> str:
    experiment = task.experiment
    if experiment.privacy.guarantee.unprotected:
        return "No privacy: epsilon = infinity (non-private reference)."
    seeded = "nominal: sampling and noise are reproducible from the seed, "
    kind = "" if experiment.seed is None else seeded
    releases, stages = experiment.releases, experiment.stages
    what = f"all {releases} rounds together" if releases > 1 else "the one release"
    if stages > 1:
        what = f"all {stages} stages of the sketch together"
    if (attempts := experiment.privacy.model.attempts(experiment)) > 1:
        what += f" in up to {attempts} attempts" + (" each" if stages > 1 else "")
    if experiment.privacy.histograms:
        what += " and one release of histograms before them"
    if experiment.privacy.moments:
        what += " and one release of moments before them"
    if experiment.share_of_scores:
        what += " and one release of scores' counts after them"
    if selection is not None:
        what += f", of a run that is {selection.words}"
    unit = experiment.data.unit
    protected = "one record" if unit is None else f"all records of one {unit!r}"
    apart = "" if unit is None else ", at each client by itself"
    drawn = experiment.privacy.model.shared(task.objective.drawn_by)
    hides = experiment.privacy.hides_sizes
    change = "addition or removal" if hides else "replacement"
    neighbours = f"{change} of {protected}{within(experiment, () if hides else drawn)}{apart}"
    words = (
        f"{_promise(experiment, epsilon, delta)} ({kind}{neighbours}) of {what}, "
        f"{ratio_of(experiment.mechanism)} = {multiplier:.4g}"
        f"{' of one release that costs as much' if stages > 1 or attempts > 1 else ''}."
    )
    if (declared := experiment.declared) is not None:
        other = upward(replaced["epsilon_of_replacement"], 4)
        counted, one = ("records", "a record") if unit is None else (f"different {unit!r}", protected)
        words += (
            f" Sums are divided by a declared number of {counted}, {declared[0]}, which is public; how many there are "
            f"is not. This epsilon is not comparable with one for the replacement of {one}, which is a removal and an "
            f"addition: for that the same noise has epsilon = {other}."
        )
    if task.objective.word == "stated":
        stated = ", ".join(name for _, name in penalties_of(experiment) if PENALTIES.get(name).word != "proven")
        words += f" It rests on a bound that the user stated, of the penalty {stated}; nothing here proves it."
    if experiment.data.occurring:
        words += f" Public, for nobody declared it and it was read off the records: {experiment.data.occurring}."
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
    if experiment.data.of_other_people:
        words += (
            " That held-out rows which equal private ones are of other people is the word of whoever ran this "
            "(data.held_out_overlap = 'other-people')."
        )
    return doubt(experiment.accountant, experiment.mechanism) + words


def _promise(experiment: Experiment, epsilon: float, delta: float) -> str:
    if accountant_named(experiment.accountant).pure:
        return f"pure {upward(epsilon, 4)}-differential privacy, delta = 0"
    return f"({upward(epsilon, 4)}, {upward(delta)})-differential privacy"


def _delta(plan: FederationPlan) -> float:
    """The guarantee's delta: 0 by an accountant of pure epsilon, whatever delta the ledgers have."""
    return 0.0 if accountant_named(plan.accountant).pure else plan.delta


def _device(experiment: Experiment) -> str:
    if experiment.training.device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or "cpu"
