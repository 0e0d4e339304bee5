"""Held-out outputs in small: histograms by group and class, and points for scatter plots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsw.runs.view import HeldOutOutputs
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_BINS = 40
_POINTS = 1500


def histograms(run: Finished) -> Measured:
    """Densities of one-dimensional held-out outputs by group: `edges` (b + 1,), `density` (groups, b).

    `density_by_class` (classes, groups, b) has them within each true class, where there are classes.
    """
    outputs = _outputs(run)
    values = outputs.values[:, 0]
    edges = np.linspace(float(values.min()), float(values.max()) + 1e-9, _BINS + 1)
    arrays = {"edges": edges, "density": _densities(values, outputs.sensitive, edges)}
    if outputs.target.ndim == 1 and np.issubdtype(outputs.target.dtype, np.integer):
        within = [outputs.target == each for each in np.unique(outputs.target)]
        each_class = [_densities(values[rows], outputs.sensitive[rows], edges) for rows in within]
        arrays["density_by_class"] = np.stack(each_class)
    return Measured(arrays=arrays)


def points(run: Finished) -> Measured:
    """Some held-out outputs (n, d) as `points`, with their `group` (n,), spread evenly over the records."""
    outputs = _outputs(run)
    shown = np.linspace(0, len(outputs.values) - 1, min(_POINTS, len(outputs.values))).astype(int)
    group = outputs.sensitive[shown].astype(np.int16)
    return Measured(arrays={"points": outputs.values[shown].astype(np.float32), "group": group})


def curves(run: Finished) -> Measured:
    """Held-out metrics over the rounds: `rounds` (t,), and one array (t,) for each metric as `curve_<metric>`."""
    lines = [line for line in run.record.history if line.get("held_out")]
    names = sorted({name for line in lines for name, value in line["held_out"].items() if isinstance(value, float)})
    arrays: dict[str, NDArray[Any]] = {"rounds": np.array([line["round"] for line in lines], dtype=np.int32)}
    for name in names:
        found = [line["held_out"].get(name, np.nan) for line in lines]
        arrays[f"curve_{name}"] = np.array(found, dtype=np.float32)
    return Measured(arrays=arrays)


def _outputs(run: Finished) -> HeldOutOutputs:
    outputs = run.record.outputs
    if outputs is None:
        raise ValueError(f"the run in {run.directory} left no held-out outputs; its experiment has no held-out records")
    return outputs


def _densities(values: NDArray[np.float64], group: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[Any]:
    found = [np.histogram(values[group == each], bins=edges, density=True)[0] for each in np.unique(group)]
    return np.stack(found).astype(np.float32)
