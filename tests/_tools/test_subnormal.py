"""Laws of subnormal numbers: where clients compute there are none, in any thread; elsewhere nothing changes."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

import pytest
import torch

from fedsw._tools.subnormal import flushed, flushes, flushing_to_zero, switched_on
from fedsw.data import Records

MANY = 2**20  # torch gives each thread a part of it
THREADS = """
import torch
from fedsw._tools.subnormal import flushes, flushing_to_zero

def left() -> int:
    return int((torch.full((2**20,), 1e-30) * 1e-10 != 0).sum())

def products() -> int:
    return int((torch.full((256, 256), 1e-30) @ (torch.eye(256) * 1e-10) != 0).sum())

torch.set_num_threads(THREADS)
assert left() == 2**20 and products() == 2**16  # in all threads that torch has started by now
for _ in range(3):
    assert flushing_to_zero(left)() == 0 and flushing_to_zero(products)() == 0
    assert not flushes() and left() == 2**20 and products() == 2**16
torch.set_num_threads(THREADS + 1)
assert flushing_to_zero(left)() == 0 and left() == 2**20
"""


def subnormals_left() -> int:
    return int((torch.full((MANY,), 1e-30) * 1e-10 != 0).sum())


@pytest.mark.parametrize("threads", [1, 3])
def test_all_threads_of_a_computation_flush_and_no_other_does(threads):
    """In a process of its own: threads that were started before keep what they inherited."""
    script = THREADS.replace("THREADS", str(threads))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_switch_is_put_back_whatever_happens():
    assert not flushes() and subnormals_left() == MANY
    with switched_on():
        assert flushes() and subnormals_left() == 0
        with switched_on():
            assert flushes()
        assert flushes()
    assert not flushes()

    @flushing_to_zero
    def fails():
        assert flushes()
        raise KeyError("of the computation")

    with pytest.raises(KeyError, match="of the computation"):
        fails()
    assert not flushes() and subnormals_left() == MANY


def test_every_thread_that_computes_flushes_in_itself_or_in_a_thread_of_its_own():
    found: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()

    def work():
        found.put((flushing_to_zero(subnormals_left)(), flushes()))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [found.get() for _ in workers] == [(0, False)] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flushing_changes_subnormal_numbers_only(dtype):
    tiny = torch.finfo(dtype).tiny
    kept = torch.tensor([0.0, tiny, -tiny, 1.0, -3.5, torch.inf, -torch.inf, torch.finfo(dtype).max], dtype=dtype)
    small = torch.tensor([tiny / 2, -tiny / 2, tiny * 2.0**-20, -tiny * (1 - 2.0**-20)], dtype=dtype)
    assert bool((small != 0).all())
    assert torch.equal(flushed(kept), kept) and torch.equal(flushed(small), torch.zeros_like(small))
    assert bool(flushed(torch.tensor([torch.nan], dtype=dtype)).isnan().all())


def test_records_hold_no_subnormal_number():
    values = torch.tensor([[1e-40, 1.0], [-1e-45, 2e-38], [3.0, -1.1e-38]])
    ids = torch.arange(3)
    for target in (torch.zeros(3, dtype=torch.int64), values.clone()):
        records = Records(values, torch.zeros(3, dtype=torch.int64), target, ids)
        for found in (records, records.take([2, 0, 1])):
            for part in (found.features, *([found.target] if target.ndim == 2 else [])):
                assert bool(((part == 0) | (part.abs() >= torch.finfo(torch.float32).tiny)).all())
        assert records.features.tolist() == [[0.0, 1.0], [0.0, pytest.approx(2e-38)], [3.0, 0.0]]
