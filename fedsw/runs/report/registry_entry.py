"""The entry of a run for the OpenDP Deployments Registry, as YAML, with questions where only a person knows."""

from __future__ import annotations

import math

from fedsw._tools.text import to_float
from fedsw.runs.report import facts
from fedsw.runs.report.render import written
from fedsw.runs.view import RunView


def entry(view: RunView) -> str:
    """The entry of a run that has ended and has a guarantee, with every text quoted as JSON is, which YAML reads."""
    summary, experiment, directory = view.summary, view.experiment, view.directory
    if not summary:
        raise ValueError(f"{directory} has not ended; `fedsw show {directory} progress` shows how far it is")
    reader = to_float(summary.get("epsilon_of_reader"))
    reasons = {
        "it has no guarantee, or shows metrics of private records": reader is None or math.isinf(reader),
        "its epsilon is nominal: a seed makes its noise reproducible": bool(summary.get("nominal")),
        "its bound is stated by the user and not proven": summary["guarantee"].get("word") == "stated",
        "its accountant gives no guarantee": summary["guarantee"].get("accountant_is_guarantee") is False,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{directory} is not for a registry of deployments: {reason}")
    columns = experiment.data.columns
    return written(
        "registry.yaml",
        experiment=experiment,
        summary=summary,
        guarantee=summary["guarantee"],
        model=experiment.privacy.model,
        description=facts.description(view),
        measured_on=facts.measured_on(view),
        columns=[] if columns is None else [row[0] for row in facts.declared(columns).rows],
        epsilon=_yaml(float(summary["epsilon"])),
        delta=_yaml(float(summary["delta"])),
    )


def _yaml(value: float) -> str:
    """A number that every reader of YAML takes for one: 1.0e-06."""
    mantissa, mark, exponent = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{mark}{exponent}"
