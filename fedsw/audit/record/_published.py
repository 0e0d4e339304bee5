"""Checks that what must stay secret is absent: counts, seconds, un-noised metrics; every key must be on a list."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from safetensors import safe_open

from fedsw._tools.text import upward
from fedsw.audit.finding import Check, Faults
from fedsw.audit.record._folder import Folder, real
from fedsw.runs.optimizer import signal_to_noise
from fedsw.runs.run_files import RunFile

NAME = "counts and seconds absent"

LINE = frozenset(
    {
        "round", "attempt", "epsilon", "sigma", "snr", "gradient_norm", "clients", "bytes_up", "bytes_down",
        "epsilon_by_client", "held_out", "distance",
    }
)  # fmt: skip
"""All that a line of metrics.jsonl may say: settings, functions of noised releases, totals of padded messages, who was
there, and metrics on records outside the guarantee."""

_QUIET = frozenset(
    {
        "roll call", "run begins", "round released", "kept records released", "histograms released", "moments released",
        "scores released", "sketch released", "run ended",
    }
)  # fmt: skip
"""Events of a run in which every round is like the others."""

UNSAFE = frozenset({"training_loss"})
"""Keys that it may have besides, where `unsafe_metrics` made the reader's epsilon infinite."""

LOG = frozenset(
    {
        "time", "level", "event", "attempt", "bytes_down", "bytes_up", "client", "clients", "clock", "code", "delta",
        "engine", "epsilon", "fault", "flower", "key", "ledger", "resumed", "round", "rounds", "run", "snr", "software",
        "state", "status",
    }
)  # fmt: skip
"""All that a line of log.jsonl may say; the whole run's seconds are the summary's."""

SUMMARY = frozenset(
    {
        "name", "title", "status", "engine", "clients", "rounds", "released_rounds", "epsilon", "epsilon_spent",
        "epsilon_spent_by_client", "delta", "nominal", "epsilon_of_reader", "guarantee", "held_out",
        "held_out_by_group", "held_out_by_column", "held_out_by_column_intervals",
        "held_out_impact_of", "held_out_measured_on", "held_out_release", "measured_on", "seconds",
        "bytes_up", "bytes_down", "seed",
        "versions", "hardware", "begun", "date", "ledger", "sketch", "constant", "constant_answers", "best_threshold",
        "held_out_standard_errors", "held_out_intervals", "held_out_by_group_intervals", "constant_intervals", "gain",
        "signal_to_noise", "warnings", "account", "selection", "histograms", "moments",
        "calibration", "thresholds", "held_out_at_thresholds",
    }
)  # fmt: skip
PLAN = frozenset({"epsilon", "delta", "groups", "names"})
CHECKPOINT = frozenset({"round", "theta", "average", "optimizer", "ledger"})
OPTIMIZER = frozenset({"momentum_buffer", "step", "exp_avg", "exp_avg_sq"})
RELEASE = frozenset({"released", "directions", "projections", "noised", "sigma", "round and epsilon"})
"""All that a client's file in `releases` may hold: noised arrays, public or its own directions, its epsilon."""
_SECTIONS = ("held_out", "epsilon_by_client")


