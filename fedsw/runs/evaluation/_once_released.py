"""A release about kept records, as it is on disk: noised sums by group, of how many records and clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class OnceReleased:
    """The one release of a kind; everything computed from it is free.

    `values` are noised sums by group, (groups, t), of so many records (groups,) at so many clients, each with noise of
    standard deviation `sigma`; `attempt` is the one that paid, `spent` the run's epsilon then.
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
        """The whole of the release for its file, which `read` takes."""
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
