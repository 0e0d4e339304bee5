"""One column's function in an additive model, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ShapeFunction:
    """One column's function: its values (w, k) at places, for each output, and a band (w, k) on either side of them.

    ``places`` are knots in the column's own numbers, or None beside ``labels``: categories, and the missing cell.
    """

    column: str
    labels: tuple[str, ...]
    places: tuple[float, ...] | None
    values: Numbers
    band: Numbers

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "column": self.column,
            "at": list(self.labels),
            "values": self.values.tolist(),
            "band": self.band.tolist(),
        }

    def content(self) -> dict[str, Any]:
        """All of it as plain values, for `of_content`."""
        return {**self.as_dict(), "places": None if self.places is None else list(self.places)}

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> ShapeFunction:
        """The shape behind `content`; KeyError, TypeError or ValueError if these are none."""
        places, labels = content["places"], tuple(content["at"])
        values, band = (np.array(content[name], dtype=np.float64) for name in ("values", "band"))
        if not all(isinstance(name, str) for name in (content["column"], *labels)):
            raise ValueError("a column or a label is no text")
        if values.ndim != 2 or values.shape != band.shape or len(values) != len(labels):
            raise ValueError(f"{len(labels)} labels have values {values.shape} and bands {band.shape}")
        if not (np.isfinite(values).all() and np.isfinite(band).all()):
            raise ValueError("a value or a band is no finite number")
        return cls(content["column"], labels, None if places is None else tuple(map(float, places)), values, band)
