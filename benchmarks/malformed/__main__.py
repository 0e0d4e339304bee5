"""Malformed inputs: what each command line says and exits with, and that nothing was spent.

    python -m benchmarks.malformed

Runs every case in a folder of its own, prints the table and writes docs/errors.md.
"""

from __future__ import annotations

from benchmarks.malformed.case import outcome_of
from benchmarks.malformed.page import CASES, TABLE, page


def main() -> None:
    outcomes = {}
    for case in CASES:
        outcomes[case] = found = outcome_of(case)
        print(f"{found.code}  {case.what}: {found.error.strip()}")
    TABLE.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
