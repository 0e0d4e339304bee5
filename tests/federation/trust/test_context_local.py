"""Laws of sites under the local trust models: each client's ledger, sample, bound and noise are as if it was alone."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

from fedsw._tools import files
from fedsw._tools.settings import FederationError
from fedsw.experiment import parse_experiment
from fedsw.federation.node import own_ledger as account
from fedsw.federation.node import replies as node_module
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.federation.node.replies import WITHHELD
from fedsw.federation.trust.local_gradient.noising import Request, noised_contributions, noised_tables
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy import release as door
from fedsw.privacy.accounting import AlreadySpent, Ledger
from tests.federation.test_local_slices import RELEASE, SLICES
from tests.federations import Saboteur, small
from tests.laws.runs.test_sites import EOO, _model
from tests.noises import replace_noise, require_gaussian

LOCAL = {
    "local-gradient": ("privacy.trust=local-gradient", "privacy.epsilon=2.0", "privacy.delta=1e-5"),
    "local-gradient, alpha 0": ("privacy.trust=local-gradient", "privacy.epsilon=2.0", "objective.alpha=0.0"),
    "local-gradient, odds": ("privacy.trust=local-gradient", "privacy.epsilon=2.0", *EOO, "partition.scheme=dirichlet"),
    "local-gradient, in pieces": ("privacy.trust=local-gradient", "privacy.epsilon=2.0", "training.micro_batch=16"),
    "local-gradient, network": (
        "privacy.trust=local-gradient",
        "privacy.epsilon=2.0",
        "model.kind=mlp",
        "model.hidden=[5]",
    ),
    "local-slices": (),
    "local-slices, own directions": ("slicing.directions=3", "slicing.scheme=iid"),
    "local-release": (),
}
BASES = {"local-slices": SLICES, "local-slices, own directions": SLICES, "local-release": RELEASE}


UNSEEDED = ("local-gradient", "local-slices", "local-release")


@pytest.mark.parametrize(
    ("trust", "seed"), [*((trust, ("seed=5",)) for trust in LOCAL), *((trust, ()) for trust in UNSEEDED)]
)
def test_under_local_trust_each_client_of_a_site_has_its_own_ledger_and_noise(federation, trust, seed):
    common = (*LOCAL[trust], *seed, "federation.clients=4", "training.precision=float64", "training.rounds=2")
    alone, apart, first = _model(federation, *common, base=BASES.get(trust))
    together, summary, second = _model(federation, *common, "federation.sites=1", base=BASES.get(trust))
    kept = sorted(path.name for path in (second / "clients").glob("*.sqlite"))
    assert kept == [f"client-{client}.sqlite" for client in range(4)]
    for client in range(4):
        with (
            Ledger.open(first / "clients" / f"client-{client}.sqlite", read_only=True) as one,
            Ledger.open(second / "clients" / f"client-{client}.sqlite", read_only=True) as other,
        ):
            assert one.entries() == other.entries()
    assert summary["epsilon_spent_by_client"] == apart["epsilon_spent_by_client"]
    difference = float((together - alone).abs().max())
    assert difference <= 1e-9 if seed else difference > 1e-3


@pytest.mark.parametrize("trust", ["local-gradient", "local-gradient, alpha 0", "local-slices"])
def test_a_client_of_a_site_that_fails_is_missing_and_the_others_are_not(federation, monkeypatch, trust):
    genuine = account._open

    def failing(path, promise):
        if path.stem == "client-2":
            raise OSError("gone")
        return genuine(path, promise)

    monkeypatch.setattr(account, "_open", failing)
    if trust == "local-slices":
        settings_ = ("federation.clients=4", "federation.sites=1", "federation.min_clients=3")
        summary = federation.run(parse_experiment(SLICES, settings_))
        assert summary["status"] == "completed" and _paying(summary) == {"0", "1", "3"}
        return
    settings_ = (*LOCAL[trust], "federation.clients=4", "federation.sites=1", "federation.min_clients=3")
    summary = federation.run(small(*settings_))
    directory = federation.folder / "run1"
    assert summary["status"] == "completed"
    assert [json.loads(line)["clients"] for line in (directory / "metrics.jsonl").open()] == [3, 3, 3, 3]
    with pytest.raises(FederationError, match=f"Client 2: {WITHHELD}") as stopped:
        federation.run(small(*settings_, "federation.min_clients=4"))
    assert "gone" not in str(stopped.value)


def test_a_client_of_a_site_that_is_lost_between_the_exchanges_takes_only_its_own_terms(federation):
    """The site drew and charged for four; three are asked for their contributions, and those are their own."""
    found = {}

    def hook(message, context):
        if message.metadata.message_type == "train.local_gradients":
            found["positions"] = list(message.content["clients"]["positions"])

    def after(message, reply):
        if message.metadata.message_type == "train.tables":
            for name in [name for name in reply.content if name.startswith("1/")]:
                del reply.content[name]
        return reply

    common = (*LOCAL["local-gradient"], "seed=5", "training.precision=float64", "training.rounds=1")
    common = (*common, "federation.clients=4", "federation.min_clients=3")
    models = []
    for sites in ("federation.sites=1", "federation.sites=4"):

        def lose(message, reply):
            if message.metadata.message_type == "train.tables" and message.metadata.dst_node_id == 1001:
                raise OSError("gone")
            return reply

        chosen = after if sites.endswith("=1") else lose
        app = Saboteur(hook if chosen is after else None, after=chosen)
        models.append(_model(federation, *common, sites, app=app)[0])
    assert found["positions"] == [0, 2, 3] and float((models[0] - models[1]).abs().max()) <= 1e-9


def test_a_site_answers_for_a_batch_once_and_draws_it_again_where_it_is_not_at_hand(federation, monkeypatch):
    """As a site that is rebuilt between the exchanges does: the batch follows from the key alone."""
    common = (*LOCAL["local-gradient"], "seed=5", "training.precision=float64", "federation.clients=4")
    common = (*common, "training.rounds=2")
    kept, *_ = _model(federation, *common, "federation.sites=1")

    def forget(message, context):
        if message.metadata.message_type == "train.local_gradients":
            for node in node_module._nodes[context.run_id].values():
                node.batch = None

    again, *_ = _model(federation, *common, "federation.sites=1", app=Saboteur(forget))
    assert torch.equal(kept, again)


def test_a_site_that_is_asked_again_for_a_batch_releases_nothing_more(tmp_path):
    task = Problem.from_experiment(small(*LOCAL["local-gradient"], "federation.clients=3"))
    node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 1}), "run")
    places, theta = {c: tmp_path / f"client-{c}.sqlite" for c in range(3)}, torch.zeros(task.parameters)
    request, state = Request(1, 0, (60, 60), 600), {}
    table = torch.zeros(2, 1, task.experiment.local.bins)
    first = noised_tables(node, places, theta, request, state)
    assert all(not isinstance(each, Exception) for each in first.values())
    again = noised_tables(node, places, theta, request, state)
    assert [type(each) for each in again.values()] == [AlreadySpent] * 3
    some = noised_contributions(node, {1: places[1]}, theta, request, table, state)
    assert some[1].value.shape == (task.parameters,) and state["positions"] == [0, 2]
    rest = noised_contributions(node, places, theta, request, table, state)
    assert [isinstance(rest[c], RuntimeError) for c in range(3)] == [False, True, False] and not state
    other = noised_contributions(node, places, theta, Request(1, 1, (60, 60), 600), table, state)
    assert all("holds no batch" in str(each) for each in other.values())


@pytest.mark.parametrize("seed", [("seed=5",), ()])
def test_at_a_site_every_charge_is_on_disk_before_any_noise_is_drawn(federation, monkeypatch, seed):
    order, noised, sync = [], door.noised, files.sync
    monkeypatch.setattr(files, "sync", lambda path: (sync(path), order.append(path.name))[0])
    replace_noise(monkeypatch, lambda *given: (order.append("noise"), noised(*given))[1])
    settings_ = (*LOCAL["local-gradient"], *seed, "federation.clients=3", "federation.sites=1", "training.rounds=1")
    federation.run(small(*settings_))
    logs = {f"client-{client}.sqlite-wal" for client in range(3)}
    assert logs <= set(order[: order.index("noise")]) and logs.isdisjoint(order[order.index("noise") :])


def test_at_a_site_all_clients_have_noise_of_their_own(tmp_path, monkeypatch):
    """Clients with no noise but what they are given: they answer zeros, and what leaves them is the noise."""
    for seed in ((), ("seed=5",)):
        task = Problem.from_experiment(small(*LOCAL["local-gradient"], *seed, "federation.clients=6", "local.bins=40"))
        node = Node.of(task, held_records(task, {"partition-id": 0, "num-partitions": 1}), "run")
        folder = tmp_path / f"{len(seed)}"
        places, theta = {c: folder / f"client-{c}.sqlite" for c in range(6)}, torch.zeros(task.parameters)
        monkeypatch.setattr(tables, "histograms_by", lambda u, o, n, theta, r, bins: torch.zeros(n, 1, bins).double())
        found = noised_tables(node, places, theta, Request(1, 0, (60, 60), 600), {})
        require_gaussian(torch.stack([(each.value / each.sigma).reshape(-1) for each in found.values()]), 1.0)


@pytest.mark.parametrize("seed", [("seed=5",), ()])
def test_with_more_clients_than_ledgers_may_be_open_the_least_recently_used_are_closed(federation, monkeypatch, seed):
    most, opened = 0, account._open
    monkeypatch.setattr(account, "most_open", lambda: 3)

    def counting(path, promise):
        nonlocal most
        ledger = opened(path, promise)
        most = max(most, sum("/client-" in each and each.endswith(".lock") for each in _files_of_this_process()))
        return ledger

    monkeypatch.setattr(account, "_open", counting)
    common = (
        *LOCAL["local-gradient"],
        *seed,
        "federation.clients=6",
        "training.precision=float64",
        "training.rounds=2",
    )
    few, summary, directory = _model(federation, *common, "federation.sites=1")
    assert most == 3
    monkeypatch.setattr(account, "most_open", lambda: 200)
    many, apart, _ = _model(federation, *common, "federation.sites=1")
    assert summary["epsilon_spent_by_client"] == pytest.approx(apart["epsilon_spent_by_client"], rel=1e-9)
    assert not seed or torch.equal(few, many)


def test_a_ledger_that_was_used_lately_stays_open_and_one_in_use_is_never_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(account, "most_open", lambda: 3)
    promise = account.Promise("run", 1.0, 1e-5, "pld", False)
    place = [tmp_path / f"client-{c}.sqlite" for c in range(5)]

    def use(client):
        with account.opened(place[client], promise) as ledger:
            return ledger

    with account.held_open(tmp_path):
        first, second, third = use(0), use(1), use(2)
        assert use(0) is first
        use(3)
        assert (first.is_open, second.is_open, third.is_open) == (True, False, True)
        one, two, three = (account.opened(place[client], promise) for client in (2, 4, 1))
        with one as held, two, three:
            assert held is third and held.is_open and not first.is_open
    assert not third.is_open


def _paying(summary) -> set[str]:
    """Clients that were charged."""
    return {client for client, spent in summary["epsilon_spent_by_client"].items() if spent > 0}


def _files_of_this_process() -> list[str]:
    """Paths of all open files."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(handle.readlink()))
    return found
