"""From clients' own tables to a synthetic one: what learns it, the file it is written to, its worth for prediction."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from fedsw._tools import files
from fedsw._tools.later import imported_later
from fedsw._tools.text import measured, number
from fedsw.data import Records
from fedsw.data.columns.declaration import Columns
from fedsw.desk.own_data.description import guarded_once, released_columns, trust_once
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.learning.sketches.from_settings import table_of
from fedsw.learning.tasks.measures import made_table
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import intervals
from fedsw.runs.evaluation.intervals import LEVEL, SURE, Gain, Interval
from fedsw.runs.evaluation.quality import area_under_curve, units_of
from fedsw.runs.run_files import RunFile, read_json

if TYPE_CHECKING:  # loaded when a table is held against others: drawing one takes no scikit-learn
    from sklearn import ensemble as ensemble
    from sklearn import linear_model as linear_model

globals().update(imported_later(__spec__))

STEPS = 800
"""Optimizer steps of the generator; post-processing, so they cost time and nothing else. Chosen on Adult."""

_KEPT = ("name", "title", "data", "partition", "federation", "seed")
_OF_SYNTHESIS = ("model", "sketch", "training", "evaluation")


def as_synthesis(experiment: Experiment, *, trust: str | None, fair: bool, epsilon: float | None) -> Experiment:
    """The experiment that learns a synthetic table from the clients' files of another one.

    It may be of any task on clients' own tables, with a class and a group if labels are made independent of the group
    (``fair``). Declaration, files, account, clients, partition, seed and delta stay; epsilon is its own unless it is
    given, and so is the trust in all parties (`trust_once`). Name, model, sketch and training are those of tables,
    unless the experiment is of synthesis from a sketch of kind "table" itself.

    ExperimentError if no column is declared, or no table leaves once under the trust model.
    """
    columns = released_columns(experiment, "a table is written in them")
    if fair and (columns.target is None or columns.sensitive is None):
        missing = "target" if columns.target is None else "sensitive"
        raise ExperimentError(f"--fair makes labels independent of the group: declare data.columns.{missing}")
    raw = experiment.model_dump()
    settings: dict[str, Any] = {name: raw[name] for name in _KEPT}
    if table_of(experiment) is not None:
        settings |= {name: raw[name] for name in _OF_SYNTHESIS}
    else:
        settings["name"] = (
            f"{experiment.name}-synthetic"  # its runs are no runs of the model that the experiment trains
        )
        settings["model"], settings["training"] = {"kind": "table-generator", "latent": 16}, {"rounds": STEPS}
        sketch = {"kind": "table", "labels": not columns.targets, "counts": 0.1, "batch": 500, "learning_rate": 0.005}
        settings["sketch"] = sketch
    settings["data"] |= {"held_out_to": "operator"}  # there is no trained model to measure at the clients
    settings["objective"] = {"task": "synthesis", "penalty": "distribution-matching", "alpha": 1.0}
    settings["evaluate_every"] = settings["training"]["rounds"]
    if fair:
        settings["sketch"] |= {"groups": True, "independent": True}
    if trust is None and experiment.privacy.model.fixed_epsilon is not None:
        trust = "sketch"  # under `none` everybody is trusted already
    return parse_experiment(settings | guarded_once(experiment, trust_once(experiment, trust), epsilon))


@dataclass(frozen=True)
class LearntTable:
    """A finished run that learnt a table: what ran, its public declaration, the generator, and the run's summary."""

    experiment: Experiment
    problem: Problem
    network: nn.Module
    summary: dict[str, Any]

    @property
    def columns(self) -> Columns:
        """The declaration that rows are written in."""
        assert self.experiment.data.columns is not None
        return self.experiment.data.columns


