"""Laws of greetings of clients that count in an account: alone they take nothing of it for good."""

from __future__ import annotations

import math

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation import messages
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.engines.pool import settle_run
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.messages import Fault
from fedsw.federation.node.own_ledger import Promise, opened
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting.lifetime import NO_NOISE, Binding, DatasetAccount
from tests.federation.test_local_slices import SLICES
from tests.federations import small

DELTA = 1e-5
LOCAL = ("privacy.trust=local-gradient", "data.records=300", "privacy.epsilon=1.0", "privacy.delta=1e-4")
RUNS = [f"{number:032x}" for number in range(1, 6)]


@pytest.fixture
def people(tmp_path):
    return DatasetAccount(tmp_path / "accounts", "people")


@pytest.fixture
def greet(tmp_path, people):
    """A client on a machine of its own, whose operator names the account, and what it answers to a greeting."""
    config = {
        "partition-id": 0,
        "num-partitions": 3,
        "own-data": 1,
        "trust": "any",
        "account": people.data,
        "accounts": str(people.folder),
        "state-dir": str(tmp_path / "state"),
    }

    def greeted(run: str, experiment: Experiment | None = None, **more: object) -> RecordDict | Fault:
        grid = InProcessGrid(client_app, [{**config, **more}])
        content = {"experiment": (experiment or small(*LOCAL)).model_dump_json(), "run": run}
        try:
            (node,) = grid.get_node_ids()
            requests = {node: RecordDict({"config": ConfigRecord(content)})}
            return exchange(grid, messages.HELLO.kind, requests, group="g", timeout=30.0, traffic=Traffic())[node]
        finally:
            grid.close()

    return greeted


def test_greetings_without_a_release_cost_no_more_than_the_last_and_all_of_it_is_given_back(greet, people, tmp_path):
    assert not isinstance(greet(RUNS[0]), Fault)
    one = people.state().spent(DELTA)
    for run in RUNS[1:]:
        assert not isinstance(greet(run), Fault)
        assert people.state().spent(DELTA) == one > 0
    assert settle_run(tmp_path / "state") == ["people"]
    assert people.state().spent(DELTA) == 0 and len(people.state().runs) == len(RUNS)


def test_a_greeting_without_noise_costs_nothing_until_something_is_answered(greet, people, tmp_path):
    """Else one message makes an account infinite for ever."""
    bare = parse_experiment({**SLICES, "privacy": {"trust": "local-slices", "epsilon": math.inf}}, ["data.records=300"])
    assert not isinstance(greet(RUNS[0], bare), Fault)
    assert people.state().spent(DELTA) == math.inf and not people.state().runs[RUNS[0]].settled
    assert not isinstance(greet(RUNS[1], bare), Fault)
    assert people.state().runs[RUNS[0]].released_nothing
    answers = Binding.of(tmp_path / "state" / "client-0.sqlite").answers
    answers.write_text("1 0 2")
    assert not isinstance(greet(RUNS[2]), Fault)
    assert settle_run(tmp_path / "state") == ["people"]
    spent = {run: people.state().runs[run].steps for run in RUNS[:3]}
    assert spent == {RUNS[0]: {}, RUNS[1]: NO_NOISE, RUNS[2]: {}}


def test_a_ledger_that_has_begun_belongs_to_one_run(greet, people, tmp_path):
    greet(RUNS[0])
    place = tmp_path / "state" / "client-0.sqlite"
    with Ledger.create(place, groups=("all",), delta=1e-4, epsilon=1.0, run=RUNS[0]):
        pass
    before = people.state()
    answer = greet(RUNS[1])
    assert isinstance(answer, Fault) and "accounts for another run" in answer.reason
    assert people.state() == before and Binding.of(place).run == RUNS[0]
    with pytest.raises(ValueError, match="has begun as the ledger of run .* give every run a folder of its own"):
        Binding(people, RUNS[1]).write_alone(place)


def test_a_run_is_not_charged_as_another_that_was_greeted_since(greet, people, tmp_path):
    greet(RUNS[0])
    greet(RUNS[1])
    place = tmp_path / "state" / "client-0.sqlite"
    with (
        pytest.raises(ValueError, match="which was greeted here since"),
        opened(place, Promise(RUNS[0], 1.0, 1e-4, "pld", False)),
    ):
        pass


def test_a_greeting_that_is_refused_sets_nothing_aside_for_any_client_of_the_site(greet, people, tmp_path):
    DatasetAccount(people.folder, "people.client-1").limit(0.05, DELTA)
    answer = greet(RUNS[0], **{"num-clients": 3, "num-partitions": 1})
    assert isinstance(answer, Fault) and "people.client-1" in answer.reason
    assert DatasetAccount(people.folder, "people.client-0").state().spent(DELTA) == 0
    assert not list((tmp_path / "state").glob("*.account.json"))


def test_the_limit_of_a_data_set_binds_every_client_of_its_site(greet, people, tmp_path):
    people.limit(0.5, DELTA)
    answer = greet(RUNS[0], **{"num-clients": 3, "num-partitions": 1})
    assert isinstance(answer, Fault) and "data set 'people' would reach" in answer.reason
    people.limit(3.0, DELTA)
    assert not isinstance(greet(RUNS[0], **{"num-clients": 3, "num-partitions": 1}), Fault)
    (run,) = people.state().runs.values()
    assert 0 < people.state().spent(DELTA) < 3.0 and not run.settled
    assert settle_run(tmp_path / "state") == [f"people.client-{client}" for client in range(3)]
    assert people.state().spent(DELTA) == 0


def test_a_process_that_ends_before_anything_is_set_aside_leaves_nothing_to_settle(people, tmp_path):
    Binding(people, RUNS[0]).write_alone(tmp_path / "state" / "client-0.sqlite")
    assert settle_run(tmp_path / "state") == ["people"]
    assert not people.state().runs
