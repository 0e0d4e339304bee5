"""Verdicts of `fedsw plan` on the sets of the comparison, from public numbers alone, beside what runs came to.

    python -m benchmarks.rivals.forecasts [--rivals-python PYTHON] [--sets NAME ...]

A plan is right where it says "feasible" and the runs of `benchmarks.rivals` keep at least `FEASIBLE` of what the better of a
linear and a boosted model without privacy gains over a constant, or says otherwise and they keep less. What it says of a
rare class, or of columns that use little of their bounds, is taken at what the data are. Rows are stored as they come, and
the table is written with the comparison's.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.own_data.store import Cell, Row, measure_missing
from benchmarks.rivals import page
from benchmarks.rivals.ours import drafted
from benchmarks.rivals.sets import KNOWN, NAMES, SHIPPED, parted
from fedsw.data import Records
from fedsw.data.columns.declaration import Columns
from fedsw.desk.planning.forecast import Forecast
from fedsw.desk.planning.run_plan import planned

EPSILONS = (0.5, 1.0, 3.0)


def foretold(name: str, epsilon: float, *, python: str) -> Row:
    """What a plan of the default path says from columns, records, epsilon and delta."""
    of = parted(name, 0, python)
    sizes = of.private.sensitive.bincount(minlength=len(of.columns.groups)).tolist()
    plan = planned(drafted(of, epsilon), dict(zip(of.columns.groups, sizes, strict=True)))
    if plan.forecast is None:
        raise RuntimeError(f"no forecast of {name}: {plan.why_not}")
    return {**said(plan.forecast), **facts(of.columns, of.private)}


def said(plan: Forecast) -> dict[str, Any]:
    """What a plan says of a run's chances."""
    return {
        "feasible": plan.feasible,
        "depends": plan.depends,
        "tight": plan.tight,
        "skewed": plan.skewed,
        "bare": plan.bare,
        "kept": plan.share_left,
        "least": plan.range[0],
        "rarest": plan.rarest,
        "rare": plan.rare,
        "constant_to": plan.constant_to,
    }


def facts(columns: Columns, private: Records) -> dict[str, Any]:
    """What a plan leaves open and an owner may know: the share of all but the most frequent class, where the numbers to
    predict lie in their bounds, and what of its bounds a column uses."""
    names = [(name, feature) for feature in columns.features for name in feature.input_names]
    spreads = zip(names, private.features.double().std(0).tolist(), strict=True)
    widths = {"unit": 1, "signed": 2}
    used = [4 * spread / widths[feature.scale] for (_, feature), spread in spreads if feature.low is not None]
    target, numbers = private.target, bool(columns.targets)
    return {
        "others": None if numbers else 1 - float(target.bincount().max()) / len(target),
        "middle": float(target.double().mean()) if numbers else None,
        "used": statistics.median(used) if used else None,
    }


def main() -> None:
    """Measure, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=NAMES, choices=KNOWN, metavar="NAME")
    parser.add_argument("--folder", type=Path, default=page.FOLDER)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in asked.sets if asked.rivals_python or name in SHIPPED]
    cells: list[Cell] = [(name, epsilon) for name in names for epsilon in EPSILONS]
    measure_missing("forecasts", (cells, functools.partial(foretold, python=asked.rivals_python)), asked.folder)
    print(page.content(asked.folder))


if __name__ == "__main__":
    main()