def learnt(directory: Path, allow_modules: Collection[str] = ()) -> LearntTable:
    """Return what a finished run learnt; drawing rows from it is post-processing and costs nothing.

    CodeRefused if the settings name another module than those allowed; ExperimentError if the run is of something else,
    or has not ended, naming the command that goes on.
    """
    experiment, _ = RunDirectory(directory).read_config(allow_modules)
    coded, columns = table_of(experiment), experiment.data.columns
    if coded is None or columns is None:
        raise ExperimentError(
            f"{directory} is a run of {experiment.objective.task!r}, which learnt no table: give one of "
            "`fedsw synthesize`"
        )
    if columns.target and not experiment.sketch.labels and columns.target.name not in {column.name for column in coded}:
        raise ExperimentError(
            f"{directory} measured no class (sketch.labels is false), so that no table has the column "
            f"{columns.target.name!r}: set sketch.labels, or leave the class out of the columns"
        )
    summary = read_json(directory / RunFile.SUMMARY) or {}
    if summary.get("status") != "completed" or not (directory / RunFile.MODEL).is_file():
        raise ExperimentError(f"{directory} has not ended, and its generator is not there: `fedsw resume {directory}`")
    problem = Problem.from_experiment(experiment)
    network = problem.build_model()
    network.load_state_dict(load_file(directory / RunFile.MODEL))
    return LearntTable(experiment, problem, network.eval(), summary)


def table_cells(learnt_table: LearntTable, rows: int, *, seed: int = 0) -> dict[str, list[str]]:
    """The cells of a synthetic table by column; another seed gives other rows, at no cost."""
    coded = table_of(learnt_table.experiment)
    assert coded is not None
    labels = learnt_table.experiment.sketch.labels
    return made_table(learnt_table.network, learnt_table.columns, coded, rows, labels=labels, seed=seed)


