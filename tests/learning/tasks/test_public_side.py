"""Laws of the other side of a matching: what private values can pull out of it."""

from __future__ import annotations

import pytest
import torch

from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import Prior, PublicSide, public_side_of
from tests.brief import brief  # noqa: F401
from tests.federations import digits_for_images
from tests.laws.runs.test_matching_runs import ADAPTATION, AUTOENCODER, GENERATOR, experiment, parameters_of

STEEP = 30.0  # times the initial parameters: Jacobians far above the clip


def _public_side(base: dict, *overrides: str) -> tuple[Problem, PublicSide]:
    task = Problem.from_experiment(experiment(base, *overrides))
    found = public_side_of(task)
    assert found is not None
    return task, found


@pytest.mark.parametrize("base", [GENERATOR, ADAPTATION], ids=["generator", "domain"])
def test_private_cotangents_pull_no_more_out_of_the_public_side_than_the_clip_allows(base, monkeypatch):
    """What no private value decides (a domain's labelled loss) is what remains where the cotangents are zero."""
    digits_for_images(monkeypatch)
    task, side = _public_side(base)
    sample = side.sample(flatten(task.build_model()) * STEEP, 40, 1, 0)
    public = side.contribution(torch.zeros((len(sample), task.dimension), dtype=torch.float64))
    generator = torch.Generator().manual_seed(2)
    attained = 0.0
    for _ in range(5):
        q = torch.randn((len(sample), task.dimension), generator=generator, dtype=torch.float64)
        pulled = side.contribution(q) - public
        most = task.clip.jacobian * float(torch.linalg.vector_norm(q, dim=1).sum())
        attained = max(attained, float(torch.linalg.vector_norm(pulled)) / most)
    one = torch.zeros_like(q)
    one[0] = q[0]
    alone = float(torch.linalg.vector_norm(side.contribution(one) - public))
    assert attained <= 1.0
    assert 0.01 < alone / (task.clip.jacobian * float(torch.linalg.vector_norm(q[0]))) <= 1.0


def test_a_prior_has_no_parameters_that_a_private_value_could_move():
    task, side = _public_side(AUTOENCODER)
    side.sample(flatten(task.build_model()), 40, 1, 0)
    assert not side.contribution(torch.ones((40, task.dimension), dtype=torch.float64)).any()


def test_the_samples_follow_from_public_numbers_and_are_fresh_in_every_attempt():
    for base in (GENERATOR, AUTOENCODER):
        drawn = []
        for _ in range(2):
            task, side = _public_side(base)
            theta = flatten(task.build_model())
            drawn.append([side.sample(theta, 10, round_, attempt) for round_ in (1, 2) for attempt in (0, 1)])
        for one, same in zip(*drawn, strict=True):
            torch.testing.assert_close(one, same, rtol=0, atol=0)
        assert len({tuple(sample.flatten().tolist()) for sample in drawn[0]}) == 4


def test_the_public_side_learns_where_the_penalty_has_no_weight(federation, monkeypatch):
    """A domain carries the task loss: with alpha = 0 it is all there is to learn from (source only)."""
    chosen = experiment(AUTOENCODER, "objective.alpha=0.0", "privacy.trust=none", "training.optimizer=sgd", "seed=1")
    federation.run(chosen)
    given = torch.ones(Problem.from_experiment(chosen).parameters, dtype=torch.float64)
    monkeypatch.setattr(Prior, "contribution", lambda side, cotangents: given)
    federation.run(chosen)
    without, with_it = (parameters_of(federation.folder / f"run{number}") for number in (1, 2))
    moved = without - with_it
    assert float(moved.min()) > 0 and torch.allclose(moved, moved.mean().expand_as(moved), rtol=0.1)


def test_a_domain_alone_teaches_the_model(federation, monkeypatch):
    digits_for_images(monkeypatch)
    for rounds in (1, 3):
        federation.run(experiment(ADAPTATION, "objective.alpha=0.0", "privacy.trust=none", f"training.rounds={rounds}"))
    early, late = (parameters_of(federation.folder / f"run{number}") for number in (1, 2))
    assert float((late - early).abs().max()) > 1e-4
