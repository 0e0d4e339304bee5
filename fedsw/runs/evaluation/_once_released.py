"""A release that a run makes once beside its rounds, as on disk: noised sums by group, numbers of records, clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class OnceReleased:
    """The one release of a kind; everything computed from it is free.

    `values` are noised sums by group, (groups, t), each with noise of standard deviation `sigma`, of `records` by
    group, (groups,), at a number of `clients`; `attempt` was charged, `spent` is the run's epsilon after it.
    """

    values: NDArray[np.float64]
    sigma: float
    records: NDArray[np.int64]
    clients: int
    attempt: int
    spent: float

    def said(self) -> dict[str, Any]:
        """The summary's part about the release: without the sums themselves."""
        return {
            "sigma": self.sigma,
            "records": int(self.records.sum()),
            "clients": self.clients,
            "attempt": self.attempt,
        }

    def content(self) -> dict[str, Any]:
        """All of the release for its file, which `read` takes."""
        return {
            **self.said(),
            "values": self.values.tolist(),
            "records": self.records.tolist(),
            "epsilon": self.spent,
        }


def read(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a release that a file holds; LookupError, TypeError, ValueError for one that is damaged."""
    return {
        "values": np.array(content["values"], dtype=np.float64),
        "sigma": float(content["sigma"]),
        "records": np.array(content["records"], dtype=np.int64),
        "clients": int(content["clients"]),
        "attempt": int(content["attempt"]),
        "spent": float(content["epsilon"]),
    }
