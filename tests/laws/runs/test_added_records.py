"""Laws of runs whose guarantee is for additions and removals of records: draws, bounds, charges, and what is shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import fedsw
from fedsw._tools.randomness import Stream, below_rate, smallest_keys
from fedsw.audit import one_run
from fedsw.audit.record import audit
from fedsw.data import sources
from fedsw.data.records import with_features
from fedsw.desk.own_data.screen import public_words
from fedsw.desk.planning import private_search, public_rows, run_plan
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.exchange.participants import whole
from fedsw.federation.node.held_records import Held, held_records
from fedsw.federation.node.limits import require_limits
from fedsw.federation.node.node import Node
from fedsw.federation.server import summary
from fedsw.federation.server.owed import charge_lost_attempt, largest_rates, planned_cost
from fedsw.federation.server.settling import numbers_of, sizes_at_hand
from fedsw.federation.trust.budget_shares import PART, sum_budget
from fedsw.federation.trust.round_plan import FederationPlan, charges, draw, make_plan
from fedsw.learning.moments.beside_rounds import moments_layout
from fedsw.learning.moments.moments_sum import STEP, sums_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import DeltaTooSmall, Ledger, Step, epsilon_by
from fedsw.privacy.accounting.lifetime import Cost
from fedsw.privacy.accounting.lifetime.composing import counted
from fedsw.privacy.accounting.meaning import Meaning
from fedsw.privacy.relations import ADD_OR_REMOVE
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.accounts import read_ledgers
from tests.federations import sites_of

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

DECLARED = 1400
ADDED = {
    "name": "added",
    "data": {"source": "digits"},
    "model": {"kind": "logistic"},
    "objective": {"alpha": 0.0},
    "training": {"rounds": 3, "learning_rate": 0.5, "batch_fraction": 0.25},
    "federation": {"clients": 3, "timeout": 20.0},
    "privacy": {
        "relation": "add-remove", "sampling": "poisson", "records": DECLARED, "delta": 1e-5, "epsilon": 3.0,
    },
    "evaluate_every": 3,
}  # fmt: skip
DRAWS = 600
ALONE = {"partition-id": 0, "num-partitions": 1}


def added(*settings: str) -> Experiment:
    return parse_experiment(ADDED, settings)


def planned(*settings: str, sizes: tuple[tuple[int, ...], ...] = ((400,), (100,))) -> FederationPlan:
    return make_plan(Problem.from_experiment(added(*settings)), sites_of(*sizes))


def rows_of(directory: Path) -> Any:
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        return ledger.relation, list(ledger.entries()), ledger.steps_by_group()


@pytest.mark.slow
def test_every_record_joins_by_itself_so_that_batches_have_binomial_sizes() -> None:
    plan, members = planned(), whole(sites_of((400,), (100,)))
    drawn = np.array([
        np.concatenate(draw(plan, members, round_=1, attempt=0).counts)[:, 0] for _ in range(DRAWS)
    ])  # fmt: skip
    for counts, held in zip(drawn.T, (400, 100), strict=True):
        variance = held * 0.25 * 0.75
        assert abs(counts.mean() - held / 4) < 6 * math.sqrt(variance / DRAWS)
        assert abs(counts.var() / variance - 1) < 6 * math.sqrt(2.1 / DRAWS)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 6 / math.sqrt(DRAWS)


def test_who_joins_follows_from_a_records_own_key_and_from_nobody_elses() -> None:
    keys, ends = Stream.seeded(1).words(500), np.array([120, 120, 500])
    counts = below_rate(keys, ends, 0.3)
    limit = np.uint64(math.floor(0.3 * 2.0**64))
    parts = np.split(np.arange(500), ends[:-1])
    chosen = [part[smallest_keys(keys[part], count)] for part, count in zip(parts, counts, strict=True)]
    assert np.concatenate(chosen).tolist() == np.flatnonzero(keys < limit).tolist()
    without = below_rate(np.delete(keys, 7), ends - 1, 0.3)
    assert without.tolist() == (counts - [int(keys[7] < limit), 0, 0]).tolist()


def test_a_rate_is_rounded_down_and_all_join_at_1() -> None:
    limit = math.floor(0.3 * 2.0**64)
    keys = np.array([0, limit - 1, limit, 2**64 - 1], dtype=np.uint64)
    assert below_rate(keys, np.array([4]), 0.3).tolist() == [2]
    assert below_rate(keys, np.array([4]), 1.0).tolist() == [4]
    assert below_rate(keys[:0], np.array([0, 0]), 0.3).tolist() == [0, 0]
    for rate in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"a rate of {rate}"):
            below_rate(keys, np.array([4]), rate)


def worst_node(count: int, *settings: str) -> tuple[Problem, Node]:
    """A node with records whose gradients are clipped and point one way: an adversary's."""
    task = Problem.from_experiment(added("data.row_norm=100.0", *settings))
    held = held_records(task, ALONE)
    first = held.records.take(np.zeros(count, dtype=np.int64))
    features = 50.0 * torch.ones_like(first.features)
    return task, Node.of(task, Held(with_features(first, features), np.zeros(count, int), np.zeros(1, int)), "run")


