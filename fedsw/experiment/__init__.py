"""Experiments: every setting of a run, validated before anything is spent.

`load` reads an experiment, whose settings `sections` declare; `compatibility` is what goes together, `sources` where
records come from, `preset_rules` settings by public numbers. By name: `trust`, `task_kinds`, `penalty_names`,
`encoders`, `choices`; `own_objects` and `own_records` are a user's own, from a module or from Python.
"""

from fedsw._tools.settings import ExperimentError
from fedsw.experiment.load import FULL_EVALUATION, Experiment, load_experiment, parse_experiment
from fedsw.experiment.sections import DEFAULT_DELTA, read_delta, resolve_delta

__all__ = [
    "DEFAULT_DELTA", "Experiment", "ExperimentError", "FULL_EVALUATION", "load_experiment", "parse_experiment",
    "read_delta", "resolve_delta",
    "choices", "compatibility", "encoders", "load", "own_objects", "own_records", "penalty_names", "preset_rules",
    "sections", "sources", "synonyms", "task_kinds", "trust",
]  # fmt: skip
