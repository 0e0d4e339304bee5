"""Flower's own simulation engine, unchanged: Ray actors, one node each, which is a site of one client or of many."""

from __future__ import annotations

import os

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsw.engines import _flower


def run(server_app: ServerApp, client_app: ClientApp, nodes: int, *, device: str = "cpu") -> None:
    """Run both apps on Ray with telemetry, update checks and run-time installs off.

    The server app runs in this process; a failure in it is raised here. Clients get their data directory from the
    experiment or from FEDSW_DATA.
    """
    _flower.simulate_with_ray(
        server_app, client_app, nodes, cpus=max(1, os.cpu_count() or 1), gpus=_share(nodes, device)
    )


def _share(nodes: int, device: str) -> float:
    """The part of a GPU that each node has: all of this machine's together, or one each in a cluster of machines."""
    if device != "cuda":
        return 0.0
    if os.environ.get("RAY_ADDRESS"):
        return 1.0
    return min(1.0, torch.cuda.device_count() / nodes)
