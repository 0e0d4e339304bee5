"""Stock Flower apps run in this process as in Flower's own simulation."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsw.flower import simulate


def counting(message: Message, context: Context, call) -> Message:
    """A mod that counts messages in the node's state, and says so in the reply."""
    seen = int(context.state["seen"]["messages"]) if "seen" in context.state else 0
    context.state["seen"] = MetricRecord({"messages": seen + 1})
    reply = call(message, context)
    reply.content["metrics"]["seen"] = seen + 1
    return reply


def client_app(fails: int | None = None) -> ClientApp:
    """Each node moves the arrays towards its own number, by the rate of the run's configuration."""
    app = ClientApp(mods=[counting])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = int(context.node_config["partition-id"])
        if part == fails:
            raise RuntimeError("this node has no disk")
        rate = float(context.run_config["rate"]) * float(message.content["config"]["scale"])
        moved = message.content["arrays"]["w"].numpy() * (1 - rate) + rate * (part + np.float32(0.1))
        metrics = MetricRecord({"num-examples": part + 1, "sites": float(context.node_config.get("sites", 0))})
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        distance = float(np.abs(message.content["arrays"]["w"].numpy() - context.node_config["partition-id"]).sum())
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1, "distance": distance})})
        return Message(content, reply_to=message)

    return app


def server_app() -> ServerApp:
    """Three rounds of Flower's averaging; the result is left in the server's state."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=1.0, min_available_nodes=2)
        result = strategy.start(
            grid,
            ArrayRecord({"w": Array(np.linspace(-1, 1, 7, dtype=np.float32))}),
            num_rounds=int(context.run_config["rounds"]),
            train_config=ConfigRecord({"scale": 0.5}),
        )
        context.state["arrays"] = result.arrays
        for kind in ("train", "evaluate"):
            for round_, metrics in getattr(result, f"{kind}_metrics_clientapp").items():
                context.state[f"{kind} {round_}"] = metrics

    return app


RUN = {"rounds": 3, "rate": 0.3}


def by_hand(parts: list[int]) -> np.ndarray:
    w = np.linspace(-1, 1, 7, dtype=np.float32)
    for _ in range(RUN["rounds"]):
        moved = [w * (1 - 0.15) + 0.15 * (part + np.float32(0.1)) for part in parts]
        weights = [(part + 1) / sum(each + 1 for each in parts) for part in parts]
        w = sum(np.float64(weight) * each for weight, each in zip(weights, moved, strict=True)).astype(np.float32)
    return w


def test_strategies_mods_state_and_configurations_are_those_of_flower():
    ended = simulate(server_app(), client_app(), nodes=3, node_config=lambda i: {"sites": 10 * i}, run_config=RUN)
    np.testing.assert_allclose(ended.state["arrays"]["w"].numpy(), by_hand([0, 1, 2]), rtol=1e-6)
    assert ended.state["train 3"]["seen"] == 5.0  # two messages a round, counted at each node
    assert ended.state["train 1"]["sites"] == pytest.approx((0 * 1 + 10 * 2 + 20 * 3) / 6)
    assert ended.state["evaluate 3"]["distance"] > 0


def test_a_node_that_fails_is_an_error_reply_and_the_others_go_on():
    ended = simulate(server_app(), client_app(fails=1), nodes=3, run_config=RUN)
    np.testing.assert_allclose(ended.state["arrays"]["w"].numpy(), by_hand([0, 2]), rtol=1e-6)
    replies: list[Message] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(2))}), "config": ConfigRecord({"scale": 1.0})})
        replies.extend(grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()]))

    simulate(app, client_app(fails=1), nodes=3, run_config=RUN)
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.code == 2 and "no disk" in replies[1].error.reason


def test_two_simulations_of_one_app_end_at_the_same_bits():
    ends = [simulate(server_app(), client_app(), nodes=4, run_config=RUN) for _ in range(2)]
    assert ends[0].state["arrays"]["w"].data == ends[1].state["arrays"]["w"].data


def test_a_run_s_configuration_comes_from_an_app_s_folder(tmp_path):
    text = "[tool.flwr.app.config]\nrounds = 2\nrate = 0.3\n[tool.flwr.app.config.optimizer]\nname = 'sgd'\n"
    (tmp_path / "pyproject.toml").write_text(text)
    seen = {}
    app = ServerApp()
    app.main()(lambda grid, context: seen.update(context.run_config))
    simulate(app, client_app(), nodes=1, run_config=tmp_path)
    assert seen == {"rounds": 2, "rate": 0.3, "optimizer.name": "sgd"}


def test_replies_after_the_time_out_are_not_there_and_what_a_server_app_raises_is_raised():
    slow, over = ClientApp(), threading.Event()

    @slow.query()
    def sleep(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"]:
            over.wait(20)
        return Message(RecordDict({"m": MetricRecord({"part": context.node_config["partition-id"]})}), reply_to=message)

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        sent = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
        replies = grid.send_and_receive(sent, timeout=0.05)
        over.set()
        assert [reply.content["m"]["part"] for reply in replies] == [0]
        raise KeyError("the server app's own")

    with pytest.raises(KeyError, match="own"):
        simulate(app, slow, nodes=2)


def test_a_reply_is_the_server_s_own_copy():
    kept = {}
    client, app = ClientApp(), ServerApp()

    @client.query()
    def answer(message: Message, context: Context) -> Message:
        kept["record"] = MetricRecord({"number": 1})
        return Message(RecordDict({"m": kept["record"]}), reply_to=message)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])
        reply.content["m"]["number"] = 2

    simulate(app, client, nodes=1)
    assert kept["record"]["number"] == 1


def test_apps_of_the_older_interface_run_too():
    from flwr.client import NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg as OldFedAvg

    class Client(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + 1.0], 1, {}

        def evaluate(self, parameters, config):
            return float(parameters[0].sum()), 1, {}

    strategy = OldFedAvg(initial_parameters=ndarrays_to_parameters([np.zeros(2)]))
    server = ServerApp(
        server_fn=lambda context: ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))
    )
    found = []
    strategy.evaluate_fn = lambda round_, parameters, config: found.append(float(parameters[0][0]))
    simulate(server, ClientApp(client_fn=lambda context: Client().to_client()), nodes=2)
    assert found == [0.0, 1.0, 2.0]


@pytest.mark.ray
@pytest.mark.slow
def test_a_stock_app_ends_at_the_bits_of_flower_s_own_simulation():
    """One node, whose replies have no order; every node's own arithmetic is the same."""
    from flwr.simulation import run_simulation

    ends = {}

    def server() -> ServerApp:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            result = FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1).start(
                grid,
                ArrayRecord({"w": Array(np.linspace(-1, 1, 7, dtype=np.float32))}),
                num_rounds=3,
                train_config=ConfigRecord({"scale": 0.5}),
            )
            ends[len(ends)] = result.arrays["w"].data

        return app

    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        moved = np.tanh(message.content["arrays"]["w"].numpy() * np.float32(1.3))
        content = RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord({"num-examples": 3})})
        return Message(content, reply_to=message)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 3})}), reply_to=message)

    run_simulation(server(), client, num_supernodes=1, backend_config={"client_resources": {"num_cpus": 1}})
    simulate(server(), client, nodes=1)
    assert ends[0] == ends[1]
