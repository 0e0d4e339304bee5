"""Experiments: every setting of a run, validated before anything is spent.

`load` reads an experiment; `sections` and `sketch_section` declare its settings, and `fedsw.data.settings` those of
records. `compatibility` is what goes together, and drops what nothing reads, `preset_rules` settings by public numbers.
By name: `trust`, `task_kinds`, `penalty_names`; `choices` are all settings, and code that they name.
"""

from fedsw._tools.settings import ExperimentError
from fedsw.experiment.load import FULL_EVALUATION, Experiment, load_experiment, parse_experiment
from fedsw.experiment.sections import DEFAULT_DELTA, read_delta, resolve_delta

__all__ = [
    "DEFAULT_DELTA", "Experiment", "ExperimentError", "FULL_EVALUATION", "load_experiment", "parse_experiment",
    "read_delta", "resolve_delta",
    "choices", "compatibility", "load", "penalty_names", "preset_rules",
    "sections", "sketch_section", "synonyms", "task_kinds", "trust",
]  # fmt: skip
