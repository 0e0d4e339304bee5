"""Flower's semi-public names, all of them, in one place: what an upgrade of Flower may break.

Tested against flwr 1.41 and 1.42; `tests/simulations/test_flower_names.py` fails when a name moves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1

_Any = TypeVar("_Any")


def empty_run(run_id: int) -> Run:
    """A run record for a grid of ours."""
    return Run.create_empty(run_id=run_id)


def identify(run_id: int) -> None:
    """Say which run and node messages made in this process belong to (the server's)."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE, 1


def context(run_id: int, node_id: int, node_config: Mapping[str, Any]) -> Context:
    """A fresh app context."""
    return Context(run_id=run_id, node_id=node_id, node_config=dict(node_config), state=RecordDict(), run_config={})


def number(message: Message, message_id: str) -> None:
    """Give a message its id, as Flower's own grids do."""
    message.metadata.__dict__["_message_id"] = message_id


def delivered(message: Message) -> Message:
    """The message as its receiver gets it: its own record tree over the same arrays (immutable bytes, not copied)."""
    body = _twin(message.content)
    body.__dict__["_data"] = {key: _shallow(record) for key, record in message.content.items()}
    letter = _twin(message)
    letter.__dict__["_content"] = body
    return letter


def _shallow(record: Any) -> Any:
    """A record of the same items; they were checked when the original took them."""
    copied = _twin(record)
    copied.__dict__["_data"] = record.__dict__["_data"].copy()
    return copied


def _twin(original: _Any) -> _Any:
    """Another object of the same fields (`copy.copy` takes the long way of pickling)."""
    twin = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    return twin


def simulate_with_ray(
    server_app: ServerApp, client_app: ClientApp, clients: int, *, cpus: int, gpus: float = 0.0
) -> None:
    """Run both apps on Flower's simulation engine (Ray actors), one CPU a node and its share `gpus` of a GPU.

    Returns when nothing is left.

    Ray's workers import the apps anew: they inherit this process' environment, and Flower puts the app's folder on
    their import path. With RAY_ADDRESS in the environment they are those of a cluster that runs already, with as many
    CPUs as its machines have; every machine needs the same fedsw at the same place.
    """
    import ray
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    try:
        _run_simulation(
            num_supernodes=clients,
            client_app=client_app,
            server_app=server_app,
            exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": gpus},
                "init_args": {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": cpus},
            },
            app_dir=str(Path(__file__).resolve().parents[2]),
        )
    finally:
        ray.shutdown()
