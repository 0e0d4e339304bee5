"""Laws of one-run audits of real runs: right guesses where noise is missing, no more than allowed where it is not."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from fedsw._tools.exits import Exit
from fedsw.audit import canary_pairs as pairs
from fedsw.audit import one_run
from fedsw.audit.canary_pairs import Attacker, Guesses
from fedsw.audit.finding import Finding
from fedsw.cli.app import main
from fedsw.desk.own_data.rehearsal import made_up
from fedsw.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.node.node import Node
from fedsw.federation.node.simulated import exchanged
from fedsw.learning.tasks import problem
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.observer import NoObserver
from fedsw.runs.optimizer import Trainer
from tests.desk.own_data.test_examine import write
from tests.desk.planning.test_search import OWN
from tests.federation.node.test_node_places import experiment_of
from tests.federations import small
from tests.noises import replace_noise

SURE = 1 - 1e-10
WIDE = {
    "name": "wide",
    "data": {"records": 500, "test_records": 60, "core_features": 256, "spurious_features": 256},
    "objective": {"alpha": 0.2},
    "training": {"rounds": 8, "learning_rate": 0.5, "batch_fraction": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "federation": {"clients": 2},
    "seed": 7,
}


def wide(*overrides: str) -> Experiment:
    """Many more features than canaries: without noise their gradients hardly overlap."""
    return parse_experiment(WIDE, overrides)


def attacked(experiment: Experiment, count: int) -> tuple[Problem, Attacker, pairs.Canaries]:
    task = Problem.from_experiment(experiment)
    records = one_run._records(task)
    canaries = pairs.draw(task, records, count)
    return task, Attacker(task, records, canaries), canaries


@pytest.fixture(scope="module")
def private() -> Finding:
    return one_run.audit(wide(), canaries=60, show=False, confidence=SURE)


def test_of_a_private_run_no_more_than_its_epsilon_is_shown(private: Finding) -> None:
    assert private.outcome != "failed" and private.shown <= private.claimed == 1.0
    for attacker in private.details["attackers"].values():
        assert attacker["guesses"] == 12 and attacker["p_value_under_guarantee"] > 1e-10


def test_of_sampled_batches_no_more_than_epsilon_is_shown_either_and_no_pair_exceeds_the_sensitivity(
    private: Finding,
) -> None:
    sampled = one_run.audit(small(), canaries=20, show=False, confidence=SURE)
    assert sampled.outcome != "failed" and sampled.details["sampling_rate"] < 1.0 == private.details["sampling_rate"]
    for found in (private, sampled):
        assert 0.2 < found.details["share_of_sensitivity"] <= 1.0


def test_without_noise_that_is_claimed_the_audit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_noise(monkeypatch, lambda vector, sigma, stream: vector.clone())
    found = one_run.audit(wide(), canaries=100, show=False)
    assert not found.passed and found.shown > found.claimed and "does not hold" in found.verdict
    assert found.details["attackers"]["all"]["accuracy_of_all"] > 0.8


def test_an_attack_in_which_half_the_noise_would_not_be_seen_is_no_verdict_and_says_so_before_the_run(
    private: Finding,
) -> None:
    assert private.outcome == "no verdict" and not private.details["power"]["refutes"]
    assert "half the noise would not be seen" in private.verdict and "power" in dict(private.rows)


def test_power_grows_with_what_may_go_wrong_and_is_larger_for_half_the_noise() -> None:
    strong = wide("privacy.epsilon=2", "training.rounds=2", "objective.alpha=0.0", "data.records=200")
    _, attacker, _, reference = one_run._prepare(strong.model_copy(update={"seed": None}), 200)
    plan, _ = one_run._planned(strong)
    sure, unsure = (one_run._power(attacker, reference, plan, error=error) for error in (1e-10, 0.35))
    assert not sure.refutes and unsure.refutes and "which fails" in unsure.words
    assert sure.correct <= sure.half_the_noise < unsure.half_the_noise and unsure.correct < unsure.half_the_noise


def test_an_attack_that_half_the_noise_would_be_seen_in_passes_a_correct_build(monkeypatch) -> None:
    monkeypatch.setattr(one_run, "_power", lambda *given, **more: one_run.Power(0.1, 2.0, True))
    found = one_run.audit(wide(), canaries=30, show=False, confidence=SURE)
    assert found.passed and found.exit_code == 0


def test_what_leaves_beside_the_rounds_is_listed_as_not_attacked_and_the_verdict_names_its_part() -> None:
    found = one_run.audit(wide("thresholds.share=0.5"), canaries=60, show=False, confidence=SURE)
    rounds, scores = found.details["parts"]
    assert scores["rows"] == "scores" and scores["how"] == "not attacked" and "--canary" in scores["words"]
    assert rounds["squared_mu"] == pytest.approx(scores["squared_mu"], rel=0.05)
    assert "0% of μ²" in found.verdict and "scores" in found.verdict


def test_of_a_run_without_privacy_all_coins_are_guessed_and_a_large_epsilon_is_shown() -> None:
    found = one_run.audit(wide('privacy.trust="none"'), canaries=300, show=False)
    assert found.claimed == math.inf and found.passed
    every = found.details["attackers"]["all"]
    assert every["accuracy_of_all"] == 1.0 and every["correct"] == every["guesses"]
    assert found.shown > 4.0


def test_a_finding_fits_one_screen_and_is_kept_with_its_figure(private: Finding, tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(private.screen())
    text = console.export_text()
    for word in ("claimed ε", "shown ε", "verdict", "final model only", "all models", "0.72"):
        assert word in text
    assert len(text.splitlines()) <= 24
    kept = private.write(tmp_path)
    assert {path.name for path in kept} == {"finding.json", "finding.png"}
    found = json.loads(kept[0].read_text())
    assert found["audit"] == "one-run" and set(found["attackers"]) == {"final", "all"}


def test_the_bars_never_claim_less_nor_show_more_than_is_true() -> None:
    scores, coins = np.linspace(-1.0, 1.0, 20), np.arange(20) % 2 == 0
    attacks = {"final model only": (scores, 0.9996), "all models": (scores, 0.12345)}
    figure = one_run.draw_one_run(attacks, coins, claimed=1.004, title="wide", published=0.72)
    bars = figure.axes[-1]
    texts = [each.get_text() for each in bars.texts if each.get_text()[0].isdigit() and "of ε" not in each.get_text()]
    assert [each.get_text().replace("\n", " ") for each in bars.get_xticklabels()] == [*attacks, "claimed"]
    assert texts == ["0.999", "0.123", "1.01"]


@pytest.mark.parametrize(
    "overrides",
    [(), ("objective.alpha=0.0",), ('objective.penalty="equality-of-odds"',), ('model.kind="mlp"', "model.hidden=[8]")],
)
def test_signatures_are_what_the_clients_own_clipping_makes_of_the_coins(overrides: tuple[str, ...]) -> None:
    """All coins 1 less all coins 0, by the code of the clients: twice the sum of the signatures."""
    task, attacker, canaries = attacked(wide(*overrides), 12)
    records = one_run._records(task)
    models = attacker.reference(2)
    sums = []
    for side in (canaries.zero, canaries.one):
        whole = exchanged(records, side)
        node = Node(task, whole, task.cells_of(whole), task.build_model())
        batch, outputs = node.forward(models[1], whole.take(np.concatenate(node.cells)), 1, 1)
        q, _ = attacker._matched(node, outputs, models[1], 1, 1)
        own = torch.isin(batch.records.ids, side.ids)
        q[~own] = 0.0  # what moves others through the ranks is no canary's own
        sums.append(
            node.task.clipped.contribution(Node.forward(node, models[1], batch.records, 1, 1)[0], q, 0.8 / len(whole))[
                0
            ]
        )
    if "objective.alpha=0.0" in overrides:
        sums = [s * 1.25 for s in sums]
    expected = sums[1] - sums[0]
    mean, signatures = attacker.signatures(models[1], 1)
    assert torch.allclose(2 * signatures.sum(dim=0), expected, rtol=1e-3, atol=1e-3 * float(expected.norm()))
    assert torch.equal(mean, attacker.expected(models[1], 1))


def test_what_clients_keep_as_places_is_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Problem.from_experiment(experiment_of("two classes"))
    records = made_up(task.experiment.data.columns, {"f": 60, "m": 40})
    canaries = pairs.draw(task, records, 6)
    theta = torch.linspace(-1, 1, task.parameters, dtype=torch.float64)
    found = Attacker(task, records, canaries).signatures(theta, 1)
    monkeypatch.setattr(problem, "reads_places", lambda *_: False)
    for one, other in zip(found, Attacker(task, records, canaries).signatures(theta, 1), strict=True):
        assert float((one - other).norm()) <= 1e-2 * float(other.norm())  # ranks of all but equal outputs may change


def test_canaries_keep_what_is_public_and_lie_where_the_coins_say() -> None:
    for name, kind in (("statistical-parity", "label"), ("equality-of-odds", "features")):
        task, _, canaries = attacked(wide(f'objective.penalty="{name}"'), 40)
        records = one_run._records(task)
        before = task.cells_of(records)
        for side in (canaries.zero, canaries.one, canaries.placed):
            after = task.cells_of(exchanged(records, side))
            assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert canaries.kind == kind
        low, high = float(records.features.min()), float(records.features.max())
        for side in (canaries.zero, canaries.one):
            assert float(side.features.min()) >= low and float(side.features.max()) <= high
        apart = canaries.one.target != canaries.zero.target
        assert bool(apart.all()) if kind == "label" else not bool(apart.any())
        for row, coin in enumerate(canaries.coins):
            side = canaries.one if coin else canaries.zero
            assert torch.equal(canaries.placed.features[row], side.features[row])
            assert torch.equal(canaries.placed.target[row], side.target[row])


def test_coins_and_pairs_are_new_each_time_whatever_the_seed() -> None:
    task = Problem.from_experiment(wide())
    records = one_run._records(task)
    first, second = (pairs.draw(task, records, 100) for _ in range(2))
    assert not np.array_equal(first.coins, second.coins)
    assert not torch.equal(first.placed.features, second.placed.features)
    again = pairs.redrawn(task, records, first)
    assert torch.equal(again.zero.ids, first.zero.ids) and np.array_equal(again.coins, first.coins)
    assert not torch.equal(again.zero.features, first.zero.features)


def test_the_strongest_of_several_pairs_is_taken_at_every_place() -> None:
    task, _, first = attacked(wide(), 6)
    other = pairs.redrawn(task, one_run._records(task), first)
    strengths = torch.tensor([[1.0, 5.0, 1.0, 5.0, 1.0, 5.0], [3.0] * 6])
    chosen = pairs.strongest([first, other], strengths)
    for row in range(6):
        assert torch.equal(chosen.zero.features[row], (other if row % 2 == 0 else first).zero.features[row])
        assert torch.equal(chosen.one.target[row], (other if row % 2 == 0 else first).one.target[row])


def test_a_witness_is_shown_the_vectors_that_lead_from_each_model_to_the_next(tmp_path: Path) -> None:
    class Witness(NoObserver):
        def __init__(self) -> None:
            self.seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def released(self, round_: int, theta: torch.Tensor, outcome: object) -> None:
            self.seen.append((round_, theta, outcome.vector))

    witness = Witness()
    experiment = small()
    result = run(experiment, runs=tmp_path, observer=witness)
    assert [round_ for round_, _, _ in witness.seen] == [1, 2, 3, 4]
    trainer = Trainer(witness.seen[0][1], experiment.training)
    for round_, theta, vector in witness.seen:
        assert torch.equal(trainer.theta, theta)
        norm = math.sqrt(float(vector.square().sum()))
        assert norm == pytest.approx(result.history[round_ - 1]["gradient_norm"])
        trainer.step(vector)


def test_the_surest_guesses_are_those_of_the_largest_scores() -> None:
    scores, coins = np.array([3.0, -2.0, 1.0, -0.5]), np.array([True, True, True, False])
    assert [Guesses.surest(scores, coins, made).correct for made in range(5)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (('privacy.trust="local-gradient"', "privacy.epsilon=1.0"), "a trusted server"),
        (("data.source=ring", "objective.task=generation", "objective.penalty=distribution-matching",
          "objective.alpha=1.0", "model.kind=generator"), "compares the losses"),
        (("privacy.moments=0.2",), "gradients of inputs that no moments have prepared: set privacy.moments to 0"),
        (("privacy.moments=auto",), "chooses privacy.moments when .* write them, as config.json of a run has them"),
    ],
)  # fmt: skip
def test_what_the_attackers_do_not_know_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        one_run.audit(small(*overrides), canaries=5, show=False)


def test_more_canaries_than_records_are_refused() -> None:
    with pytest.raises(ValueError, match="more canaries than there are records"):
        one_run.audit(small(), canaries=601, show=False)


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """An experiment on tables of somebody's own, and where they are."""
    rows = [[20 + i / 2, "ab"[i % 2], ("female", "male")[i // 2 % 2], ("low", "high")[i % 3 > 0]] for i in range(120)]
    for client in range(2):
        write(tmp_path / "DATA" / str(client), rows[60 * client :][:60])
    (tmp_path / "own.toml").write_text(OWN.replace('account = "people"\n', ""), encoding="utf-8")
    return tmp_path / "own.toml", tmp_path / "DATA"


def test_records_of_one_s_own_are_attacked_with_no_noise_only_where_that_is_asked_for(
    own: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = own
    out = path.parent / "audits"
    line = ["audit", str(path), "--one-run", "6", "--data-dir", str(data), "-o", str(out)]
    assert main(line) == 2 and not out.exists()
    said = capsys.readouterr().err
    assert "no guarantee covers" in said and "--unsafe-finding" in said
    assert main([*line, "--unsafe-finding"]) == Exit.NO_VERDICT  # six canaries tell half of the noise from none
    assert "epsilon = infinity for a reader of this finding" in " ".join(capsys.readouterr().out.split())
    (found,) = (json.loads(file.read_text(encoding="utf-8")) for file in out.rglob("finding.json"))
    assert found["epsilon_of_reader"] == "inf" and found["unsafe"] == one_run.UNSAFE


def test_records_of_one_s_own_are_refused_before_they_are_read(own: tuple[Path, Path]) -> None:
    experiment = load_experiment(own[0], [f"data.data_dir={own[1] / 'nowhere'}"])
    with pytest.raises(ExperimentError, match="no guarantee covers"):
        one_run.audit(experiment, canaries=6, show=False)


def test_a_finding_on_shipped_records_has_no_such_word(private: Finding) -> None:
    assert not {"unsafe", "epsilon_of_reader"} & private.details.keys()
    assert main(["audit", "fair-classification", "--canary", "--unsafe-finding"]) == 2
