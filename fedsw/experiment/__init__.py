"""Experiments: every setting of a run, validated before anything is spent."""

from fedsw._tools.settings import ExperimentError
from fedsw.experiment.load import (
    FULL_EVALUATION,
    Experiment,
    accountant_of,
    load_experiment,
    mechanism_of,
    parse_experiment,
    planned_releases,
    planned_stages,
)
from fedsw.experiment.sections import DEFAULT_DELTA, read_delta, resolve_delta

__all__ = [
    "DEFAULT_DELTA", "Experiment", "ExperimentError", "FULL_EVALUATION", "accountant_of", "load_experiment",
    "mechanism_of", "parse_experiment", "planned_releases", "planned_stages", "read_delta", "resolve_delta",
]  # fmt: skip
