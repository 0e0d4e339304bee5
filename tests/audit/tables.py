"""A table of records for experiments that name a module."""

from __future__ import annotations

import numpy as np
import pandas as pd

INPUTS = 6


def records(client: int, clients: int) -> pd.DataFrame:
    """A client's 120 rows: some numbers, two groups, a class and a number that follow from the numbers."""
    draw = np.random.default_rng(client)
    table = pd.DataFrame(draw.uniform(size=(120, INPUTS)).round(3), columns=[f"x{place}" for place in range(INPUTS)])
    table["sex"] = np.array(["f", "m"])[np.arange(120) % 2]
    table["y"] = np.where(table.x0 + table.x1 > 1, "a", "b")
    return table.assign(z=(table.x0 / 2 + table.x1 / 4).round(3))
