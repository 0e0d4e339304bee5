"""Learning with optimal-transport losses on private data that stays where it is.

One machine: `plan`, `Ledger`, `Objective`, `release`, or all of it in `PrivateTrainer`. A federation: `run` and
`resume`. What came out: `load`. Names are imported when they are first used. `__version__` is what pyproject.toml said
when the package was installed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsw.accounting import BudgetExhausted, Ledger
    from fedsw.data import as_records
    from fedsw.engines.driver import resume, run
    from fedsw.experiment import Experiment, load_experiment
    from fedsw.objectives import Clip
    from fedsw.objectives.penalties import EqualizedOdds, Parity, Penalty, Stated, ToSample, require_bound
    from fedsw.privacy.release import Bounded, Released, release
    from fedsw.privacy.sensitivity import Sensitivity
    from fedsw.single.objective import Objective
    from fedsw.single.plan import Plan, plan
    from fedsw.single.sketching import SketchPlan, plan_sketch, release_sketch
    from fedsw.single.trainer import PrivateTrainer, set_gradient
    from fedsw.sketches.fit import fit_generator, generate
    from fedsw.tasks.task import Task
    from fedsw.use.trained import TrainedModel, load

    __version__: str

_HOMES = {
    "Bounded": "privacy.release",
    "BudgetExhausted": "accounting",
    "Clip": "objectives",
    "EqualizedOdds": "objectives.penalties",
    "Experiment": "experiment",
    "Ledger": "accounting",
    "Objective": "single.objective",
    "Parity": "objectives.penalties",
    "Penalty": "objectives.penalties",
    "Plan": "single.plan",
    "PrivateTrainer": "single.trainer",
    "Released": "privacy.release",
    "Sensitivity": "privacy.sensitivity",
    "Stated": "objectives.penalties",
    "Task": "tasks.task",
    "ToSample": "objectives.penalties",
    "TrainedModel": "use.trained",
    "SketchPlan": "single.sketching",
    "as_records": "data",
    "fit_generator": "sketches.fit",
    "generate": "sketches.fit",
    "load": "use.trained",
    "load_experiment": "experiment",
    "plan": "single.plan",
    "plan_sketch": "single.sketching",
    "release": "privacy.release",
    "release_sketch": "single.sketching",
    "require_bound": "objectives.penalties",
    "resume": "engines.driver",
    "run": "engines.driver",
    "set_gradient": "single.trainer",
}

__all__ = [
    "Bounded",
    "BudgetExhausted",
    "Clip",
    "EqualizedOdds",
    "Experiment",
    "Ledger",
    "Objective",
    "Parity",
    "Penalty",
    "Plan",
    "PrivateTrainer",
    "Released",
    "Sensitivity",
    "SketchPlan",
    "Stated",
    "Task",
    "ToSample",
    "TrainedModel",
    "as_records",
    "fit_generator",
    "generate",
    "load",
    "load_experiment",
    "plan",
    "plan_sketch",
    "release",
    "release_sketch",
    "require_bound",
    "resume",
    "run",
    "set_gradient",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from fedsw.text import installed_version

        return installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"fedsw.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
