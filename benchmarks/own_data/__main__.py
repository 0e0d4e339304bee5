"""Measure what is missing, and write the tables of docs/own-data-results.md.

    python -m benchmarks.own_data [SUBJECT ...] [--tables] [--tiny FOLDER]

Subjects: accuracy, fairness, thresholds, claims, coverage, verdicts, sites, rates; all if none is named. Every row is
stored as it comes, under benchmarks/results/own_data/, so that the command goes on where it was ended. Data sets are
found by FEDSW_DATA.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.own_data.page import SUBJECTS, write
from benchmarks.own_data.store import measure_missing


def main() -> None:
    """Measure the subjects that are asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--tables", action="store_true", help="measure nothing; write what is there")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="a few quick cells, into another folder")
    asked = parser.parse_args()
    if unknown := set(asked.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; known: {', '.join(SUBJECTS)}")
    torch.set_num_threads(1)
    for name in () if asked.tables else asked.subjects or SUBJECTS:
        cells, _ = SUBJECTS[name]
        if asked.tiny is None:
            measure_missing(name, cells(tiny=False))
        else:
            measure_missing(name, cells(tiny=True), asked.tiny)
    if asked.tiny is None:
        write()


if __name__ == "__main__":
    main()