def write_table(path: Path, cells: dict[str, list[str]], columns: Columns) -> None:
    """A table as CSV, whole or not at all, with the declared separator; a client's file reads the same way."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=columns.separator, lineterminator="\n")
    writer.writerow(cells)
    writer.writerows(zip(*cells.values(), strict=True))
    files.replace(path, text.getvalue().encode("utf-8"))


SYNTHETIC, REAL = "synthetic", "real"
_LITTLE = 0.5
"""Share of what real records teach below which a table is of little use."""

Array = NDArray[np.float64]
_Around = Callable[[Array, float], Gain]
"""Gain of predictions (n,) or (n, c) over a constant, with its interval at a level."""


@dataclass(frozen=True)
class Usefulness:
    """Scores of models that learnt from synthetic rows, on held-out records that they have not seen.

    The ``model`` is that of two kinds which does better when it is trained on real records; the ``measure`` AUC for two
    classes, accuracy for more, R2 for numbers; ``scores`` are by what it was trained on, ``around`` where each lies
    (95 %), ``gains`` how much better than the constant each is (98 %), ``by_model`` those of both kinds.
    """

    model: str
    measure: str
    records: int
    constant: float
    scores: Mapping[str, float]
    around: Mapping[str, Interval]
    gains: Mapping[str, Gain]
    by_model: Mapping[str, Mapping[str, float]]

    @property
    def useless(self) -> bool:
        """Say whether the table loses what real records teach: most of it, or all that can be seen."""
        return self.gains[REAL].above and (not self.gains[SYNTHETIC].above or self.kept < _LITTLE)

    @property
    def lost(self) -> float:
        """Score learnt from real records less that learnt from the table."""
        return self.scores[REAL] - self.scores[SYNTHETIC]

    @property
    def kept(self) -> float:
        """The part of what a model learns from real records, beyond a constant, that it learns from the table."""
        return self.gains[SYNTHETIC].value / self.gains[REAL].value

    @property
    def verdict(self) -> str:
        """Verdict in two sentences, numbers with their intervals."""
        made, real = (measured(self.scores[origin], self.around[origin]) for origin in (SYNTHETIC, REAL))
        shown = (
            f"{self.measure} on {self.records} held-out records of {self.model}: trained on the synthetic rows {made}, "
            f"on real ones {real}, so that {self.lost:.3f} is lost; a constant {number(self.constant)}."
        )
        if not self.gains[REAL].above:
            return (
                "Whether the table is of use for prediction cannot be told: these held-out records are too few, or "
                f"teach nothing. {shown}"
            )
        if not self.gains[SYNTHETIC].above:
            return (
                "The table is of no use for prediction: a model that learns from it cannot be told from a constant. "
                f"{shown}"
            )
        if self.useless:
            return (
                f"The table is of little use for prediction: {1 - self.kept:.0%} of what can be learnt is lost. {shown}"
            )
        return f"For prediction the table keeps {min(self.kept, 1):.0%} of what can be learnt. {shown}"


def usefulness(synthetic: Records, real: Records, tested: Records, classes: int) -> Usefulness | None:
    """Train two kinds of models on synthetic rows and on real records, and test them on others.

    ``tested`` are records of which neither model has seen one; of numbers (no classes) the first is predicted. None
    where there is nothing to predict.
    """
    origins = {SYNTHETIC: synthetic, REAL: real}
    if not tested.is_classification:
        return _of_numbers(origins, tested)
    if classes < 2 or len(np.unique(tested.target.numpy())) < 2 or len(np.unique(real.target.numpy())) < 2:
        return None
    return _of_classes(origins, tested, classes)


def _of_numbers(origins: Mapping[str, Records], tested: Records) -> Usefulness:
    wanted, units = _first(tested), units_of(tested)
    always = np.square(wanted - wanted.mean())
    scale = float(always.mean()) or 1.0

    def around(predicted: Array, level: float) -> Gain:
        return intervals.paired_mean((always - np.square(wanted - predicted)) / scale, units, level)

    def predicted(make: Callable[[], Any], records: Records) -> Array:
        values = make().fit(records.features.numpy(), _first(records)).predict(tested.features.numpy())
        return np.asarray(values, dtype=np.float64)

    kinds = {
        "linear": linear_model.Ridge,
        "gradient boosting": lambda: ensemble.HistGradientBoostingRegressor(random_state=0),
    }
    return _compared(kinds, predicted, origins, "R2", 0.0, around, len(tested))


def _first(records: Records) -> Array:
    target = records.target.double().numpy()
    return np.asarray(target.reshape(len(target), -1)[:, 0])


def _of_classes(origins: Mapping[str, Records], tested: Records, classes: int) -> Usefulness:
    wanted, units = tested.target.numpy(), units_of(tested)
    most = int(np.bincount(wanted, minlength=classes).argmax())

    def predicted(make: Callable[[], Any], records: Records) -> Array:
        seen = records.target.numpy()
        chances = np.zeros((len(tested), classes))
        if len(np.unique(seen)) < 2:
            chances[:, seen[0]] = 1.0  # of one class alone nothing else is learnt
            return chances
        model = make().fit(records.features.numpy(), seen)
        chances[:, model.classes_] = model.predict_proba(tested.features.numpy())
        return chances

    kinds = {
        "logistic regression": lambda: linear_model.LogisticRegression(max_iter=500),
        "gradient boosting": lambda: ensemble.HistGradientBoostingClassifier(random_state=0),
    }
    if classes == 2:
        return _compared(kinds, predicted, origins, "AUC", 0.5, _around_area(wanted, units), len(tested))

    def around(chances: Array, level: float) -> Gain:
        right = (chances.argmax(axis=1) == wanted).astype(np.float64)
        return intervals.gain(right - (wanted == most), units, level)

    return _compared(kinds, predicted, origins, "accuracy", float((wanted == most).mean()), around, len(tested))


def _around_area(wanted: NDArray[np.int64], units: NDArray[np.int64]) -> _Around:
    ones, others = (len(np.unique(units[wanted == label])) for label in (1, 0))

    def around(chances: Array, level: float) -> Gain:
        area = area_under_curve(wanted, chances[:, 1])
        low, high = intervals.curve_area(area, ones, others, level)
        return Gain(area - 0.5, low - 0.5, high - 0.5)

    return around


def _compared(
    kinds: Mapping[str, Callable[[], Any]],
    predicted: Callable[[Callable[[], Any], Records], Array],
    origins: Mapping[str, Records],
    measure: str,
    constant: float,
    around: _Around,
    records: int,
) -> Usefulness:
    """The kind is chosen by what it learns from real records: the table has no say in it."""
    predictions = {
        kind: {name: predicted(make, value) for name, value in origins.items()} for kind, make in kinds.items()
    }
    sure = {kind: {name: around(value, SURE) for name, value in by.items()} for kind, by in predictions.items()}
    best = max(sure, key=lambda kind: sure[kind][REAL].value)
    likely = {name: around(value, LEVEL) for name, value in predictions[best].items()}
    return Usefulness(
        best,
        measure,
        records,
        constant,
        {name: constant + value.value for name, value in likely.items()},
        {name: Interval(constant + value.low, constant + value.high) for name, value in likely.items()},
        sure[best],
        {
            f"{kind}, {measure}": {name: constant + value.value for name, value in by.items()}
            for kind, by in sure.items()
        },
    )
