"""Laws of a client that trusts nobody: what it charges, what it answers, what it refuses."""

from __future__ import annotations

import math
import os

import pytest
import torch
from scipy.stats import chi2, norm

from fedsw.federation.engines.pool import environment
from fedsw.federation.node import own_ledger as account
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust.local_gradient.noising import Request
from fedsw.learning.models import flatten
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import release as door
from fedsw.privacy.accounting import AlreadySpent, BudgetExhausted, Ledger, LedgerBusy
from fedsw.privacy.sensitivity import SLACK
from tests.federation.node import releases
from tests.federations import small
from tests.noises import replace_noise

TRUST = ("privacy.trust=local-gradient", "privacy.epsilon=inf", "privacy.noise_multiplier=1.0")


def node_of(*overrides: str) -> Node:
    task = Problem.from_experiment(small(*TRUST, *overrides))
    records = held_records(task, {"partition-id": 0, "num-partitions": 2}).records
    return Node(task, records, task.cells_of(records), task.build_model())


def request_to(node: Node, round_: int = 1, attempt: int = 0, scale: int = 2) -> Request:
    own = split.own_batch(node.sizes, node.task.experiment.training.batch_fraction)
    return Request(round_, attempt, tuple(scale * count for count in own), 600)


def _slot_means(node: Node) -> torch.Tensor:
    bins = node.task.experiment.local.bins
    return torch.zeros((len(node.cells), 1, bins), dtype=torch.float64)


def both_answers(node: Node, place, request: Request, state: dict) -> tuple:
    theta = flatten(node.model)
    first = releases.table(node, place, theta, request, state)
    return first, releases.contribution(node, place, theta, request, _slot_means(node), state)


def test_the_ledger_holds_exactly_the_attempts_whose_batches_were_asked_for(tmp_path):
    node, place, state = node_of(), tmp_path / "client-0.sqlite", {}
    for round_ in (1, 2):
        both_answers(node, place, request_to(node, round_), state)
    releases.table(node, place, flatten(node.model), request_to(node, 3), state)  # its contribution is never asked for
    with Ledger.open(place) as ledger:
        entries = ledger.entries()
        assert [(e.round, e.attempt, e.group) for e in entries] == [(r, 0, "records") for r in (1, 2, 3)]
        assert all(e.sensitivity / e.sigma == pytest.approx(1.0, rel=1e-12) for e in entries)
        assert all(e.sampling_rate == split.sampling_rate(node.sizes, 0.2) for e in entries)
        assert ledger.budget == pytest.approx(
            split.budget_split(node.task.experiment, rate=entries[0].sampling_rate, delta=ledger.delta).epsilon
        )


def test_an_attempt_is_answered_for_once_in_either_exchange(tmp_path):
    node, place, state = node_of(), tmp_path / "client-0.sqlite", {}
    request, theta = request_to(node), flatten(node.model)
    releases.table(node, place, theta, request, state)
    with pytest.raises(AlreadySpent):
        releases.table(node, place, theta, request, state)
    releases.contribution(node, place, theta, request, _slot_means(node), state)
    with pytest.raises(RuntimeError, match="holds no batch"):
        releases.contribution(node, place, theta, request, _slot_means(node), state)
    with pytest.raises(AlreadySpent):
        releases.table(node, place, theta, request, state)
    assert "key" not in state and node.batch is None


def test_a_contribution_for_another_attempt_is_refused(tmp_path):
    node, place, state = node_of(), tmp_path / "client-0.sqlite", {}
    releases.table(node, place, flatten(node.model), request_to(node), state)
    with pytest.raises(RuntimeError, match="fresh attempt"):
        releases.contribution(node, place, flatten(node.model), request_to(node, 1, 1), _slot_means(node), state)


def test_past_its_budget_a_client_releases_nothing(tmp_path, monkeypatch):
    node, place, state = node_of(), tmp_path / "client-0.sqlite", {}
    for round_ in range(1, 5):
        both_answers(node, place, request_to(node, round_), state)
    replace_noise(monkeypatch, lambda *a: pytest.fail("noise was drawn"))
    with pytest.raises(BudgetExhausted):
        releases.table(node, place, flatten(node.model), request_to(node, 5), state)


@pytest.mark.parametrize("alpha", [0.5, 0.0])
def test_the_charge_is_on_disk_before_the_noise_is_drawn(tmp_path, monkeypatch, alpha):
    order = []
    spend, noised = door.spend_together, door.noised
    monkeypatch.setattr(door, "spend_together", lambda *a: (spend(*a), order.append("charge"))[0])
    replace_noise(monkeypatch, lambda *a: (order.append("noise"), noised(*a))[1])
    node, place, state = node_of(f"objective.alpha={alpha}"), tmp_path / "client-0.sqlite", {}
    if alpha:
        both_answers(node, place, request_to(node), state)
    else:
        releases.contribution(node, place, flatten(node.model), request_to(node), None, state)
    assert order == (["charge", "noise", "noise"] if alpha else ["charge", "noise"])


