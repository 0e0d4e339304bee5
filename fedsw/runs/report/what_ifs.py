"""A plan's forecast for other numbers of records and other epsilons, as a table of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsw._tools.text import upward
from fedsw.runs.report.document import FactTable, Listed, Part


@dataclass(frozen=True)
class WhatIfs:
    """A plan's forecast for other numbers of records, and other epsilons."""

    verdict: str
    table: FactTable

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> WhatIfs | None:
        """Read them off a plan as plain values (`fedsw plan --json`); None if it has no forecast."""
        forecast = plan.get("forecast")
        if not forecast:
            return None
        least = forecast["thresholds"]["feasible"]
        shares = {(case["records"], case["epsilon"]): float(case["kept"]) for case in forecast["what_ifs"]}
        epsilons = sorted({epsilon for _, epsilon in shares})

        def cell(share: float) -> str:
            return "a constant does as well" if share < least else f"{100 * min(1.0, share):.0f} %"

        rows = [
            (f"{records:,}", *(cell(shares[records, epsilon]) for epsilon in epsilons))
            for records in sorted({records for records, _ in shares})
        ]
        return cls(str(plan["verdict"]), FactTable.of(("records", *(f"ε = {upward(case)}" for case in epsilons)), rows))

    def listed(self) -> Listed:
        """The table, which a page moves along."""
        return Listed("Left of what can be learnt, by records and ε", self.table, "cells", left=())

    def parts(self) -> list[Part]:
        """Forecasts on the page of a run."""
        said = f"{self.verdict}. A forecast from public twins: what would be left of what can be learnt."
        return [said, self.listed()]
