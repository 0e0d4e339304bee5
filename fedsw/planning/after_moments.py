"""Twins of what a run has released: records of its moments' law, to plan the rounds that are left, for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.columns.declaration import Columns
from fedsw.experiment import Experiment, ExperimentError
from fedsw.federation.server.moments import kept_moments
from fedsw.planning.law import PublicRows, public_columns
from fedsw.runs.directory import RunDirectory
from fedsw.runs.files import PLAN, read_json
from fedsw.tasks.moment_facts import constant_of
from fedsw.tasks.moments import Moments
from fedsw.tasks.preparation import residual_of, whitening_of
from fedsw.tasks.problem import Problem
from fedsw.text import number

Float = NDArray[np.float64]

_TWINS = 8_000
_UNTOLD = (
    "whether the rounds that are left would do better than a constant cannot be told. More records, a larger ε or "
    "narrower bounds would tell"
)
_LEAST = 4
"""Twins of a cell, at least, so that both halves have some."""


@dataclass(frozen=True)
class AfterMoments:
    """What a run that has released its moments is planned anew from.

    Attributes:
        experiment: with every setting of the run.
        by_group: its records by group.
        twins: of the law that its moments tell.
        untold: why these cannot tell what a constant is worth, in words; empty where they can.
    """

    experiment: Experiment
    by_group: dict[str, int]
    twins: PublicRows
    untold: str


def after_moments(path: Path, allow_modules: tuple[str, ...] = ()) -> AfterMoments:
    """A run's experiment, the numbers of its records by group, and twins of the law that its moments tell.

    Raises:
        FileNotFoundError: if there is no run. ExperimentError: if it has released no moments.
        CodeRefused: if its settings name a module that is not allowed.
    """
    directory = RunDirectory(path)
    experiment, _ = directory.read_config(allow_modules)
    problem = Problem.from_experiment(experiment)
    moments = kept_moments(problem, directory)
    if moments is None:
        raise ExperimentError(
            f"{path} has released no moments to plan from: `fedsw run EXPERIMENT --moments-alone` releases them, where "
            "privacy.moments is above 0, and stops"
        )
    cells = dict(zip(problem.objective.cells, moments.records, strict=True))
    stored = (read_json(path / PLAN) or {}).get("groups", cells)
    by_group = _by_group(problem, {name: int(stored.get(name, size)) for name, size in cells.items()})
    twins = twins_of(moments, problem, public_columns(experiment))
    return AfterMoments(experiment, by_group, twins, hidden_by_noise(moments))


def sizes_of(path: Path, allow_modules: tuple[str, ...] = ()) -> tuple[Experiment, dict[str, int]]:
    """A run's experiment, and the public numbers of its records by group.

    Raises:
        FileNotFoundError: if there is no run. ExperimentError: if its sizes are not public, as under a sketch.
        CodeRefused: if its settings name a module that is not allowed.
    """
    experiment, _ = RunDirectory(path).read_config(allow_modules)
    stored = (read_json(path / PLAN) or {}).get("groups")
    if not stored:
        raise ExperimentError(f"{path} has no public sizes of groups, from which other numbers could be forecast")
    return experiment, _by_group(
        Problem.from_experiment(experiment), {name: int(size) for name, size in stored.items()}
    )


def hidden_by_noise(moments: Moments) -> str:
    """Why moments cannot tell what a constant is worth, in words; empty where they can.

    Twins then vary by what noise may have made and are learnt from, where the records may not vary at all.
    """
    score = constant_of(moments).score
    if moments.layout.classes and score.high >= 1:
        return (
            f"the noise in the released moments hides how rare the rarer classes are (the most frequent has from "
            f"{number(100 * score.low)} to 100 % of the records); {_UNTOLD}"
        )
    if not moments.layout.classes and score.low <= 0:
        return (
            "the noise in the released moments hides how much the target varies (a constant's squared error is "
            f"between 0 and {number(score.high)}); {_UNTOLD}"
        )
    return ""


def twins_of(moments: Moments, problem: Problem, columns: Columns, *, seed: int = 0) -> PublicRows:
    """Records drawn from the law of released moments, as many in every cell as its share of all.

    Inputs are normal with the covariance within classes, as far as noise does not hide it, about the mean of their
    class, moved by their cell's own; numbers that are predicted follow the inputs by least squares, and chance by what
    these miss. Inputs are kept between 0 and 1 (signed ones between -1 and 1) where their columns are declared so.

    Args:
        columns: of the run's records, as they are public.
        seed: of the draw.
    """
    chance, total = np.random.default_rng([12, seed]), max(1, moments.count)
    sizes = [max(_LEAST, round(_TWINS * size / total)) if size else 0 for size in moments.records]
    cell = np.repeat(np.arange(len(sizes)), sizes)
    spread = _root(moments)
    target, middle = _targets_and_middles(moments, problem, cell, chance)
    inputs = middle + chance.standard_normal((len(cell), len(spread))) @ spread
    if not moments.layout.classes:
        target = _predicted(moments, inputs, chance)
    inputs = np.clip(inputs, *_limits(columns, inputs.shape[1]))
    group = _group_of(problem, cell)
    return PublicRows(
        features=torch.from_numpy(inputs.astype(np.float32)),
        sensitive=torch.from_numpy(group),
        target=torch.from_numpy(target.astype(np.int64 if moments.layout.classes else np.float32)),
        ids=torch.arange(len(cell)),
        columns=columns,
        kind="twins of released moments",
    )


def _root(moments: Moments) -> Float:
    """A symmetric root of the covariance within classes, (p, p).

    Variances that the noise hides count as what it hides: twins are then rather too hard to tell apart than too easy.
    """
    values, vectors = np.linalg.eigh(moments.within)
    root: Float = (vectors * np.sqrt(np.maximum(values, moments.hidden))) @ vectors.T
    return root


def _apart(moments: Moments) -> Float:
    """Means of the inputs in every class less that of all, (classes, p), without what noise alone moves them apart."""
    whitening = whitening_of(moments)
    seen = np.sum((moments.class_shifts @ whitening) ** 2, axis=1)
    noise = moments.noise_of_products * np.linalg.norm(whitening) / moments.target_mean
    shrunk = np.maximum(0.0, 1 - noise**2 / np.maximum(seen, 1e-300))
    found: Float = moments.class_shifts * np.sqrt(shrunk)[:, None]
    return found


def _targets_and_middles(
    moments: Moments, problem: Problem, cell: NDArray[np.int64], chance: np.random.Generator
) -> tuple[Float, Float]:
    """Classes (n,) by the shares of every cell, and the means (n, p) of inputs for class and cell."""
    layout = moments.layout
    odds = layout.classes and len(problem.objective.cells) > len(problem.groups)
    shifts = _apart(moments) if layout.classes else np.zeros((1, layout.features))
    target, middle = np.zeros(len(cell)), np.tile(moments.mean, (len(cell), 1))
    for place in range(layout.cells):
        rows = np.flatnonzero(cell == place)
        if not len(rows):
            continue
        own = moments.block(place)[0, 1 : 1 + layout.features] / max(1, moments.records[place])
        moved = own - moments.shift
        if odds:
            shares = np.eye(layout.targets)[place // len(problem.groups)]
        elif layout.classes:
            shares = np.clip(moments.shares_of(place), 1e-6, None)
            shares = shares / shares.sum()
        if layout.classes:
            target[rows] = chance.choice(layout.targets, len(rows), p=shares)
            moved = moved - shares @ shifts
            middle[rows] += shifts[target[rows].astype(int)]
        of_cell = moments.count / np.sqrt(layout.cells) / max(1, moments.records[place])
        noise = moments.noise_of_inputs * of_cell * np.sqrt(layout.features)
        middle[rows] += moved * max(0.0, 1 - noise**2 / max(float(moved @ moved), 1e-300))
    return target, middle


def _predicted(moments: Moments, inputs: Float, chance: np.random.Generator) -> Float:
    """Numbers (n, t) between 0 and 1: least squares of the inputs, and chance by what these miss."""
    whitening = whitening_of(moments)
    slopes = whitening @ whitening @ moments.cross
    missed = residual_of(moments, whitening) / np.sqrt(moments.layout.targets)
    drawn = (inputs - moments.mean) @ slopes + moments.target_mean
    predicted: Float = np.clip(drawn + missed * chance.standard_normal(drawn.shape), 0.0, 1.0)
    return predicted


def _limits(columns: Columns, count: int) -> tuple[Float, Float]:
    """The least and the most (p,) that inputs can be."""
    least, most = [], []
    for feature in columns.features:
        width = len(feature.categories) or feature.count or 1
        free = not feature.categories and feature.kind != "boolean" and feature.low is None
        signed = not free and feature.scale == "signed" and not feature.categories
        least += [-np.inf if free else -1.0 if signed else 0.0] * width + [0.0] * bool(feature.missing)
        most += [np.inf if free else 1.0] * width + [1.0] * bool(feature.missing)
    if len(least) != count:
        return np.full(count, -np.inf), np.full(count, np.inf)
    return np.array(least), np.array(most)


def _group_of(problem: Problem, cell: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group (n,) of every cell's records."""
    groups = len(problem.groups)
    group: NDArray[np.int64] = (cell % groups).astype(np.int64)
    return group


def _by_group(problem: Problem, sizes: dict[str, int]) -> dict[str, int]:
    """Records of every group, from those of cells."""
    counts = dict.fromkeys(problem.groups, 0)
    for place, size in enumerate(sizes.values()):
        counts[problem.groups[place % len(problem.groups)]] += size
    return counts
