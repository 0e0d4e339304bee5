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
from pathlib import Path

import torch

from benchmarks.forecast import facts, said
from benchmarks.own_data.store import Cell, Row, measure_missing
from benchmarks.rivals import page
from benchmarks.rivals.ours import drafted
from benchmarks.rivals.sets import KNOWN, NAMES, SHIPPED, parted
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


def main() -> None:
    """Measure, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--sets", nargs="*", default=NAMES, choices=KNOWN, metavar="NAME")
    parser.add_argument("--folder", type=Path, default=page.FOLDER)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in asked.sets if asked.rivals_python or name in SHIPPED]
    cells: list[Cell] = [(name, epsilon) for name in names for epsilon in EPSILONS]
    measure_missing("forecasts", (cells, functools.partial(foretold, python=asked.rivals_python)), asked.folder)
    page.write(asked.folder)


if __name__ == "__main__":
    main()
