"""Real client processes on this machine: a SuperLink with TLS, and a SuperNode with its own key for every client."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fedsw.experiment import Experiment
from server.observer import Observer
from simulations.deploy.certificates import LOOPBACK, write_certificates
from simulations.deploy.following import Follower
from simulations.deploy.keys import write_node_key
from simulations.deploy.processes import Processes, free_port
from simulations.deploy.secret_files import private_folder
from simulations.deploy.superlink import SuperLink
from simulations.deploy.supernode import NodeSettings, supernode_command

_ONLINE_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_ONLINE = "SuperNode ID:"


def run(
    directory: Path, experiment: Experiment, observer: Observer, *, resume: bool = False, stock: bool = False
) -> None:
    """Run the prepared job of `directory` on a federation of processes that lives as long as the run.

    Certificates, node keys and Flower's folders are made for this run in `directory`/deployment (mode 0700) and
    removed at its end, with every process; after a failure the logs stay. What a client must remember beyond its
    process is in `directory`/nodes/<client>.

    Args:
        stock: Flower's own executors, which start a Python process for every message, instead of warm ones.

    Raises:
        RuntimeError: with the end of the output, if a process does not start or the run leaves no completed summary.
    """
    place = directory / "deployment"
    shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
    with local_federation(place, directory / "nodes", experiment, stock=stock) as link:
        follow(link, directory, experiment, observer, resume=resume)
    shutil.rmtree(place)


def follow(link: SuperLink, directory: Path, experiment: Experiment, observer: Observer, *, resume: bool) -> None:
    """Submit the prepared job of a folder to a running SuperLink, show its rounds, and return when it is done.

    Raises:
        RuntimeError: with the end of the output, if it leaves no completed summary.
    """
    summary = directory / "summary.json"
    summary.unlink(missing_ok=True)  # of the attempt that is resumed
    follower = Follower(directory, experiment, observer)
    submitted = link.submit(directory, resume=resume)
    while submitted.poll() is None:
        follower.look()
        if link.process.poll() is not None:
            raise RuntimeError(f"the SuperLink ended during the run; it said:\n{link.processes.said('superlink')}")
        time.sleep(_LOOK_SECONDS)
    follower.look()
    content = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {"status": "never started"}
    if content["status"] != "completed" and not content["status"].startswith("stopped"):
        raise RuntimeError(
            f"the deployed run {content['status']}; the end of its output:\n{link.processes.said('run', 3000)}"
        )
    observer.finished(content)


@contextlib.contextmanager
def local_federation(place: Path, states: Path, experiment: Experiment, *, stock: bool) -> Iterator[SuperLink]:
    """A SuperLink and the experiment's number of SuperNodes on loopback, all online; stopped on the way out.

    Args:
        place: a fresh folder for secrets, logs and Flower's own folders; only logs are left in it.
        states: holds a folder for every client's lasting state.
    """
    clients, data = experiment.federation.clients, experiment.data.data_dir
    if experiment.data.source == "files":
        data = None  # a node's data-dir is its own; that of the experiment is shared out as in any simulation
    logs, port = private_folder(private_folder(place) / "logs"), free_port()
    certificates = write_certificates(place / "certificates", LOOPBACK)
    keys = [write_node_key(place / "keys" / f"client{client}") for client in range(clients)]
    try:
        with Processes(logs) as processes:
            link = SuperLink.start(
                processes, certificates, private_folder(place / "superlink"), host="127.0.0.1", port=port, stock=stock
            )
            link.register([key.public for key in keys])
            for client, key in enumerate(keys):
                node = NodeSettings(
                    superlink=f"127.0.0.1:{port}",
                    authority=certificates.authority,
                    key=key.private,
                    client=client,
                    clients=clients,
                    data_dir=None if data is None else Path(data),
                    state_dir=private_folder(states / str(client)),
                )
                home = private_folder(place / "nodes" / str(client))
                processes.start(
                    f"client{client}",
                    supernode_command(node, stock=stock, port=free_port()),
                    {"FLWR_HOME": str(home)},
                )
            _wait_until_online(processes, [f"client{client}" for client in range(clients)])
            yield link
    finally:
        for secret in ("keys", "certificates", "superlink", "nodes"):
            shutil.rmtree(place / secret, ignore_errors=True)


def _wait_until_online(processes: Processes, names: list[str]) -> None:
    deadline = time.monotonic() + _ONLINE_SECONDS
    waiting = set(names)
    while waiting := {name for name in waiting if _ONLINE not in processes.said(name)}:
        if ended := [name for name in waiting if processes.ended(name)]:
            raise RuntimeError(f"the SuperNode {ended[0]} ended; it said:\n{processes.said(ended[0])}")
        if time.monotonic() >= deadline:
            raise RuntimeError(f"not online after {_ONLINE_SECONDS:g} s: {', '.join(sorted(waiting))}")
        time.sleep(_LOOK_SECONDS)
