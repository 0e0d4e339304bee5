"""Laws of `fedsw audit --canary` of sketches: nearly all of epsilon, over all stages, never more; a broken build fails.

Noise is secret; bounds hold with probability 1 - 1e-10, so that no law fails by chance.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedsw.audit import canary
from fedsw.audit import canary_once as once
from fedsw.cli.app import main
from fedsw.desk.own_data.description import as_description
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.trust import releasing_gradients, trust_model
from fedsw.federation.engines.driver import run
from fedsw.federation.trust import round_plan
from fedsw.federation.trust import sums_once as sums
from fedsw.federation.trust.distributed import once as masked_once
from fedsw.federation.trust.sketch import sketch_once as local
from fedsw.federation.trust.sketch import sketch_once as sides
from fedsw.federation.trust.sums_once import SUMS
from fedsw.learning.sketches import noised
from fedsw.learning.tasks import objective as objectives
from tests.audit.tables import INPUTS
from tests.federation import sketch_runs
from tests.federation.sketch_runs import LOCAL
from tests.federation.test_sketch_stages import SMALL, THREE, TWO

MASKED = "privacy.trust=distributed"


def audited(*overrides: str, trials: int = 100_000):
    small = SMALL if any(each.startswith("sketch.stages") for each in overrides) else ()
    experiment = sketch_runs.sketched(*small, *overrides)
    return canary.audit(experiment, trials=trials, confidence=1 - 1e-10, singly=20)


@pytest.mark.parametrize(
    "overrides",
    [(), (LOCAL,), (TWO,), (TWO, LOCAL), (THREE, LOCAL, "seed=5"), (TWO, MASKED), (MASKED, "local.failing=0.5")],
    ids=["one", "one, clients", "two", "two, clients", "three, seeded", "two, masks", "masks that may fail"],
)
def test_whoever_sees_all_stages_and_writes_the_network_sees_nearly_all_of_epsilon_and_never_more(overrides):
    found, least = audited(*overrides), 0.85 if THREE in overrides else 0.9
    assert found.passed and least * found.claimed <= found.shown <= found.claimed
    assert (0.96 if THREE in overrides else 0.99) <= found.details["instance_share"] <= 1.0


def test_without_labels_the_canary_is_the_farthest_of_the_cell():
    found = audited("sketch.labels=false")
    assert found.passed and 0.5 * found.claimed <= found.shown <= found.details["instance_epsilon"] <= found.claimed


def _a_tenth_less_noise(monkeypatch):
    genuine = sums.release

    def release(bounded, plan, ledger):
        return genuine(bounded, replace(plan, multiplier=0.9 * plan.multiplier), ledger)

    monkeypatch.setattr(sums, "release", release)


def _a_tenth_less_noise_at_clients(monkeypatch):
    genuine = sums.release_paid

    def release_paid(bounded, paid, name, stream):
        paid.parts[name] = replace(paid.parts[name], scale=0.9 * paid.parts[name].scale)
        return genuine(bounded, paid, name, stream)

    monkeypatch.setattr(sums, "release_paid", release_paid)


def _every_stage_with_the_noise_of_the_whole_budget(monkeypatch):
    genuine = sides.sketch_budget
    monkeypatch.setattr(sides, "sketch_budget", lambda *given, **more: _whole(genuine(*given, **more)))


def _whole(budget):
    return replace(budget, multiplier=budget.whole)


def _a_bound_without_the_change_of_a_label(monkeypatch):
    genuine = local.sketch_sensitivity
    for module in (local, noised):
        monkeypatch.setattr(module, "sketch_sensitivity", lambda law: 0.8 * genuine(law))


@pytest.mark.parametrize(
    ("breaks", "overrides", "words"),
    [
        (_a_tenth_less_noise, (), "one release shows"),
        (_every_stage_with_the_noise_of_the_whole_budget, (TWO,), "one release shows"),
        (_a_tenth_less_noise_at_clients, (TWO, LOCAL), "one release shows"),
        (_a_bound_without_the_change_of_a_label, (), "times the sensitivity"),
    ],
    ids=["a tenth less", "stages that pay twice", "a tenth less at clients", "a bound too small"],
)
def test_a_broken_build_fails_the_audit(monkeypatch, breaks, overrides, words):
    breaks(monkeypatch)
    found = audited(*overrides)
    assert not found.passed and words in found.verdict


def test_sketches_of_units_are_refused_with_the_remedy():
    with pytest.raises(ExperimentError, match=r"leave data\.unit out"):
        once.require_sketch(sketch_runs.sketched().model_copy(update={"data": Unit()}))


class Unit:
    unit = "patient"


BESIDE = (
    "privacy.epsilon=8",
    "privacy.moments=0.3",
    "thresholds.share=0.2",
    "data.held_out_fraction=0.2",
    "data.held_out_to=everybody",
)
COLUMNS = ("model.kind=additive", "privacy.histograms=0.2")
ROUNDS = {
    "name": "own",
    "data": {
        "source": "tests.audit.tables:records",
        "columns": {
            "features": [{"name": f"x{place}", "low": 0, "high": 1} for place in range(INPUTS)],
            "sensitive": {"name": "sex", "values": ["f", "m"]},
            "target": {"name": "y", "values": ["a", "b"]},
        },
    },
    "model": {"kind": "logistic"},
    "training": {"rounds": 12, "batch_fraction": 0.5},  # of 2 a canary was in none, one time in four
    "federation": {"clients": 3},
    "privacy": {"epsilon": 8.0, "delta": 1e-5},
}
NOISED = [trust for trust in releasing_gradients() if trust != "none"]


def beside(trust: str, *overrides: str, trials: int = 100_000):
    experiment = parse_experiment(ROUNDS, (f"privacy.trust={trust}", *BESIDE, *COLUMNS, *overrides))
    return canary.audit(experiment, trials=trials, confidence=1 - 1e-8, draws=2000, singly=10)


def test_every_trust_model_whose_rounds_release_gradients_releases_every_sum_beside_them():
    for model in map(trust_model, releasing_gradients()):
        assert {kind.part for kind in model.sides.once.sums} == model.beside == SUMS.keys() - {once.SKETCH}, model.name


@pytest.mark.parametrize("trust", NOISED)
def test_whatever_leaves_beside_the_rounds_shows_nearly_all_of_its_mu_and_never_more(trust):
    found = beside(trust)
    assert found.passed and found.shown <= found.claimed
    (rounds, *others), attacks = found.details["parts"], found.details["attacks"]
    assert {part["rows"] for part in others} == attacks.keys() == SUMS.keys() - {once.SKETCH}
    for part in others:
        of_part = attacks[part["rows"]]
        assert part["how"] == "attacked" and part["kept"] == (part["rows"] == once.TALLY_PART)
        assert 0.9 * of_part["mu"] <= of_part["mu_lower"] <= of_part["mu"], part["rows"]
    if trust == "local-gradient":
        assert rounds["how"] == "not attacked" and "not for 12 rounds" in found.verdict
    else:
        assert rounds["how"] == "attacked" and "100% of μ²" in found.verdict


def test_sums_over_kept_records_of_a_regression_show_most_of_their_mu():
    columns = {"features": ROUNDS["data"]["columns"]["features"], "targets": [{"name": "z", "low": 0, "high": 1}]}
    raw = {**ROUNDS, "data": {**ROUNDS["data"], "columns": columns}, "objective": {"task": "regression", "alpha": 0.0}}
    overrides = [each for each in BESIDE if not each.startswith("thresholds")]
    found = canary.audit(parse_experiment(raw, overrides), trials=50_000, confidence=1 - 1e-8, draws=2000, singly=10)
    attacks = found.details["attacks"]
    assert found.passed and 0.9 * attacks["moments"]["mu"] <= attacks["moments"]["mu_lower"]
    assert 0.7 * attacks["tally"]["mu"] <= attacks["tally"]["mu_lower"] <= attacks["tally"]["mu"]


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_counts_that_calibrate_are_attacked_at_rate_1_and_show_nearly_all_of_their_mu(relation):
    columns = {name: value for name, value in ROUNDS["data"]["columns"].items() if name != "sensitive"}
    privacy = {**ROUNDS["privacy"], "epsilon": 8.0}
    if relation == "add-remove":
        privacy |= {"relation": relation, "sampling": "poisson", "records": 400}
    raw = {**ROUNDS, "data": {**ROUNDS["data"], "columns": columns}, "objective": {"alpha": 0.0}, "privacy": privacy}
    experiment = parse_experiment(raw, ["calibration.share=0.3"])
    found = canary.audit(experiment, trials=50_000, confidence=1 - 1e-8, draws=2000, singly=10)
    of_scores = found.details["attacks"]["scores"]
    assert found.passed and 0.9 * of_scores["mu"] <= of_scores["mu_lower"] <= of_scores["mu"]


def added():
    """The attack on rounds of a sample, on moments, and on counts of scores by group, of additions and removals."""
    privacy = {**ROUNDS["privacy"], "relation": "add-remove", "sampling": "poisson", "records": 400, "epsilon": 16.0}
    raw = {**ROUNDS, "objective": {"penalty": "none"}, "privacy": {**privacy, "moments": 0.3}}
    experiment = parse_experiment(raw, ["thresholds.share=0.3"])
    return canary.audit(experiment, trials=50_000, confidence=1 - 1e-8, draws=2000, singly=10)


def test_every_row_of_additions_and_removals_is_attacked_by_a_record_there_or_not_at_its_own_sensitivity():
    found = added()
    assert found.passed and found.details["instance_share"] == pytest.approx(1.0, abs=0.002)
    for attack in (found.details, found.details["attacks"]["moments"], found.details["attacks"]["scores"]):
        assert 0.88 * attack["mu"] <= attack["mu_lower"] <= attack["mu"]
    assert [part["how"] for part in found.details["parts"]] == ["attacked"] * 3
    assert found.details["sampling_rate"] == 0.5 and found.details["instance_epsilon"] <= found.claimed
    assert found.details["bracket_lower"] == pytest.approx(found.details["instance_epsilon"], rel=0.01)


def test_a_bound_of_half_a_records_term_fails_the_audit_of_additions(monkeypatch):
    genuine = objectives.added_sensitivity
    monkeypatch.setattr(objectives, "added_sensitivity", lambda clip, n: genuine(clip / 2, n))
    assert "times the sensitivity" in added().verdict


def _half_the_noise(monkeypatch):
    genuine = sums.release

    def release(bounded, plan, ledger):
        return genuine(bounded, replace(plan, multiplier=plan.multiplier / 2), ledger)

    monkeypatch.setattr(sums, "release", release)


def _half_the_noise_at_clients(monkeypatch):
    genuine = sums.release_paid

    def release_paid(bounded, paid, name, stream):
        paid.parts[name] = replace(paid.parts[name], scale=paid.parts[name].scale / 2)
        return genuine(bounded, paid, name, stream)

    monkeypatch.setattr(sums, "release_paid", release_paid)


def _half_the_noise_under_masks(monkeypatch):
    genuine = masked_once.honest
    monkeypatch.setattr(masked_once, "honest", lambda experiment: 4 * genuine(experiment))


@pytest.mark.parametrize(
    ("trust", "breaks"),
    [
        ("central", _half_the_noise),
        ("local-gradient", _half_the_noise_at_clients),
        ("distributed", _half_the_noise_under_masks),
    ],
)
def test_half_the_noise_of_what_leaves_beside_the_rounds_fails_the_audit(monkeypatch, trust, breaks):
    breaks(monkeypatch)
    found = beside(trust, "data.held_out_fraction=0", "data.held_out_to=operator", trials=20_000)
    assert found.outcome == "failed" and "moments: " in found.verdict and "scores: " in found.verdict


def test_parts_that_cost_more_together_than_is_claimed_fail_the_audit(monkeypatch):
    genuine = round_plan.shares

    def shares(*given, **more):
        divided = genuine(*given, **more)
        return replace(divided, moments=divided.moments / 2)  # as if a half of mu were a quarter

    monkeypatch.setattr(round_plan, "shares", shares)
    without = ("thresholds.share=0", "data.held_out_fraction=0", "data.held_out_to=operator")
    found = beside("central", *without, trials=1000)
    assert found.outcome == "failed" and "all parts together cost" in found.verdict


def test_an_attack_that_half_the_noise_would_not_show_in_is_no_verdict(capsys, tmp_path):
    found = beside("central", "privacy.epsilon=0.1", trials=100)
    assert found.outcome == "no verdict" and found.exit_code == 4 and not found.passed
    assert all(part["how"] == "no verdict" for part in found.details["parts"])
    assert "0% of μ²" in found.verdict


def test_a_description_is_attacked_by_its_run_s_settings(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = as_description(parse_experiment(ROUNDS), trust="sketch-local", epsilon=4.0)
    directory = run(experiment, runs=tmp_path).directory
    line = ["audit", str(directory), "--canary", "--trials", "20000", "--json", "--allow-module", "tests.audit.tables"]
    assert main(line) == 0
    said = json.loads(capsys.readouterr().out)
    assert 0.8 * said["claimed_epsilon"] <= said["shown_epsilon"] <= said["claimed_epsilon"]
