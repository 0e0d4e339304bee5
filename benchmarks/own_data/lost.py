"""What is lost by privacy against a well-trained model: accuracy or R2, error and violation, and by a wrong rate."""

from __future__ import annotations

import functools
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.own_data.sets import MADE_UP, NAMES, Split, split
from benchmarks.own_data.store import Cell, Row, Subject
from benchmarks.rivals.sets import by_class, told
from fedsw._tools import text
from fedsw._tools.text import number, upward
from fedsw.desk.baselines.reference import well_trained
from fedsw.experiment import Experiment
from fedsw.federation.engines.driver import run
from fedsw.learning.tasks.measures import Measuring, measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import HeldOutOutputs, read_outputs
from simulations.papers.published import DP_FERMI

SEEDS = 3
EPSILONS = (0.5, 1.0, 4.0)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
ALPHA = 0.75
_FAIR = 0.8
_ROUND_OFF = 1e-12


def accuracy(*, tiny: bool) -> Subject:
    """`auto` at every epsilon on every set, beside the reference and a constant."""
    sets, epsilons = (("wine",), (1.0,)) if tiny else (NAMES, EPSILONS)
    cells = [(name, e, seed) for seed in range(1 if tiny else SEEDS) for e in epsilons for name in sets]
    return cells, functools.partial(_accuracy, most=_most(tiny))


def rates(*, tiny: bool) -> Subject:
    """A learning rate that is a quarter to four times the chosen one, on sets of more than 5 000 records."""
    sets, factors = (("wine",), (1.0, 4.0)) if tiny else (("adult", "law-school", MADE_UP), FACTORS)
    cells = [(name, f, seed) for seed in range(1 if tiny else SEEDS) for name in sets for f in factors]
    return cells, functools.partial(_rates, most=_most(tiny))


def fairness(*, tiny: bool) -> Subject:
    """The task with a penalty on Adult by sex, at the budgets of which DP-FERMI prints points."""
    cells: list[Cell] = [(e, seed) for seed in range(1 if tiny else SEEDS) for e in ((1.0,) if tiny else DP_FERMI)]
    return cells, functools.partial(_fairness, most=_most(tiny))


def _most(tiny: bool) -> int | None:
    return 500 if tiny else None


def _accuracy(name: str, epsilon: float, seed: int, *, most: int | None) -> Row:
    of = split(name, seed, most)
    known = {kind: _reference(name, seed, most, kind == "any") for kind in ("same", "any")}
    summary, _, outputs = _trained(of, of.experiment(epsilon))
    score, low, high = _score(of, summary["held_out"], summary["held_out_intervals"])
    constant, *_ = _score(of, summary["constant"], {})
    return {
        "records": len(of.private),
        "held_out": len(of.held_out),
        "score": score,
        "low": low,
        "high": high,
        "constant": constant,
        **_beside(of, outputs.values),
        **({} if of.regression else {"loss_of_shares": told(of).loss_of_shares}),
        "gain": summary["gain"],
        "epsilon": float(summary["epsilon"]),
        **{f"reference_{kind}": each for kind, each in known.items()},
    }


def _rates(name: str, factor: float, seed: int, *, most: int | None) -> Row:
    of = split(name, seed, most)
    chosen = _chosen_rate(name, seed, most)
    summary, *_ = _trained(of, of.experiment(1.0, training={"learning_rate": factor * chosen}))
    return {"rate": factor * chosen, "score": _score(of, summary["held_out"], {})[0]}


@functools.lru_cache(maxsize=4)
def _chosen_rate(name: str, seed: int, most: int | None) -> float:
    of = split(name, seed, most)
    return _trained(of, of.experiment(1.0))[1].training.learning_rate


def _fairness(epsilon: float, seed: int, *, most: int | None) -> Row:
    of = split("adult", seed, most)
    summary, *_ = _trained(of, of.experiment(epsilon, alpha=ALPHA))
    problem = Problem.from_experiment(of.experiment(epsilon, alpha=ALPHA))
    known = well_trained(problem, of.private)
    report = measure(problem, of.held_out, known.model).report
    return {**_fair(summary["held_out"], ""), **_fair(report, "reference_"), "reference_words": known.words}


def _fair(report: Mapping[str, float], prefix: str) -> Row:
    return {
        f"{prefix}error": 1 - report["accuracy"],
        f"{prefix}violation": report["demographic_parity_difference"],
        f"{prefix}disparate_impact": report["disparate_impact"],
    }


