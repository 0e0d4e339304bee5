"""The paper's own fairness indices, of group 0 to group 1, where fedsw reports the smaller over the larger rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsw.papers.finished import Finished
from fedsw.papers.store import Measured


def ratios(run: Finished) -> Measured:
    """DI = P(1 | A=0) / P(1 | A=1) as `di_01`, and within true class y as `eo_<y>_01` (RLL, equations 12 to 14)."""
    outputs = run.record.outputs
    if outputs is None:
        raise ValueError(f"the run in {run.directory} left no held-out outputs")
    chosen = outputs.values[:, 0] > 0.5
    values = {"di_01": _ratio(chosen, outputs.sensitive, np.ones(len(chosen), dtype=bool))}
    for label in (0, 1):
        values[f"eo_{label}_01"] = _ratio(chosen, outputs.sensitive, outputs.target == label)
    return Measured(values)


def _ratio(chosen: NDArray[np.bool_], group: NDArray[np.int64], among: NDArray[np.bool_]) -> float:
    first, second = (float(chosen[among & (group == each)].mean()) for each in (0, 1))
    return first / second if second > 0 else float("nan")
