"""A record's part is within its limit at every magnitude and in both precisions, wherever its sites cancel."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsw._tools.subnormal import flushes
from fedsw.mathematics.clipping import columns, record
from tests.mathematics.clipping.layers import NAMES, make
from tests.mathematics.clipping.naive import weighed_sum

LARGEST = {torch.float32: 45.0, torch.float64: 300.0}  # powers of 10, either way


def left(model, x, q, limit):
    """What one record leaves in the sum, relative to its limit; the cotangents reach the layers unclipped."""
    tape = record(model, x)
    head = tape.raw.reshape(1, -1)
    total = weighed_sum(tape, [(head, q)], torch.tensor([limit], dtype=torch.float64))
    return float(total.norm()) / limit


def free(model, x, q):
    """The norm of the same part without a limit."""
    tape = record(model, x)
    head = tape.raw.reshape(1, -1)
    return float(weighed_sum(tape, [(head, q)]).norm())


@pytest.mark.parametrize("low, high", [(-3.0, 3.0), (-46.0, -36.0)], ids=["ordinary", "subnormal"])
@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d], ids=["linear", "convolution"])
def test_two_sites_that_cancel_leave_at_most_their_limit(kind, low, high, way):
    found = 0.0
    for seed in range(120):
        generator = torch.Generator().manual_seed(seed)
        model = kind(1, 1, bias=False) if kind is nn.Linear else kind(1, 1, 1, bias=False)
        a = torch.randn(2, generator=generator)
        exponent = low + (high - low) * float(torch.rand((), generator=generator))
        q = torch.tensor([float(a[1]), -float(a[0])], dtype=torch.float64) * 10.0**exponent
        x = a.reshape(1, 2, 1) if kind is nn.Linear else a.reshape(1, 1, 2)
        share = float(torch.rand((), generator=generator))
        limit = max(free(model, x, q), 1e-60) * share
        if limit > 0:
            found = max(found, left(model, x, q, limit))
    assert found <= 1 + 1e-12


@settings(max_examples=80)
@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    size=st.floats(-1, 1),
    pull=st.floats(-1, 1),
    share=st.floats(1e-6, 1.5),
    seed=st.integers(0, 10**6),
)
def test_no_layer_leaves_more_than_its_limit_at_any_magnitude(name, dtype, size, pull, share, seed):
    model, x = make(name, 1, True, 1)
    model = model.to(dtype)
    scale = 10.0 ** (size * LARGEST[dtype])
    generator = torch.Generator().manual_seed(seed)
    if x.is_floating_point():
        x = (x.double() * scale).to(dtype)
    with torch.no_grad():
        shape = model(x).shape
    q = torch.randn(shape, dtype=torch.float64, generator=generator) * 10.0 ** (pull * LARGEST[dtype])
    limit = free(model, x, q) * share
    if 0 < limit < float("inf"):
        assert left(model, x, q, limit) <= 1 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squares_that_underflow_hide_no_part_from_the_measurement(dtype):
    """Tiny backprops of huge inputs: each squared is 0 or infinite in float64, and their product is not."""
    model = nn.Linear(4, 3).to(dtype)
    for power in (10, 30, 37, 100, 160, 200, 300):
        if dtype is torch.float32 and power > 37:
            continue
        x = torch.full((1, 4), 10.0**power, dtype=dtype)
        q = torch.full((1, 3), 10.0 ** -(power + 8), dtype=torch.float64)
        assert left(model, x, q, 1e-12) <= 1 + 1e-12


@pytest.mark.parametrize("flush", [False, True], ids=["subnormal", "flushed"])
def test_numbers_that_a_processor_may_flush_leave_what_was_measured(flush):
    """A subnormal backprop of a huge input: 0 or not, the sum is made of the copy that was measured."""
    model, x, tiny = nn.Linear(1, 2, bias=False), torch.tensor([[1e38]]), torch.tensor([[1e-42, 1e-42]])
    first, limit = torch.tensor([[1.0, 0.0]]), torch.tensor([1e-6], dtype=torch.float64)
    before = flushes()
    torch.set_flush_denormal(flush)
    try:
        tape = record(model, x)
        head = tape.raw * tiny
        assert float(weighed_sum(tape, [(head, first)], limit).norm()) <= 1e-6 * (1 + 1e-12)
        assert float(weighed_sum(tape, [(head, first)]).norm()) == pytest.approx(0.0 if flush else 1e-4, rel=1e-2)
    finally:
        torch.set_flush_denormal(before)


@pytest.mark.parametrize("width", [4, 3000])
def test_one_record_moves_a_sum_of_many_by_its_own_part_in_layers_of_any_width(width):
    """Every record adds about the same, so that partial sums are as large as they can be."""
    n, generator = 20_000, torch.Generator().manual_seed(1)
    x = 0.7 + 0.3 * torch.rand((n, 2), generator=generator)
    layer = nn.Linear(2, width, bias=False)
    sums = []
    for own in (1.0, -1.0):
        q = torch.ones(n, dtype=torch.float64)
        q[n // 2] = own
        tape = record(layer, x)
        head = tape.raw.sum(1)
        sums.append(weighed_sum(tape, [(head, q)]))
    exact = 2 * x[n // 2].double().repeat(width)
    assert float((sums[0] - sums[1] - exact).norm()) <= 1e-9 * float(exact.norm())


def test_a_record_and_the_one_in_its_stead_elsewhere_move_a_sum_by_their_parts_alone():
    """All others move by a row, and each of the large ones to the other side of the 63 small ones in its block."""
    blocks, layer = 1200, nn.Linear(16, 16, bias=False)
    sizes = torch.full((blocks, 64), 0.99 * 2.0**-24)
    sizes[:, 0] = 1.0
    batch = sizes.reshape(-1)
    sums = []
    for each in (batch, torch.cat([batch[1:], torch.ones(1)])):
        tape = record(layer, each[:, None].expand(-1, 16) / 4)
        head = tape.raw.sum(1) / 4
        sums.append(weighed_sum(tape, [(head, torch.ones(len(each)))]))
    assert float((sums[0] - sums[1]).norm()) <= 1e-9


@pytest.mark.parametrize("sites", [2, 3])
def test_a_batch_of_records_at_their_reach_is_summed_far_below_one_records_limit(sites, monkeypatch):
    """Every record's products are as large as its limit lets them be, cancel, and move by a row."""
    original, n = columns._forms, 20_000
    monkeypatch.setattr(columns, "_forms", lambda call, deltas, _, room: original(call, deltas, "factored", room=room))
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        inputs = 1 + torch.rand(sites, generator=generator, dtype=torch.float64)
        pull = torch.randn(sites, generator=generator, dtype=torch.float64)
        pull = pull - (pull @ inputs) / inputs.square().sum() * inputs
        pull *= 0.7 * min(2.0**25.5 / math.sqrt(2 * sites), 2.0**40 / (n * sites)) / float(pull.norm() * inputs.norm())
        x, q = inputs.reshape(1, sites, 1).repeat(n, 1, 1), pull.repeat(n, 1)
        sums = []
        for other in (x, torch.cat([x[1:], torch.ones_like(x[:1])])):
            tape = record(nn.Linear(1, 1, bias=False).double(), other)
            head = tape.raw.reshape(n, sites)
            gone = torch.cat([q[1:], torch.zeros_like(q[:1])]) if other is not x else q
            sums.append(weighed_sum(tape, [(head, gone)], torch.ones(n, dtype=torch.float64)))
        assert float((sums[0] - sums[1]).norm()) <= 1e-4
