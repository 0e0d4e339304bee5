"""Measure what is missing, and print the tables of docs/measured/own-data.md.

    python -m benchmarks.own_data [SUBJECT ...] [--rivals-python PYTHON] [--table PATH] [--tables] [--tiny FOLDER]

Subjects: accuracy, fairness, thresholds, drafted, claims, coverage, verdicts, sites, rates, persons; all if none is
named. Every row is stored as it comes, under benchmarks/results/own_data/, so that the command goes on where it was
ended. Data sets are found by FEDSW_DATA; PYTHON has the packages that ship others, as for `benchmarks.rivals`:
thresholds, drafted and persons need it, but for what it has written out before; PATH is parkinsons_updrs.data of UCI.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.own_data.page import FROM_PACKAGES, SUBJECTS, table
from benchmarks.own_data.store import measure_missing


def main() -> None:
    """Measure the subjects that are asked for, then print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--tables", action="store_true", help="measure nothing; print what is there")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="a few quick cells, into another folder")
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    parser.add_argument("--table", type=Path, metavar="PATH", help="parkinsons_updrs.data, which is not shipped")
    asked = parser.parse_args()
    if unknown := set(asked.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; known: {', '.join(SUBJECTS)}")
    torch.set_num_threads(1)
    for name in () if asked.tables else asked.subjects or SUBJECTS:
        cells, _ = SUBJECTS[name]
        packages: dict[str, Any] = {"python": asked.rivals_python} if name in FROM_PACKAGES else {}
        if name == "persons":
            packages["table"] = asked.table
        if asked.tiny is None:
            measure_missing(name, cells(tiny=False, **packages))
        else:
            measure_missing(name, cells(tiny=True, **packages), asked.tiny)
    if asked.tiny is None:
        print("\n\n".join(map(table, asked.subjects or SUBJECTS)))


if __name__ == "__main__":
    main()
