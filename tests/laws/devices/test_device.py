"""Laws of a model elsewhere than on the host: its bounded gradient is made there, and comes back once."""

from __future__ import annotations

import pytest
import torch

from tests.pretended import ELSEWHERE, Pretended
from tests.runs.single.examples import model, records
from tests.runs.single.test_objective import CLIP, SETS, batch_of, objective, value


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("size", [48, 96])
def test_a_gradient_is_the_hosts_and_comes_back_once_however_many_records_there_are(name, size):
    asked, net = objective(name), model()
    batch = batch_of(asked, records(size))
    here = value(asked.gradient(net, batch, CLIP))
    with (pretended := Pretended()).entered():
        moved = model().to(ELSEWHERE)
        asked.gradient(moved, batch, CLIP)  # tries made-up records first
        with pretended.part("gradient") as seen:
            found = value(asked.gradient(moved, batch, CLIP))
    torch.testing.assert_close(found, here, rtol=1e-9, atol=1e-12)
    samples = sum(penalty.between().__class__.__name__ == "Matching" for penalty in SETS[name])
    # directions and samples of the penalties, features and targets, the terms' bounds
    assert len(seen.up) == len(SETS[name]) + samples + 2 + 1
    assert (seen.down, seen.reads, seen.waits) == ([(1, *here.shape)], [], [])
