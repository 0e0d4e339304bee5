"""A run as tables and sentences, for card and page; how far one that goes on has come."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedsw._tools.text import gained, measured, number, to_float, upward
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Number
from fedsw.experiment import Experiment
from fedsw.runs.record import RunRecord, read_run
from fedsw.runs.report.progress import group_table, metric_name, ordered_metrics, scores
from fedsw.runs.report.screens import noise_ratio, rounds_of
from fedsw.runs.run_files import (
    ATTEMPTS,
    CONFIG,
    LEDGER,
    LOCK,
    LOG,
    METRICS,
    PLAN,
    UNNAMED,
    Names,
    found_json,
    round_seconds,
)


class Facts(NamedTuple):
    """A table: headings, and rows of as many texts."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Facts:
        """Make one of anything that can be written."""
        return cls(tuple(headings), tuple(tuple(map(str, row)) for row in rows))


def description(record: RunRecord) -> str:
    """Describe in one or two sentences the model, its data and its training."""
    experiment, summary = record.experiment, record.summary
    ended = "" if record.completed else f" It did not complete: {summary.get('status')}."
    return (
        f"A {experiment.model.kind} model for {experiment.objective.task}, trained on {experiment.data.label} data of "
        f"{summary.get('clients')} clients, {rounds_of(record)}, with "
        f"weight α = {number(experiment.objective.alpha)} on the penalty {experiment.objective.penalty}. "
        f"{summary.get('date')}.{ended}"
    )


_WORDS = {"proven": "proven", "stated": "stated by the user, of a penalty of their own; nothing proves it"}


def promise(summary: Mapping[str, Any]) -> Facts:
    """The guarantee, part by part."""
    guarantee = summary["guarantee"]
    doubt = "" if guarantee.get("accountant_is_guarantee") else ", which gives no guarantee"
    return Facts.of(
        ("", ""),
        [
            ("ε, δ", f"{upward(summary.get('epsilon'), 4)}, {upward(summary.get('delta'))}"),
            ("protects", guarantee.get("protects")),
            ("against", guarantee.get("against")),
            ("neighbouring data sets", guarantee.get("relation")),
            ("public", ", ".join(guarantee.get("public", ())) or "–"),
            ("trust model", guarantee.get("trust")),
            ("whose word the bound is", _WORDS[guarantee.get("word", "proven")]),
            (noise_ratio(guarantee), number(guarantee.get("noise_multiplier"), 4)),
            ("accountant", f"{guarantee.get('accountant')}{doubt}"),
            ("reproducible from a seed", "yes: the ε is nominal" if summary.get("nominal") else "no"),
            ("ε for a reader of the run's record", upward(summary.get("epsilon_of_reader"), 4)),
        ],
    )


def sizes(record: RunRecord) -> Facts:
    """Public numbers of private records by group; no rows where they are not public."""
    groups = found_json(record.directory / PLAN).get("groups", {})
    return Facts.of(("group", "records"), [(record.names.cell(name), f"{count:,}") for name, count in groups.items()])


def measured_on(summary: Mapping[str, Any]) -> str:
    """Which records the metrics are of."""
    on = summary.get("held_out_measured_on") or {}
    count = f"{on['records']} of {on['of']} held-out records: " if on else ""
    return f"Measured on {count}{summary.get('measured_on')}."


def worth(summary: Mapping[str, Any], called: Names = UNNAMED) -> Facts:
    """Every held-out metric with its interval, the constant's beside it; those of a class say which by its name."""
    model, constant = scores(summary), scores(summary, "constant")
    names = ordered_metrics(summary.get("held_out") or {})
    names += [name for name, (_, around) in model.items() if around is not None and name not in names]
    return Facts.of(
        ("held out, with intervals of 95 %", "the model", "a constant"),
        [
            (
                metric_name(key, called),
                measured(*model[key]) + ("" if model[key][1] is not None else " (no interval is known)"),
                measured(*constant[key]) if key in constant else "–",
            )
            for key in names
        ],
    )


