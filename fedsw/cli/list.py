"""`fedsw list`: the shipped experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedsw.cli.options import Json, echo
from fedsw.report.console import Screen
from fedsw.text import json_text

if TYPE_CHECKING:
    from fedsw.experiment import Experiment


def list_command(as_json: Json = False) -> None:
    """List the shipped experiments."""
    from fedsw.experiment.catalogue import shipped_experiments
    from fedsw.report.screens import experiments_table

    experiments = shipped_experiments()
    if as_json:
        echo(json_text([_listed(experiment) for experiment in experiments]))
    else:
        Screen().print(experiments_table(experiments))


def _listed(experiment: Experiment) -> dict[str, Any]:
    from fedsw.report.screens import target_epsilon

    return {
        "name": experiment.name,
        "title": experiment.title,
        "task": experiment.objective.task,
        "penalty": experiment.objective.penalty,
        "alpha": experiment.objective.alpha,
        "epsilon": experiment.privacy.epsilon if experiment.privacy.noisy else float("inf"),
        "target": target_epsilon(experiment),
        "rounds": experiment.training.rounds,
        "clients": experiment.federation.clients,
    }
