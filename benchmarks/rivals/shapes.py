"""Inputs as the preset takes them, `by-noise`, against those it took before, on sets that judge nothing.

    python -m benchmarks.rivals.shapes --rivals-python PYTHON [--sets NAME ...] [--seeds 4] [--tables]

A run is the package's own choices, moments, preparation and start, with its rounds in one short loop: seeds give the
same noise to two ways, which a run, whose noise is secret, cannot. Gains, in accuracy or R2, are of the
cells in which the preset takes inputs by their noise.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.own_data.store import Cell, Row, measure_missing, rows_of
from benchmarks.rivals import page
from benchmarks.rivals.ours import drafted
from benchmarks.rivals.sets import TUNING, Told, by_class, parted, told
from fedsw._tools import text
from fedsw.experiment import Experiment, parse_experiment, read_delta
from fedsw.federation.server.settling import numbers_of, settled
from fedsw.learning.moments.beside_rounds import scores_of
from fedsw.learning.moments.moments_sum import STEP, layout_of, sums_of
from fedsw.learning.moments.preparation import Preparation, prepare, started
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.tasks.calibration import calibration_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.mechanisms import gaussian_sigma

EPSILONS = (0.5, 1.0, 3.0)
SMALL = 1_000
"""Records below which a set is small."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """A model's scores before the last sigmoid or softmax for held-out records, and what they come from."""

    problem: Problem
    of: Told
    weights: Numbers
    constant: Numbers
    held: Numbers

    @property
    def raw(self) -> Numbers:
        """Scores (m, d)."""
        raw: Numbers = self.held @ self.weights + self.constant
        return raw

    @property
    def probabilities(self) -> Numbers:
        """Probabilities (m, classes)."""
        return by_class(_link(self.of, self.raw))


def begun(problem: Problem, moments: Moments) -> tuple[Preparation, Numbers]:
    """The package's preparation and start: parameters (p + 1, d), the constant last."""
    preparation = prepare(problem, moments)
    flat = started(problem, preparation, moments, problem.build_model()).double().numpy()
    p = len(preparation.centre)
    d = len(flat) // (p + 1)
    return preparation, np.vstack([flat[: p * d].reshape(d, p).T, flat[p * d :][None]])


def trained(name: str, epsilon: float, seed: int, *, python: str, part: float = 1.0, **sections: Any) -> Trained:
    """A model of a part of mu^2, under settings that the preset chooses beside those of these sections."""
    of, experiment = parted(name, seed, python), chosen_of(name, epsilon, python, **sections)
    problem, given, n = Problem.from_experiment(experiment), told(of), len(of.private)
    whole = gaussian_sigma(epsilon, read_delta("auto", records=n), 1.0) / math.sqrt(part)
    chance, share = np.random.default_rng([77, seed]), float(experiment.privacy.moments)
    centre, matrix, scale = np.zeros(problem.features), np.eye(problem.features), 1.0
    x = problem.inputs(of.private).double().numpy()
    if share:
        layout = layout_of(problem)
        assert layout is not None
        totals, sigma = sums_of(problem, layout, of.private).double() * STEP, whole / math.sqrt(share) * layout.moved
        values = totals + sigma * torch.from_numpy(chance.standard_normal(tuple(totals.shape)))
        sizes = tuple(of.private.sensitive.bincount(minlength=len(of.columns.groups)).tolist())
        preparation, theta = begun(problem, Moments(layout, values, sigma, sizes))
        centre, matrix, scale = preparation.centre.numpy(), preparation.matrix.numpy(), preparation.scale
    else:
        weight, bias = (value.detach().double().numpy() for value in problem.build_model().parameters())
        theta = np.vstack([weight.T, bias[None]])
    noise = whole * 2 * scale / n / math.sqrt(1 - share - experiment.share_of_scores)
    theta = _rounds(experiment, given, (x - centre) @ matrix, theta, scale, noise, chance)
    weights = matrix @ theta[:-1]
    held = problem.inputs(of.held_out).double().numpy()
    model = Trained(problem, given, weights, theta[-1] - centre @ weights, held)
    return _calibrated(model, replace(model, held=x).raw, whole, chance)


def _calibrated(model: Trained, raw: Numbers, whole: float, chance: np.random.Generator) -> Trained:
    """The model with the logits that noised counts of its training records' scores tell of, where any are released."""
    if (counts := scores_of(model.problem)) is None:
        return model
    places = counts.places(torch.from_numpy(_link(model.of, raw)), torch.from_numpy(model.of.y)).numpy()
    sigma = counts.moved * whole / math.sqrt(model.problem.experiment.share_of_scores)
    values = np.bincount(places.ravel(), minlength=counts.width) + sigma * chance.standard_normal(counts.width)
    found = calibration_of(counts, values[None], sigma, len(raw))
    return replace(
        model, weights=found.scale * model.weights, constant=found.scale * model.constant + np.array(found.shift)
    )


