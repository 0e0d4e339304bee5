"""Parity on Adult by sex at epsilon 1: by a penalty in training, by thresholds of noised counts, and by both."""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.own_data.sets import split
from benchmarks.own_data.store import Cell, Row, Subject
from fedsw._tools import text
from fedsw._tools.text import number
from fedsw.experiment import parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.runs.directory import RunDirectory

SEEDS = 3
SHARE = 0.2
ALPHAS = (0.0, 0.2, 0.5, 0.75)
EPSILON = 1.0


def thresholds(*, tiny: bool) -> Subject:
    """Weights of the penalty, with and without thresholds of a rule, with a server and with four masked clients."""
    ways = [
        *(("central", alpha, "") for alpha in ALPHAS),
        *(("central", alpha, "parity") for alpha in (0.0, 0.2)),
        ("central", 0.0, "odds"),
        ("distributed", 0.0, "parity"),
    ]
    cells: list[Cell] = [(*way, seed) for seed in range(1 if tiny else SEEDS) for way in (ways[:1] if tiny else ways)]
    return cells, functools.partial(_trained, most=500 if tiny else None)


def _trained(trust: str, alpha: float, rule: str, seed: int, *, most: int | None) -> Row:
    """Accuracy and parity on held-out records, at the thresholds that the run released if it did; all else preset."""
    of = split("adult", seed, most)
    raw = of.experiment(EPSILON, alpha=alpha).model_dump(mode="json")
    del raw["model"]["kind"]
    raw["privacy"]["trust"] = trust
    raw["federation"]["clients"] = 1 if trust == "central" else 4
    if rule:
        raw["thresholds"] = {"share": SHARE, "rule": rule}
    with tempfile.TemporaryDirectory() as folder:
        found = run(parse_experiment(raw), data=of.private, held_out=of.held_out, runs=Path(folder))
        chosen, summary = RunDirectory(found.directory).read_config()[0], found.summary
    report = summary["held_out_at_thresholds"] if rule else summary["held_out"]
    return {
        "records": len(of.private),
        "model": chosen.model.kind,
        "epsilon": float(summary["epsilon"]),
        "accuracy": report["accuracy"],
        "disparate_impact": report["disparate_impact"],
        "parity_gap": report["demographic_parity_difference"],
        "odds_gap": report["equalized_odds_difference"],
        "bands": [each["band"] for each in summary["thresholds"]["by_group"].values()] if rule else [],
    }


def thresholds_table(rows: Sequence[Row]) -> str:
    """Means over seeds, and the worst ratio of rates."""
    lines = []
    for trust, alpha, rule in dict.fromkeys(tuple(row["cell"][:3]) for row in rows):
        own = [row for row in rows if tuple(row["cell"][:3]) == (trust, alpha, rule)]
        means = [statistics.fmean(row[key] for row in own) for key in ("accuracy", "disparate_impact", "odds_gap")]
        worst = number(min(row["disparate_impact"] for row in own), 2)
        said = [number(mean, 3) for mean in means]
        lines.append([trust, number(alpha), rule or "–", said[0], f"{said[1]} (least {worst})", said[2], len(own)])
    return text.table(["trust", "α", "thresholds", "accuracy", "DI", "largest gap of odds", "seeds"], lines)