def gain(summary: Mapping[str, Any]) -> str:
    """Compare the model with the constant in a sentence; empty where there is none."""
    gained_by = summary.get("gain")
    if not gained_by:
        return ""
    by = gained(gained_by["value"], [gained_by["low"], gained_by["high"]]) + in_squares(summary)
    return (
        f"The model is {by}."
        if gained_by["claim"] in ("better", "worse")
        else f"The model cannot be told from it: {by}."
    )


def in_squares(summary: Mapping[str, Any]) -> str:
    """Unit of a gain where errors have units: squares of them."""
    return " in squared error" if "root_mean_squared_error" in (summary.get("held_out") or {}) else ""


_POWERS = {"mean_squared_error": 2, "w2_squared": 2, "root_mean_squared_error": 1, "mean_absolute_error": 1}
"""How errors and distances of a number grow with its unit."""


def coded(record: RunRecord) -> RunRecord:
    """The same run with errors as training has them, of a number that its bounds map to [0, 1]."""
    columns = record.experiment.data.columns
    if columns is None or columns.units is None:
        return record
    width = columns.units[1]

    def divided(value: Any, power: int) -> Any:
        if isinstance(value, list | tuple):
            return [divided(item, power) for item in value]
        known = to_float(value)
        return value if known is None else known / width**power

    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: of(value) if isinstance(value, Mapping) else divided(value, _POWERS.get(name, 0))
            for name, value in values.items()
        }

    summary = {
        name: of(value) if isinstance(value, Mapping) and name.startswith(("held_out", "constant")) else value
        for name, value in record.summary.items()
    }
    if gain := summary.get("gain"):
        summary["gain"] = {name: value if name == "claim" else divided(value, 2) for name, value in gain.items()}
    summary["constant_answers"] = "always the mean"
    return replace(record, summary=summary, names=replace(record.names, predicted=""))


def by_group(summary: Mapping[str, Any], called: Names = UNNAMED) -> Facts:
    """A row for each group: its held-out records, and each metric on them with its interval."""
    groups, around = summary.get("held_out_by_group") or {}, summary.get("held_out_by_group_intervals") or {}
    names, rows = group_table(groups, around, called=called)
    return Facts.of(("group", *names), rows)


def declared(columns: Columns) -> Facts:
    """The declared columns: name, role, kind and bounds."""
    rows = [(feature.name, "input", "; ".join(_words(feature))) for feature in columns.features]
    if columns.sensitive is not None:
        rows.append((columns.sensitive.name, "group", ", ".join(columns.groups)))
    if columns.target is not None:
        positive = "" if columns.positive is None else f"; positive: {columns.classes[columns.positive]}"
        rows.append((columns.target.name, "predicted", f"{', '.join(columns.classes)}{positive}"))
    rows += [(target.name, "predicted", "; ".join(_words(target))) for target in columns.targets]
    return Facts.of(("column", "role", "declared"), rows)


def _words(column: Number) -> Iterator[str]:
    yield column.reader.words(column) + (f" {column.units}" if column.units else "")
    if column.outside == "cut":
        yield "cut at these bounds"
    if isinstance(column, Feature) and column.count is not None:
        yield f"{column.count} columns {column.name}0, {column.name}1, ..."
    if isinstance(column, Feature) and column.missing:
        known = ", ".join(repr(text) if text else "empty" for text in column.missing)
        yield f"may be missing ({known})"


def settings(experiment: Experiment) -> dict[str, Any]:
    """Settings that differ from the defaults, without columns and without folders of the machine that ran it."""
    changed = experiment.model_dump(mode="json", exclude_defaults=True)
    for name in ("columns", "data_dir", "held_out"):
        changed.get("data", {}).pop(name, None)
    return changed


State = Literal["starting", "running", "stalled", "stopped", "finished"]

_RECENT = 20  # rounds that the time of a round is the median of
_SPARE_SECONDS = 30.0
_TIMES = ("seconds_per_round", "seconds_left", "seconds_since")
_SIGNS = (ATTEMPTS, METRICS, LOG, LEDGER, f"{LEDGER}-wal", CONFIG, LOCK)


