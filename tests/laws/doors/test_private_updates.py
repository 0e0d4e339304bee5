"""Laws of the mod for private updates: what leaves a client is one clipped, charged and noised vector, and no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import fedsw
from fedsw.flower import private_updates, simulate

NORM = 0.5


def planned(**other) -> fedsw.SumPlan:
    return fedsw.plan_sum(
        **{"norm": NORM, "rounds": 3, "epsilon": 4.0, "delta": 1e-5, "who": "each client's update", **other}
    )


def client_app(plan, step, *, public=()) -> ClientApp:
    """An app that moves its arrays by a step, and says all that it can."""
    app = ClientApp(mods=[private_updates(plan, public=public)])

    def answered(message: Message, context: Context) -> Message:
        if step is None:
            raise ValueError("patient Smith has no blood pressure")
        arrays = message.content["arrays"]
        moved = {key: Array((array.numpy() + step).astype(array.numpy().dtype)) for key, array in arrays.items()}
        content = {"new": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 41, "loss": 0.25, "sites": 7})}
        content["notes"] = ConfigRecord({"patients": "Smith"})
        return Message(RecordDict(content), reply_to=message)

    app.train()(answered)
    app.evaluate()(answered)
    return app


def replies(plan, step, folder, *, kinds=("train",), nodes=1, public=(), node_config=None) -> list[Message]:
    found: list[Message] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        for kind in kinds:
            sent = ArrayRecord({"w": Array(np.ones((2, 3), np.float32)), "n": Array(np.array([5, 7]))})
            content = RecordDict({"arrays": sent, "config": ConfigRecord({})})
            found.extend(grid.send_and_receive([Message(content, node, kind) for node in grid.get_node_ids()]))

    config = {"state-dir": str(folder)} if node_config is None else node_config
    simulate(app, client_app(plan, step, public=public), nodes=nodes, node_config=config)
    return found


def update(reply: Message) -> np.ndarray:
    (arrays,) = reply.content.array_records.values()
    return np.concatenate([(arrays["w"].numpy() - 1.0).ravel(), arrays["n"].numpy() - [5, 7]])


def test_without_noise_an_update_leaves_clipped_to_the_norm_along_its_own_direction(tmp_path):
    plan = planned(epsilon=math.inf)
    (reply,) = replies(plan, 0.01, tmp_path / "a")
    np.testing.assert_allclose(update(reply), [0.01] * 6 + [0, 0], atol=1e-6)
    (reply,) = replies(plan, 100.0, tmp_path / "b")
    w, n = (reply.content["arrays"][key].numpy() for key in ("w", "n"))
    assert np.linalg.norm(w - 1.0) == pytest.approx(NORM * math.sqrt(6 / 8), rel=1e-5)
    assert w.dtype == np.float32 and n.dtype == np.int64


def test_two_clients_that_differ_in_all_they_have_are_twice_the_norm_apart_at_most_and_noise_covers_that(tmp_path):
    plan = planned(epsilon=math.inf)
    ends = [update(*replies(plan, step, tmp_path / str(step)))[:6] for step in (1e6, -1e6, math.nan)]
    assert np.linalg.norm(ends[0] - ends[1]) <= 2 * NORM * (1 + 1e-6)
    assert np.linalg.norm(ends[2]) == 0
    assert planned().sigma >= planned().multiplier * 2 * NORM


def test_what_leaves_has_the_planned_noise_and_the_ledger_has_it_first(tmp_path):
    plan = planned(rounds=40)
    found = replies(plan, 0.0, tmp_path, kinds=["train"] * 40, nodes=5)
    noise = np.stack([update(reply)[:6] for reply in found])
    assert noise.std() == pytest.approx(plan.sigma, rel=0.1)
    for part in range(5):
        with fedsw.Ledger.open(tmp_path / f"updates-{part}.sqlite", read_only=True) as ledger:
            assert len(ledger.entries()) == 40 and ledger.epsilon() == pytest.approx(4.0, rel=1e-3)
            assert {(entry.sampling_rate, entry.sensitivity) for entry in ledger.entries()} == {
                (1.0, plan.sensitivity.value)
            }


def test_nothing_leaves_that_could_not_be_charged(tmp_path, monkeypatch):
    def full(self, *charged):
        raise OSError("the disk is full")

    monkeypatch.setattr(fedsw.Ledger, "spend", full)
    (reply,) = replies(planned(), 1.0, tmp_path)
    assert reply.has_error() and "the disk is full" in reply.error.reason


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_all_else_of_a_reply_is_left_out_or_declared_public(kind, tmp_path):
    (reply,) = replies(planned(), 1.0, tmp_path / "a", kinds=[kind])
    assert set(reply.content) == {"metrics", *(["arrays"] if kind == "train" else [])}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    (reply,) = replies(planned(), 1.0, tmp_path / "b", kinds=[kind], public=["sites", "num-examples"])
    assert dict(reply.content["metrics"]) == {"num-examples": 41, "sites": 7}


@pytest.mark.parametrize("diagnosis", ["healthy", "ill"])
def test_arrays_leave_under_the_name_that_was_sent_and_no_name_of_the_app(diagnosis, tmp_path):
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({f"Smith is {diagnosis}": message.content["new"]}), reply_to=message)

    assert set(asked(train, tmp_path).content) == {"metrics", "new"}


def test_why_an_app_failed_stays_at_its_node(tmp_path, caplog):
    (reply,) = replies(planned(), None, tmp_path)
    assert reply.has_error() and "Smith" not in reply.error.reason and "log of its node" in reply.error.reason
    assert "Smith" in caplog.text


def test_rounds_are_counted_over_processes_and_a_further_one_is_refused(tmp_path):
    for _ in range(3):
        (reply,) = replies(planned(), 1.0, tmp_path)
        assert not reply.has_error()
    for _ in range(2):
        (reply,) = replies(planned(), 1.0, tmp_path)
        assert "BudgetExhausted" in reply.error.reason


def test_another_plan_or_no_folder_is_refused_before_anything_is_computed(tmp_path):
    replies(planned(), 1.0, tmp_path)
    (reply,) = replies(planned(epsilon=8.0), None, tmp_path)
    assert "ledger of another plan" in reply.error.reason
    (reply,) = replies(planned(), None, tmp_path, node_config={})
    assert "names no 'state-dir'" in reply.error.reason
    (reply,) = replies(planned(), None, tmp_path, node_config={"state-dir": "state"})
    assert "state-dir is 'state', which is another folder wherever a process is started" in reply.error.reason


def asked(train, folder, **plan) -> Message:
    """The reply to one message of an app that trains so."""
    app = ClientApp(mods=[private_updates(planned(**plan))])
    app.train()(train)
    found, server = [], ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"new": ArrayRecord({"w": Array(np.ones((2, 3))), "n": Array(np.array([5, 7]))})})
        found.extend(grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()]))

    simulate(server, app, nodes=1, node_config={"state-dir": str(folder)})
    return found[0]


@pytest.mark.parametrize("other", [{"other": np.ones(2)}, {"w": np.full((2, 3), "Smith"), "n": np.array([5, 7])}])
def test_an_app_whose_arrays_are_no_update_is_refused(other, tmp_path):
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({key: Array(value) for key, value in other.items()})
        return Message(RecordDict({"new": arrays}), reply_to=message)

    reply = asked(train, tmp_path)
    assert "lacks arrays with the names and shapes" in reply.error.reason and "Smith" not in reply.error.reason
    with fedsw.Ledger.open(tmp_path / "updates-0.sqlite", read_only=True) as ledger:
        assert not ledger.entries()


@pytest.mark.parametrize("of", ["its record", "its arrays"])
def test_an_app_that_answers_with_the_message_it_got_moves_from_what_was_sent(of, tmp_path):
    def train(message: Message, context: Context) -> Message:
        trained = {"w": Array(np.full((2, 3), 1e6)), "n": Array(np.array([5, 7]))}
        if of == "its record":
            message.content["new"] = ArrayRecord(trained)
        else:
            message.content["new"].update(trained)
        return Message(message.content, reply_to=message)

    moved = update(asked(train, tmp_path, epsilon=math.inf))
    assert np.linalg.norm(moved) == pytest.approx(NORM)


def test_one_name_is_no_list_of_public_names():
    with pytest.raises(ValueError, match=r"public=\['num-examples'\]"):
        private_updates(planned(), public="num-examples")


def test_a_stock_strategy_averages_private_updates_with_equal_weights(tmp_path):
    from flwr.serverapp.strategy import FedAvg

    app, start = ServerApp(), np.zeros((50, 40), np.float32)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0)
        result = strategy.start(grid, ArrayRecord({"w": Array(start)}), num_rounds=1)
        context.state["arrays"] = result.arrays

    plan = planned(rounds=1)
    ended = simulate(app, client_app(plan, 0.0), nodes=4, node_config={"state-dir": str(tmp_path)})
    spread = float(torch.from_numpy(ended.state["arrays"]["w"].numpy()).std())
    assert spread == pytest.approx(plan.sigma / 2, rel=0.1)
