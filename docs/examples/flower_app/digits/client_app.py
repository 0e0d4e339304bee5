"""Each client's records are private: one plan and one ledger, over all messages."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsw
from digits.task import load, network

app = ClientApp()
OBJECTIVE = fedsw.Objective("classification", [], classes=10)
CLIP = fedsw.Clip(output=1.0, jacobian=1.0, loss=1.0)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Make some private steps from the weights that were sent."""
    model, steps = network(), int(context.run_config["steps"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y, *_ = load(context.node_config["partition-id"], context.node_config["num-partitions"])
    plan = fedsw.plan(
        OBJECTIVE, CLIP, sizes=(len(y),), batch_fraction=0.25, epsilon=8.0, delta=1e-4,
        rounds=steps * int(context.run_config["num-server-rounds"]),
    )  # fmt: skip
    folder = Path(context.node_config["state-dir"]) / f"client-{context.node_config['partition-id']}"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = fedsw.PrivateTrainer(model, optimizer, OBJECTIVE, CLIP, plan, directory=folder)
    trainer.fit(fedsw.as_records(x, target=y, classes=range(10)), rounds=steps)
    metrics = MetricRecord({"num-examples": len(y), "epsilon": trainer.epsilon})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on digits that are no client's."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    *_, x, y = load(0, 1)
    right = float((model(x).argmax(1) == y).float().mean())
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": right, "num-examples": len(y)})}), reply_to=message)
