"""A small run on a sketch, and what its clients' records really sum to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsw.data import Records
from fedsw.data.sources import load_dataset
from fedsw.experiment import Experiment, parse_experiment
from fedsw.learning.tasks.measures import sketch_of_records
from fedsw.learning.tasks.problem import Problem

SKETCH: dict[str, Any] = {
    "name": "sketch",
    "data": {"source": "gaussians", "records": 600, "test_records": 200},
    "model": {"kind": "vector-generator", "latent": 2, "hidden": [8]},
    "objective": {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0},
    "sketch": {"bandwidths": [0.3, 1.0], "pairs": 12, "batch": 40, "generated": 200},
    "training": {"rounds": 6},
    "privacy": {"trust": "sketch", "epsilon": 5.0, "delta": 1e-5},
    "federation": {"clients": 3, "timeout": 20.0},
    "evaluate_every": 3,
}
LOCAL = "privacy.trust=sketch-local"
NOISELESS = "privacy.epsilon=inf"


def sketched(*overrides: str) -> Experiment:
    return parse_experiment(SKETCH, overrides)


def all_records(experiment: Experiment) -> Records:
    return load_dataset(experiment.record_source).train


def exact(experiment: Experiment, records: Records | None = None) -> Tensor:
    """The sum of all records' vectors, computed in one piece."""
    problem = Problem.from_experiment(experiment)
    return sketch_of_records(problem, all_records(experiment) if records is None else records)


def rows(count: int) -> Tensor:
    return torch.arange(count)
