"""Learning with optimal-transport losses on private data that stays where it is.

One machine: `plan`, `Ledger`, `Objective`, `release`, or all of it in `PrivateTrainer`. A federation: `run` and
`resume`. What came out: `load`. Names are imported when they are first used. `__version__` is what pyproject.toml said
when the package was installed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsw.audit import audit as audit
    from fedsw.data import as_records as as_records
    from fedsw.desk.budget import budget as budget
    from fedsw.desk.budget import epsilon as epsilon
    from fedsw.desk.use.trained import TrainedModel as TrainedModel
    from fedsw.desk.use.trained import load as load
    from fedsw.desk.verbs import account as account
    from fedsw.desk.verbs import check as check
    from fedsw.desk.verbs import compare as compare
    from fedsw.desk.verbs import describe as describe
    from fedsw.desk.verbs import evaluate as evaluate
    from fedsw.desk.verbs import forecast as forecast
    from fedsw.desk.verbs import predict as predict
    from fedsw.desk.verbs import report as report
    from fedsw.desk.verbs import synthesize as synthesize
    from fedsw.desk.verbs import tune as tune
    from fedsw.experiment import Experiment as Experiment
    from fedsw.experiment import load_experiment as load_experiment
    from fedsw.federation.engines.driver import resume as resume
    from fedsw.federation.engines.driver import run as run
    from fedsw.learning.objectives import Clip as Clip
    from fedsw.learning.objectives.penalties import EqualizedOdds as EqualizedOdds
    from fedsw.learning.objectives.penalties import Parity as Parity
    from fedsw.learning.objectives.penalties import Penalty as Penalty
    from fedsw.learning.objectives.penalties import Stated as Stated
    from fedsw.learning.objectives.penalties import ToSample as ToSample
    from fedsw.learning.objectives.penalties import require_bound as require_bound
    from fedsw.learning.sketches.fit import fit_generator as fit_generator
    from fedsw.learning.sketches.fit import generate as generate
    from fedsw.learning.tasks.task import Task as Task
    from fedsw.privacy.accounting import BudgetExhausted as BudgetExhausted
    from fedsw.privacy.accounting import Ledger as Ledger
    from fedsw.privacy.accounting import noise_multiplier as noise_multiplier
    from fedsw.privacy.bounded_sums import SumPlan as SumPlan
    from fedsw.privacy.bounded_sums import plan_sum as plan_sum
    from fedsw.privacy.release import Bounded as Bounded
    from fedsw.privacy.release import Released as Released
    from fedsw.privacy.release import release as release
    from fedsw.privacy.sensitivity import Sensitivity as Sensitivity
    from fedsw.runs.report.answer import Answer as Answer
    from fedsw.runs.single.objective import Objective as Objective
    from fedsw.runs.single.private import private as private
    from fedsw.runs.single.sketching import SketchPlan as SketchPlan
    from fedsw.runs.single.sketching import plan_sketch as plan_sketch
    from fedsw.runs.single.sketching import release_sketch as release_sketch
    from fedsw.runs.single.trainer import PrivateTrainer as PrivateTrainer
    from fedsw.runs.single.trainer import set_gradient as set_gradient
    from fedsw.runs.single.training_plan import Plan as Plan
    from fedsw.runs.single.training_plan import plan as plan

    __version__: str

_NAMES = {
    "audit": ("audit",),
    "privacy.accounting": ("BudgetExhausted", "Ledger", "noise_multiplier"),
    "data": ("as_records",),
    "federation.engines.driver": ("resume", "run"),
    "experiment": ("Experiment", "load_experiment"),
    "learning.objectives": ("Clip",),
    "learning.objectives.penalties": ("EqualizedOdds", "Parity", "Penalty", "Stated", "ToSample", "require_bound"),
    "privacy.bounded_sums": ("SumPlan", "plan_sum"),
    "privacy.release": ("Bounded", "Released", "release"),
    "privacy.sensitivity": ("Sensitivity",),
    "runs.single.objective": ("Objective",),
    "runs.single.private": ("private",),
    "runs.single.training_plan": ("Plan", "plan"),
    "runs.single.sketching": ("SketchPlan", "plan_sketch", "release_sketch"),
    "runs.single.trainer": ("PrivateTrainer", "set_gradient"),
    "learning.sketches.fit": ("fit_generator", "generate"),
    "learning.tasks.task": ("Task",),
    "desk.budget": ("budget", "epsilon"),
    "desk.verbs": (
        *("account", "check", "compare", "describe", "evaluate", "forecast", "predict", "report", "synthesize", "tune"),
    ),
    "runs.report.answer": ("Answer",),
    "desk.use.trained": ("TrainedModel", "load"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from fedsw._tools.text import installed_version

        return installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"fedsw.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
