"""A run's entry for the OpenDP Deployments Registry: what its files say, and questions where only a person knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsw import files
from fedsw.report import facts
from fedsw.report.page.page import render
from fedsw.runs.files import REGISTRY
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import harmless, number, to_float


def write_entry(directory: Path, path: Path | None = None) -> Path:
    """Write a run's entry as YAML, by default into its folder; returns where."""
    place = directory / REGISTRY if path is None else path
    files.replace(place, entry(read_run(directory)).encode(), durable=False)
    return place


def entry(record: RunRecord) -> str:
    """The entry of a run that has ended and has a guarantee, with every text quoted as JSON is, which YAML reads."""
    summary, experiment = record.summary, record.experiment
    epsilon = to_float(summary.get("epsilon_of_reader"))
    _require_promise(record, epsilon)
    guarantee, model = summary["guarantee"], experiment.privacy.model
    columns = experiment.data.columns
    declared = "" if columns is None else "; columns " + ", ".join(row[0] for row in facts.declared(columns).rows)
    delta = float(summary["delta"])
    return render(
        "registry.yaml",
        slug=f"{experiment.name}_{str(summary['date'])[:10]}",
        name=harmless(experiment.title or experiment.name),
        product="Synthetic data" if experiment.privacy.sketch else "Machine learning model",
        description=facts.description(record),
        date=str(summary["date"])[:10],
        variant="Approximate DP" if delta else "Pure DP",
        domain=f"Records of {summary.get('clients')} clients, {experiment.data.label} data{declared}",
        public=f"{'; '.join(guarantee['public'])}; and the settings. {facts.measured_on(summary)}",
        unit=guarantee["unit"],
        statement=guarantee["statement"],
        epsilon=_yaml(float(summary["epsilon"])),
        delta=_yaml(delta),
        meaning=f"For {guarantee['relation']} neighbours, by the accountant {guarantee['accountant']}.",
        model="Federated" if model.local else "Central",  # "Local" is noise at each person, not at each client
        model_details=f"Trust model {model.name!r} of a federation. What leaves a client: {model.leaves}.",
        actors=f"Protected: {model.protects}. Trusted: {model.trusted_with}. Noise is added by: {model.adds_noise}.",
        composition=_composition(summary),
        preprocessing=_preprocessing(bool(experiment.privacy.moments)),
        mechanisms=_mechanisms(summary),
        notes=" ".join(["Warnings of the run:", *(summary.get("warnings") or ["none."])]),
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


def _composition(summary: Mapping[str, Any]) -> str:
    guarantee = summary["guarantee"]
    account = "was kept" if summary.get("account") else "was not kept: other releases are not counted"
    count = summary.get("released_rounds")
    return (
        f"{count} {'release was' if count == 1 else 'releases were'} charged in a ledger before leaving, composed by "
        f"the accountant {guarantee['accountant']!r}; sampling: {guarantee['sampling']}. An account of all runs on the "
        f"data set {account}."
    )


def _preprocessing(moments: bool) -> str:
    bought = " Inputs are whitened by released moments, which epsilon includes." if moments else ""
    return f"Columns are encoded by public bounds.{bought} QUESTION: were settings tuned on the same records?"


def _mechanisms(summary: Mapping[str, Any]) -> str:
    guarantee, heads = summary["guarantee"], summary.get("ledger") or {}
    noise = "Laplace" if guarantee["accountant"] == "laplace" else "Gaussian"
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    head = f" Ledger: release {heads['sequence']}, SHA-256 {heads['digest']}." if "digest" in heads else ""
    return (
        f"{noise} noise of {number(guarantee['noise_multiplier'], 4)} times the sensitivity ({guarantee['bound']}), of "
        f"a cryptographic source, on a grid.{head} Versions: {versions}."
    )


def _yaml(value: float) -> str:
    """A number that every reader of YAML takes for one: 1.0e-06."""
    mantissa, mark, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{mark}{exponent}"
