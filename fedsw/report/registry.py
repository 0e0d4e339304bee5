"""A run's entry for the OpenDP Deployments Registry: what its files say, and questions where only a person knows."""

from __future__ import annotations

import math
from pathlib import Path

from fedsw import files
from fedsw.report import facts
from fedsw.report.page.page import render
from fedsw.runs.files import REGISTRY
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import to_float


def write_entry(directory: Path, path: Path | None = None) -> Path:
    """Write a run's entry as YAML, by default into its folder; returns where."""
    place = directory / REGISTRY if path is None else path
    files.replace(place, entry(read_run(directory)).encode(), durable=False)
    return place


def entry(record: RunRecord) -> str:
    """The entry of a run that has ended and has a guarantee, with every text quoted as JSON is, which YAML reads."""
    summary, experiment = record.summary, record.experiment
    _require_promise(record, to_float(summary.get("epsilon_of_reader")))
    columns = experiment.data.columns
    return render(
        "registry.yaml",
        experiment=experiment,
        summary=summary,
        guarantee=summary["guarantee"],
        model=experiment.privacy.model,
        description=facts.description(record),
        measured_on=facts.measured_on(summary),
        columns=[] if columns is None else [row[0] for row in facts.declared(columns).rows],
        epsilon=_yaml(float(summary["epsilon"])),
        delta=_yaml(float(summary["delta"])),
    )


def _require_promise(record: RunRecord, epsilon: float | None) -> None:
    summary, directory = record.summary, record.directory
    if not summary:
        raise ValueError(f"{directory} has not ended; `fedsw show {directory} progress` shows how far it is")
    reasons = {
        "it has no guarantee, or shows metrics of private records": epsilon is None or math.isinf(epsilon),
        "its epsilon is nominal: a seed makes its noise reproducible": bool(summary.get("nominal")),
        "its accountant gives no guarantee": summary["guarantee"].get("accountant_is_guarantee") is False,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{directory} is not for a registry of deployments: {reason}")


def _yaml(value: float) -> str:
    """A number that every reader of YAML takes for one: 1.0e-06."""
    mantissa, mark, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{mark}{exponent}"
