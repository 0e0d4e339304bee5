"""An accountant of one's own: Renyi differential privacy of Gaussian releases of all records, in a run and its record.

    python docs/examples/own_accountant.py

Nothing proves that its epsilon is an upper bound, so the record says that you state it; what is known from below is
compared with it when it is registered.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fedsw
from fedsw.privacy.accounting import Step, accountant

ORDERS = [1 + tenth / 10 for tenth in range(1, 600)]


@accountant("renyi-of-all", note="Renyi bound without amplification (Mironov 2017, Proposition 3)", upper_bound=True)
def renyi_of_all(steps: Sequence[tuple[Step, int]], delta: float) -> float:
    """Epsilon as if every batch held all records: more than is spent, and quickly computed."""
    squares = sum(times * step.mu**2 for step, times in steps)
    return min(order * squares / 2 + math.log(1 / delta) / (order - 1) for order in ORDERS)


SETTINGS = {
    "name": "own-accountant",
    "data": {"records": 600, "test_records": 200},
    "training": {"rounds": 2},
    "privacy": {"accountant": "renyi-of-all", "epsilon": 4.0, "delta": 1e-4},
    "federation": {"clients": 2},
}


def main() -> str:
    """What the run's guarantee says."""
    with tempfile.TemporaryDirectory() as folder:
        summary = fedsw.run(SETTINGS, runs=Path(folder)).summary
    print(f"epsilon {summary['epsilon']:.3g} by {summary['guarantee']['accountant']}")
    statement: str = summary["guarantee"]["statement"]
    print(statement)
    return statement


if __name__ == "__main__":
    main()
