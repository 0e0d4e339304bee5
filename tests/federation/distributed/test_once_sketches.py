"""Sketches in masked sums: what is added, charged, noised, lost, gone on with and audited."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw._tools.settings import FederationError
from fedsw.audit.record import audit, noise
from fedsw.desk.own_data.synthetic_table import as_synthesis
from fedsw.desk.planning.run_plan import planned, rows
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation import messages
from fedsw.federation.node.replies import join
from fedsw.federation.trust.distributed.attempt_cost import attempts_at_one
from fedsw.federation.trust.distributed.members import Cohort
from fedsw.federation.trust.distributed.once import agreed_sum
from fedsw.federation.trust.sketch.sketch_once import LOCAL, PART, SketchSum, sketch_budget
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.tasks.measures import law_of_problem
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.privacy.masks import MaskKey
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import stored_classifier, stored_sketch
from tests.audit.record.test_record import change_lines, failed
from tests.federation.distributed.sites import RUN, Sites, masked
from tests.federation.distributed.test_site_attacks import uniform
from tests.federation.local_runs import attempts_in, kind_of, parameters_of
from tests.federation.sketch_runs import SKETCH, sketched
from tests.federation.sketch_runs import exact as exact_sum
from tests.federations import Saboteur, numbers, small
from tests.noises import require_gaussian

TRUST = "privacy.trust=distributed"
TWO = ("sketch.stages=[{share=0.3}]", "sketch.hidden=5", "training.rounds=3")


def stored(experiment, directory, number: int = 1):
    weights = b"" if number == 1 else flat_bytes(stored_classifier(RunDirectory(directory), number))
    law = law_of_problem(Problem.from_experiment(experiment), Stage(number, weights))
    found = stored_sketch(RunDirectory(directory), law, number)
    assert found is not None
    return found


def _many(clients: int, colluding: int, *more: str):
    return pytest.param(clients, colluding, more, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("clients", "colluding", "more"),
    [
        (4, 2, ()),
        (4, 2, ("federation.sites=1",)),
        (4, 2, ("federation.sites=2",)),
        _many(2, 1),
        _many(60, 1),
        _many(60, 30, "federation.sites=7"),
    ],
)
def test_the_sum_has_the_noise_of_a_trusted_server_times_the_clients_over_the_honest(
    federation, clients, colluding, more
):
    counted, honest = ("sketch.pairs=40", f"federation.clients={clients}"), clients - colluding
    chosen = masked(*counted, f"local.colluding={colluding}", *more)
    truth, added, alone = exact_sum(chosen), [], federation.run(sketched(*counted))["sketch"]["sigma"]
    for name in ("one", "two"):
        summary = federation.run(chosen, directory=federation.folder / name)
        found = stored(chosen, federation.folder / name).sketch
        assert found.sigma == summary["sketch"]["sigma"] == pytest.approx(alone * math.sqrt(clients / honest), rel=1e-9)
        assert found.records == 600
        added.append((found.value - truth).reshape(-1))
    require_gaussian(torch.stack(added), alone * math.sqrt(clients / honest))


@pytest.mark.parametrize("stages", [(), TWO])
def test_every_client_charges_every_stage_once_and_the_ledgers_replay_is_the_epsilon_asked_for(federation, stages):
    chosen = masked(*stages)
    summary = federation.run(chosen)
    directory = federation.folder / "run1"
    shares = chosen.sketch.shares
    assert summary["status"] == "completed" and summary["released_rounds"] == len(shares)
    assert not (directory / "ledger.sqlite").exists()
    total = summary["guarantee"]["noise_multiplier"]
    for client in range(3):
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
            charged = ledger.entries()
            assert [(row.round, row.attempt) for row in charged] == [(n, 0) for n in range(1, 1 + len(shares))]
            for row, share in zip(charged, shares, strict=True):
                assert (row.sampling_rate, row.group) == (1.0, "records")
                assert row.sigma / row.sensitivity == pytest.approx(total / math.sqrt(share), rel=1e-9)
            assert ledger.replay() == pytest.approx(summary["epsilon_spent_by_client"][str(client)], rel=1e-9)
    assert 4.98 < summary["epsilon_spent"] <= 5.0


@pytest.mark.parametrize("overrides", [(), TWO, ("federation.sites=1",), ("federation.sites=2", *TWO)])
def test_masks_change_no_bit_of_a_run(federation, monkeypatch, overrides):
    chosen = masked("seed=3", *overrides)
    federation.run(chosen)
    monkeypatch.setattr(MaskKey, "mask", lambda self, others, asked, length: np.zeros(length, dtype=np.uint64))
    federation.run(chosen)
    one, other = (federation.folder / name for name in ("run1", "run2"))
    assert torch.equal(parameters_of(one), parameters_of(other))
    for number in range(1, 1 + len(chosen.sketch.shares)):
        assert torch.equal(stored(chosen, one, number).sketch.value, stored(chosen, other, number).sketch.value)


def test_everything_that_leaves_a_site_is_uniform(federation):
    sent = []

    def keep(message, reply):
        sent.append((kind_of(message), reply.content))
        return reply

    federation.run(masked(*TWO), app=Saboteur(after=keep))
    kinds = Counter(kind for kind, _ in sent)
    assert kinds == {messages.HELLO.kind: 3, messages.READY.kind: 6, messages.MASKED_SKETCH.kind: 6}
    words = np.concatenate(
        [numbers(content["arrays"]["masked"]) for kind, content in sent if kind == messages.MASKED_SKETCH.kind]
    )
    assert len(words) > 500 and uniform(words.view(np.uint64))


class Loses:
    """Loses client 1 in an exchange of a stage's first attempt."""

    def __init__(self, kind: str, stage: int = 1) -> None:
        self.kind, self.stage = kind, stage

    def __call__(self, message, context):
        if kind_of(message) != self.kind or context.node_config["partition-id"] != 1:
            return
        asked = message.content["config"]
        if (asked["round"], asked["attempt"]) == (self.stage, 0):
            raise RuntimeError("power cut")


