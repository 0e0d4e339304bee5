"""What an experiment is: every setting of a run, validated before anything is spent."""

from fedsw.experiment.load import (
    Clip,
    Data,
    Experiment,
    ExperimentError,
    Federation,
    Local,
    Model,
    Objective,
    Partition,
    Privacy,
    Slicing,
    Training,
    load_experiment,
    parse_experiment,
    planned_releases,
    resolve_delta,
)

__all__ = [
    "Clip",
    "Data",
    "Experiment",
    "ExperimentError",
    "Federation",
    "Local",
    "Model",
    "Objective",
    "Partition",
    "Privacy",
    "Slicing",
    "Training",
    "load_experiment",
    "parse_experiment",
    "planned_releases",
    "resolve_delta",
]
