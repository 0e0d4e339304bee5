"""A client's two releases on one batch, attacked by a server that lies: at most epsilon is shown, and nearly all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsw._tools.randomness import Stream
from fedsw.federation.trust import budget_shares as split
from fedsw.learning.objectives import Clip
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.objectives.distances import BetweenGroups
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport.sliced import project
from tests.laws.attacks.canaries import epsilon_of_gaussian, shown_mu

DELTA, MULTIPLIER, TRIALS = 1e-5, 1.0, 100_000
CLIP = Clip(output=1.0, jacobian=1.0, loss=1.0)
PARITY = BetweenGroups("statistical-parity", groups=2, classes=1, alpha=1.0)
ONE = torch.ones((1, 1), dtype=torch.float64)
N, BINS, SHARE = 8, 4, 0.3
CLAIMED = epsilon_of_gaussian(1 / MULTIPLIER, DELTA)

# What no honest server would send: to the highest outputs it says that the others are lowest, and the other way round.
LIES = torch.tensor([[1.0, 0.0, 0.0, -1.0]], dtype=torch.float64)


class Freely(nn.Module):
    """An output and a Jacobian that records choose independently: theta * x[0] + x[1]."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return self.linear(x[:, :1]) + x[:, 1:]


def _batch(output: float, jacobian: float = 3.0) -> torch.Tensor:
    """The canary first; the others sit in the middle and have no gradient."""
    return torch.tensor([[jacobian, output], *[[0.0, 0.1]] * (N - 1)])


def _released(
    batch: torch.Tensor, *, noise=1.0, claimed_n=N, table=True, jacobian_bound=CLIP.jacobian, table_noise=1.0
) -> tuple[np.ndarray, np.ndarray]:
    """TRIALS releases of (table, contribution) in units of their noise, from the library's own pieces: (TRIALS, .)."""
    divided = split.BudgetSplit.of(split.Shares(0.0, MULTIPLIER, 0.0), rate=1.0, share=SHARE)
    sizes = [claimed_n, claimed_n]
    found = split.noise(divided, PARITY, CLIP, sizes=sizes, own_sizes=[N, 0], spread=1.0, k=1)
    tape = record(Freely(), batch)
    outputs = project(tape.raw, CLIP.output)
    counts = tables.histograms(outputs, ONE, CLIP.output, BINS)
    q = tables.cotangents(outputs, ONE, LIES, PARITY, cell=0, size=N, radius=CLIP.output)
    vector = clipped_sum(tape, [Term(tape.raw, q, jacobian_bound, "spectral")])
    stream = Stream.secure()
    draws = stream.normals(TRIALS * (BINS + 1)).reshape(TRIALS, BINS + 1)
    shown_table = counts.numpy() + noise * table_noise * found.table * draws[:, :BINS]
    shown_vector = float(vector) + noise * found.contribution * draws[:, BINS:]
    return shown_table / found.table * (1.0 if table else 0.0), shown_vector / found.contribution


def _shown(one: torch.Tensor, other: torch.Tensor, **mechanism) -> float:
    """Epsilon shown by the best linear score of both releases together."""
    first, second = (np.hstack(_released(batch, **mechanism)) for batch in (one, other))
    # The attacker knows both batches, so the direction in which the releases differ is no estimate.
    along = _means(one) - _means(other)
    return epsilon_of_gaussian(shown_mu(first @ along, second @ along), DELTA)


def _means(batch: torch.Tensor) -> np.ndarray:
    return np.hstack(_released(batch, noise=0.0))[0]


WORST = _batch(5.0), _batch(-5.0)


def test_on_the_worst_instance_a_lying_server_shows_nearly_all_of_epsilon_and_never_more():
    shown = _shown(*WORST)
    assert 0.8 * CLAIMED <= shown <= CLAIMED


@pytest.mark.parametrize("other", [_batch(5.0, -3.0), _batch(0.2), _batch(-5.0, -3.0), _batch(5.0, 0.2)])
def test_on_other_instances_a_lying_server_never_shows_more_than_epsilon(other):
    assert _shown(_batch(5.0), other) <= CLAIMED


def test_the_contribution_alone_shows_its_share_only():
    shown, share = _shown(*WORST, table=False), epsilon_of_gaussian((1 - SHARE) ** 0.5 / MULTIPLIER, DELTA)
    assert 0.8 * share <= shown <= share < 0.9 * CLAIMED


@pytest.mark.parametrize(
    "mutant",
    [{"noise": 0.5}, {"claimed_n": 2 * N}, {"jacobian_bound": 1e9}, {"table_noise": 0.5}],
    ids=["noise halved", "sensitivity for the wrong n", "clip removed", "table's noise halved"],
)
def test_a_broken_client_is_caught(mutant):
    assert _shown(*WORST, **mutant) > CLAIMED


def test_two_releases_charged_as_one_each_are_caught():
    """A client that gave table and contribution the whole mu each, as if their batches were two."""
    mu = 1 / MULTIPLIER
    one, other = (np.hstack(_released(batch)) for batch in WORST)
    along = _means(WORST[0]) - _means(WORST[1])
    scale = np.array([mu / (mu * SHARE**0.5)] * BINS + [mu / (mu * (1 - SHARE) ** 0.5)])
    noise = [scores - _means(batch) for scores, batch in zip((one, other), WORST, strict=True)]
    shown = [(n + scale * _means(batch)) @ (scale * along) for n, batch in zip(noise, WORST, strict=True)]
    assert epsilon_of_gaussian(shown_mu(*shown), DELTA) > 1.2 * CLAIMED
