"""Laws of `fedsw audit EXPERIMENT --canary`: never more than the claim, nearly all of it, and broken builds are caught.

Noise and draws are secret; bounds hold with probability 1 - 1e-10, so that no law fails by chance.
"""

from __future__ import annotations

import json

import pytest
import torch

import fedsw.federation.trust.central.rounds
import fedsw.federation.trust.round_plan
from fedsw._tools.randomness import Stream
from fedsw.audit import canary
from fedsw.audit.finding import Finding
from fedsw.audit.neighbours import Freely, free_layer, staged
from fedsw.cli.app import main
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.node import held_records
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import Term
from fedsw.privacy import release as door
from fedsw.privacy.accounting import Step, epsilon_bracket
from tests.federations import small
from tests.noises import replace_noise

ALL = ("training.batch_fraction=1.0", "training.rounds=1", "privacy.epsilon=8.0", "federation.clients=2")
HALF = ("training.batch_fraction=0.5", "training.rounds=6", "privacy.epsilon=8.0", "federation.clients=2")
PRIOR = {
    "name": "prior",
    "data": {"source": "digits"},
    "model": {"kind": "image-autoencoder", "latent": 1},
    "objective": {"task": "autoencoder", "penalty": "prior-matching", "alpha": 0.5},
    "training": {"rounds": 2, "batch_fraction": 0.5},
    "federation": {"clients": 2, "timeout": 20.0},
    "privacy": {"epsilon": 6.0},
}


def audited(experiment: Experiment, trials: int = 400_000) -> Finding:
    return canary.audit(experiment, trials=trials, confidence=1 - 1e-10, draws=1500, singly=20)


@pytest.mark.parametrize(
    "overrides",
    [
        ALL,
        (*ALL, "training.rounds=3", "seed=5"),
        (*ALL, "objective.penalty=equality-of-odds", "data.row_norm=1.0"),
        (*ALL, "objective.alpha=0.0"),
        (*ALL, "objective.alpha=1.0", "clip.output=0.5", "clip.centre=0.5"),
        (*ALL, "objective.penalty=none"),
        (*ALL, "objective.alpha=1.0", "objective.order=3.0"),
    ],
    ids=["both terms", "rounds, seeded", "odds", "loss alone", "penalty alone", "no penalty", "order 3"],
)
def test_where_the_bound_is_attained_and_all_records_take_part_nearly_all_of_epsilon_is_shown(overrides):
    found = audited(small(*overrides))
    assert found.passed and 0.95 * found.claimed <= found.shown <= found.claimed
    assert 0.998 <= found.details["instance_share"] <= 1.0


def test_with_sampling_the_instance_is_the_lower_end_of_the_bracket_and_the_attack_shows_most_of_it():
    found = audited(small(*HALF))
    step = Step(found.details["sampling_rate"], found.details["mu"])
    lower, _ = epsilon_bracket({step: 6}, found.delta)
    assert found.passed and found.details["instance_epsilon"] == pytest.approx(lower, rel=5e-3)
    assert 0.75 * lower <= found.shown <= lower <= found.claimed
    present, rounds = found.details["real_rounds"]
    assert 0 < present < rounds or rounds < 30


def test_a_prior_is_attacked_too_and_never_shows_more_than_the_claim():
    found = audited(parse_experiment(PRIOR))
    assert found.passed and 0.3 * found.claimed <= found.shown <= found.details["instance_epsilon"] <= found.claimed
    assert 0.9 <= found.details["instance_share"] <= 1.0


def _half_the_noise(monkeypatch):
    noised = door.noised
    replace_noise(monkeypatch, lambda vector, sigma, stream: noised(vector, sigma / 2, stream))


def _less_noise_than_the_slack_hides(monkeypatch):
    noised = door.noised
    replace_noise(monkeypatch, lambda vector, sigma, stream: noised(vector, 0.9 * sigma, stream))


def _sensitivity_for_twice_the_records(monkeypatch):
    clipped = fedsw.learning.tasks.objective.ClippedObjective
    genuine = clipped.sensitivities
    halved = lambda task, batch, spreads: genuine(task, [2 * n for n in batch], spreads)  # noqa: E731
    monkeypatch.setattr(clipped, "sensitivities", halved)


