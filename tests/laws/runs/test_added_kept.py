"""Laws of records kept out of training where a record is added or removed: the split, bounds, charges, what is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsw.audit.record import audit
from fedsw.cli.app import main
from fedsw.data import Records
from fedsw.data.units import Units
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.node.held_records import held_back, held_out_records, held_records
from fedsw.federation.node.own_ledger import HELD_OUT
from fedsw.federation.server.owed import planned_cost
from fedsw.federation.trust.budget_shares import held_out_budget
from fedsw.federation.trust.round_plan import make_plan
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import CHANCES, SCORED, Counts
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.privacy.relations import ADD_OR_REMOVE
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.evaluation.held_out_metrics import Tallied, held_out_of
from tests.federations import sites_of
from tests.laws.runs.test_added_groups import added, some, tables, texts_of, told

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

KEPT = ("data.held_out_fraction=0.25", "data.held_out_to=everybody")
ONE = np.zeros(1, dtype=np.int64)


def kept(records: Records, *settings: str, owner: np.ndarray | None = None) -> np.ndarray:
    """Which records (n,) are kept out, of one client, or of some."""
    task = Problem.from_experiment(added(*KEPT, *settings))
    of = np.zeros(len(records), dtype=np.int64) if owner is None else owner
    return held_back(task, records, of, np.arange(1 + int(of.max(initial=0))))


def persons(records: Records, chance: np.random.Generator) -> Records:
    """The same records as rows of a third as many persons, each of whom is of one group."""
    unit = torch.from_numpy(chance.choice(2**60, len(records) // 3, replace=False))
    whose = torch.from_numpy(chance.integers(len(unit), size=len(records)))
    return Records(records.features, unit[whose] % 2, records.target, records.ids, unit=unit[whose])


@pytest.mark.parametrize("unit", [False, True])
def test_whoever_comes_or_goes_moves_no_other_between_training_and_what_is_kept(unit: bool) -> None:
    """Wherever the record stood, however many there are, and at whatever client the others are."""
    chance = np.random.default_rng(0)
    records = some(300)
    everybody = persons(records, chance) if unit else records
    settings = ("data.unit='who'",) if unit else ()
    whole = kept(everybody, *settings)
    assert 0.1 < whole.mean() < 0.4
    for gone in (0, 150, 299):
        others = np.arange(300) != gone
        if unit:
            assert everybody.unit is not None
            others = (everybody.unit != everybody.unit[gone]).numpy()
        dealt = chance.integers(3, size=int(others.sum()))
        if unit:  # a person is at one client
            dealt = (everybody.unit.numpy()[others] % 3).astype(np.int64)  # type: ignore[union-attr]
        assert kept(everybody.take(others), *settings, owner=dealt).tolist() == whole[others].tolist()
    if unit:
        assert everybody.unit is not None
        assert all(len(set(whole[(everybody.unit == one).numpy()])) == 1 for one in everybody.unit.unique())


def test_a_kept_record_that_comes_or_goes_moves_the_counts_by_its_own_places_and_is_charged_for_that() -> None:
    tally, chance = Counts(2, 2), np.random.default_rng(1)
    outputs = torch.from_numpy(chance.uniform(-1, 2, size=(500, 1)))
    lengths = tally.vectors(outputs, torch.from_numpy(chance.integers(2, size=500))).norm(dim=1)
    bound = tally.moved_for(ADD_OR_REMOVE)
    assert float(lengths.max()) == pytest.approx(bound, rel=1e-12) and bound < tally.moved
    experiment = added(*KEPT)
    budget = held_out_budget(experiment, tally, 3.0, 1e-5)
    assert budget.sensitivity.value == pytest.approx(SLACK * math.sqrt(1 + SCORED**2))
    assert budget.sensitivity.relation == ADD_OR_REMOVE and "how many" not in " ".join(budget.sensitivity.public)
    assert {charge.sampling for charge in budget.charges(("A",), experiment)} == {"poisson"}
    with pytest.raises(KeyError):
        tally.moved_for("zero-out")


def test_a_replacement_may_move_one_part_each_and_both_that_and_either_part_are_paid_for() -> None:
    plan = make_plan(Problem.from_experiment(added(*KEPT, "training.rounds=40")), sites_of((9,)))
    assert plan.sizes == (1125,)  # of 1,500 declared
    trained = {Step(max(plan.rates), 1 / plan.multiplier): 40}
    multiplier = held_out_budget(plan.task.experiment, Counts(2, 2), plan.epsilon, plan.delta).multiplier
    kept_ = {Step(1.0, 1 / multiplier): 1}
    parts = [{Step(step.sampling_rate, 2 * step.mu): n for step, n in part.items()} for part in (trained, kept_)]
    known = planned_cost(plan).counted().parts
    for part in (*parts, trained | kept_):
        least = epsilon_by("pld", part, plan.delta)
        assert any(epsilon_by("pld", each, plan.delta) == pytest.approx(least, rel=1e-6) for each in known)


def test_numbers_are_judged_by_what_no_secret_number_divides() -> None:
    raw = added().model_dump()
    raw["data"]["columns"] |= {"target": None, "targets": [{"name": "hired", "low": 0, "high": 1}]}
    raw["objective"] = {"task": "regression", "penalty": "none"}
    for said in ("held_out_to=operator", "held_out_to=everybody"):
        settings = (f"data.{said}", KEPT[0])
        if "operator" in said:
            assert parse_experiment(raw, settings).data.held_out_fraction
            continue
        with pytest.raises(ExperimentError, match="divided by how many were kept"):
            parse_experiment(raw, settings)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [pytest.param(4.0, marks=pytest.mark.slow), 12.0])
def test_intervals_hold_the_truth_as_often_as_they_say_though_the_number_is_seen_through_noise(sigma: float) -> None:
    """Of 400 to 700 records, of a secret number: accuracy, log loss, and what the model has over a constant."""
    tally, chance, inside = Counts(2, 2), np.random.default_rng(7), np.zeros(3)
    task = Problem.from_experiment(added(*KEPT))
    middle = (np.array(CHANCES[1:]) + np.array(CHANCES[:-1])) / 2
    for _ in range(200):
        n = int(chance.integers(400, 700))
        groups, scores = chance.integers(2, size=n), chance.choice(middle, n)
        labels = (chance.uniform(size=n) < scores).astype(int)
        vectors = tally.vectors(torch.from_numpy(scores)[:, None], torch.from_numpy(labels)).numpy()
        values = np.zeros((2, tally.width))
        np.add.at(values, groups, vectors)
        values += sigma * chance.standard_normal(values.shape)
        found = held_out_of(task, tally, Tallied(values, sigma, np.array([375]), 1, 0, 3.0, 2))
        ends = np.array(CHANCES)
        wholes = ends * (1 - np.log(np.maximum(ends, 1e-300)))
        own, losses = np.where(labels == 1, scores, 1 - scores), np.diff(wholes) / np.diff(ends)
        share = np.maximum(middle, 1 - middle).mean()
        loss = float(np.mean([losses[np.searchsorted(ends, p, "right") - 1] * p for p in middle]) * 2)
        assert found.quality is not None and own.size == n
        inside[0] += found.quality.intervals["accuracy"].low <= share <= found.quality.intervals["accuracy"].high
        inside[1] += found.quality.intervals["loss"].low <= loss <= found.quality.intervals["loss"].high
        gain = found.quality.gain
        assert gain is not None
        inside[2] += gain.low <= share - 0.5 <= gain.high
    assert bool((inside >= 184).all()), inside


def test_where_noise_hides_how_many_were_kept_nothing_is_said_of_them() -> None:
    tally, task = Counts(2, 2), Problem.from_experiment(added(*KEPT))
    values = np.random.default_rng(3).normal(size=(2, tally.width)) * 50.0
    found = held_out_of(task, tally, Tallied(values, 50.0, np.array([375]), 1, 0, 3.0, 2))
    assert "noise hides how many" in found.missing and not found.metrics


@pytest.mark.slow
@pytest.mark.parametrize("unit", [None, "who"])
def test_kept_records_are_charged_once_by_removal_and_how_many_they_are_is_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], unit: str | None
) -> None:
    data = tables(tmp_path / "data", unit=unit, rows_each=3)
    experiment = files(data, unit)
    ended = run(experiment, runs=tmp_path / "runs")
    with Ledger.open(ended.directory / "ledger.sqlite", read_only=True) as ledger:
        steps = ledger.steps_by_group()
        assert {step.sampling for group in steps for step in steps[group]} == {"poisson"}
        assert [(step.sampling_rate, times) for step, times in steps[HELD_OUT].items() if step.mu] == [(1.0, 1)]
    assert audit(ended.directory).passed
    summary = ended.summary
    assert summary["held_out"]["accuracy"] > 0.5 and set(summary["held_out_by_group"]) == {"f", "m"}
    assert json.loads((ended.directory / "held_out.json").read_text())["records"] == [375]
    assert "how many records of each group are kept" not in str(summary["guarantee"]["public"])
    assert "have the same guarantee, in one release" in summary["guarantee"]["statement"]
    short = {**summary["guarantee"], "epsilon_of_replacement": 1.2 * summary["epsilon"]}
    secret = counted(experiment)
    capfd.readouterr()
    for words in (["show", str(ended.directory)], ["show", str(ended.directory), "--json"]):
        assert main(words) == 0
    screens = "".join(capfd.readouterr())
    found = {name: told(text) & secret for name, text in [("screens", screens), *texts_of(ended.directory)]}
    assert not {name: numbers for name, numbers in found.items() if numbers}
    (ended.directory / "summary.json").write_text(json.dumps({**summary, "guarantee": short}))
    assert "ε for a replacement is" in str(audit(ended.directory).rows)


def files(data: Path, unit: str | None) -> Experiment:
    raw: dict[str, Any] = added(*KEPT, "privacy.moments=0.2", "training.batch_fraction=0.5").model_dump()
    raw["data"] |= {"source": "files", "data_dir": str(data), "unit": unit}
    raw["federation"]["clients"] = 3
    return parse_experiment(raw)


def counted(experiment: Experiment) -> set[int]:
    """How many records, or persons, are trained on, kept, and there at all."""
    task, everybody = Problem.from_experiment(experiment), {"partition-id": 0, "num-partitions": 1}
    parts = [len(Units.of(part(task, everybody).records)) for part in (held_records, held_out_records)]
    return {*parts, sum(parts)}


@pytest.mark.slow
def test_a_client_all_of_whose_records_are_kept_or_none_takes_part_as_any(tmp_path: Path) -> None:
    experiment = files(tables(tmp_path / "data", (400, 1, 1)), None)
    for fraction in ("0.05", "0.9"):
        chosen = parse_experiment(experiment.model_dump(), (f"data.held_out_fraction={fraction}",))
        ended = run(chosen, runs=tmp_path / fraction)
        assert ended.summary["status"] == "completed" and audit(ended.directory).passed
