"""Laws of the randomness of whole runs: what is secret follows from the system's entropy, and from nothing else."""

from __future__ import annotations

import os

import pytest

from fedsw._tools.randomness import KEY_BYTES, Stream
from fedsw.experiment import parse_experiment
from tests.federation.local_runs import TRUST
from tests.federation.sketch_runs import LOCAL, sketched
from tests.federation.test_local_slices import FLOW, RELEASE, SLICES
from tests.federations import small
from tests.laws.runs.test_matching_runs import GENERATOR

PUBLIC = {
    "data",  # toy records, drawn for everybody
    "directions",
    "generated samples",
    "generation",
    "generator training",
    "held-out prior",
    "latents",
    "particles",
    "prior",
    "public batch",
    "public minibatch",
    "public noise",
    "sketch frequencies",
}
"""What may follow from a number that somebody knows: none of it hides a record."""

RUNS = {
    "central": lambda *more: small("training.rounds=2", *more),
    "central, a generator": lambda *more: parse_experiment(GENERATOR, ("training.rounds=2", *more)),
    "distributed": lambda *more: small("privacy.trust=distributed", "privacy.epsilon=8", "training.rounds=2", *more),
    "distributed, a sketch": lambda *more: sketched("privacy.trust=distributed", "training.rounds=2", *more),
    "local-gradient": lambda *more: small(*TRUST, "training.rounds=2", *more),
    "local-slices": lambda *more: parse_experiment(SLICES, ("training.rounds=2", *more)),
    "local-slices, one release": lambda *more: parse_experiment(FLOW, ("local.algorithm=flow-one-release", *more)),
    "local-release": lambda *more: parse_experiment(RELEASE, ("training.rounds=2", *more)),
    "sketch": lambda *more: sketched("training.rounds=2", *more),
    "sketch-local": lambda *more: sketched(LOCAL, "training.rounds=2", *more),
}


@pytest.mark.parametrize("trust", RUNS)
def test_in_a_run_without_a_seed_nothing_secret_follows_from_a_number(federation, monkeypatch, trust):
    found, keys = set(), []
    seeded, entropy = Stream.seeded, os.urandom
    monkeypatch.setattr(Stream, "seeded", lambda seed, *purpose: (found.add(purpose[0]), seeded(seed, *purpose))[1])
    monkeypatch.setattr(os, "urandom", lambda size: (keys.append(entropy(size)), keys[-1])[1])
    federation.run(RUNS[trust]())
    assert found <= PUBLIC
    long = [key for key in keys if len(key) == KEY_BYTES]
    assert len(long) == len(set(long)) >= 2, "a key of its own for every secret"


@pytest.mark.parametrize("trust", RUNS)
def test_a_seeded_run_would_have_been_noticed(federation, monkeypatch, trust):
    """What the test above looks for is there to be seen."""
    found, seeded = set(), Stream.seeded
    monkeypatch.setattr(Stream, "seeded", lambda seed, *purpose: (found.add(purpose[0]), seeded(seed, *purpose))[1])
    federation.run(RUNS[trust]("seed=3"))
    assert not found <= PUBLIC