def test_without_a_penalty_the_contribution_has_the_whole_budget(tmp_path):
    node, place = node_of("objective.alpha=0.0", "clip.loss=1.0"), tmp_path / "client-0.sqlite"
    request = request_to(node)
    answer = releases.contribution(node, place, flatten(node.model), request, None, {})
    assert answer.sigma == pytest.approx(SLACK * 2 * 1.0 / sum(request.sizes), rel=1e-12)


def test_the_noise_follows_the_sizes_that_the_server_tells(tmp_path):
    """A server that says the batch is small gets larger cotangents, and as much more noise."""
    sigmas = []
    for scale in (1, 4):
        node = node_of()
        answers = both_answers(node, tmp_path / f"{scale}.sqlite", request_to(node, scale=scale), {})
        sigmas.append(answers[1].sigma)
        assert answers[0].sigma == pytest.approx(math.sqrt(2) / math.sqrt(0.3), rel=1e-12)
    assert sigmas[0] == pytest.approx(4 * sigmas[1], rel=1e-9)


def test_a_client_never_believes_a_batch_below_its_own(tmp_path):
    node = node_of()
    own = request_to(node, scale=1)
    lied = Request(1, 0, (1, 1), 1)
    sigmas = [
        both_answers(node, tmp_path / f"{i}.sqlite", request, {})[1].sigma for i, request in enumerate((own, lied))
    ]
    assert sigmas[0] == sigmas[1]


def test_the_sizes_that_came_with_the_tables_stay_those_of_the_attempt(tmp_path):
    """A smaller batch in the second request would let a record move the contribution further than was paid for."""
    node, state, theta = node_of(), {}, flatten(node_of().model)
    first, second = request_to(node, scale=4), request_to(node, scale=2)
    place, means = tmp_path / "client-0.sqlite", _slot_means(node)
    releases.table(node, place, theta, first, state)
    other = both_answers(node, tmp_path / "client-1.sqlite", first, {})[1]
    assert releases.contribution(node, place, theta, second, means, state).sigma == other.sigma


def test_a_smaller_total_than_the_clients_own_records_does_not_weaken_delta(tmp_path):
    node = node_of()
    releases.table(node, tmp_path / "c.sqlite", flatten(node.model), Request(1, 0, (60, 60), 1), {})
    with Ledger.open(tmp_path / "c.sqlite") as ledger:
        assert ledger.delta == pytest.approx(0.1 / len(node.records))


@pytest.mark.parametrize("seed", [(), ("seed=3",)], ids=["secret", "seeded"])
def test_the_noise_of_both_answers_has_the_stated_deviation_and_never_repeats(tmp_path, monkeypatch, seed):
    seen: list[tuple[torch.Tensor, torch.Tensor, float]] = []
    noised = door.noised

    def spy(values, sigma, stream):
        released = noised(values, sigma, stream)
        seen.append((values.clone(), released, sigma))
        return released

    replace_noise(monkeypatch, spy)
    node, state = node_of("training.rounds=40", "local.bins=16", *seed), {}
    with account.held_open(tmp_path):
        for round_ in range(1, 41):
            both_answers(node, tmp_path / "client-0.sqlite", request_to(node, round_), state)
    for part in (seen[::2], seen[1::2]):
        added = [((released - values) / sigma).reshape(-1) for values, released, sigma in part]
        units = torch.cat(added)
        n = len(units)
        assert n > 600 and abs(float(units.sum())) < norm.isf(1e-9) * math.sqrt(n)
        assert 1e-9 < chi2.cdf(float(units.square().sum()), n) < 1 - 1e-9
        assert len({tuple(one.tolist()) for one in added}) == len(added)


def test_a_cold_process_rebuilds_the_batch_from_its_key(tmp_path):
    exact = ("seed=3", "training.precision=float64")
    warm, cold, pieces = node_of(*exact), node_of(*exact), node_of(*exact, "training.micro_batch=7")
    answers = []
    for name, node in (("warm", warm), ("cold", cold), ("pieces", pieces)):
        state: dict = {}
        place = tmp_path / name / "client-0.sqlite"
        theta, request = flatten(node.model), request_to(node)
        table = releases.table(node, place, theta, request, state).value
        if name == "cold":
            node.batch = None
        answers.append((table, releases.contribution(node, place, theta, request, _slot_means(node), state).value))
    for table, vector in answers[1:]:
        assert torch.allclose(table, answers[0][0]) and torch.allclose(vector, answers[0][1], rtol=1e-9, atol=1e-12)


def test_cells_without_records_tell_nothing_and_cost_nothing(tmp_path):
    node = node_of("seed=3")  # secret noise is zero, on its grid, in one of 200 tables
    only = Node(node.task, node.records, (node.cells[0], node.cells[1][:0]), node.model)
    first = releases.table(only, tmp_path / "client-0.sqlite", flatten(node.model), request_to(node), {})
    assert not first.value[1].any() and first.value[0].all()


