"""The passes a clip rests on run in full float32, whatever the caller has switched on."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Term, UnsupportedModule, clipped_sum, record
from fedsw.mathematics.clipping.clip import SWITCHES, full_precision
from tests.mathematics.clipping.layers import make

CPU = torch.device("cpu")


class _Notes(torch.autograd.Function):
    """The identity; notes the switches in both directions."""

    seen: list[list[object]] = []

    @staticmethod
    def forward(ctx, x):
        _Notes.seen.append(switches())
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        _Notes.seen.append(switches())
        return gradient


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(_Notes.apply(self.first(x)))


def switches():
    return [getattr(backend, name) for backend, name, _ in SWITCHES]


@pytest.fixture
def coarse():
    """The caller's reduced-precision settings, put back afterwards."""
    before = switches()
    for backend, name, _ in SWITCHES:
        setattr(backend, name, "tf32" if name == "fp32_precision" else True)
    yield switches()
    for (backend, name, _), value in zip(SWITCHES, before, strict=True):
        setattr(backend, name, value)


def test_forward_gram_and_final_backward_run_without_tf32(coarse):
    model = Watched()
    record(model, torch.randn(4, 3))  # rehearsed once, which is noted too
    _Notes.seen.clear()
    tape = record(model, torch.randn(4, 3))
    clipped_sum(tape, [Term(tape.raw, torch.ones(4, 1), 1.0)])
    tape.gram(tape.raw)
    assert _Notes.seen == [[exact for _, _, exact in SWITCHES]] * 3
    assert switches() == coarse


def test_settings_come_back_after_an_error(coarse):
    with pytest.raises(RuntimeError), full_precision(CPU):
        raise RuntimeError
    assert switches() == coarse


def test_autocast_is_off_inside():
    model, x = make("conv2d", 2, True, 3)

    def run():
        tape = record(model, x)
        return clipped_sum(tape, [Term(tape.raw, torch.ones(3, 2), 0.1)])

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run(), plain)


def test_autocast_is_off_on_one_device_inside_full_precision_on_another():
    with full_precision(torch.device("cuda")), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
        with full_precision(CPU):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused(dtype):
    model = nn.Linear(3, 2).to(dtype)
    with pytest.raises(UnsupportedModule, match=r"'weight' in torch\.(bfloat16|float16).*\.float\(\)"):
        record(model, torch.randn(4, 3, dtype=dtype))
    tape = record(nn.Linear(3, 2), torch.randn(4, 3))
    with pytest.raises(ValueError, match="too coarse"):
        tape.gram(tape.raw.to(dtype))


def test_a_thread_that_leaves_early_does_not_turn_tf32_on_under_another(coarse):
    """The switches are the process': the last thread to leave puts the caller's settings back."""
    entered, leave = threading.Event(), threading.Event()

    def first():
        with full_precision(CPU):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(10)
    with full_precision(CPU):
        leave.set()
        thread.join(10)
        assert not thread.is_alive()
        assert switches() == [exact for _, _, exact in SWITCHES]
    assert switches() == coarse
