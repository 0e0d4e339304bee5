"""Laws of sums by runs of records: one pass for all, and every run's sum is that of its own records."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.clipping import tape as recording

RUNS = [3, 0, 5, 1, 8]


def _models():
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    wide = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))
    return {"logistic": nn.Linear(6, 1), "tower": tower, "wide": wide}


def _summed(model, x, q, w, runs=None):
    tape = record(model, x)
    losses = tape.raw.square().sum(1)
    return clipped_sum(tape, [Term(tape.raw, q, 0.3), Term(losses, w, 0.2)], runs=runs)


@pytest.mark.parametrize("rows", [2**18, 24])
@pytest.mark.parametrize("name", ["logistic", "tower", "wide"])
def test_a_run_has_the_clipped_sum_of_its_records_alone(monkeypatch, name, rows):
    """In blocks of a few records too, which runs lie across."""
    monkeypatch.setattr(recording, "_CACHED_VECTORS", rows)
    monkeypatch.setattr(recording, "_CACHED_SITES", rows)
    model, n = _models()[name].double(), sum(RUNS)
    x = torch.randn(n, 1, 6).double() if name == "tower" else torch.randn(n, 6).double()
    d = model(x).shape[1]
    q, w = torch.randn(n, d).double(), torch.rand(n).double()
    x[4] = float("nan")  # of the third run: it alone loses that record
    found = _summed(model, x, q, w, RUNS)
    start = 0
    for run, length in enumerate(RUNS):
        part = slice(start, start + length)
        own = _summed(model, x[part], q[part], w[part]) if length else torch.zeros(found.shape[1])
        assert torch.allclose(found[run], own.double(), atol=1e-12)
        assert found[run].norm() <= 0.3 * q[part].norm(dim=1).sum() + 0.2 * w[part].sum() + 1e-12
        start += length
    assert torch.allclose(found.sum(0), _summed(model, x, q, w), atol=1e-12) and found.abs().sum() > 0


@pytest.mark.parametrize("runs", [[3, 13], [3, 15], [18, -1], []])
def test_runs_that_are_not_the_records_are_refused(runs):
    model, x = nn.Linear(6, 1), torch.randn(17, 6)
    tape = record(model, x)
    with pytest.raises(ValueError, match="every record is in one run"):
        clipped_sum(tape, [Term(tape.raw, torch.ones(17, 1), 1.0)], runs=runs)