def contributed(task: Problem, node: Node, rows: np.ndarray) -> torch.Tensor:
    records = node.records.take(rows)
    theta = torch.randn(task.parameters, dtype=torch.float64)
    batch = node.task.clipped.forward(node.task.prepared(node.model, theta), records, 1, 0, compare=False)
    weight = task.objective.task_weight(sum(make_plan(task, sites_of((9,))).batch))
    return node.task.clipped.contribution(batch, task.no_cotangents(len(rows)), weight)[0]


@pytest.mark.slow
def test_no_record_that_goes_moves_a_rounds_sum_by_more_than_its_bound_and_some_do_by_nearly_that() -> None:
    task, node = worst_node(12)
    bound = make_plan(task, sites_of((9,))).sensitivities[0]
    assert (bound.relation, bound.bound) == (ADD_OR_REMOVE, "loss clip")
    assert bound.value == pytest.approx(SLACK * task.clip.loss / 350, rel=1e-12)
    moves = []
    for seed in range(6):
        torch.manual_seed(seed)
        every = contributed(task, node, np.arange(12))
        torch.manual_seed(seed)
        moves.append(float((every - contributed(task, node, np.arange(11))).norm()))
    assert 0.99 * bound.value < max(moves) <= bound.value


@pytest.mark.slow
def test_a_batch_in_pieces_is_the_whole_batch_and_an_empty_one_is_a_sum_of_nothing() -> None:
    task, node = worst_node(12)
    pieces, other = worst_node(12, "training.micro_batch=5")
    parts = []
    for problem, held in ((task, node), (pieces, other)):
        torch.manual_seed(3)
        parts.append(contributed(problem, held, np.arange(12)))
        assert float(contributed(problem, held, np.arange(0)).norm()) == 0.0
    assert torch.allclose(*parts, rtol=1e-6, atol=1e-12) and float(parts[0].norm()) > 0


def test_a_record_that_comes_or_goes_moves_moments_by_at_most_1_however_it_is_sought() -> None:
    task = Problem.from_experiment(added("privacy.moments=0.2"))
    layout, held = moments_layout(task), held_records(task, ALONE).records
    assert layout is not None
    found = [0.0]
    for size in (0.0, 1.0, 1e3, 1e30, math.nan, math.inf):
        few = held.take(np.arange(9))
        worst = with_features(few, few.features * size if math.isfinite(size) else few.features + size)
        sums = [sums_of(task, layout, worst.take(np.arange(count))).double() * STEP for count in (9, 8)]
        found.append(float((sums[0] - sums[1]).norm()))
    assert 0.7 < max(found) <= layout.moved_for(ADD_OR_REMOVE) == 1.0
    budget = sum_budget(PART, layout, 2.0, ADD_OR_REMOVE)
    assert (budget.sensitivity.value, budget.sensitivity.relation) == (SLACK, ADD_OR_REMOVE)
    assert [charge.sampling for charge in budget.charges(("A",), task.experiment)] == ["poisson"]
    with pytest.raises(KeyError):
        layout.moved_for("zero-out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [(), ("privacy.moments=0.3",), ("training.batch_fraction=1.0",), ("calibration.share=0.2",)]
)
def test_epsilon_is_that_of_dp_accounting_for_the_same_poisson_steps(settings: tuple[str, ...]) -> None:
    plan = planned("training.rounds=40", *settings)
    oracle = PLDAccountant(value_discretization_interval=1e-4)
    once = dp_event.GaussianDpEvent(plan.multiplier)
    oracle.compose(dp_event.PoissonSampledDpEvent(plan.rates[0], once), 40)
    if plan.moments:
        oracle.compose(dp_event.GaussianDpEvent(plan.moments))
    if plan.scores:
        oracle.compose(dp_event.GaussianDpEvent(plan.scores))
    assert oracle.get_epsilon(1e-5) == pytest.approx(3.0, abs=1e-3)


