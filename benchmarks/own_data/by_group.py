"""Parity at epsilon 1: by a penalty in training, by thresholds of noised counts, and by both; and runs as drafted."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import fedsw
from benchmarks.own_data.sets import split
from benchmarks.own_data.store import Cell, Row, Subject
from benchmarks.rivals.sets import GROUPS, TARGETS, halves, parted, table_of
from fedsw._tools import text
from fedsw._tools.text import number
from fedsw.cli.app import main
from fedsw.experiment import parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.runs.directory import RunDirectory

SEEDS = 3
SHARE = 0.2
EPSILON = 1.0
_OTHERS = ("fair", "hmda", "telco")
"""Sets of other packages whose groups are compared, beside Adult."""
DRAFTED = ("hmda", "german-credit", "attrition", "penguins")
"""Sets that `fedsw init` drafts a run of, with four clients and groups."""
SEEDS_OF_FEW = 10
"""Seeds of sets of few records: what is held out of them, and the noise, move a mean of three by .01, and more DI."""
CLIENTS = 4
Table = Sequence[Mapping[str, str]]


def thresholds(*, tiny: bool, python: str) -> Subject:
    """Weights of the penalty, with and without thresholds of a rule; on Adult more of them, and four masked clients."""
    shared = [
        *(("central", alpha, "") for alpha in (0.0, 0.2, 0.75)),
        *(("central", alpha, "parity") for alpha in (0.0, 0.2)),
        ("central", 0.0, "odds"),
    ]
    of_adult = [*shared, *(("central", alpha, "") for alpha in (0.3, 0.4, 0.45, 0.5)), ("distributed", 0.0, "parity")]
    cells: list[Cell] = [("adult", *way, seed) for seed in range(SEEDS) for way in of_adult]
    cells += [(name, *way, seed) for seed in range(SEEDS_OF_FEW) for name in _OTHERS for way in shared]
    return cells[: 1 if tiny else None], functools.partial(_trained, most=500 if tiny else None, python=python)


def _trained(name: str, trust: str, alpha: float, rule: str, seed: int, *, most: int | None, python: str) -> Row:
    """Accuracy and parity on held-out records, at the thresholds that the run released if it did; all else preset."""
    of = split(name, seed, most) if name == "adult" else parted(name, seed, python, grouped=True)
    raw = of.experiment(EPSILON, alpha=alpha).model_dump(mode="json")
    raw["privacy"]["trust"] = trust
    raw["federation"]["clients"] = 1 if trust == "central" else CLIENTS
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
        "constant": summary["constant"]["accuracy"],
        "accuracy": report["accuracy"],
        "disparate_impact": report["disparate_impact"],
        "parity_gap": report["demographic_parity_difference"],
        "odds_gap": report["equalized_odds_difference"],
        "bands": [each["band"] for each in summary["thresholds"]["by_group"].values()] if rule else [],
    }


def drafted(*, tiny: bool, python: str) -> Subject:
    """Runs as `fedsw init --group` drafts them and `fedsw run` makes them, on records that nobody else has seen."""
    cells: list[Cell] = [
        (name, seed) for seed in range(1 if tiny else SEEDS_OF_FEW) for name in (DRAFTED[:1] if tiny else DRAFTED)
    ]
    return cells, functools.partial(_by_commands, python=python)


def _by_commands(name: str, seed: int, *, python: str) -> Row:
    """Accuracy on held-out records of the model that two command lines come to, and of a constant."""
    rows, target = table_of(name, python), TARGETS[name]
    private, held_out = ([rows[row] for row in part] for part in halves(len(rows), seed))
    group, edge = GROUPS[name]
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"FEDSW_ACCOUNTS": folder}):
        at = Path(folder)
        (at / "data").mkdir()
        _written(at / "data" / "train.csv", private)
        _written(at / "held-out.csv", held_out)
        _written(at / "public.csv", rows)  # bounds and categories are read off it: the set is public
        draft, runs = at / "own.toml", at / "runs"
        cut = [] if edge is None else ["--edges", f"{group}={edge:g}"]
        public = ["--public-table", str(at / "public.csv")]
        asked = ["--group", group, "--target", target, *public, *cut, "-o", str(draft)]
        _command("init", str(at / "data"), *asked)
        _command("run", str(draft), "--data-dir", str(at / "data"), "--runs", str(runs), "--quiet")
        (directory,) = (runs / "own").iterdir()
        model = fedsw.load(directory)
        answers = list(model.predict(at / "held-out.csv")[f"predicted_{target}"])
        chosen, summary = RunDirectory(directory).read_config()[0], json.loads((directory / "summary.json").read_text())
    true, most = [row[target] for row in held_out], _most([row[target] for row in private])
    return {
        "records": len(private),
        "group": group,
        "clients": chosen.federation.clients,
        "alpha": chosen.objective.alpha,
        "model": chosen.model.kind,
        "epsilon": float(summary["epsilon"]),
        "accuracy": _share(str(answer) == cell for answer, cell in zip(answers, true, strict=True)),
        "constant": _share(cell == most for cell in true),
    }


def _command(*words: str) -> None:
    """Run a command line of fedsw in this process; RuntimeError if it does not end well."""
    if code := main(list(words)):
        raise RuntimeError(f"fedsw {' '.join(words)} ended with {code}")


def _written(path: Path, rows: Table) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _most(cells: Sequence[str]) -> str:
    return max(sorted(set(cells)), key=cells.count)


def _share(right: Iterable[bool]) -> float:
    return statistics.fmean(map(float, right))


def thresholds_table(rows: Sequence[Row]) -> str:
    """Means over seeds, and the worst ratio of rates."""
    lines, names = [], ("adult", *_OTHERS)
    ways = {tuple(row["cell"][:4]) for row in rows}
    for name, trust, alpha, rule in sorted(ways, key=lambda way: (names.index(way[0]), way[1], way[3], way[2])):
        own = [row for row in rows if tuple(row["cell"][:4]) == (name, trust, alpha, rule)]
        means = [statistics.fmean(row[key] for row in own) for key in ("accuracy", "disparate_impact", "odds_gap")]
        worst = number(min(row["disparate_impact"] for row in own), 2)
        said = [number(mean, 3) for mean in means]
        beside = [name, f"{own[0]['records']:,}", number(statistics.fmean(row["constant"] for row in own), 3), trust]
        reached = [said[0], f"{said[1]} (least {worst})", said[2], len(own)]
        lines.append([*beside, number(alpha), rule or "–", *reached])
    head = ["set", "records", "a constant", "trust", "α", "thresholds", "accuracy", "DI"]
    return text.table([*head, "largest gap of odds", "seeds"], lines)


def drafted_table(rows: Sequence[Row]) -> str:
    """Means over seeds of the split beside those of a constant, and where runs are below one."""
    lines, below = [], []
    for name in dict.fromkeys(row["cell"][0] for row in rows):
        own = [row for row in rows if row["cell"][0] == name]
        reached, constant = ([row[key] for row in own] for key in ("accuracy", "constant"))
        apart = [mine - other for mine, other in zip(reached, constant, strict=True)]
        error = statistics.stdev(apart) / math.sqrt(len(own)) if len(own) > 1 else math.nan
        if statistics.fmean(apart) < -error:
            below.append(name)
        kinds = [row["model"] for row in own]
        known = [name, own[0]["group"], f"{own[0]['records']:,}", own[0]["clients"], number(own[0]["alpha"])]
        said = [number(statistics.fmean(values), 3) for values in (constant, reached)]
        above = f"{100 * statistics.fmean(apart):+.1f} ± {100 * error:.1f}"
        lines.append([*known, max(kinds, key=kinds.count), *said, above, len(own)])
    head = ["set", "group", "records", "clients", "α drafted", "it chose", "a constant", "accuracy", "points above"]
    words = f"Below a constant by more than a standard error: {', '.join(below) or 'nowhere'}."
    return f"{text.table([*head, 'seeds'], lines)}\n\n{words}"