def _no_clip(monkeypatch):
    genuine = fedsw.learning.tasks.objective.clipped_sum

    def freed(tape, terms, **more):
        return genuine(tape, [Term(t.head, t.cotangents, 1e9, t.mode) for t in terms], **more)

    monkeypatch.setattr(fedsw.learning.tasks.objective, "clipped_sum", freed)


def _one_seed_for_all_noise(monkeypatch):
    monkeypatch.setattr(FederationPlan, "noise_stream", lambda plan, round_, attempt: Stream.seeded(7, "noise"))


@pytest.mark.parametrize(
    ("breaks", "overrides", "words"),
    [
        (_half_the_noise, ALL, "one release shows"),
        (_less_noise_than_the_slack_hides, ALL, "one release shows"),
        (_half_the_noise, HALF, "one release shows"),
        (_sensitivity_for_twice_the_records, ALL, "times the sensitivity"),
        (_no_clip, ALL, "times the sensitivity"),
        (_no_clip, (*ALL, "objective.penalty=none"), "times the sensitivity"),
        (_one_seed_for_all_noise, ALL, "noise of an earlier one"),
    ],
    ids=[
        "half",
        "a tenth less",
        "half, sampled",
        "sensitivity for the wrong n",
        "no clip",
        "of the loss alone",
        "a seed reused",
    ],
)
def test_a_broken_build_fails_the_audit(monkeypatch, breaks, overrides, words):
    breaks(monkeypatch)
    found = audited(small(*overrides))
    assert not found.passed and words in found.verdict


def test_a_record_that_is_drawn_too_often_fails_the_audit(monkeypatch):
    genuine = held_records.smallest_keys

    def first_favoured(keys, size):
        keys = keys.copy()
        keys[:1] //= 2
        return genuine(keys, size)

    monkeypatch.setattr(held_records, "smallest_keys", first_favoured)
    found = audited(small(*HALF), trials=1000)
    assert not found.passed and "drawn at a rate" in found.verdict


@pytest.mark.parametrize(
    ("overrides", "words"),
    [(("privacy.trust=local-gradient",), "trust"), (("privacy.epsilon=inf",), "without noise")],
)
def test_what_has_no_worst_case_here_is_refused_by_name(overrides, words):
    with pytest.raises(ExperimentError, match=words):
        audited(small(*overrides))


def test_a_matching_of_distributions_is_refused_by_name():
    goal = {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0}
    model = {"kind": "generator", "latent": 2, "hidden": [4]}
    with pytest.raises(ExperimentError, match="distribution-matching"):
        audited(parse_experiment({**PRIOR, "objective": goal, "model": model}))


def test_the_stage_is_struck_afterwards():
    """A run of the same experiment in the same process has its own model and records again."""
    experiment = small(*ALL)
    words = experiment.model_dump_json()
    before = Problem.from_json(words).parameters
    with staged(free_layer()):
        assert isinstance(Problem.from_json(words).build_model(), Freely)
    assert Problem.from_json(words).parameters == before
    assert isinstance(Problem.from_json(words).build_model(), torch.nn.Sequential)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A TOML file of a small experiment that is audited quickly; audits go to the same folder."""
    monkeypatch.setattr(canary, "SINGLE", 5)
    path = tmp_path / "tiny.toml"
    path.write_text(
        'name = "tiny"\n[data]\nrecords = 300\ntest_records = 20\n[training]\nrounds = 1\nbatch_fraction = 1.0\n'
        "[privacy]\nepsilon = 8.0\n[federation]\nclients = 2\n"
    )
    return path


def test_the_command_leaves_json_and_a_figure_and_says_in_its_exit_code_whether_the_claim_stands(
    written, tmp_path, monkeypatch, capsys
):
    line = ["audit", str(written), "--canary", "--trials", "20000", "-o", str(tmp_path / "audits")]
    assert main([*line, "--json"]) == 0
    words = json.loads(capsys.readouterr().out)
    assert words["audit"] == "canary" and words["passed"]
    assert 0 < words["shown_epsilon"] <= words["claimed_epsilon"] == 8.0
    assert [path.rsplit("/", 1)[1] for path in words["files"]] == ["finding.json", "finding.png"]
    _half_the_noise(monkeypatch)
    assert main(line) == 1
    screen = capsys.readouterr().out
    assert "FAILED" in screen and "claimed ε" in screen and "shown ε" in screen
