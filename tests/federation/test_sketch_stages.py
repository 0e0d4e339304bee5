"""Laws of sketches in stages: what is measured next is learnt from what was released, and all stages fit the budget."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsw._tools.randomness import Stream
from fedsw.audit.bounds import shown_epsilon
from fedsw.audit.record import audit, cost, noise, promise, read_book
from fedsw.experiment import ExperimentError
from fedsw.federation.exchange import participants as cohort
from fedsw.federation.exchange.participants import Site
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.federation.server.owed import planned_cost
from fedsw.federation.trust.sketch.sketch_once import SketchSum, make_plan, sketch_budget, stage_costs, stage_with
from fedsw.learning.models.initial import count_parameters, flatten
from fedsw.learning.sketches.from_settings import Stage, classifier_of
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.tasks.measures import law_of_problem, sketch_of_records
from fedsw.learning.tasks.needs import parts_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import BudgetExhausted, Ledger, Step
from fedsw.privacy.accounting.lifetime import composed_epsilon
from fedsw.privacy.accounting.lifetime.composing import counted, uncovered
from fedsw.privacy.mechanisms import noised
from fedsw.runs.client_status import begun
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import stored_classifier, stored_sketch
from fedsw.runs.report.facts import description
from fedsw.runs.view import read_run
from tests.audit.record.test_record import change_ledger, change_lines, failed
from tests.federation.node.releases import summed
from tests.federation.sketch_runs import LOCAL, NOISELESS, all_records, sketched
from tests.federations import Federation, Saboteur, numbers
from tests.laws.attacks.canaries import shown_mu

TWO = "sketch.stages=[{}]"
THREE = (
    "sketch.stages=[{share=0.3}, {share=0.25, parts=[{kind='moments', map='learnt', radius=3.0}, "
    "{bandwidths=[1.0], pairs=4, weight=0.5}]}]"
)
SMALL = ("sketch.hidden=5", "training.rounds=3", "sketch.averaging=0.5")


def staged(*settings: str):
    return sketched(*SMALL, *settings)


def entries(path):
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.entries(), ledger.replay()


def stage_of(directory, number: int) -> Stage:
    weights = stored_classifier(RunDirectory(directory), number)
    return Stage(number, flat_bytes(weights)) if weights is not None else Stage(number)


@pytest.mark.parametrize("stages", [TWO, THREE])
def test_every_stage_is_charged_with_its_share_and_the_ledgers_replay_is_the_epsilon_asked_for(federation, stages):
    chosen = staged(stages)
    summary = federation.run(chosen)
    rows, replayed = entries(federation.folder / "run1" / "ledger.sqlite")
    assert [row.round for row in rows] == list(range(1, 1 + len(chosen.sketch.shares)))
    total = summary["guarantee"]["noise_multiplier"]
    for row, share in zip(rows, chosen.sketch.shares, strict=True):
        assert row.sampling_rate == 1.0
        assert row.sigma / row.sensitivity == pytest.approx(total / math.sqrt(share), rel=1e-9)
    assert sum((row.sensitivity / row.sigma) ** 2 for row in rows) == pytest.approx(total**-2, rel=1e-9)
    assert replayed <= 5.0 * (1 + 1e-6) and replayed == pytest.approx(5.0, rel=2e-3)
    assert summary["epsilon_spent"] == replayed and summary["status"] == "completed"
    assert rows[0].sensitivity == pytest.approx(2.002) and rows[1].sensitivity < 1.43


@pytest.mark.parametrize("stages", [TWO, THREE])
def test_an_account_has_room_for_all_stages_before_the_first_is_released(stages):
    """One release as dear as all of them would cover the first stage alone."""
    task = Problem.from_experiment(staged(stages))
    plan = make_plan(task, [Site(0, np.zeros(1, dtype=np.int64), np.array([[600]]), None, None)])
    asked = planned_cost(plan).counted().steps
    charged = Counter(Step(1.0, each.mu) for each in stage_costs(task, plan.delta))
    assert not uncovered(counted(charged.items()), asked)
    assert 4.98 < composed_epsilon([asked], plan.delta) <= 5.0 * (1 + 1e-6)


def test_a_node_has_answered_all_when_it_has_answered_the_last_stage_and_may_say_so_of_each():
    """However few steps the generator takes."""
    task = Problem.from_experiment(staged(THREE, "training.rounds=1"))
    part = begun(task.experiment, "run", (0,))
    assert not part.after(1).after(2).over and part.after(1).after(2).after(3).over
    answered = np.array([[number, 1, 2] for number in (1, 2, 3)])
    site = Site(0, np.zeros(1, dtype=np.int64), np.array([[600]]), None, None, None, answered)
    cohort._refuse_invented(site, task, {1: 1, 2: 1, 3: 1})


def test_shares_have_sum_one_and_those_that_say_none_are_equal():
    assert staged(TWO).sketch.shares == (0.5, 0.5)
    assert staged(THREE).sketch.shares == pytest.approx((0.45, 0.3, 0.25))
    assert sum(staged("sketch.stages=[{share=0.2}, {}]").sketch.shares) == pytest.approx(1)


def test_without_noise_a_later_stage_is_the_exact_sum_through_the_classifier_that_was_taught(federation):
    chosen = staged(NOISELESS, THREE)
    federation.run(chosen)
    directory, task = federation.folder / "run1", Problem.from_experiment(chosen)
    for number in (1, 2, 3):
        stage = stage_of(directory, number)
        found = stored_sketch(RunDirectory(directory), law_of_problem(task, stage), number)
        exact = sketch_of_records(task, all_records(chosen), stage)
        torch.testing.assert_close(found.sketch.value, exact, rtol=0, atol=600 * 2e-6)
    assert stage_of(directory, 2).weights != stage_of(directory, 3).weights


@pytest.mark.parametrize("sites", [(), ("federation.sites=1",)])
def test_where_nobody_is_trusted_every_client_charges_every_stage_to_its_own_ledger(federation, sites):
    chosen = staged(LOCAL, TWO, *sites)
    summary = federation.run(chosen)
    for number in range(3):
        rows, replayed = entries(federation.folder / "run1" / "clients" / f"client-{number}.sqlite")
        assert [(row.round, row.attempt) for row in rows] == [(1, 0), (2, 0)] and replayed <= 5.0 * (1 + 1e-6)
    assert summary["epsilon_spent"] == pytest.approx(5.0, rel=2e-3) and summary["sketch"]["later"][0]["clients"] == 3


def test_a_stage_is_answered_once_in_whatever_attempt_and_with_whatever_weights_it_is_asked_for(tmp_path):
    task = Problem.from_experiment(staged(LOCAL, "sketch.stages=[{share=0.1}, {share=0.1}]"))
    node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 3}), "run")
    size = count_parameters(classifier_of(task.experiment, task.shape))
    place = tmp_path / "client-0.sqlite"
    for number in (1, 3, 2):
        stage = stage_with(number, torch.full((size,), float(number)))
        summed(SketchSum(task, stage), node, place, number, 0, 600)
        for weights in (torch.full((size,), float(number)), torch.zeros(size), torch.full((size,), math.nan)):
            with pytest.raises((BudgetExhausted, ValueError)):
                summed(SketchSum(task, stage_with(number, weights)), node, place, number, 1, 600)
    rows, replayed = entries(place)
    assert len(rows) == 3 and replayed <= 5.0 * (1 + 1e-6)
    with pytest.raises(ExperimentError, match="stage 4"):
        SketchSum(task, stage_with(4, torch.zeros(size)))


@pytest.mark.parametrize("weights", [np.nan, np.inf, 1e300, 0.0, -1e30])
def test_a_server_that_sends_a_hostile_network_gets_a_noised_sum_of_the_same_bound(tmp_path, weights):
    task = Problem.from_experiment(staged(LOCAL, TWO))
    node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 3}), "run")
    size = count_parameters(classifier_of(task.experiment, task.shape))
    stage = stage_with(2, torch.full((size,), weights, dtype=torch.float64))
    found = summed(SketchSum(task, stage), node, tmp_path / "client-0.sqlite", 2, 0, 600)
    planned = sketch_budget(task.experiment, law_of_problem(task, Stage(2)), 1e-5, 2)
    assert bool(torch.isfinite(found.value).all()) and found.sigma == pytest.approx(planned.sigma)


def test_a_client_that_missed_a_stage_answers_the_next(tmp_path):
    def hook(message, context):
        kind, number = message.metadata.message_type, int(context.node_config["partition-id"])
        if kind == "train.sketch" and number == 1 and int(message.content["config"]["round"]) == 1:
            raise OSError("not yet")

    chosen, directory = staged(LOCAL, TWO, "federation.min_clients=2"), tmp_path / "run"
    summary = Federation(tmp_path).run(chosen, directory=directory, app=Saboteur(hook))
    assert summary["sketch"]["clients"] == 2 and summary["sketch"]["later"][0]["clients"] == 3
    rows, replayed = entries(directory / "clients" / "client-1.sqlite")
    assert [row.round for row in rows] == [2] and replayed < 5.0
    again = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert again["sketch"]["clients"] == 2, "what a later stage was learnt from stays as it was"


@pytest.mark.parametrize("trust", [(), (LOCAL,), (LOCAL, "sketch.restarts=2")])
def test_a_run_that_breaks_off_between_stages_goes_on_as_if_it_had_not(tmp_path, trust):
    chosen = staged(TWO, *trust, "seed=3")
    whole = Federation(tmp_path / "whole")
    whole.run(chosen, directory=tmp_path / "whole" / "run")
    directory, away = tmp_path / "run", [True]

    def hook(message, context):
        kind = message.metadata.message_type
        if kind in ("train.sketch", "train.records_sum") and away and int(message.content["config"]["round"]) == 2:
            raise OSError("gone")

    app = Saboteur(hook)
    with pytest.raises(Exception, match="round 2"):
        Federation(tmp_path).run(chosen, directory=directory, app=app)
    taught = stored_classifier(RunDirectory(directory), 2)
    away.clear()
    summary = Federation(tmp_path).run(chosen, directory=directory, app=app, resume=True)
    assert summary["status"] == "completed" and torch.equal(taught, stored_classifier(RunDirectory(directory), 2))
    if trust:  # each stage is one attempt in a client's ledger, so a seeded run that broke off has the same noise
        one, other = (load_file(each / "model.safetensors") for each in (directory, tmp_path / "whole" / "run"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    ledger = directory / ("clients/client-0.sqlite" if trust else "ledger.sqlite")
    assert [row.round for row in entries(ledger)[0]] == [1, 2]
    lines = RunDirectory(directory).read_metrics()
    assert [line["round"] for line in lines] == [3, 6]


def test_what_was_learnt_travels_as_numbers_of_the_declared_architecture(federation):
    seen = {}

    def hook(message, context):
        if message.metadata.message_type == "train.records_sum":
            seen[int(message.content["config"]["round"])] = numbers(message.content["model"]["classifier"])

    chosen = staged(TWO)
    federation.run(chosen, app=Saboteur(hook))
    task = Problem.from_experiment(chosen)
    untrained = flatten(classifier_of(task.experiment, task.shape))
    assert seen[1].shape == seen[2].shape == untrained.shape and not seen[1].any()
    assert np.array_equal(seen[2], stored_classifier(RunDirectory(federation.folder / "run1"), 2).numpy())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("sketch.map=learnt", "sketch.bandwidths=[1.0]"), "put the part into stages"),
        ((TWO, "sketch.labels=false"), "set labels"),
        (("sketch.stages=[{share=0.6}, {share=0.4}]",), "leave a part of the budget"),
        (("sketch.stages=[{parts=[{kind='code', columns=[0]}]}]",), "waves, features or moments"),
        (("sketch.stages=[{parts=[]}]",), "at least 1"),
        (("sketch.stages=[{parts=[{kind='features', map='learnt', columns=[0]}]}]",), "looks at every feature"),
    ],
)
def test_stages_that_do_not_go_together_are_refused(settings, words):
    with pytest.raises(ExperimentError, match=words):
        sketched(*settings)


def test_a_hidden_width_without_stages_is_refused():
    with pytest.raises(ExperimentError, match="add stages"):
        sketched("sketch.hidden=5")


@pytest.mark.parametrize("trust", [(), (LOCAL,)])
def test_the_audit_passes_a_run_in_stages_and_names_a_stage_that_has_less_noise_than_its_share(tmp_path, trust):
    directory = tmp_path / "run"
    Federation(tmp_path).run(staged(TWO, *trust), directory=directory)
    assert failed(audit(directory)) == [] and audit(directory).details["not_checked"] == []
    sketch, task = directory / "sketch.safetensors", Problem.from_experiment(staged(TWO, *trust))
    content, released = load_file(sketch), sketch.read_bytes()
    save_file({**content, "sketch": sketch_of_records(task, all_records(task.experiment))}, sketch)
    assert noise.NAME in failed(found := audit(directory)) and "not on the grid" in str(found.rows)
    sketch.write_bytes(released)
    path = directory / ("clients/client-1.sqlite" if trust else "ledger.sqlite")
    body = read_book(path).rows[-1].body
    changed = json.loads(body)
    changed["sigma"] *= 0.9
    said = json.dumps(changed, sort_keys=True, separators=(",", ":"))
    change_ledger(path, f"UPDATE rows SET body = '{said}' WHERE body = '{body}'")
    found = audit(directory)
    assert noise.NAME in failed(found) and "its stages cost more than one release" in str(found.rows)


@pytest.mark.parametrize("trust", [(), (LOCAL,)])
def test_whatever_says_the_guarantee_of_a_run_in_stages_speaks_of_all_of_them(tmp_path, trust):
    directory = tmp_path / "run"
    guarantee = Federation(tmp_path).run(staged(THREE, *trust), directory=directory)["guarantee"]
    words = "of all 3 stages of the sketch together, noise multiplier sigma/Delta = "
    assert words in guarantee["statement"] and guarantee["statement"].endswith("of one release that costs as much.")
    assert guarantee["sampling"] == "none: all records, once a stage"
    assert "9 steps on a sketch of 3 stages" in description(read_run(directory))
    assert failed(audit(directory)) == []
    path = directory / "summary.json"
    summary = json.loads(path.read_text())
    summary["guarantee"]["statement"] = guarantee["statement"].replace(
        "all 3 stages of the sketch together", "the one release"
    )
    path.write_text(json.dumps(summary))
    assert failed(audit(directory)) == [promise.NAME]


def test_a_line_that_says_less_than_the_stages_so_far_cost_is_named(tmp_path):
    directory = tmp_path / "run"
    Federation(tmp_path).run(staged(TWO), directory=directory)
    change_lines(directory / "metrics.jsonl", lambda line: line.update(epsilon=line["epsilon"] / 2))
    assert failed(audit(directory)) == [cost.REPLAY]


def test_a_stage_that_was_charged_is_not_released_again_where_its_file_is_lost(tmp_path):
    chosen, directory = staged("sketch.stages=[{share=0.2}, {share=0.2}]"), tmp_path / "run"
    Federation(tmp_path).run(chosen, directory=directory)
    for path in directory.glob("sketch-[23].safetensors"):
        path.unlink()
    summary = Federation(tmp_path).run(chosen, directory=directory, resume=True)
    assert summary["status"].startswith("stopped before stage 2 of the sketch: stage 2 of the sketch was charged")
    assert len(entries(directory / "ledger.sqlite")[0]) == 3


TRIALS = 20_000


def released_stages(task, laws, records, stream):
    """What both stages of a set of records look like, over and over, with the noise that is planned for each."""
    for number, law in enumerate(laws, 1):
        sigma = sketch_budget(task.experiment, law, 1e-5, number).sigma
        total = law.drawn(torch.float64).sums(records, torch.zeros(len(records), dtype=torch.int64)).reshape(-1)
        yield noised(total.expand(TRIALS, -1).clone(), sigma, stream.child(number)) / sigma


def test_canaries_at_the_worst_case_of_two_stages_show_nine_tenths_of_epsilon_and_never_more():
    chosen = staged(LOCAL, "sketch.bandwidths=[1.0]", "sketch.pairs=2", "sketch.stages=[{parts=[{kind='features'}]}]")
    task = Problem.from_experiment(chosen)
    laws = [law_of_problem(task, Stage(number)) for number in (1, 2)]
    turns = laws[0].drawn(torch.float64).parts[0].turns
    move = torch.linalg.lstsq(turns.T, torch.full((2, 1), 0.5, dtype=torch.float64)).solution[:, 0]
    record, other = move / 2, -move / 2  # every wave is turned round, and the codes of the two share no number
    both = [torch.stack([each, torch.zeros(2, dtype=torch.float64)]) for each in (record, other)]
    stream = Stream.seeded(11, "canaries")
    seen = [list(released_stages(task, laws, rows, stream.child(name))) for name, rows in enumerate(both)]
    exact = [
        [law.drawn(torch.float64).sums(rows, torch.zeros(2, dtype=torch.int64)).reshape(-1) for law in laws]
        for rows in both
    ]
    sigmas = [sketch_budget(task.experiment, law, 1e-5, number).sigma for number, law in enumerate(laws, 1)]
    apart = [(one - two) / sigma for one, two, sigma in zip(*exact, sigmas, strict=True)]
    scores = [sum(part @ gap for part, gap in zip(parts, apart, strict=True)).numpy() for parts in seen]
    middle = sum(
        float((one + two) @ gap) / 2 / sigma for one, two, gap, sigma in zip(*exact, apart, sigmas, strict=True)
    )
    mu = shown_mu(scores[0], scores[1], 0.95, middle)
    shown = shown_epsilon(mu, 1.0, 1, 1e-5)
    assert 0.9 * 5.0 <= shown <= 5.0


def test_a_later_stage_that_does_not_fit_is_refused_before_the_first_is_spent():
    with pytest.raises(ExperimentError, match="projected = 9 of 5"):
        Problem.from_experiment(staged("sketch.stages=[{parts=[{kind='moments', map='learnt', projected=9}]}]"))


def test_what_later_stages_take_is_counted_before_anything_is_spent():
    many = "sketch.stages=[{parts=[{kind='moments', map='learnt'}]}]"

    def bytes_of(*settings: str) -> float:
        task = Problem.from_experiment(sketched("training.rounds=3", *settings))
        return sum(each.bytes for each in parts_of(task.experiment, task.task, task.shape, rows=100))

    assert bytes_of(many, "sketch.hidden=200") > bytes_of(many) > bytes_of(TWO) > bytes_of()
