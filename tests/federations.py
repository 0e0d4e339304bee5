"""Small federations, and clients that can be sabotaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedsw.data import sources
from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation import wire
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.exchange.participants import Site
from fedsw.federation.node import replies
from fedsw.federation.node.own_ledger import held_open
from fedsw.federation.server.federation import Job, federate

SMALL = {
    "name": "small",
    "data": {"records": 600, "test_records": 200},
    "objective": {"alpha": 0.5},
    "training": {"rounds": 4, "learning_rate": 0.5, "batch_fraction": 0.2},
    "federation": {"clients": 3, "timeout": 20.0},
    "privacy": {"delta": "0.1/n"},
    "evaluate_every": 2,
}


def small(*overrides: str) -> Experiment:
    """A small experiment with `section.key=value` overrides."""
    return parse_experiment(SMALL, overrides)


def sites_of(*sizes: tuple[int, ...]) -> tuple[Site, ...]:
    """A site of one client for each row of sizes by cell."""
    return tuple(Site(11 + client, np.array([client]), np.array([own]), None, None) for client, own in enumerate(sizes))


def numbers(array: Array) -> np.ndarray:
    """What an array of a message holds."""
    every = (None,) * len(array.shape)
    return wire.decode(array.dtype, array.shape, array.stype, array.data, expected=every, name="array").numpy()


def counts_of(message: Any) -> list[int]:
    """Records of every cell that a request for outputs asks for, of all of the node's clients together."""
    return numbers(message.content["arrays"]["counts"]).sum(axis=0).tolist()


def array(values: np.ndarray) -> Array:
    """An array of a message."""
    return Array(*wire.encode(torch.from_numpy(np.ascontiguousarray(values))))


def array_record(name: str, values: torch.Tensor) -> ArrayRecord:
    """A record of one array."""
    return ArrayRecord({name: Array(*wire.encode(values))})


def digits_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digits that every machine has stand in for images that have to be downloaded."""
    load = sources._load

    def stand_in(spec, *rest):
        absent = spec.source in ("mnist", "fashion-mnist", "usps")
        return load(spec.model_copy(update={"source": "digits"}) if absent else spec, *rest)

    monkeypatch.setattr(sources, "_load", stand_in)


class Saboteur:
    """The ClientApp with a hook that sees every message first; what the hook raises, the client raises."""

    def __init__(self, hook: Callable[[Any, Any], Any] | None = None, after: Callable[[Any, Any], Any] | None = None):
        self.hook, self.after = hook, after

    def __call__(self, message, context):
        if self.hook is not None:
            self.hook(message, context)
        reply = client_app(message, context)
        return reply if self.after is None else self.after(message, reply)


class Federation:
    """Runs small experiments in folders of its own; a client is a node, unless `federation.sites` is set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0

    def run(
        self,
        experiment: Experiment,
        *,
        app=None,
        directory: Path | None = None,
        ledgers: Path | None = None,
        resume: bool = False,
        **job,
    ):
        """The clients' ledgers are in `clients` of the run's folder, as the driver does it, or in `ledgers`."""
        self.runs += directory is None
        directory = directory or self.folder / f"run{self.runs}"
        ledgers = ledgers or directory / "clients"
        nodes = experiment.federation.sites or experiment.federation.clients
        grid = InProcessGrid(app or client_app, node_configs(nodes, ledgers))
        with held_open(ledgers):
            try:
                return federate(grid, Job(experiment, directory, resume=resume, **job))
            finally:
                grid.close()


@pytest.fixture
def nobody_is_remembered() -> Iterator[None]:
    """Nodes of a run number are kept by the process: those of these tests are not for others, nor others' for these."""
    replies._nodes.clear()
    yield
    replies._nodes.clear()
