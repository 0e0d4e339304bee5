"""A federation of real processes on this machine: a SuperLink with TLS, and a SuperNode with a key for every client."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedsw.deploy.certificates import LOOPBACK, write_certificates, write_node_key
from fedsw.deploy.flower_processes import NodeSettings, SuperLink, supernode_command
from fedsw.deploy.processes import Processes, free_port
from fedsw.experiment import Experiment
from fedsw.federation.node.account import SHARED
from fedsw.federation.node.limits import ANY_TRUST
from fedsw.files import private_folder

_ONLINE_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_ONLINE = "SuperNode ID:"
_MOST_SAID = 2**20


class LocalFederation:
    """The experiment's clients on loopback, or its sites, each with several clients.

    Each process can be started again, with its own key and folder.

    Certificates and keys are made here, and removed by `remove_secrets`.

    Args:
        place: a fresh folder for secrets and Flower's own folders.
        states: holds a folder for every client's lasting state.
        stock: Flower's own executors instead of warm ones.
    """

    def __init__(
        self, processes: Processes, place: Path, states: Path, experiment: Experiment, *, stock: bool = False
    ) -> None:
        settings = experiment.federation
        self.processes, self.clients = processes, range(settings.sites or settings.clients)
        self._held = settings.clients if settings.sites else None
        data = experiment.data.data_dir
        if experiment.data.own:
            data = None  # a node's data-dir is its own; that of the experiment is shared out as in any simulation
        self._data = None if data is None else Path(data)
        self._place, self._states, self._stock, self._port = place, states, stock, free_port()
        self._certificates = write_certificates(place / "certificates", LOOPBACK)
        self._keys = [write_node_key(place / "keys" / f"client{client}") for client in self.clients]

    def start_link(self) -> SuperLink:
        """Start the SuperLink, always on the same port, and admit the clients' keys.

        Raises:
            RuntimeError: with what it printed, if it does not start.
        """
        link = SuperLink.start(
            self.processes,
            self._certificates,
            private_folder(self._place / "superlink"),
            host="127.0.0.1",
            port=self._port,
            stock=self._stock,
        )
        link.register([key.public for key in self._keys])
        return link

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client; `is_online` tells when it is connected."""
        node = NodeSettings(
            superlink=f"127.0.0.1:{self._port}",
            authority=self._certificates.authority,
            key=self._keys[client].private,
            server_key=self._certificates.signing_public,
            client=client,
            clients=len(self.clients),
            num_clients=self._held,
            data_dir=self._data,
            state_dir=private_folder(self._states / str(client)),
            trust=ANY_TRUST,
            modules=None,  # whoever wrote the experiment started these processes
            account=SHARED,
        )
        self.processes.start(
            node_name(client),
            supernode_command(node, stock=self._stock, port=free_port()),
            {"FLWR_HOME": str(private_folder(self._place / "nodes" / str(client)))},
        )

    def is_online(self, client: int) -> bool:
        """Whether the client's SuperNode, as started last, runs and has connected."""
        name = node_name(client)
        return not self.processes.ended(name) and _ONLINE in self.processes.said(name, _MOST_SAID)

    def wait_until_online(self, clients: Iterable[int]) -> None:
        """Return when all of these are.

        Raises:
            RuntimeError: with what it printed, if one ends, or is not there after two minutes.
        """
        deadline = time.monotonic() + _ONLINE_SECONDS
        waiting = set(clients)
        while waiting := {client for client in waiting if not self.is_online(client)}:
            names = [node_name(client) for client in sorted(waiting)]
            if ended := [name for name in names if self.processes.ended(name)]:
                raise RuntimeError(f"the SuperNode {ended[0]} ended; it said:\n{self.processes.said(ended[0])}")
            if time.monotonic() >= deadline:
                raise RuntimeError(f"not online after {_ONLINE_SECONDS:g} s: {', '.join(names)}")
            time.sleep(_LOOK_SECONDS)

    def remove_secrets(self) -> None:
        """Remove certificates, keys and Flower's own folders."""
        for secret in ("keys", "certificates", "superlink", "nodes"):
            shutil.rmtree(self._place / secret, ignore_errors=True)


def node_name(client: int) -> str:
    """What the SuperNode of a client is called among the processes, and in the names of logs."""
    return f"client{client}"


@contextlib.contextmanager
def local_federation(place: Path, states: Path, experiment: Experiment, *, stock: bool) -> Iterator[SuperLink]:
    """A SuperLink and the experiment's number of SuperNodes on loopback, all online; stopped on the way out.

    Args:
        place: a fresh folder for secrets, logs and Flower's own folders; only logs are left in it.
        states: holds a folder for every client's lasting state.
    """
    with Processes(private_folder(private_folder(place) / "logs")) as processes:
        federation = LocalFederation(processes, place, states, experiment, stock=stock)
        try:
            link = federation.start_link()
            for client in federation.clients:
                federation.start_node(client)
            federation.wait_until_online(federation.clients)
            yield link
        finally:
            processes.stop()
            federation.remove_secrets()