def test_counts_of_scores_are_charged_for_a_record_that_comes_or_goes_and_say_nothing_of_how_many(federation) -> None:
    """Of ten classes it moves them by the root of ten, of any number of records; the declared one is in the file."""
    summary = federation.run(added("calibration.share=0.2"))
    folder = federation.folder / "run1"
    relation, entries, _ = rows_of(folder)
    last = entries[-1]
    assert relation == ADD_OR_REMOVE and (last.round, last.sampling_rate, last.sampling) == (5, 1.0, "poisson")
    assert last.sensitivity == pytest.approx(SLACK * math.sqrt(10)) and summary["epsilon_spent"] <= 3.0
    assert json.loads((folder / "scores.json").read_text())["records"] == [DECLARED] and audit(folder).passed
    assert str(summary["calibration"]["records"]) == str(DECLARED)
    guarantee = summary["guarantee"]
    short = {**guarantee, "epsilon_of_replacement": 0.95 * guarantee["epsilon_of_replacement"]}
    (folder / "summary.json").write_text(json.dumps({**summary, "guarantee": short}))
    assert "ε for a replacement is" in str(audit(folder).rows), "of rounds alone it would be enough"


def test_what_a_plan_settles_follows_from_the_declared_number_and_not_from_how_many_there_are() -> None:
    few, many = planned("privacy.delta='auto'", sizes=((1,),)), planned("privacy.delta='auto'", sizes=((9000,), (7,)))
    numbers = ("sizes", "batch", "rates", "multiplier", "sensitivities", "delta", "epsilon")
    assert [getattr(few, name) for name in numbers] == [getattr(many, name) for name in numbers]
    assert (few.sizes, few.batch, few.delta) == ((DECLARED,), (350,), 1 / DECLARED**2)
    assert sizes_at_hand(added()) == {"all": DECLARED} and numbers_of(added()).records == DECLARED


def test_an_attempt_is_charged_at_the_rate_of_a_record_whoever_is_away_and_its_sum_is_divided_by_the_declared() -> None:
    plan, sites = planned(), sites_of((3,), (2,), (40,))
    for members in (whole(sites), whole(sites[:1]), [replace(p, here=np.zeros(1, bool)) for p in whole(sites)]):
        drawn = draw(plan, members, round_=1, attempt=0)
        assert (drawn.batch, drawn.total, drawn.rates) == ((350,), 350, (0.25,))
        (charge,) = charges(plan, drawn, plan.task.clipped.sensitivities(drawn.batch, [1.0]))
        assert (charge.sampling_rate, charge.sampling) == (0.25, "poisson")
    assert largest_rates(plan, sites) == {"A=0": 0.25}


def test_what_a_lost_folder_may_have_released_is_charged_as_poisson_steps(tmp_path: Path) -> None:
    plan, sites = planned("privacy.moments=0.2"), sites_of((3,), (2,))
    with Ledger.create(tmp_path / "ledger.sqlite", plan) as ledger:
        for attempt in ((0, 0), (1, 0)):
            charge_lost_attempt(plan, ledger, sites, attempt)
        taken = ledger.steps_by_group()["A=0"]
    sampled = {(step.sampling_rate, step.sampling): step.mu for step in taken}
    assert sampled == {
        (1.0, "poisson"): pytest.approx(1 / plan.moments, rel=1e-9),
        (0.25, "poisson"): pytest.approx(1 / plan.multiplier, rel=1e-9),
    }
    assert {step.sampling for step in plan.reserved()} == {"poisson"}


def test_a_run_ends_with_an_infinite_epsilon_of_replacement_where_none_can_be_vouched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned("privacy.moments=0.2")
    cost = counted([(Step(0.25, 1 / plan.multiplier, "poisson"), 3), (Step(1.0, 1 / plan.moments, "poisson"), 1)])
    stated = summary._of_replacement(plan)["epsilon_of_replacement"]
    assert epsilon_by("pld", cost, plan.delta) == pytest.approx(stated, rel=1e-6)

    def used_up(*asked: Any) -> float:
        raise DeltaTooSmall("round-off")

    monkeypatch.setattr(summary, "epsilon_by", used_up)
    assert summary._of_replacement(plan) == {"epsilon_of_replacement": math.inf}


