"""A whole federation, attacked: the model it releases shows no more than its epsilon, and a broken one is caught.

Secret streams are given fixed keys here: a few hundred runs tell too little to be right with any secret noise, and what
is attacked is the size of the noise, not its source.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedsw._tools.randomness import Stream
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import release as door
from tests.brief import brief  # noqa: F401
from tests.federations import Federation, small
from tests.laws.attacks.canaries import epsilon_of_gaussian, shown_mu
from tests.noises import replace_noise

DELTA, CONFIDENCE = 1e-3, 0.99


def _released(folder, monkeypatch, label: int, trials: int) -> np.ndarray:
    """Models of so many runs along the canary's gradient, which fills the loss clip, with a sign for each label."""
    import fedsw.federation.node.replies as node

    genuine = node.held_records

    def with_canary(task, node_config):
        held = genuine(task, node_config)
        if node_config["partition-id"] == 0:
            held.records.features[0] = 1e4 * _undecided(task)
            held.records.target[0] = label
        return held

    experiment = small(
        "data.records=40",
        "data.test_records=20",
        "objective.alpha=0.0",
        "clip.loss=1.0",
        "training.rounds=1",
        "training.batch_fraction=1.0",
        "federation.clients=2",
        "privacy.epsilon=inf",
        "privacy.noise_multiplier=1.0",
        f"privacy.delta={DELTA}",
    )
    monkeypatch.setattr(node, "held_records", with_canary)
    # A fresh node for every label, whatever ran before in this process.
    node._nodes.clear()
    federation, scores = Federation(folder), []
    along = _undecided(Problem.from_experiment(experiment))
    for trial in range(trials):
        directory = folder / f"{label}-{trial}"
        federation.run(experiment, directory=directory)
        scores.append(float(load_file(directory / "model.safetensors")["0.weight"][0] @ along))
    monkeypatch.setattr(node, "held_records", genuine)
    return np.array(scores)


def _undecided(task: Problem) -> torch.Tensor:
    """A direction that the initial model gives probability 1/2, so that both labels pull with full force."""
    weight = task.build_model()[0].weight.detach()[0]
    along = torch.zeros_like(weight)
    along[0], along[1] = weight[1], -weight[0]
    return along / along.norm()


@pytest.mark.slow
@pytest.mark.parametrize(("share", "trials"), [(1.0, 160), (0.4, 70)], ids=["as it is", "mutant: noise at 0.4"])
def test_the_released_model_shows_at_most_epsilon_unless_the_noise_is_too_small(tmp_path, monkeypatch, share, trials):
    noised, draws = door.noised, itertools.count()
    monkeypatch.setattr(Stream, "secure", lambda: Stream.seeded(next(draws), "federation attack"))
    replace_noise(monkeypatch, lambda vector, sigma, stream: noised(vector, share * sigma, stream))
    mu = shown_mu(*(_released(tmp_path, monkeypatch, label, trials) for label in (0, 1)), confidence=CONFIDENCE)
    shown, claimed = epsilon_of_gaussian(mu, DELTA), epsilon_of_gaussian(1.0, DELTA)
    if share == 1.0:
        assert 0.1 * claimed <= shown <= claimed
    else:
        assert shown > claimed