def test_counts_are_the_clients_own_and_at_least_one_where_it_has_any():
    assert split.own_batch([100, 3, 0], 0.1) == (10, 1, 0)
    assert split.sampling_rate([100, 3, 0], 0.1) == pytest.approx(1 / 3)
    assert split.sampling_rate([100, 50], 1.0) == 1.0


def test_a_ledger_that_cannot_be_kept_is_refused_at_the_greeting(tmp_path):
    def never(delta: float) -> account.Promise:
        pytest.fail("what it accounts for was asked")

    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(RuntimeError, match=r"client 3 cannot keep its privacy ledger.*state-dir"):
        account.spent_epsilon(blocked / "client-3.sqlite", never)
    (tmp_path / "client-4.sqlite").write_text("no ledger")
    with pytest.raises(ValueError, match="not a ledger"):
        account.spent_epsilon(tmp_path / "client-4.sqlite", never)


def test_the_ledger_is_where_the_node_says_or_the_environment_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSW_STATE", raising=False)
    with pytest.raises(RuntimeError, match=r"client 2 has no folder for its privacy ledger; .*state-dir.*FEDSW_STATE"):
        account.ledger_path({}, 2)
    monkeypatch.setenv("FEDSW_STATE", str(tmp_path / "state"))
    assert account.ledger_path({}, 2) == tmp_path / "state" / "client-2.sqlite"
    named = {"state-dir": str(tmp_path / "own")}
    assert account.ledger_path(named, 2) == tmp_path / "own" / "client-2.sqlite"


def test_what_is_kept_is_in_the_same_folder_wherever_a_node_is_started(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="state-dir is 'state', which is another folder wherever a process is started"):
        account.ledger_path({"state-dir": "state"}, 2)
    monkeypatch.setenv("FEDSW_STATE", "./state")
    with pytest.raises(ValueError, match="FEDSW_STATE is 'state', which is another folder"):
        account.ledger_path({}, 2)
    named = {"account": "patients", "accounts": "kept", "modules": "none"}
    with pytest.raises(ValueError, match="accounts is 'kept', which is another folder"):
        account.account_of(small(*TRUST), named, 2)


def test_a_ledger_has_one_writer_and_is_let_go_of_between_messages_unless_this_process_is_alone(tmp_path):
    node, place = node_of(), tmp_path / "client-0.sqlite"
    releases.table(node, place, flatten(node.model), request_to(node, 1), {})
    with Ledger.open(place), pytest.raises(LedgerBusy):
        releases.table(node, place, flatten(node.model), request_to(node, 2), {})
    with account.held_open(tmp_path):
        releases.table(node, place, flatten(node.model), request_to(node, 2), {})
        with pytest.raises(LedgerBusy):
            Ledger.open(place)
        releases.table(node, place, flatten(node.model), request_to(node, 3), {})
    with Ledger.open(place) as ledger:
        assert ledger.released_rounds() == 3


def test_what_a_run_sets_in_the_environment_is_undone_when_it_ends(monkeypatch):
    monkeypatch.setenv("FEDSW_STATE", "before")
    monkeypatch.delenv("FEDSW_OTHER", raising=False)
    with environment({"FEDSW_STATE": "within", "FEDSW_OTHER": "too"}):
        assert (os.environ["FEDSW_STATE"], os.environ["FEDSW_OTHER"]) == ("within", "too")
    assert os.environ["FEDSW_STATE"] == "before" and "FEDSW_OTHER" not in os.environ


def test_a_ledger_of_another_guarantee_is_refused(tmp_path):
    place = tmp_path / "client-0.sqlite"
    Ledger.create(place, groups=("A=0", "A=1"), delta=1e-4, epsilon=9.0, nominal=False).close()
    node = node_of()
    with pytest.raises(ValueError, match="accounts for another run"):
        releases.table(node, place, flatten(node.model), request_to(node), {})
    Ledger.open(place).close()  # and it is not held


def test_the_table_is_a_noised_histogram_of_the_batch_and_of_nothing_else(tmp_path, monkeypatch):
    replace_noise(monkeypatch, lambda values, sigma, stream: values)
    node, state = node_of(), {}
    request = request_to(node)
    table = releases.table(node, tmp_path / "client-0.sqlite", flatten(node.model), request, state).value
    own = split.own_batch(node.sizes, 0.2)
    assert table.sum(dim=2).flatten().tolist() == list(own)
    records = node.draw(state["key"], own)
    _, outputs = node.forward(flatten(node.model), records, 9, 9)
    theta = node.task.clipped.directions(1, 0)[0]
    expected = [tables.histograms(part, theta, 1.0, 32) for part in torch.split(outputs, list(own))]
    assert torch.equal(table, torch.stack(expected))
