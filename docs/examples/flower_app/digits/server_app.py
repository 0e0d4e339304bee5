"""Flower's own averaging; nothing of fedsw is at the server."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average for some rounds, and keep the last metrics."""
    strategy = FedAvg(fraction_evaluate=1.0)
    arrays = ArrayRecord(network().state_dict())
    result = strategy.start(grid, arrays, num_rounds=int(context.run_config["num-server-rounds"]))
    *_, trained = result.train_metrics_clientapp.values()
    *_, evaluated = result.evaluate_metrics_clientapp.values()
    context.state["result"] = MetricRecord({"epsilon": trained["epsilon"], "accuracy": evaluated["accuracy"]})
    context.state["arrays"] = result.arrays
