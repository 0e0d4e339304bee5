"""The runs of a figure, each with a key made of its settings: figures that need the same run share it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedsw.desk.run_grid import GridRun, at_seed
from fedsw.experiment import FULL_EVALUATION, load_experiment
from fedsw.experiment.load import find_experiment
from simulations.papers.figure import ARGUMENTS, Beside, Figure, Series, Value, short


@dataclass(frozen=True, kw_only=True)
class Cell(GridRun):
    """One run of a figure, and what is measured on it."""

    series: str
    point: Mapping[str, Value]
    seed: int
    measures: tuple[str, ...]


@dataclass(frozen=True)
class Computation:
    """The computation of a figure without runs."""

    figure: str
    function: str
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The same for the same function with the same settings."""
        content = json.dumps([self.function, dict(self.settings)], sort_keys=True)
        return f"{self.figure.replace('/', '-')}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def cells_of(figure: Figure, *, seeds: int | None = None) -> list[Cell]:
    """The cells of a figure, series by series; at most `seeds` of each point.

    Raises:
        ExperimentError: if a setting of the figure's file is wrong.
    """
    found = (cell for series in figure.series for cell in _cells(series, seeds))
    return [
        dataclasses.replace(cell, measures=tuple(dict.fromkeys([*cell.measures, *figure.measures])))
        for cell in found
        if figure.only.items() <= cell.point.items()
    ]


def computations_of(figure: Figure) -> list[Computation]:
    """The computations of a figure, one a case where each is stored by itself; where it has runs, those beside them."""
    if figure.compute is None:
        return [each for beside in figure.beside for _, each in beside_of(figure, beside)]
    cases = [{"cases": [case]} for case in figure.settings["cases"]] if figure.by_case else [{}]
    return [Computation(figure.id, figure.compute, {**figure.settings, **own}) for own in cases]


def beside_of(figure: Figure, beside: Beside) -> list[tuple[Mapping[str, Value], Computation]]:
    """The points of what stands beside a figure's runs, each with what is computed for it."""
    points = [dict(zip(beside.over, values, strict=True)) for values in itertools.product(*beside.over.values())]
    return [(point, Computation(figure.id, beside.compute, {**beside.settings, **point})) for point in points]


_loaded = functools.cache(load_experiment)
"""Experiments as they are read: a page asks for the runs of its figures again for every table, picture and claim."""


def _cells(series: Series, seeds: int | None) -> Iterator[Cell]:
    path = find_experiment(series.experiment)
    base = _loaded(path, tuple(series.set))
    for values in itertools.product(*series.over.values()):
        point = {short(key): value for key, value in zip(series.over, values, strict=True)}
        chosen = dict(zip(series.over, values, strict=True))
        here = [where for where in series.where if where.at.items() <= point.items()]
        more = [one for where in here for one in where.set]
        if any(one.startswith("privacy.noise_multiplier=") for one in (*series.set, *more)):
            chosen.pop("privacy.epsilon", None)  # the noise is set itself, and epsilon is the name of the point
        at = [f"{key}={_toml(value)}" for key, value in chosen.items() if not key.startswith(ARGUMENTS)]
        arguments = {short(key): value for key, value in chosen.items() if key.startswith(ARGUMENTS)}
        at += more
        most = min([series.seeds, *(where.seeds for where in here if where.seeds is not None)])
        for seed in range(min(most, seeds or most)):
            own = at_seed(base, seed)
            if base.seed is not None:  # a nominal run: its sampling and noise differ from seed to seed too
                own.append(f"seed={base.seed + seed}")
            yield Cell(
                series=series.name,
                point=point,
                seed=seed,
                experiment=_loaded(path, (FULL_EVALUATION, *series.set, *at, *own)),
                measures=series.measures,
                baseline=series.baseline,
                arguments=series.arguments | arguments,
            )


def _toml(value: Value) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # counts are whole numbers in TOML, and other numbers may be
    return value if value in ("inf", "-inf") else json.dumps(value)
