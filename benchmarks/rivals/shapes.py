"""Ways to take shapes and inputs that are not the preset's, or were not, on sets that judge nothing.

    python -m benchmarks.rivals.shapes --rivals-python PYTHON [--sets NAME ...] [--seeds 4] [--tables]

A run is the package's own choices, moments, preparation and start, with its rounds in one short loop: seeds give the
same noise to two ways, which a run, whose noise is secret, cannot. Of every way the gain over the preset is stored, in
accuracy or R2, where it makes a difference: of shapes where an additive model is chosen, of means of two models also
where one nearly is, and of the way that inputs are taken where they are "by-noise".
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Callable
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
from fedsw.learning.models.coded import Hats
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
_NEARLY = 4.5
"""b of three knots up to which an additive model is nearly chosen."""
Numbers = NDArray[np.float64]
Begin = Callable[[Problem, Moments], tuple[Preparation, Numbers]]


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


def smooth(weight: float) -> Begin:
    """Heights in knots have the precision 1 + weight D'D before anything is seen, D their second differences."""

    def begin(problem: Problem, moments: Moments) -> tuple[Preparation, Numbers]:
        layout, root = moments.layout, _roots(problem, weight)
        among = np.eye(layout.side)
        among[1 : 1 + layout.features, 1 : 1 + layout.features] = root
        mapped = replace(moments)  # what is read off the products of (x - c) root, noise and all
        mapped.__dict__["products"] = among.T @ moments.products @ among
        preparation, theta = begun(problem, mapped)
        matrix = torch.from_numpy(root @ preparation.matrix.numpy())
        return Preparation(torch.from_numpy(moments.mean.copy()), matrix, preparation.scale), theta

    return begin


def _roots(problem: Problem, weight: float) -> Numbers:
    root = np.eye(problem.features)
    for start, count in _numbers(problem):
        differences = np.diff(np.eye(count), n=2, axis=0)
        values, vectors = np.linalg.eigh(np.eye(count) + weight * differences.T @ differences)
        root[start : start + count, start : start + count] = (vectors / np.sqrt(values)) @ vectors.T
    return root


def _numbers(problem: Problem) -> list[tuple[int, int]]:
    """Where the knots of every column of numbers begin, and how many there are; of columns with a bend."""
    coding, columns = problem.coding, problem.experiment.data.columns
    assert isinstance(coding, Hats) and columns is not None
    features = [feature for feature in columns.features for _ in feature.columns]
    starts = np.cumsum([0, *coding.by_column[:-1]]).tolist()
    found = [
        (start, width - bool(feature.missing))
        for start, width, feature in zip(starts, coding.by_column, features, strict=True)
        if not feature.categories
    ]
    return [(start, count) for start, count in found if count > 2]


def monotone(trained: Trained) -> Trained:
    """The model whose shapes of numbers are the nearest that only rise or only fall."""
    weights = trained.weights.copy()
    for start, count in _numbers(trained.problem):
        for output in range(weights.shape[1]):
            heights = weights[start : start + count, output]
            ways = (rising(heights), -rising(-heights))
            weights[start : start + count, output] = min(ways, key=lambda way: float(np.sum((way - heights) ** 2)))
    return replace(trained, weights=weights)


def rising(heights: Numbers) -> Numbers:
    """The nearest heights that never fall: neighbours that do are pooled."""
    pools: list[tuple[float, int]] = []
    for height in heights.tolist():
        pools.append((height, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (last, many), (before, more) = pools.pop(), pools.pop()
            pools.append(((last * many + before * more) / (many + more), many + more))
    return np.array([height for height, many in pools for _ in range(many)])


def trained(
    name: str, epsilon: float, seed: int, *, python: str, begin: Begin = begun, part: float = 1.0, **sections: Any
) -> Trained:
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
        preparation, theta = begin(problem, Moments(layout, values, sigma, sizes))
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


WAYS = (
    "shapes smooth by 4",
    "shapes smooth by 16",
    "shapes smooth by 100",
    "shapes that only rise or fall",
    "mean of two models, a quarter additive",
    "mean of two models, half additive",
    "mean of two models, three quarters additive",
    "inputs by-noise, over constant-first",
)


def measured(way: str, name: str, epsilon: float, *, python: str, seeds: int) -> Row:
    """The gains of a way by seed; no gains where it makes no difference."""
    preset = chosen_of(name, epsilon, python)
    additive, records = preset.model.kind == "additive", len(parted(name, 0, python).private)
    run = functools.partial(trained, name, epsilon, python=python)
    row: Row = {"records": records, "chosen": f"{preset.model.kind} {preset.model.inputs}", "gains": []}
    if way.startswith("inputs"):
        if preset.model.inputs != "by-noise":
            return row
        before = {"model": {"kind": "logistic", "inputs": "constant-first"}}
        pairs = [(run(seed, **before), run(seed)) for seed in range(seeds)]
    elif way.startswith("shapes"):
        if not additive:
            return row
        usual = [run(seed) for seed in range(seeds)]
        if way == "shapes that only rise or fall":
            pairs = [(one, monotone(one)) for one in usual]
        else:
            begin = smooth(float(way.rsplit(" ", 1)[1]))
            pairs = [(one, run(seed, begin=begin)) for seed, one in enumerate(usual)]
    else:
        if not additive and not _nearly(name, epsilon, python):
            return row
        part = {"a quarter": 0.25, "half": 0.5, "three quarters": 0.75}[way.split(", ")[1].removesuffix(" additive")]
        bends = {
            "model": {"kind": "additive", "knots": preset.model.knots if additive else 3},
            "privacy": {"moments": 0.2},
        }
        pairs = []
        for seed in range(seeds):
            one, other = run(seed, part=0.5, **bends), run(seed, part=0.5, model={"kind": "logistic"})
            raw = part * one.raw + (1 - part) * other.raw
            pairs.append((run(seed), replace(one, weights=np.eye(raw.shape[1]), constant=np.zeros(1), held=raw)))
    row["gains"] = [score(new.of, new.raw) - score(old.of, old.raw) for old, new in pairs]
    return row


def _nearly(name: str, epsilon: float, python: str) -> bool:
    of = parted(name, 0, python)
    sizes = of.private.sensitive.bincount(minlength=len(of.columns.groups)).tolist()
    numbers = numbers_of(drafted(of, epsilon), dict(zip(of.columns.groups, sizes, strict=True)))
    return 3 in numbers.hats and numbers.beside(numbers.hats[3]) <= _NEARLY


def table(rows: list[Row]) -> str:
    """A line for each way and size of sets: the mean gain over cells, its standard error, and the least and largest."""
    lines = []
    for way in WAYS:
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
    cells: list[Cell] = [(way, name, epsilon) for name in asked.sets for epsilon in EPSILONS for way in WAYS]
    how = functools.partial(measured, python=asked.rivals_python, seeds=asked.seeds)
    if not asked.tables:
        measure_missing("shapes", (cells, how), asked.folder)
    print(content(asked.folder))


if __name__ == "__main__":
    main()
