"""The sum over records of a narrow layer is exact to float64, whatever the model's precision."""

from __future__ import annotations

import torch
from torch import nn

from fedsw.mathematics.clipping import Term, clipped_sum, record


def test_rounding_of_a_float32_batch_stays_far_below_one_records_influence():
    n, features = 20_000, 16
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((n, features), generator=generator)
    layer = nn.Linear(features, 1)
    q = torch.randn((n, 1), dtype=torch.float64, generator=generator).to(torch.float32).double()
    tape = record(layer, x)
    summed = clipped_sum(tape, [Term(tape.raw, q, 1e6)])
    exact = torch.cat([(q.T @ x.double()).reshape(-1), q.sum(0)])
    # Cotangents are cast once to the model's precision; everything after that is exact.
    assert float((summed - exact).abs().max()) < 1e-10
