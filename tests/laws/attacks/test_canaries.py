"""A release shows no more than its epsilon, and on the worst instance nearly all of it; broken ones are caught."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsw._tools.randomness import Stream
from fedsw.learning.objectives import Clip
from fedsw.learning.objectives.distances import BetweenGroups
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport.sliced import project
from tests.laws.attacks.canaries import epsilon_of_gaussian, shown_mu

DELTA, MULTIPLIER, TRIALS = 1e-5, 1.0, 100_000
M, L, C = 1.0, 1.0, 1.0
N = 8


class Freely(nn.Module):
    """An output and a Jacobian that records choose independently: theta * x[0] + x[1]."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return self.linear(x[:, :1]) + x[:, 1:]


def _batch(own_jacobian: float, own_output: float = 5.0) -> list[torch.Tensor]:
    """Group 0 holds the canary first; everything else sits at -M and has no gradient."""
    quiet = torch.tensor([0.0, -M])
    own = torch.stack([torch.tensor([own_jacobian, own_output]), *[quiet] * (N - 1)])
    return [own, torch.stack([quiet] * N)]


def _released(batch, *, noise=1.0, claimed_n=N, jacobian_bound=L, alpha=1.0) -> np.ndarray:
    """TRIALS releases of the clipped gradient of alpha * SP penalty, put together from the library's own pieces."""
    objective = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=alpha)
    clip = Clip(M, L, C)
    tape = record(Freely(), torch.cat(batch))
    outputs = project(tape.raw, M)
    q = torch.cat(objective.cotangents([outputs[:N], outputs[N:]], torch.ones((1, 1), dtype=torch.float64)))
    vector = clipped_sum(tape, [Term(tape.raw, q, jacobian_bound, "spectral")])
    bounds = objective.sensitivities([claimed_n, claimed_n], clip, d=1, spread=1.0)
    sigma = MULTIPLIER * max(bound.value for bound in bounds)
    return float(vector) + noise * sigma * Stream.secure().normals(TRIALS)


def _shown(one, other, **mechanism) -> float:
    mu = shown_mu(_released(one, **mechanism), _released(other, **mechanism))
    return epsilon_of_gaussian(mu, DELTA)


CLAIMED = epsilon_of_gaussian(1 / MULTIPLIER, DELTA)
WORST = _batch(3.0), _batch(-3.0)


def test_on_the_worst_instance_an_attacker_shows_nearly_all_of_epsilon_and_never_more():
    shown = _shown(*WORST)
    assert 0.8 * CLAIMED <= shown <= CLAIMED


@pytest.mark.parametrize("other", [_batch(0.5), _batch(3.0, -5.0), _batch(-3.0, -5.0), _batch(3.0, 0.0)])
def test_on_other_instances_an_attacker_never_shows_more_than_epsilon(other):
    assert _shown(_batch(3.0), other) <= CLAIMED


@pytest.mark.parametrize(
    "mutant",
    [{"noise": 0.5}, {"claimed_n": 2 * N}, {"jacobian_bound": 1e9}],
    ids=["noise halved", "sensitivity for the wrong n", "clip removed"],
)
def test_a_broken_mechanism_is_caught(mutant):
    assert _shown(*WORST, **mutant) > CLAIMED


def test_the_attack_itself_finds_nothing_where_there_is_nothing():
    assert _shown(WORST[0], WORST[0]) < 0.2 * CLAIMED
