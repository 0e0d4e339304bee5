"""Whether a verdict can be had of records that clients keep, and what a server that nobody trusts loses by sites."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks.own_data.sets import Split, split
from benchmarks.own_data.store import Cell, Row, Subject
from fedsw._tools import text
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.learning.tasks.measures import measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation.evaluator import parts_of, worth_of
from fedsw.runs.run_files import RunFile

SEEDS = 3
SETS = ("diabetes", "communities", "law-school", "wine", "breast-cancer")
SUMS = "differences of errors"
"""How kept records of a regression are summed; rows of "errors apart" were measured with commit 8f06a4a0 taken back."""
SITED = ("law-school", "adult")
SITES = (4, 25)
NEAR = 0.005


def verdicts(*, tiny: bool) -> Subject:
    """Runs as they are drafted, a fifth of whose records are kept and counted."""
    cells: list[Cell] = [
        (SUMS, name, epsilon, seed)
        for name in (SETS[:1] if tiny else SETS)
        for epsilon in (1.0, 3.0)
        for seed in range(1 if tiny else SEEDS)
    ]
    return cells, _verdict_of


def sites(*, tiny: bool) -> Subject:
    """Runs as they are drafted, under a trusted server and under one that nobody trusts."""
    cells: list[Cell] = [
        (name, clients, trust, seed)
        for name in (("law-school",) if tiny else SITED)
        for clients in (SITES[:1] if tiny else SITES)
        for trust in ("central", "distributed")
        for seed in range(1 if tiny else SEEDS)
    ]
    return cells, functools.partial(_sited, most=4_000 if tiny else None)


def _verdict_of(_: str, name: str, epsilon: float, seed: int) -> Row:
    """The claim from kept records, and the one from the held-out table, which the run never sees."""
    of = split(name, seed)
    kept = {"held_out_fraction": 0.2, "held_out_to": "everybody"}
    with tempfile.TemporaryDirectory() as folder:
        found = run(_experiment(of, epsilon, 1, "central", kept), data=of.private, runs=Path(folder))
        task = Problem.from_experiment(_experiment(of, epsilon, 1, "central", {}))
        stored = Problem.from_experiment(_stored(found.directory))
        model = stored.build_model()
        model.load_state_dict(load_file(found.directory / RunFile.MODEL))
        measured = measure(stored, of.held_out, model, parts=parts_of(of.held_out))
        true = worth_of(task, of.held_out, measured, of=len(of.held_out)).quality.gain
    assert true is not None
    return {"claim": found.summary["gain"]["claim"], "true": true.claim, "kept": found.summary["held_out_release"]}


def _stored(directory: Path) -> Experiment:
    from fedsw.runs.directory import RunDirectory

    return RunDirectory(directory).read_config()[0]


def _sited(name: str, clients: int, trust: str, seed: int, *, most: int | None) -> Row:
    of = split(name, seed, most)
    with tempfile.TemporaryDirectory() as folder:
        asked = _experiment(of, 1.0, clients, trust, {"held_out_overlap": "other-people"})
        summary = run(asked, data=of.private, held_out=of.held_out, runs=Path(folder)).summary
    held_out, constant = summary["held_out"], summary["constant"]
    if of.regression:
        return {"score": 1 - held_out["mean_squared_error"] / constant["mean_squared_error"]}
    return {"score": held_out["accuracy"]}


def _experiment(of: Split, epsilon: float, clients: int, trust: str, data: dict[str, Any]) -> Experiment:
    return parse_experiment(
        {
            "name": "own",
            "data": {"source": "object", "columns": of.columns.model_dump(), **data},
            "objective": {"task": "regression" if of.regression else "classification", "alpha": 0.0},
            "training": {"preset": "auto"},
            "privacy": {"trust": trust, "epsilon": epsilon, "delta": "auto"},
            "evaluation": {"mode": "full"},
            "evaluate_every": 10**6,
            "federation": {"clients": clients},
        }
    )


def verdicts_table(rows: Sequence[Row]) -> str:
    """How often each way of summing tells what is so, by set and epsilon."""
    lines = []
    for sums, name, epsilon in dict.fromkeys(tuple(row["cell"][:3]) for row in rows):
        own = [row for row in rows if row["cell"][:3] == [sums, name, epsilon]]
        better = [row["claim"] for row in own if row["true"] == "better"]
        wrong = sum(row["claim"] == "better" and row["true"] == "worse" for row in own)
        kept = own[0]["kept"]["records"]
        lines.append(
            [name, text.upward(epsilon), sums, kept, len(own), f"{better.count('better')} of {len(better)}", wrong]
        )
    lines.sort(key=lambda line: (str(line[0]), str(line[1])))
    headings = [
        "set",
        "ε",
        "kept records summed as",
        "kept",
        "runs",
        "said to be *better*, of those that are",
        "said wrongly",
    ]
    return text.table(headings, lines)


def sites_table(rows: Sequence[Row]) -> str:
    """Scores of both trust models by number of sites, and how far apart they are."""
    lines = []
    for name, clients in dict.fromkeys(tuple(row["cell"][:2]) for row in rows):
        scores = [
            [row["score"] for row in rows if row["cell"][:3] == [name, clients, trust]]
            for trust in ("central", "distributed")
        ]
        central, distributed = (sum(part) / max(1, len(part)) for part in scores)
        apart = distributed - central
        lines.append([name, clients, len(scores[1]), f"{central:.4f}", f"{distributed:.4f}", f"{apart:+.4f}"])
    return text.table(["set", "sites", "seeds", "central", "distributed", f"apart (goal {NEAR:g})"], lines)