@pytest.mark.slow
def test_a_run_charges_poisson_steps_says_so_everywhere_and_its_record_holds(federation: Any) -> None:
    experiment = added("privacy.moments=0.2")
    ended = federation.run(experiment)
    directory = federation.folder / "run1"
    relation, entries, steps = rows_of(directory)
    assert relation == ADD_OR_REMOVE and {entry.sampling for entry in entries} == {"poisson"}
    assert [entry.sampling_rate for entry in entries] == [1.0, 0.25, 0.25, 0.25]
    guarantee = ended["guarantee"]
    assert (guarantee["relation"], guarantee["sampling"]) == (ADD_OR_REMOVE, "poisson")
    words = guarantee["statement"]
    assert "addition or removal of one record, its label and group included" in words
    assert "declared number of records, 1400" in words and "not comparable" in words
    assert guarantee["epsilon_of_replacement"] > 2 * ended["epsilon"]
    assert json.loads((directory / "moments.json").read_text())["records"] == [DECLARED]
    finding = audit(directory)
    assert finding.passed, finding
    doubled = [(Step(step.sampling_rate, 2 * step.mu), times) for step, times in steps["A=0"].items()]
    person = read_ledgers(directory).meaning()
    assert person.advantage == pytest.approx(Meaning.of_steps(doubled).advantage, rel=1e-8)  # mu has ten digits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("summary.json", lambda s: s["guarantee"].update(epsilon_of_replacement=3.0), "ε for a replacement is 3"),
        ("summary.json", lambda s: s["guarantee"].update(relation="replace-one"), "relation is 'replace-one'"),
        ("config.json", lambda s: s["experiment"]["privacy"].update(records=1500), "settings declare 1500"),
        ("config.json", lambda s: s["experiment"]["privacy"].update(relation="replace-one"), "replace"),
        ("config.json", lambda s: s["experiment"]["training"].update(batch_fraction=0.2), "joins with 0.2"),
    ],
)
def test_a_record_that_says_something_else_of_its_neighbours_is_found_out(
    federation: Any, file: str, change: Callable[[Any], None], said: str
) -> None:
    federation.run(added())
    path = federation.folder / "run1" / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    finding = audit(path.parent)
    assert not finding.passed and said in str(finding.rows)


@pytest.mark.slow
def test_nothing_that_is_published_tells_how_many_records_there_are(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, published = sources._load, []
    for kept in (1100, 1099):

        def fewer(spec: Any, *rest: Any, kept: int = kept) -> Any:
            dataset = load(spec, *rest)
            return replace(dataset, train=dataset.train.take(np.arange(kept)))

        monkeypatch.setattr(sources, "_load", fewer)
        ended = federation.run(added())
        directory = federation.folder / f"run{federation.runs}"
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        shown = {name: ended[name] for name in ("bytes_up", "bytes_down", "epsilon", "delta", "guarantee")}
        shown |= {"lines": [{**line, "snr": 0, "gradient_norm": 0, "held_out": 0} for line in lines]}
        shown |= {"plan": json.loads((directory / "plan.json").read_text())}
        published.append(shown)
    assert published[0] == published[1]


@pytest.mark.slow
def test_rounds_whose_batches_are_empty_are_charged_like_all_others(federation: Any) -> None:
    federation.run(added("training.batch_fraction=1e-4", "privacy.noise_multiplier=1.0"))
    _, entries, _ = rows_of(federation.folder / "run1")
    assert [(entry.sampling_rate, entry.round) for entry in entries] == [(1e-4, 1), (1e-4, 2), (1e-4, 3)]


def test_an_account_sets_aside_what_a_replacement_costs() -> None:
    plan = planned("privacy.moments=0.2")
    reserved = Cost.one(planned_cost(plan)).counted()
    taken = counted([(Step(0.25, 1 / plan.multiplier, "poisson"), 3), (Step(1.0, 1 / plan.moments, "poisson"), 1)])
    assert not reserved.lacks(taken)
    assert {step.sampling for step in reserved.steps} == {"without-replacement"}
    assert max(step.mu for step in reserved.steps) == pytest.approx(2 / min(plan.multiplier, plan.moments), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("privacy.sampling='global'",), "'add-remove' takes sampling 'poisson'"),
        (("privacy.relation='replace-one'",), "'replace-one' does not"),
        (("privacy.relation='replace-one'", "privacy.sampling='global'"), "under 'replace-one' it is counted"),
        (("privacy.trust='local-gradient'",), "is bounded under trust 'central', not 'local-gradient'"),
        (("privacy.trust='distributed'",), "is bounded under trust 'central', not 'distributed'"),
        (("privacy.trust='none'",), "is bounded under trust 'central', not 'none'"),
        (("privacy.epsilon=inf",), "no noise is added"),
        (("privacy.accountant='gdp-clt-poisson'",), "is about other steps"),
        (("objective.alpha=0.1",), "moves by every record's rank"),
        (("objective.penalty='equality-of-odds'",), "more than one stratum"),
        (("objective.task='representation'",), "not of 'representation'"),
        (("unsafe_metrics=true",), "unsafe_metrics shows how many"),
        (("training.batch_size=10",), "training.batch_size fixes a batch's size"),
        (("data.most_records=500",), "data.most_records chooses records by their number"),
        (("data.half=true",), "data.half chooses records by their number"),
        (("partition.scheme='dirichlet'", "partition.by='target'"), "deals records by what the guarantee covers"),
        (("federation.drop_out=0.1",), "drop_out simulates clients"),
        (("data.source='synthetic'",), "has 2 groups: they are strata"),
    ],
)
def test_what_is_not_proven_for_additions_and_removals_is_refused_before_anything_is_spent(
    settings: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ExperimentError, match=said):
        Problem.from_experiment(added(*settings))


