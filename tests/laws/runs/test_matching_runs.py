"""Laws of runs that match private records to another sample, in which server and clients are trusted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation import messages
from fedsw.privacy.sensitivity import SLACK
from tests.federation.local_runs import parameters_of
from tests.federations import Saboteur, digits_for_images

GENERATOR = {
    "name": "generator",
    "data": {"source": "gaussians", "records": 600, "test_records": 300},
    "model": {"kind": "generator", "latent": 2, "hidden": [16]},
    "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
    "slicing": {"directions": 6},
    "training": {"rounds": 4, "learning_rate": 0.02, "batch_fraction": 0.2, "optimizer": "adam"},
    "federation": {"clients": 3, "timeout": 20.0},
    "evaluate_every": 2,
}
AUTOENCODER = {
    **GENERATOR,
    "name": "autoencoder",
    "data": {"source": "digits"},
    "model": {"kind": "image-autoencoder", "latent": 3},
    "objective": {"task": "autoencoder", "penalty": "prior-matching", "alpha": 0.3},
    "clip": {"output": 1.5, "jacobian": 1.0, "loss": 1.0},
    "training": {"rounds": 2, "learning_rate": 0.01, "batch_fraction": 0.1},
}
ADAPTATION = {
    **GENERATOR,
    "name": "adaptation",
    "data": {"source": "usps", "public": "mnist"},
    "model": {"kind": "adaptor", "latent": 4},
    "objective": {"task": "adaptation", "penalty": "distribution-matching", "alpha": 0.3},
    "slicing": {"directions": 8},
    "training": {"rounds": 2, "learning_rate": 0.01, "batch_fraction": 0.01},
}


def experiment(base: dict, *overrides: str) -> Experiment:
    return parse_experiment(base, overrides)


def summary_of(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())


def test_a_generators_target_never_meets_the_model(federation):
    """Records are fixed points: clients are asked for them once a round, and are sent no model and no cotangents."""
    asked: list[str] = []

    def look(message, context) -> None:
        asked.append(message.metadata.message_type)

    summary = federation.run(experiment(GENERATOR), app=Saboteur(look))
    assert summary["status"] == "completed"
    assert "train.gradients" not in asked
    assert asked.count("train.outputs") == 4 * 3


def test_a_generator_learns_without_noise_and_its_ledger_follows_the_bound(federation):
    directory = federation.folder / "run"
    longer = ("training.rounds=60", "privacy.epsilon=inf", "evaluate_every=60")
    federation.run(experiment(GENERATOR, *longer), directory=directory)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    start = federation.run(experiment(GENERATOR, "privacy.epsilon=inf", "training.learning_rate=1e-9"))
    assert lines[-1]["held_out"]["sw2"] < 0.5 * start["held_out"]["sw2"]
    guarantee = summary_of(directory)["guarantee"]
    n = 3 * 40
    expected = SLACK * 4 * 1.0 * math.sqrt(1 / 2) * 1.0 / n
    assert guarantee["sensitivities"]["all"] == pytest.approx(expected, rel=1e-9)


def test_the_number_of_clients_does_not_change_a_seeded_generator(federation):
    ends = []
    for clients in (1, 3):
        directory = federation.folder / f"clients-{clients}"
        overrides = ("seed=7", f"federation.clients={clients}", "training.precision='float64'")
        federation.run(experiment(GENERATOR, *overrides), directory=directory)
        ends.append(parameters_of(directory))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-6, atol=1e-12)


def test_the_noise_for_both_sides_is_more_and_promises_nothing_more(federation):
    alone = federation.run(experiment(GENERATOR, "training.rounds=1"))["guarantee"]
    both = federation.run(experiment(GENERATOR, "training.rounds=1", "objective.protected=both"))["guarantee"]
    assert both["sensitivities"]["all"] > 2 * alone["sensitivities"]["all"]
    assert both["protects"] == alone["protects"]
    assert "the other sample" in alone["public"] and "the other sample" in both["public"]


def test_an_autoencoder_matches_its_codes_to_a_prior_that_no_record_decides(federation):
    directory = federation.folder / "run"
    summary = federation.run(experiment(AUTOENCODER, "seed=1"), directory=directory)
    assert summary["status"] == "completed"
    assert set(summary["held_out"]) >= {"loss", "sw2_to_prior"}
    with np.load(directory / "outputs.npz") as arrays:
        assert {"images", "reconstructions", "samples", "outputs", "target"} <= set(arrays.files)
    again = federation.folder / "again"
    federation.run(experiment(AUTOENCODER, "seed=1", "partition.seed=5"), directory=again)
    torch.testing.assert_close(parameters_of(directory), parameters_of(again), rtol=1e-3, atol=1e-5)


def test_adaptation_sends_no_label_and_learns_from_public_records_alone(federation, monkeypatch):
    digits_for_images(monkeypatch)
    seen: list[str] = []

    def look(message, reply):
        if reply.has_content() and message.metadata.message_type != messages.HELLO.kind:
            seen.extend(name for record in reply.content.array_records.values() for name in record)
        return reply

    summary = federation.run(experiment(ADAPTATION), app=Saboteur(after=look))
    assert summary["status"] == "completed"
    assert set(seen) == {"outputs", "contribution", "lost"}
    assert summary["held_out"]["accuracy"] > 0
