"""What `fedsw audit --canary` puts before a prior: below the vector bound, and what a search adds to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.learning.tasks.generated_samples import uniform_ball
from fedsw.mathematics.transport import sliced
from fedsw.privacy.sensitivity import Side, swd_sensitivity

D, K, N, M, A = 6, 48, 360, 1.5, 1.0
STREAM = Stream.seeded(0, "instances")
NORMALS = torch.from_numpy(STREAM.normals(D * K)).reshape(sliced.direction_shape(D, K))
DIRECTIONS = sliced.directions(D, K, normals=NORMALS)
PRIOR = uniform_ball(N, D, A, STREAM)
BOUND = N * swd_sensitivity(Side(N, M, 1.0), Side(N, A, 0.0, private=False), bound="vector", spread=1 / D).value


def _moved(others: Tensor, value: Tensor, replaced: Tensor) -> float:
    """How far the sum moves, in L/n, with the Jacobians that move it most; the first of the others is exchanged."""
    q = []
    for own in (value, replaced):
        codes = others.clone()
        codes[0] = own
        q.append(sliced.cotangents(codes, PRIOR, DIRECTIONS)[0])
    return N * float(q[0][0].norm() + q[1][0].norm() + (q[0][1:] - q[1][1:]).norm(dim=1).sum())


def _at_a_pole() -> float:
    pole = M * torch.eye(D, dtype=torch.float64)[0]
    return _moved(pole.repeat(N, 1), (1 - 1e-3) * pole, pole)


def test_the_instance_at_a_pole_reaches_over_a_third_of_the_vector_bound():
    assert 0.35 * BOUND <= _at_a_pole() <= BOUND


@pytest.mark.slow
@pytest.mark.parametrize("start", range(2))
def test_a_search_over_both_values_of_the_canary_gains_a_third_and_stays_below_half_of_the_bound(start):
    """All others in one place, the canary's two values anywhere else: hill climbing from random points."""
    stream = Stream.seeded(start, "search")

    def drawn() -> Tensor:
        return torch.from_numpy(stream.normals(3 * D)).reshape(3, D)

    points, step, best = sliced.project(1.5 * drawn(), M), 0.5, 0.0
    for _ in range(1500):
        tried = sliced.project(points + step * drawn(), M)
        found = _moved(tried[:1].repeat(N, 1), tried[1], tried[2])
        if found > best:
            best, points = found, tried
        else:
            step = max(0.005, 0.99 * step)
    assert _at_a_pole() <= best <= min(0.5 * BOUND, 1.4 * _at_a_pole())