def check(folder: Folder) -> Check:
    """Check the keys of every published file against what may be there, and what the numbers themselves show."""
    faults = Faults()
    unsafe = folder.written.unsafe_metrics
    _require_keys("metrics.jsonl", folder.metrics, LINE | (UNSAFE if unsafe else frozenset()), faults)
    _require_keys("log.jsonl", folder.log, LOG, faults)
    _require_keys("summary.json", [folder.summary], SUMMARY, faults)
    _require_keys("plan.json", [folder.plan], PLAN, faults)
    for line in folder.metrics:
        for section in _SECTIONS:
            inner = line.get(section) or {}
            flat = all(isinstance(value, int | float | str | None) for value in inner.values())
            faults.require(flat, f"round {line.get('round')} of metrics.jsonl: {section} holds more than numbers")
    if unsafe and folder.summary:
        reader = real(folder.summary["epsilon_of_reader"])
        fault = f"un-noised metrics are shown, and the reader's ε is said to be {upward(reader, 6)}"
        faults.require(reader == math.inf, fault)
    _traffic(folder, faults)
    keys = _checkpoint(folder, faults)
    releases = folder.directory / RunFile.RELEASES
    for path in sorted([*releases.glob("*.safetensors"), *releases.glob("scores/*.safetensors")]):
        with safe_open(path, framework="pt") as file:
            more = sorted(set(file.keys()) - RELEASE)
        faults.require(not more, f"releases/{path.name} holds {more}")
    lines = f"{len(folder.metrics)} lines of metrics and {len(folder.log)} of the log"
    well = f"{lines} hold only what may be published"
    well += ", un-noised losses too: ε of the reader is ∞" if unsafe else ""
    dated = sum("time" in line and line.get("event") == "round released" for line in folder.log)
    if dated:
        well += "; log.jsonl dates its rounds, so it is for the operator and not for publication"
    return faults.check(NAME, well, log_dates_rounds=dated > 0, checkpoint_keys=keys)


def _require_keys(file: str, lines: Iterable[Mapping[str, Any]], allowed: frozenset[str], faults: Faults) -> None:
    seen: dict[str, int] = {}
    for line in lines:
        for key in line.keys() - allowed:
            seen[key] = seen.get(key, 0) + 1
    for key, count in sorted(seen.items()):
        faults.require(False, f"{file} holds {key!r}" + (f" in {count} lines" if count > 1 else ""))


def _traffic(folder: Folder, faults: Faults) -> None:
    """Bytes are totals of the run; rounds alike have messages of one size, whatever was drawn from any client."""
    for name in ("bytes_up", "bytes_down"):
        totals = [int(line[name]) for line in folder.metrics if name in line]
        steps = [after - before for before, after in zip(totals, totals[1:], strict=False)]
        faults.require(all(step >= 0 for step in steps), f"{name} of metrics.jsonl falls: it is no total of the run")
        several = folder.written.releases > 1
        alike = len({line.get("clients") for line in folder.metrics}) == 1 and len(totals) == len(folder.metrics)
        events = [line.get("event") for line in folder.log]
        quiet = events.count("run begins") == 1 and set(events) <= _QUIET
        once = all(line.get("attempt") == 0 for line in folder.metrics)
        if several and alike and quiet and once and len(steps) > 1:
            faults.require(len(set(steps)) == 1, f"{name} of rounds alike differ: their size tells counts")


def _checkpoint(folder: Folder, faults: Faults) -> list[str]:
    """The checkpoint's keys and shapes; ratios of signal to noise follow from noised gradients and sigma only."""
    if (stored := folder.checkpoint) is None:
        return []
    theta, optimizer, head = stored["theta"], stored["optimizer"], stored["ledger"] or {}
    for line in folder.metrics:
        norm, snr = real(line.get("gradient_norm")), line.get("snr")
        expected = signal_to_noise(norm**2, line.get("sigma"), theta.numel())
        same = snr is None if expected is None else snr is not None and math.isclose(snr, expected, abs_tol=1e-6)
        fault = f"round {line.get('round')} of metrics.jsonl: its snr is not that of the noised gradient"
        faults.require(same, fault)
    _require_keys("the checkpoint", [stored], CHECKPOINT, faults)
    _require_keys("the checkpoint's optimizer", [optimizer], frozenset({"state", "param_groups"}), faults)
    _require_keys("the checkpoint's ledger", [head], frozenset({"sequence", "digest"}), faults)
    states = list(optimizer["state"].values())
    _require_keys("the checkpoint's optimizer", states, OPTIMIZER, faults)
    shapes = [value.shape for state in states for value in state.values() if value is not None and value.numel() > 1]
    same = all(shape == theta.shape for shape in (*shapes, stored["average"].shape))
    faults.require(same, "the checkpoint's average or the optimizer's state is not of the model's shape")
    return sorted(stored)
