"""The functions that an additive model is a sum of, as a run's folder keeps them: one of each column, with a band.

They are read without torch; `shapes_of_model` makes them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.runs.run_files import RunFile, read_json

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


def read_shapes(directory: Path) -> list[ShapeFunction]:
    """The functions of a run's additive model; empty if they were made of another model than the folder has.

    Each is centred. For a classifier they are log-odds (of more than two classes the scores of each) less their mean
    over the places. For numbers they are the change of the answer, in the target's units, with all other columns at
    their mean: that of the records by the released moments, else that of the places. The band is two standard
    deviations of the noise that all rounds added, an upper limit: gradients draw parameters back.

    Raises:
        ValueError: naming the run's file that is damaged.
    """
    path = directory / RunFile.SHAPES
    stored = read_json(path) or {}
    if stored.get("of") != sources_of_shapes(directory):
        return []
    try:
        return [ShapeFunction.of_content(content) for content in stored["shapes"]]
    except (LookupError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None


def sources_of_shapes(directory: Path) -> dict[str, Any]:
    """The digests of the files that shapes are made of, by name, without missing files."""
    paths = [directory / name for name in (RunFile.MODEL, RunFile.MOMENTS, RunFile.SCORES)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
