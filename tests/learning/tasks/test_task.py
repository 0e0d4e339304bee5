"""Laws of a task: what the server and every client work out for themselves is the same, and new in every attempt."""

from __future__ import annotations

import torch

from fedsw.learning.tasks.problem import Problem
from tests.federations import small

REPRESENTATION = (
    "objective.task=representation",
    "model.kind=encoder-decoder",
    "model.hidden=[8]",
    "model.latent=3",
    "slicing.directions=6",
)


def test_every_attempt_has_directions_of_its_own_that_are_the_same_for_everybody():
    here, there = (Problem.from_experiment(small(*REPRESENTATION)) for _ in range(2))
    attempts = [(round_, attempt) for round_ in range(1, 4) for attempt in range(3)]
    drawn = [here.clipped.directions(*attempt)[0] for attempt in attempts]
    for attempt, theta in zip(attempts, drawn, strict=True):
        assert torch.equal(theta, there.clipped.directions(*attempt)[0])
    assert not any(torch.isclose(one, other).any() for i, one in enumerate(drawn) for other in drawn[:i])


def test_directions_follow_from_nothing_but_their_own_seed_and_the_attempt():
    drawn = {
        tuple(Problem.from_experiment(small(*REPRESENTATION, *more)).clipped.directions(1, 0)[0].flatten().tolist())
        for more in ((), ("seed=3",), ("data.records=300",), ("partition.seed=4",))
    }
    assert len(drawn) == 1
    other = Problem.from_experiment(small(*REPRESENTATION, "slicing.seed=8")).clipped.directions(1, 0)[0]
    assert tuple(other.flatten().tolist()) not in drawn
