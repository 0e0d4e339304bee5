"""The paper's own fairness indices, of group 0 to group 1, where fedsw reports the smaller over the larger rate."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.runs.view import HeldOutOutputs
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_FITTED = 0.6
"""Part of the held-out codes that a classifier is fitted on; the paper's."""


def ratios(run: Finished) -> Measured:
    """DI = P(1 | A=0) / P(1 | A=1) as `di_01`, and within true class y as `eo_<y>_01` (RLL, equations 12 to 14)."""
    outputs = _outputs(run)
    chosen = outputs.values[:, 0] > 0.5
    values = {"di_01": ratio(chosen, outputs.sensitive)}
    for label in (0, 1):
        among = outputs.target == label
        values[f"eo_{label}_01"] = ratio(chosen[among], outputs.sensitive[among])
    return Measured(values)


def above_diagonal(run: Finished) -> Measured:
    """OD_a, the rate of points above the diagonal in group a (RLL, appendix C.4), as `above_0` and `above_1`.

    Their outputs are centred: y2 > -y1 is y1 + y2 > 1 in the unit square.
    """
    outputs = _outputs(run)
    above = outputs.values.sum(axis=1) > 1
    return Measured({f"above_{group}": float(above[outputs.sensitive == group].mean()) for group in (0, 1)})


def codes(run: Finished) -> Measured:
    """What a representation keeps and hides, on held-out records (RLL, appendix C.5).

    `core_loss` is RL_C, the squared error of the first `data.core_features` columns. `code_accuracy` and `code_di_01`
    are of a logistic regression of the class on 60 % of the codes, measured on the other 40 %; `code_group` is the
    accuracy of another that looks for the group.
    """
    from sklearn.linear_model import LogisticRegression

    records, core = run.dataset.test, run.experiment.data.core_features
    model, features = (
        run.model,
        run.problem.given(records).features,
    )  # a network of the paper's own is tried by gradients
    with torch.no_grad():
        latent, found = model(features)
    missed = (found[:, :core] - records.features[:, :core]).square().sum(dim=1)
    held = latent.double().numpy()
    cut = int(_FITTED * len(held))
    group, label = records.sensitive.numpy(), records.target.numpy()
    chosen = LogisticRegression().fit(held[:cut], label[:cut]).predict(held[cut:])
    guessed = LogisticRegression().fit(held[:cut], group[:cut]).predict(held[cut:])
    return Measured(
        {
            "core_loss": float(missed.double().mean()),
            "code_accuracy": float((chosen == label[cut:]).mean()),
            "code_di_01": ratio(chosen == 1, group[cut:]),
            "code_group": float((guessed == group[cut:]).mean()),
        }
    )


def ratio(chosen: NDArray[np.bool_], group: NDArray[np.int64]) -> float:
    """P(chosen | A=0) / P(chosen | A=1) of records (n,) and their groups (n,); nan where nobody of group 1 is."""
    first, second = (float(chosen[group == each].mean()) if (group == each).any() else 0.0 for each in (0, 1))
    return first / second if second > 0 else float("nan")


def _outputs(run: Finished) -> HeldOutOutputs:
    if run.record.outputs is None:
        raise ValueError(f"the run in {run.directory} left no held-out outputs; its experiment has no held-out records")
    return run.record.outputs
