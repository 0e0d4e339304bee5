"""Codes of numbers: the same bin whichever way it is looked for, of few edges and of many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsw.data import codes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_is_in_the_last_bin_that_begins_at_it_or_below_and_in_an_end_bin_beyond(dtype, monkeypatch) -> None:
    edges = (-5.0, -5 + 1e-11, -4.5, 0.0, 0.1, 2.0, 5.0)
    number = SimpleNamespace(low=None, high=None)
    column: Any = SimpleNamespace(number=number, edges=edges, whole=False)
    beyond = [-torch.inf, torch.inf, torch.nan, -6.0, 6.0, -0.0]
    values = torch.cat([torch.tensor([*edges, *beyond]).double(), 12 * torch.rand(20_000).double() - 6]).to(dtype)
    found = codes._bins(values, column)
    monkeypatch.setattr(codes, "_FEW_EDGES", 0)
    assert torch.equal(found, codes._bins(values, column)) and found.dtype == torch.int64
    inside = [sum(edge <= value for edge in edges) - 1 for value in values.double().tolist()]
    assert [min(max(code, 0), 5) for code in inside][:7] == found[:7].tolist()
    assert found[7:13].tolist() == [0, 5, 5, 0, 5, 3]
