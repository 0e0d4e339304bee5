"""Error and demographic-parity violation of a classifier, as comparisons on Adult print them."""

from __future__ import annotations

from simulations.papers.finished import Finished
from simulations.papers.store import Measured


def error_and_violation(run: Finished) -> Measured:
    """`error`: 1 - accuracy; `violation`: the gap between the groups' rates of class 1; both on held-out records."""
    held_out = run.record.summary["held_out"]
    error, violation = 1 - float(held_out["accuracy"]), float(held_out["demographic_parity_difference"])
    return Measured({"error": error, "violation": violation})