def _rounds(
    experiment: Experiment,
    of: Told,
    x: Numbers,
    theta: Numbers,
    scale: float,
    noise: float,
    chance: np.random.Generator,
) -> Numbers:
    """Full-batch rounds with clipped gradients, momentum and a mean of the last iterates."""
    training, clip = experiment.training, experiment.clip.loss * scale
    design = np.hstack([x, np.ones((len(x), 1))])
    lengths, answers = np.linalg.norm(design, axis=1), _answers(of)
    speed, kept = np.zeros_like(theta), []
    noise *= experiment.clip.loss * math.sqrt(training.rounds)
    for _ in range(training.rounds):
        found = _link(of, design @ theta)
        errors = found - answers
        if not of.classes:
            errors = 2 * errors * found * (1 - found)
        errors *= np.minimum(1.0, clip / np.maximum(1e-300, np.linalg.norm(errors, axis=1) * lengths))[:, None]
        speed = training.momentum * speed + design.T @ errors / len(x) + noise * chance.standard_normal(theta.shape)
        theta = theta - training.learning_rate * speed
        kept.append(theta)
    averaged: Numbers = np.mean(kept[training.rounds - math.ceil(training.averaging * training.rounds) :], axis=0)
    return averaged


def _answers(of: Told) -> Numbers:
    return np.eye(of.classes)[of.y] if of.classes > 2 else of.y.astype(np.float64)[:, None]


def _link(of: Told, raw: Numbers) -> Numbers:
    if of.classes > 2:
        raw = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))
    return np.asarray(1 / (1 + np.exp(-np.clip(raw, -60, 60))))


def score(of: Told, raw: Numbers) -> float:
    """Accuracy, or R2, of scores (m, d)."""
    if of.classes > 2:
        return of.score(raw.argmax(axis=1))
    return of.score((raw[:, 0] > 0).astype(np.int64) if of.classes else _link(of, raw)[:, 0])


def chosen_of(name: str, epsilon: float, python: str, **sections: Any) -> Experiment:
    """The settings that the preset chooses beside those of these sections."""
    return _chosen(name, epsilon, python, tuple((section, *values.items()) for section, values in sections.items()))


@functools.lru_cache(maxsize=512)
def _chosen(name: str, epsilon: float, python: str, key: tuple[Any, ...]) -> Experiment:
    of, sections = parted(name, 0, python), {section: dict(values) for section, *values in key}
    raw = drafted(of, epsilon).model_dump(exclude_unset=True)
    experiment = parse_experiment({**raw, **{name: {**raw.get(name, {}), **of} for name, of in sections.items()}})
    sizes = of.private.sensitive.bincount(minlength=len(of.columns.groups)).tolist()
    return settled(experiment, numbers_of(experiment, dict(zip(of.columns.groups, sizes, strict=True))))


WAY = "inputs by-noise, over constant-first"


def measured(way: str, name: str, epsilon: float, *, python: str, seeds: int) -> Row:
    """The gains by seed; none where the preset takes no inputs by their noise."""
    preset = chosen_of(name, epsilon, python)
    run = functools.partial(trained, name, epsilon, python=python)
    before = {"model": {"kind": "logistic", "inputs": "constant-first"}}
    pairs = [(run(seed, **before), run(seed)) for seed in range(seeds if preset.model.inputs == "by-noise" else 0)]
    return {
        "records": len(parted(name, 0, python).private),
        "chosen": f"{preset.model.kind} {preset.model.inputs}",
        "gains": [score(new.of, new.raw) - score(old.of, old.raw) for old, new in pairs],
    }


def table(rows: list[Row]) -> str:
    """A line for each way and size of sets: the mean gain over cells, its standard error, and the least and largest."""
    lines = []
    for way in (WAY,):
        for size, fits in (("small", lambda n: n < SMALL), ("larger", lambda n: n >= SMALL)):
            own = [row for row in rows if row["cell"][0] == way and row["gains"] and fits(row["records"])]
            means = [statistics.fmean(row["gains"]) for row in own]
            if len(means) < 2:
                continue
            error = statistics.stdev(means) / math.sqrt(len(means))
            clear = [page.clearly(row["gains"]) for row in own]
            ends = (
                f"{_signed(of(means))} ({' '.join(map(str, own[means.index(of(means))]['cell'][1:]))})"
                for of in (min, max)
            )
            lines.append([way, size, len(means), f"{_signed(statistics.fmean(means))} ± {text.number(error, 1)}", *ends,
                          f"{clear.count(1)}, {clear.count(-1)}"])  # fmt: skip
    head = ["way", "sets", "cells", "mean gain", "least", "largest", "clearly better, worse"]
    return text.table(head, lines)


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def content(folder: Path = page.FOLDER) -> str:
    """The table of the rows of a folder."""
    rows: list[Any] = rows_of("shapes", folder)
    return table(rows)


def main() -> None:
    """Measure what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = tuple(name for of_kind in TUNING.values() for name in of_kind)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=page.FOLDER)
    parser.add_argument("--tables", action="store_true", help="measure nothing; print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[Cell] = [(WAY, name, epsilon) for name in asked.sets for epsilon in EPSILONS]
    how = functools.partial(measured, python=asked.rivals_python, seeds=asked.seeds)
    if not asked.tables:
        measure_missing("shapes", (cells, how), asked.folder)
    print(content(asked.folder))


if __name__ == "__main__":
    main()