ENOUGH = ("federation.min_clients=2", *TWO)


def test_an_attempt_that_fails_is_charged_by_all_that_answered_and_the_budget_is_for_it(federation):
    summary = federation.run(masked(*ENOUGH, "local.failing=1.0"), app=Saboteur(Loses(messages.MASKED_SKETCH.kind)))
    directory = federation.folder / "run1"
    assert summary["status"] == "completed" and summary["released_rounds"] == 2
    for client in (0, 2):
        assert attempts_in(directory, client) == [(1, 0), (1, 1), (2, 0)]
    assert summary["sketch"]["clients"] == 2 and summary["sketch"]["records"] == 400
    assert "2 stages of the sketch together in up to 2 attempts each, noise" in summary["guarantee"]["statement"]
    said = summary["epsilon_spent_by_client"]
    assert said["0"] == said["2"] == summary["epsilon_spent"] < 5.0
    assert failed(audit(directory)) == [] and audit(directory).details["not_checked"] == []


def test_a_failure_that_the_budget_is_not_for_ends_the_run_within_it_and_says_what_would_help(federation):
    summary = federation.run(masked(*ENOUGH), app=Saboteur(Loses(messages.MASKED_SKETCH.kind, stage=2)))
    assert summary["status"].startswith("stopped before stage 2 of the sketch") and "local.failing" in summary["status"]
    assert summary["epsilon_spent"] <= 5.0 and attempts_in(federation.folder / "run1", 0) == [(1, 0), (2, 0)]


def test_a_site_that_is_not_there_costs_nothing(federation):
    summary = federation.run(masked(*ENOUGH), app=Saboteur(Loses(messages.READY.kind)))
    assert summary["status"] == "completed" and 4.98 < summary["epsilon_spent"] <= 5.0
    assert attempts_in(federation.folder / "run1", 0) == [(1, 1), (2, 0)]


def test_a_run_that_breaks_off_between_stages_goes_on_and_asks_for_no_stage_again(federation):
    chosen, directory, away = masked(*TWO, "federation.max_attempts=1"), federation.folder / "run", [True]

    def hook(message, context):
        if kind_of(message) == messages.READY.kind and away and message.content["config"]["round"] == 2:
            raise OSError("gone")

    app = Saboteur(hook)
    with pytest.raises(FederationError, match="round 2"):
        federation.run(chosen, directory=directory, app=app)
    first, taught = stored(chosen, directory).sketch.value, stored_classifier(RunDirectory(directory), 2)
    away.clear()
    summary = federation.run(chosen, directory=directory, app=app, resume=True)
    assert summary["status"] == "completed" and summary["released_rounds"] == 2
    assert torch.equal(first, stored(chosen, directory).sketch.value)
    assert torch.equal(taught, stored_classifier(RunDirectory(directory), 2))
    assert attempts_in(directory, 0) == [(1, 0), (2, 1)] and summary["epsilon_spent"] <= 5.0
    assert set(summary["epsilon_spent_by_client"].values()) == {summary["epsilon_spent"]}
    lines = RunDirectory(directory).read_metrics()
    assert [line["round"] for line in lines] == [3, 6]
    asked = []
    again = federation.run(
        chosen, directory=directory, app=Saboteur(lambda message, _: asked.append(kind_of(message))), resume=True
    )
    assert set(asked) == {messages.HELLO.kind} and again["released_rounds"] == 2
    assert again["epsilon_spent"] == summary["epsilon_spent"]