@dataclass(frozen=True)
class Status:
    """Releasable numbers of one run, and three times, which are for its operator only and not for publication.

    A run is `running` while a process holds it and writes to its files; `stalled` if it holds it and wrote nothing for
    longer than two time limits and ten rounds; `stopped` (``why`` in its own words) if nothing holds it any more before
    its last round; `finished`. Spent is everything that was charged, by the worst client where they have ledgers of
    their own. The signal to noise is estimated from the last noisy gradient; the pace is the median of the last rounds;
    ``seconds_since`` it last wrote. ``unit`` says whose records epsilon is for, at each client by itself.
    """

    directory: str
    name: str
    state: State
    why: str
    round: int
    rounds: int
    epsilon_spent: float
    epsilon: float
    epsilon_by_client: dict[str, float]
    snr: float | None
    clients_alive: int | None
    clients: int
    bytes_up: int | None
    bytes_down: int | None
    seconds_per_round: float | None
    seconds_left: float | None
    seconds_since: float
    unit: str = "record"

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON; the times are in `operator_only`."""
        numbers = asdict(self)
        times = {name: numbers.pop(name) for name in _TIMES}
        return {**numbers, "operator_only": times}


def read_status(directory: Path) -> Status:
    """How far the run in `directory` has come; reads only."""
    from fedsw.runs.recovery import is_running

    record = read_run(directory)
    experiment, last = record.experiment, record.last
    times = round_seconds(directory)[-_RECENT:]
    pace = statistics.median(times) if times else None
    touched = [os.stat(path).st_mtime for name in _SIGNS if (path := directory / name).exists()]
    since = max(0.0, time.time() - max(touched))
    patience = 2 * experiment.federation.timeout + 10 * (pace or 0.0) + _SPARE_SECONDS
    state, why = _state(record, held=is_running(directory), quiet=since > patience)
    done, rounds = int(last.get("round", 0)), experiment.training.rounds
    spent, by_client = _spent(directory, last)
    return Status(
        directory=str(directory),
        name=experiment.name,
        state=state,
        why=why,
        round=done,
        rounds=rounds,
        epsilon_spent=spent,
        epsilon=_asked(record),
        epsilon_by_client=by_client,
        snr=to_float(last.get("snr")),
        clients_alive=last.get("clients"),
        clients=experiment.federation.clients,
        bytes_up=last.get("bytes_up"),
        bytes_down=last.get("bytes_down"),
        seconds_per_round=pace,
        seconds_left=None if pace is None or state != "running" else (rounds - done) * pace,
        seconds_since=since,
        unit=experiment.data.unit or "record",
    )


def _state(record: RunRecord, *, held: bool, quiet: bool) -> tuple[State, str]:
    if held:
        if quiet:
            return "stalled", "nothing was written for longer than two time limits and ten rounds"
        return ("running" if record.history else "starting"), ""
    status = str(record.summary.get("status", ""))
    if status == "completed":
        return "finished", ""
    if status:
        return "stopped", status
    if not (record.directory / LOCK).exists() and not quiet:
        return "starting", ""
    return "stopped", "its process ended without a word (killed, or its machine went down)"


def _spent(directory: Path, last: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Epsilon by the ledgers that are here; a round that was charged and not finished is in them."""
    from fedsw.privacy.accounting import LedgerDamaged
    from fedsw.runs.accounts import read_ledger

    reported = {str(client): float(value) for client, value in last.get("epsilon_by_client", {}).items()}
    try:
        account = read_ledger(directory)
    except FileNotFoundError:
        return max((float(last.get("epsilon", 0.0)), *reported.values())), reported
    except LedgerDamaged as fault:
        raise ValueError(str(fault)) from None
    charged = {} if "sequence" in account["head"] else account["epsilon_by_group"]
    by_client = {**reported, **{name.removeprefix("client "): float(value) for name, value in charged.items()}}
    return max((float(account["epsilon"]), *by_client.values())), by_client


def _asked(record: RunRecord) -> float:
    """The summary's epsilon; else that of the plan, which is written before the first round; else the settings'."""
    privacy = record.experiment.privacy
    stated = {**found_json(record.directory / PLAN), **record.summary}.get("epsilon")
    if stated is not None:
        return float(stated)
    return privacy.epsilon if privacy.noisy and privacy.epsilon is not None else float("inf")
