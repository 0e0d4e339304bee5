"""Measure what is missing, and write the tables of docs/own-data-results.md.

    python -m benchmarks.own_data [SUBJECT ...] [--rivals-python PYTHON] [--tables] [--tiny FOLDER]

Subjects: accuracy, fairness, thresholds, drafted, claims, coverage, verdicts, sites, rates; all if none is named. Every
row is stored as it comes, under benchmarks/results/own_data/, so that the command goes on where it was ended. Data sets
are found by FEDSW_DATA; PYTHON has the packages that ship others, as for `benchmarks.rivals`: thresholds and drafted
need it, but for what it has written out before.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.own_data.page import FROM_PACKAGES, SUBJECTS, write
from benchmarks.own_data.store import measure_missing


def main() -> None:
    """Measure the subjects that are asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--tables", action="store_true", help="measure nothing; write what is there")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="a few quick cells, into another folder")
    parser.add_argument("--rivals-python", default="", metavar="PYTHON")
    asked = parser.parse_args()
    if unknown := set(asked.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; known: {', '.join(SUBJECTS)}")
    torch.set_num_threads(1)
    for name in () if asked.tables else asked.subjects or SUBJECTS:
        cells, _ = SUBJECTS[name]
        packages = {"python": asked.rivals_python} if name in FROM_PACKAGES else {}
        if asked.tiny is None:
            measure_missing(name, cells(tiny=False, **packages))
        else:
            measure_missing(name, cells(tiny=True, **packages), asked.tiny)
    if asked.tiny is None:
        write()


if __name__ == "__main__":
    main()