def test_the_audit_recomputes_a_run_and_names_a_sketch_with_other_noise_than_its_shares(federation):
    directory = federation.folder / "run1"
    federation.run(masked(*TWO, "local.colluding=2"))
    assert failed(audit(directory)) == [] and audit(directory).details["not_checked"] == []
    change_lines(directory / "metrics.jsonl", lambda line: line.update(sigma=line["sigma"] / 2))
    assert failed(audit(directory)) == [noise.NAME]


@pytest.mark.parametrize("what", ["colluding", "clients"])
def test_the_audit_names_a_sketch_whose_noise_is_not_that_of_the_honest(federation, what):
    directory = federation.folder / "run1"
    federation.run(masked())
    config = json.loads((directory / "config.json").read_text())
    if what == "colluding":  # the noise was for two honest clients of three
        config["experiment"]["local"]["colluding"] = 0
        (directory / "config.json").write_text(json.dumps(config))
    else:
        (directory / "clients" / "client-2.sqlite").unlink()
        for path in (directory / "clients").glob("client-2.*"):
            path.unlink()
        config["experiment"]["federation"]["clients"] = 2
        (directory / "config.json").write_text(json.dumps(config))
    assert noise.NAME in failed(audit(directory))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("local.colluding=3",), "nobody would be honest. Lower it to 2"),
        (("privacy.epsilon=inf",), "would show exact sums"),
        (("privacy.moments=0.1",), "a sketch has none: leave it out"),
        (("local.bins=8",), "local.bins is of tables of outputs"),
        (("training.batch_size=10",), "task 'synthesis' does not read"),
        (("federation.drop_out=0.1",), "drop_out"),
        (("data.held_out_to=everybody", "data.held_out_fraction=0.2"), "held_out"),
        (("local.table_share=0.5",), "table_share is 0.5"),
    ],
)
def test_what_cannot_work_is_refused_when_the_experiment_is_read(overrides, words):
    with pytest.raises(ExperimentError, match=words):
        masked(*overrides)


def test_a_table_made_of_an_experiment_has_the_noise_for_as_many_colluding_clients():
    columns = {
        "features": [{"name": "x", "low": 0, "high": 1}],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "y", "values": [0, 1]},
    }
    own = small(TRUST, "local.colluding=2", "local.bins=8").model_dump()
    own |= {"data": {"source": "files", "columns": columns}}
    made = as_synthesis(Experiment.model_validate(own), trust="distributed", fair=False, epsilon=None)
    assert made.stages and made.local.colluding == 2
    same = as_synthesis(Experiment.model_validate(own), trust=None, fair=False, epsilon=1.0)
    assert (same.privacy.trust, same.local.colluding) == ("distributed", 2)


def test_settings_of_a_sketch_are_refused_where_none_is_learnt_from():
    with pytest.raises(ExperimentError, match=r"\[sketch\] is set"):
        small(TRUST, "sketch.pairs=8")