def test_a_declared_number_is_asked_for_and_nothing_is_written_of_it_elsewhere() -> None:
    bare = {**ADDED, "privacy": {**ADDED["privacy"]}}
    del bare["privacy"]["records"]
    with pytest.raises(ExperimentError, match="declare records"):
        parse_experiment(bare)
    assert added().model_dump()["privacy"]["records"] == DECLARED
    assert "records" not in parse_experiment({"name": "plain"}).model_dump()["privacy"]


def test_whoever_answers_for_a_replacement_refuses_a_run_for_additions(tmp_path: Path) -> None:
    experiment = added()
    with pytest.raises(ExperimentError, match="weaker promise"):
        require_limits(experiment, {"max-epsilon": 8.0})
    with pytest.raises(ExperimentError, match="--one-run replaces its canaries"):
        one_run.audit(experiment, canaries=10, show=False)
    with pytest.raises(ExperimentError, match="private selection is accounted"):
        private_search.cost_of([private_search.Candidate({}, experiment)], None)


@pytest.mark.slow
def test_a_plan_is_of_the_declared_number_also_after_a_run(federation: Any) -> None:
    experiment = added("privacy.records=120")  # a forecast of as many as there are takes a quarter of a minute
    by_group, assumed = public_rows.sizes_by_group(experiment, None)
    assert by_group == {"all": 120} and "declared" in assumed
    with pytest.raises(ExperimentError, match="--records 77, and the experiment declares"):
        public_rows.sizes_by_group(experiment, "77")
    plan = run_plan.planned(experiment, by_group)
    assert plan.forecast is not None and plan.records == 120
    federation.run(experiment)
    assert public_rows.sizes_of(federation.folder / "run1")[1] == {"all": 120}


@pytest.mark.slow
def test_a_run_of_python_objects_writes_down_what_they_are_and_not_how_many(tmp_path: Path) -> None:
    x, settings = (
        torch.rand(317, 3, generator=torch.Generator().manual_seed(1)),
        {**ADDED, "data": {"source": "object"}},
    )
    records = fedsw.as_records(x, target=(x[:, 0] > 0.5).long(), classes=[0, 1])
    run = fedsw.run(parse_experiment(settings, ["federation.clients=1"]), data=records, runs=tmp_path)
    for file in ("config.json", "plan.json", "summary.json"):
        assert "317" not in re.findall(r"\b\d+\b(?!\.)", (run.directory / file).read_text())
    assert json.loads((run.directory / "config.json").read_text())["experiment"]["data"]["objects"] == []
    assert "the declared number of records, 1400, and that every client has one" in [*public_words(run.experiment)]
