"""Whether what a run prints is true: claims on labels that are pure noise, and the coverage of printed intervals."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.own_data.store import Cell, Row, Subject
from fedsw._tools import text
from fedsw.data import DeclaredRecords
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning.public_rows import LAWS, PublicRows, drawn
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.learning.tasks.measures import measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation.intervals import share
from fedsw.runs.run_files import RunFile

RUNS = 200
TRUSTS = ("central", "local-gradient")
"""The trust models that train on records of two groups."""
WHERE = ("table", "kept", "drafted")
"""Measured on a table at the server, or on records that clients keep and release counts of with noise; with settings
that are written, or as `fedsw init` drafts them: the preset's, and moments before the rounds."""
SHARES = (0.5, 0.963)
"""Of the more frequent of two labels that are pure noise."""
_FEATURES = [{"name": f"x{place}", "low": 0, "high": 1} for place in range(4)]
_LAW = replace(LAWS[2], alike=0.0)
"""The law whose records all runs have, as it was when the first rows were stored."""
_PRIVATE, _HELD_OUT, _TRUE, _FEW = 450, 200, 50_000, 2_000


def false_claims(*, tiny: bool) -> Subject:
    """Runs on labels that no column tells anything of."""
    cells: list[Cell] = [
        (trust, where, common, seed)
        for seed in range(1 if tiny else RUNS // len(SHARES))
        for common in SHARES
        for trust in TRUSTS
        for where in WHERE
    ]
    return cells, functools.partial(_claimed, size=_FEW if tiny else _TRUE)


def coverage(*, tiny: bool) -> Subject:
    """Runs on a known law, whose truth is measured on many more of its records."""
    cells: list[Cell] = [
        (task, trust, where, seed)
        for seed in range(1 if tiny else RUNS)
        for task in ("classification", "regression")
        for trust in TRUSTS
        for where in WHERE
    ]
    return cells, functools.partial(_covered, true=_FEW if tiny else _TRUE)


def _claimed(trust: str, where: str, common: float, seed: int, *, size: int) -> Row:
    private, held_out = (
        _labelled(each, common, [int(1_000 * common), seed, part])
        for part, each in enumerate(_parts(_pool("classification", size), seed))
    )
    columns = private.columns
    summary, _ = _run(_experiment("classification", trust, where, columns), private, held_out)
    return {"claim": summary["gain"]["claim"], "low": float(summary["gain"]["low"])}


def _covered(task: str, trust: str, where: str, seed: int, *, true: int) -> Row:
    pool = _pool(task, true)
    asked = _experiment(task, trust, where, pool.columns)
    summary, weights = _run(asked, *_parts(pool, seed))
    problem = Problem.from_experiment(asked)
    model = problem.build_model()
    model.load_state_dict(weights)
    truth = measure(problem, pool, model.eval()).report
    found = {
        name: (low <= truth[name] <= high)
        for name, (low, high) in _numbers(summary["held_out_intervals"]).items()
        if name in truth and math.isfinite(truth[name])
    }
    return {"covered": found}


def _numbers(intervals: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}


def _columns(task: str) -> Columns:
    target = {"target": {"name": "y", "values": ["no", "yes"]}}
    numbers = {"targets": [{"name": "y", "low": 0, "high": 1}]}
    declared = {"features": _FEATURES, "sensitive": {"name": "sex", "values": ["f", "m"]}}
    return Columns.model_validate(declared | (target if task == "classification" else numbers))


@functools.cache
def _pool(task: str, size: int) -> PublicRows:
    """Records of the law, a third of them of the first group; what is true is true of all of them."""
    return drawn(_columns(task), {"f": size // 3, "m": size - size // 3}, _LAW, seed=0)


def _parts(pool: PublicRows, seed: int) -> tuple[PublicRows, PublicRows]:
    """Private and held-out records, drawn from the pool one by one."""
    rows = np.random.default_rng([21, seed]).choice(len(pool), _PRIVATE + _HELD_OUT, replace=False)
    private, held_out = (_taken(pool, part) for part in (rows[:_PRIVATE], rows[_PRIVATE:]))
    return private, held_out


def _taken(pool: PublicRows, rows: NDArray[np.int64]) -> PublicRows:
    own = pool.take(rows)
    ids = torch.arange(len(own))
    return PublicRows(own.features, own.sensitive, own.target, ids, pool.columns, pool.kind)


def _labelled(records: PublicRows, common: float, seed: Sequence[int]) -> PublicRows:
    """The records with labels that are pure noise."""
    target = torch.from_numpy((np.random.default_rng([23, *seed]).random(len(records)) > common).astype(np.int64))
    return PublicRows(records.features, records.sensitive, target, records.ids, records.columns, records.kind)


def _experiment(task: str, trust: str, where: str, columns: Columns) -> Experiment:
    kept = (
        {"held_out_fraction": 0.33, "held_out_to": "everybody"} if where != "table" else {"held_out_overlap": "allow"}
    )
    chosen = {
        "training": {"rounds": 8, "batch_fraction": 1.0, "learning_rate": 8.0},
        "clip": {"loss": 0.5, "jacobian": 0.25, "output": 0.5, "centre": 0.5},
    }
    drafted = {"training": {"preset": "auto"}}
    moments = {"moments": 0.2} if where == "drafted" else {}
    return parse_experiment(
        {
            "name": "claims",
            "data": {"source": "object", "columns": columns.model_dump(), **kept},
            "model": {"kind": "logistic"},
            "objective": {"task": task, "alpha": 0.2},
            **(drafted if where == "drafted" else chosen),
            "privacy": {"trust": trust, "epsilon": 4.0, "delta": "auto", **moments},
            "evaluation": {"mode": "full"},
            "evaluate_every": 10**6,
            "federation": {"clients": 2},
        }
    )


def _run(
    asked: Experiment, private: DeclaredRecords, held_out: DeclaredRecords
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        at_server = None if asked.data.held_out_released else held_out
        found = run(asked, data=private, held_out=at_server, runs=Path(folder))
        return found.summary, load_file(found.directory / RunFile.MODEL)


def claims_table(rows: Sequence[Row]) -> str:
    """How often better or worse than a constant was claimed of noise, and where that share may lie."""
    lines = []
    for trust, where in dict.fromkeys((row["cell"][0], row["cell"][1]) for row in rows):
        own = [row["claim"] for row in rows if row["cell"][:2] == [trust, where]]
        lines.append(
            [trust, _place(where), len(own), *(_part(own.count(claim), len(own)) for claim in ("better", "worse"))]
        )
    return text.table(["trust", "measured on", "runs", "claimed *better*", "claimed *worse*"], lines)


def coverage_table(rows: Sequence[Row]) -> str:
    """How often printed 95 % intervals held what is true: the metrics that they held least and most often."""
    lines = []
    for task, trust, where in dict.fromkeys(tuple(row["cell"][:3]) for row in rows):
        own = [row["covered"] for row in rows if row["cell"][:3] == [task, trust, where]]
        held = {
            name: [each[name] for each in own if name in each] for name in dict.fromkeys(n for of in own for n in of)
        }
        ordered = sorted(held, key=lambda name: sum(held[name]) / len(held[name]))
        ends = (f"{name} {_part(sum(held[name]), len(held[name]))}" for name in (ordered[0], ordered[-1]))
        lines.append([task, trust, _place(where), len(own), len(held), *ends])
    return text.table(["task", "trust", "measured on", "runs", "metrics", "held least often", "most often"], lines)


def _place(where: str) -> str:
    names = {"table": "a held-out table", "kept": "kept records, noised", "drafted": "kept records, noised; as drafted"}
    return names[where]


def _part(count: int, total: int) -> str:
    low, high = share(float(count), total)
    return f"{100 * count / total:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