def _trained(of: Split, experiment: Experiment) -> tuple[dict[str, Any], Experiment, HeldOutOutputs]:
    """The summary of a run, its experiment with every setting that was chosen, and its held-out outputs."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(experiment, data=of.private, held_out=of.held_out, runs=Path(folder))
        outputs = read_outputs(found.directory / RunFile.OUTPUTS)
        assert outputs is not None
        return found.summary, RunDirectory(found.directory).read_config()[0], outputs


def _beside(of: Split, outputs: NDArray[np.float64]) -> Row:
    """AUC and log loss of a classifier's outputs (m, d), beside its accuracy; none of a number's."""
    if of.regression:
        return {}
    found = told(of).measures(by_class(outputs))
    return {"auc": found["auc"], "loss": found["loss"]}


@functools.lru_cache(maxsize=16)
def _reference(name: str, seed: int, most: int | None, any_kind: bool) -> dict[str, Any]:
    """What is well trained without privacy, and its score on the held-out records."""
    of = split(name, seed, most)
    problem = Problem.from_experiment(of.experiment(1.0))
    found = well_trained(problem, of.private, any_kind=any_kind)
    score, *_ = _score(of, measure(problem, of.held_out, found.model).report, {})
    outputs = Measuring(problem, of.held_out, found.model).outputs.double().numpy()
    return {"words": found.words, "score": score, **_beside(of, outputs)}


def _score(of: Split, report: Mapping[str, float], intervals: Mapping[str, Any]) -> tuple[float, float, float]:
    """Accuracy, or R2 of the held-out records, and where it lies, 95 %."""
    if not of.regression:
        low, high = intervals.get("accuracy", (math.nan, math.nan))
        return report["accuracy"], low, high
    declared = of.columns.targets  # an error is in their units
    widths = torch.tensor([1.0 if d.low is None or d.high is None else d.high - d.low for d in declared])
    spread = float((of.held_out.target.double().var(dim=0, correction=0) * widths.double().square()).sum())
    low, high = intervals.get("mean_squared_error", (math.nan, math.nan))
    return 1 - report["mean_squared_error"] / spread, 1 - high / spread, 1 - low / spread


def accuracy_table(rows: Sequence[Row]) -> str:
    """Points lost, the mean over seeds and its range; by epsilon, large sets first."""
    lines = []
    order = {(row["cell"][0], row["cell"][1]): row["records"] for row in rows}
    for name, epsilon in sorted(order, key=lambda cell: (cell[1], -order[cell])):
        own = [row for row in rows if row["cell"][:2] == [name, epsilon]]
        lost = [100 * (row["reference_same"]["score"] - row["score"]) for row in own]
        lines.append(
            [
                name,
                f"{own[0]['records']:,}",
                upward(epsilon),
                *(_shown(statistics.fmean(row[key] for row in own)) for key in ("constant", "score")),
                _beside_all(own, "auc"),
                _beside_all(own, "loss"),
                *(number(statistics.fmean(row[f"reference_{k}"]["score"] for row in own)) for k in ("same", "any")),
                f"{statistics.fmean(lost):+.1f} ({min(lost):+.1f} to {max(lost):+.1f})",
                len(own),
            ]
        )
    head = ["data", "records", "ε", "a constant", "`auto`"]
    head += ["AUC: `auto` / of any kind", "log loss: `auto` / class shares / of any kind"]
    head += ["well trained", "of any kind", "points lost"]
    return text.table([*head, "seeds"], lines)


def _beside_all(rows: Sequence[Row], key: str) -> str:
    """Means of a measure of `auto`, of log loss the class shares', and of what is well trained, of any kind."""
    if not all(key in row and key in row["reference_any"] for row in rows):
        return "–"
    shares = [row["loss_of_shares"] for row in rows] if key == "loss" else None
    known = [row["reference_any"][key] for row in rows]
    return " / ".join(
        number(statistics.fmean(values)) for values in ([row[key] for row in rows], shares, known) if values
    )


def _shown(score: float) -> str:
    """A score for a cell; what round-off leaves of 0, as of a constant's R², is 0."""
    return number(score if abs(score) > _ROUND_OFF else 0.0)


def rates_table(rows: Sequence[Row]) -> str:
    """Points lost against the chosen rate, a column for every factor."""
    factors = sorted({row["cell"][1] for row in rows})
    lines = []
    for name in dict.fromkeys(row["cell"][0] for row in rows):
        mean = {f: [row["score"] for row in rows if row["cell"][:2] == [name, f]] for f in factors}
        own = statistics.fmean(mean.get(1.0) or [math.nan])
        lines.append([name, *(f"{100 * (own - statistics.fmean(mean[f])):+.2f}" if mean[f] else "–" for f in factors)])
    return text.table(["points lost at", *(f"{f:g} × the rate" for f in factors)], lines)


def fairness_table(rows: Sequence[Row]) -> str:
    """Error and violation beside the reference's, and DP-FERMI's points that are no worse in either."""
    lines = []
    for epsilon in sorted({row["cell"][0] for row in rows}):
        own = [row for row in rows if row["cell"][0] == epsilon]
        mean = {key: statistics.fmean(row[key] for row in own) for key in own[0] if isinstance(own[0][key], float)}
        better = [p for p in DP_FERMI[epsilon] if p[0] <= mean["error"] and p[1] <= mean["violation"]]
        lines.append(
            [
                upward(epsilon),
                *(number(mean[key]) for key in ("error", "violation", "disparate_impact")),
                *(number(mean[f"reference_{key}"]) for key in ("error", "violation", "disparate_impact")),
                "; ".join(f"{error:g}, {violation:g}" for error, violation in DP_FERMI[epsilon]),
                len(better),
                sum(row["disparate_impact"] >= _FAIR for row in own),
                len(own),
            ]
        )
    head = ["ε", "error", "violation", "DI", "at rest: error", "violation", "DI", "DP-FERMI: error, violation"]
    return text.table([*head, "of these no worse in both", f"DI ≥ {_FAIR:g}", "seeds"], lines)