def test_the_error_of_an_own_task_on_a_sketch_names_the_trust_models_that_run_it(tmp_path, monkeypatch):
    (tmp_path / "own_sketch.py").write_text(
        "from fedsw.learning.tasks.kinds._synthesis import Synthesis\nclass Own(Synthesis):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for raw in (SKETCH, {**SKETCH, "sketch": {}}):
        with pytest.raises(ExperimentError, match="use 'sketch' or 'sketch-local'"):
            Problem.from_experiment(parse_experiment(raw, (TRUST, "objective.task=own_sketch:Own")))


@settings(max_examples=40, deadline=None)
@given(
    epsilon=st.floats(0.05, 50),
    failing=st.floats(0, 4),
    share=st.floats(0.05, 0.9),
    stages=st.integers(1, 3),
)
def test_all_planned_attempts_at_all_stages_together_cost_what_was_asked_for(epsilon, failing, share, stages):
    later = f"sketch.stages=[{', '.join(f'{{share={share / stages}}}' for _ in range(stages))}]"
    chosen = masked(f"privacy.epsilon={epsilon}", f"local.failing={failing}", later)
    law = Law(2, (GaussianKernel((0.5,), 4),), classes=3)
    many = attempts_at_one(chosen)
    assert many == math.ceil(1 + failing)
    budgets = [sketch_budget(chosen, law, 1e-6, number) for number in range(1, stages + 2)]
    steps = Counter(Step(1.0, each.sensitivity.value / each.sigma) for each in budgets)
    spent = epsilon_by("pld", Counter({step: many * count for step, count in steps.items()}), 1e-6)
    assert spent <= epsilon == budgets[0].epsilon
    assert sum(many / each.multiplier**2 for each in budgets) == pytest.approx(budgets[0].whole ** -2, rel=1e-9)
    whole = sketch_budget(masked(f"privacy.epsilon={epsilon}"), law, 1e-6).multiplier
    assert budgets[0].whole == pytest.approx(whole, rel=2e-2)


@settings(max_examples=20, deadline=None)
@given(
    counts=st.floats(0.01, 4),
    epsilon=st.floats(0.01, 1000),
    clients=st.lists(st.integers(2, 40), min_size=2, max_size=4),
)
def test_no_sum_of_records_is_beyond_what_the_grid_is_for(counts, epsilon, clients):
    """All records of a site alike, where a coordinate, or the count, is as large as it can be."""
    more = (f"sketch.counts={counts}", f"privacy.epsilon={epsilon}", f"federation.clients={len(clients)}")
    task = Problem.from_experiment(masked(*more, "sketch.pairs=2", "sketch.bandwidths=[1.0]"))
    parties = [
        {"site": place, "key": f"{place:064x}", "nonce": "0" * 64, "clients": [place], "sizes": [[many]]}
        for place, many in enumerate(clients)
    ]
    cohort = Cohort.model_validate({"records": sum(clients), "parties": parties})
    found = agreed_sum(SketchSum(task, Stage()), cohort)
    drawn = law_of_problem(task).drawn(task.dtype)
    for share, many in zip(found.shares(PART), clients, strict=True):
        rows = torch.zeros((many, 2), dtype=task.dtype)
        total = drawn.sums(rows, torch.zeros(many, dtype=torch.int64))
        assert float(total.abs().max()) <= share.most
    sigma = found.sigma
    assert math.hypot(*(share.scale(sigma) for share in found.shares(PART))) == pytest.approx(
        sigma * math.sqrt(len(clients) / (len(clients) - 1))
    )


@pytest.mark.parametrize("trust", ["sketch", "distributed", "sketch-local"])
def test_a_plan_has_the_noise_of_the_run_that_it_is_for(federation, trust):
    chosen = sketched(f"privacy.trust={trust}", *(["local.failing=1.0"] if trust == "distributed" else []))
    summary, plan = federation.run(chosen), planned(chosen, {"all": 600})
    assert plan.multiplier == pytest.approx(summary["guarantee"]["noise_multiplier"], rel=1e-3)
    assert plan.batch == (600,) and plan.epsilon == summary["epsilon"]
    together = {"sketch": 1.0, "distributed": math.sqrt(2 * 3 / 2), "sketch-local": math.sqrt(3)}[trust]
    sigma = plan.multiplier * together * summary["guarantee"]["sensitivities"]["all"]
    assert summary["sketch"]["sigma"] == pytest.approx(sigma, rel=1e-3)
    words = dict(rows(plan))["noise"]
    assert f"{together:.3g} times that" in words or (trust == "sketch" and "times that" not in words)


def test_an_account_is_asked_for_all_attempts_at_all_stages(tmp_path):
    sites = Sites(tmp_path, masked(*TWO, "local.failing=1.0", "federation.clients=4"))
    node = join(
        sites.experiment.model_dump_json(exclude={"metrics"}),
        RUN,
        sites.run_id,
        {"partition-id": 0, "num-partitions": 4},
    )
    steps = LOCAL.planned(node, 1e-5)
    assert sum(steps.values()) == 4 and 4.98 < epsilon_by("pld", steps, 1e-5) <= 5.0
