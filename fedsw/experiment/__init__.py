"""What an experiment is: every setting of a run, validated before anything is spent."""

from fedsw.experiment.load import (
    FULL_EVALUATION,
    Experiment,
    load_experiment,
    parse_experiment,
    planned_releases,
    planned_stages,
)
from fedsw.experiment.sections import (
    Clip,
    Data,
    Evaluation,
    Federation,
    Local,
    Model,
    Objective,
    Partition,
    Privacy,
    Sketch,
    SketchPart,
    Slicing,
    Training,
    read_delta,
    resolve_delta,
)
from fedsw.settings import ExperimentError

__all__ = [
    "FULL_EVALUATION",
    "Clip",
    "Data",
    "Evaluation",
    "Experiment",
    "ExperimentError",
    "Federation",
    "Local",
    "Model",
    "Objective",
    "Partition",
    "Privacy",
    "Sketch",
    "SketchPart",
    "Slicing",
    "Training",
    "load_experiment",
    "parse_experiment",
    "planned_releases",
    "planned_stages",
    "read_delta",
    "resolve_delta",
]
