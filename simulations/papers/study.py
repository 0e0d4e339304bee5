"""A figure with its results, as drawings and tables read them."""

from __future__ import annotations

import dataclasses
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedsw._tools.text import to_float
from simulations.papers.cells import Computation, beside_of, cells_of, computations_of
from simulations.papers.figure import Figure, Row, Value
from simulations.papers.store import read
from simulations.papers.work import HELD_OUT


class NotStored(KeyError):
    """An array that a picture shows is not stored of a run: of several seeds the drawn one has its arrays alone."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is not stored of the run that is drawn; without --seeds it is that of the median seed"


class StoredArrays(dict[str, NDArray[Any]]):
    """Arrays of a stored run by name; one that was left out of the store is named as such."""

    def __missing__(self, name: str) -> NDArray[Any]:
        raise NotStored(name)


@dataclass(frozen=True)
class Result:
    """What one run, or the figure's computation, came to.

    Attributes:
        series: the name of its series; "computed" for a computation.
        point: values of the settings that the figure varies, by the last word of their keys.
        values: the run's held-out metrics and what was measured beside them.
        arrays: small arrays that the measures left.
        about: guarantee, rounds, seconds, versions, hardware, date.
    """

    series: str
    point: Mapping[str, Value]
    seed: int
    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    about: Mapping[str, Any]

    @property
    def sigma(self) -> float:
        """Standard deviation of a round's noise; 0 without privacy."""
        stated = self.about.get("guarantee") or {}
        bounds = (stated.get("sensitivities") or {"": 0.0}).values()
        return float(to_float(stated.get("noise_multiplier")) or 0.0) * max(float(bound) for bound in bounds)


@dataclass(frozen=True)
class Study:
    """A figure and the results that there are of it; `absent` counts those that there are not.

    `derived` are numbers of several results together (`Figure.derive`), or beside them; no drawing goes over them.
    """

    figure: Figure
    results: tuple[Result, ...]
    absent: int
    derived: tuple[Result, ...] = ()

    @property
    def series(self) -> list[str]:
        """Names of the series that have results, in the order of the figure's file."""
        return list(dict.fromkeys(result.series for result in self.results))

    def of(self, series: str | None = None, **point: Value) -> list[Result]:
        """The results of a series at a point, or at all points that agree with it, seed by seed."""
        return [
            result
            for result in self.results
            if (series is None or result.series == series)
            and all(result.point.get(key) == value for key, value in point.items())
        ]

    def along(self, key: str, series: str | None = None) -> list[Value]:
        """The values that a setting takes among the results, in the order of the figure's file."""
        return list(dict.fromkeys(result.point[key] for result in self.of(series) if key in result.point))

    def numbers(self, metric: str, series: str, at: Mapping[str, Value]) -> list[float]:
        """A metric of a series at a point, one number a seed; empty where there is none."""
        for study in (self, dataclasses.replace(self, results=self.derived)):
            found = [
                result.sigma if metric == "sigma" else to_float(result.values.get(metric))
                for result in study.of(series, **dict(at))
            ]
            if numbers := [number for number in found if number is not None]:
                return numbers
        return []


@dataclass(frozen=True)
class Measurement:
    """A number of a row: mean and standard deviation over seeds."""

    mean: float
    deviation: float
    seeds: int

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Measurement | None:
        """None where there is no number."""
        if not numbers:
            return None
        return cls(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0, len(numbers))

    def __str__(self) -> str:
        """`0.844 ± 0.003 (3)`: mean, standard deviation, seeds; one number stands alone."""
        return f"{self.mean:.3g}" if self.seeds == 1 else f"{self.mean:.3g} ± {self.deviation:.1g} ({self.seeds})"


def read_study(results: Path, figure: Figure, *, seeds: int | None = None) -> Study:
    """A figure with what is stored of it."""
    found, absent = [], 0
    if figure.compute is not None:
        return _computed(results, figure, computations_of(figure))
    for cell in cells_of(figure, seeds=seeds):
        stored = read(results, cell.key)
        names = (HELD_OUT, *cell.measures)
        if stored is None or any(name not in stored.measures for name in names):
            absent += 1
            continue
        whole = stored.together(names)
        arrays = StoredArrays(whole.arrays)
        found.append(Result(cell.series, cell.point, cell.seed, whole.values, arrays, stored.about))
    study = Study(figure, tuple(found), absent)
    beside, lacking = _beside(results, study)
    return dataclasses.replace(study, derived=(*_derived(study), *beside), absent=absent + lacking)


def _computed(results: Path, figure: Figure, computations: Sequence[Computation]) -> Study:
    """What is stored of computations, cases together as one result."""
    known = [read(results, computation.key) for computation in computations]
    stored = [each for each in known if each is not None and each.fault is None]
    if not stored:
        return Study(figure, (), len(known))
    values = {name: value for each in stored for name, value in each.measures[HELD_OUT].values.items()}
    arrays = {name: value for each in stored for name, value in each.measures[HELD_OUT].arrays.items()}
    about = {**stored[-1].about, "seconds": sum(each.about["seconds"] for each in stored)}
    return Study(figure, (Result("computed", {}, 0, values, arrays, about),), len(known) - len(stored))


def _beside(results: Path, study: Study) -> tuple[list[Result], int]:
    """What is stored beside the runs, at every point of theirs that has its values; and how much is not stored."""
    points = [dict(point) for point in dict.fromkeys(tuple(result.point.items()) for result in study.results)]
    found, lacking = list[Result](), 0
    for beside in study.figure.beside:
        for own, computation in beside_of(study.figure, beside):
            stored = read(results, computation.key)
            if stored is None or stored.fault is not None:
                lacking += 1
                continue
            at = [each for each in points if all(each.get(key, value) == value for key, value in own.items())]
            found += [Result(beside.name, each, 0, stored.measures[HELD_OUT].values, {}, stored.about) for each in at]
    return found, lacking


def _derived(study: Study) -> tuple[Result, ...]:
    if study.figure.derive is None or not study.results:
        return ()
    file, _, name = study.figure.derive.partition(".")
    module = importlib.import_module(f"simulations.papers.derived.{file}")
    function: Callable[[Study], Sequence[Result]] = getattr(module, name)
    return tuple(function(study))


def measured(study: Study, row: Row, series: str) -> Measurement | None:
    """What a series came to in a row of the figure's table."""
    if study.figure.compute is not None:
        return Measurement.of(study.numbers(row.metric, "computed", {})) if series == "computed" else None
    return Measurement.of(study.numbers(row.metric, series, row.at))
