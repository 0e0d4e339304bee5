"""Malformed inputs: what each command line says and exits with, and that nothing was spent.

    python -m benchmarks.malformed

Runs every case in a folder of its own, and prints what it says.
"""

from __future__ import annotations

from benchmarks.malformed import CASES
from benchmarks.malformed.case import outcome_of


def main() -> None:
    for case in CASES:
        outcome = outcome_of(case)
        print(f"{outcome.code}  {case.what}: {outcome.error.strip()}")


if __name__ == "__main__":
    main()
