"""Engines of Flower's own processes on this machine, all of which end with the run.

Real client processes: a SuperLink with TLS, and a SuperNode with its own key for every client; or `flwr run`.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedsw._tools.files import private_folder
from fedsw._tools.settings import FederationError
from fedsw.experiment import Experiment
from fedsw.experiment.choices import modules_of
from fedsw.federation.deploy.bundle import run_config, write_bundle
from fedsw.federation.deploy.certificates import LOOPBACK, write_certificates, write_node_key
from fedsw.federation.deploy.flower_processes import SuperLink, profile, supernode_command
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.deploy.processes import Processes, free_port, script
from fedsw.federation.engines.following import Follower, Replaced
from fedsw.federation.node.limits import ANY_TRUST
from fedsw.federation.node.simulated import ONE_PERSON, SHARED
from fedsw.runs.observer import Ending, Observer
from fedsw.runs.recovery import held, is_running, require_free
from fedsw.runs.run_files import RunFile, read_json

_ONLINE_SECONDS = 120.0
_ENROL_SECONDS = 0.2
_ONLINE = "SuperNode ID:"
_MOST_SAID = 2**20


class LocalFederation:
    """The experiment's clients on loopback, or its sites; each process can be started again, with its key and folder.

    Certificates and keys are made in `place`; `states` has a folder for every client's lasting state.
    """

    def __init__(
        self, processes: Processes, folder: Path, states: Path, experiment: Experiment, *, stock: bool = False
    ) -> None:
        settings = experiment.federation
        self.processes, self.clients = processes, range(settings.sites or settings.clients)
        self._held = settings.clients if settings.sites else None
        data = experiment.data.data_dir
        if experiment.data.own:
            data = None  # a node's data-dir is its own; that of the experiment is shared out as in any simulation
        self._data = None if data is None else Path(data)
        self._folder, self._states, self._stock, self._port = folder, states, stock, free_port()
        self._certificates = write_certificates(folder / "certificates", LOOPBACK)
        self._keys = [folder / "keys" / f"client{client}" for client in self.clients]
        self._public_keys = [write_node_key(key) for key in self._keys]

    def start_link(self) -> SuperLink:
        """Start the SuperLink, always on the same port, and admit the clients' keys."""
        link = SuperLink.start(
            self.processes,
            self._certificates,
            private_folder(self._folder / "superlink"),
            host="127.0.0.1",
            port=self._port,
            stock=self._stock,
        )
        link.register(self._public_keys)
        return link

    def start_node(self, client: int, *, through: str | None = None) -> None:
        """Start the SuperNode of a client, by another address that leads to the SuperLink's; see `is_online`."""
        node = NodeSettings(
            superlink=through or f"127.0.0.1:{self._port}",
            authority=self._certificates.authority,
            key=self._keys[client],
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
            {"FLWR_HOME": str(private_folder(self._folder / "nodes" / str(client))), ONE_PERSON: "1"},
        )

    def is_online(self, client: int) -> bool:
        """True if the client's SuperNode, as started last, runs and has connected."""
        name = node_name(client)
        return not self.processes.ended(name) and _ONLINE in self.processes.said(name, _MOST_SAID)

    def wait_until_online(self, clients: Iterable[int]) -> None:
        """Return when all of these are; one that ends, or is not there in two minutes, is an error with its words."""
        deadline = time.monotonic() + _ONLINE_SECONDS
        waiting = set(clients)
        while waiting := {client for client in waiting if not self.is_online(client)}:
            names = [node_name(client) for client in sorted(waiting)]
            if ended := [name for name in names if self.processes.ended(name)]:
                raise RuntimeError(f"the SuperNode {ended[0]} ended; it said:\n{self.processes.said(ended[0])}")
            if time.monotonic() >= deadline:
                raise RuntimeError(f"not online after {_ONLINE_SECONDS:g} s: {', '.join(names)}")
            time.sleep(_ENROL_SECONDS)

    def remove_secrets(self) -> None:
        """Remove certificates, keys and Flower's own folders."""
        for secret in ("keys", "certificates", "superlink", "nodes"):
            shutil.rmtree(self._folder / secret, ignore_errors=True)


def node_name(client: int) -> str:
    """The name of a client's SuperNode among the processes and logs."""
    return f"client{client}"


@contextlib.contextmanager
def local_federation(folder: Path, states: Path, experiment: Experiment, *, stock: bool = False) -> Iterator[SuperLink]:
    """The processes of a `LocalFederation`, all online; stopped on the way out, when only logs are left in `folder`.

    With `stock` they are Flower's own executors, which start a Python process for every message.
    """
    with Processes(private_folder(private_folder(folder) / "logs")) as processes:
        federation = LocalFederation(processes, folder, states, experiment, stock=stock)
        try:
            link = federation.start_link()
            for client in federation.clients:
                federation.start_node(client)
            federation.wait_until_online(federation.clients)
            yield link
        finally:
            processes.stop()
            federation.remove_secrets()


_DEPLOYED = "deployment.lock"
_LOOK_SECONDS = 0.2
_LOCK_SECONDS = 2.0
_OWN_ERROR = re.compile(r"^fedsw(?:\.\w+)+: (.+)$", re.MULTILINE)
"""How a traceback of Flower's ServerApp ends, where an error of fedsw is at its end."""
_GONE = 3  # times that nobody holds a run which has no summary; its last words may still be on their way


def run(directory: Path, experiment: Experiment, observer: Observer, *, resume: bool = False) -> None:
    """Run the prepared job of `directory` on a federation of processes that runs as long as the run does.

    Secrets and logs are in `directory`/deployment (mode 0700), removed at its end; after a failure the logs stay. What
    a client must remember beyond its process is in `directory`/nodes/<client>.

    Raises:
        RunBusy: if the run is going on; nothing of it is touched.
        RuntimeError: as `follow`, or if a process does not start.
    """
    folder = directory / "deployment"
    with held(directory, _DEPLOYED):  # before the server has started, its own lock does not show it
        require_free(directory)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        with local_federation(folder, directory / "nodes", experiment) as link:
            follow(link, directory, experiment, observer, resume=resume)
        shutil.rmtree(folder)


def follow(link: SuperLink, directory: Path, experiment: Experiment, observer: Observer, *, resume: bool) -> None:
    """Submit a folder's prepared job to a running SuperLink, show its rounds, and return when it is completed."""
    summary = Replaced(directory / RunFile.SUMMARY)  # the old one names the ledger's last row, which the run reads
    follower = Follower(directory, experiment, observer)
    submitted = link.submit(directory, modules_of(experiment), resume=resume)
    begun, gone, next_look = False, 0, 0.0
    while submitted.poll() is None:
        follower.look()
        if link.process.poll() is not None:
            raise RuntimeError(f"the SuperLink ended during the run; it said:\n{link.processes.said('superlink')}")
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + _LOCK_SECONDS
            running = is_running(directory)
            gone = 0 if running or not begun or summary.is_new() else gone + 1
            begun = begun or running
        if gone == _GONE:  # Flower itself takes most of a minute to find it out
            break
        time.sleep(_LOOK_SECONDS)
    follower.look()
    absent = "ended without a word (its process was killed, or the disk took no summary)" if begun else "never started"
    content = (read_json(summary.path) if summary.is_new() else None) or {"status": absent}
    if content["status"] != "completed" and not content["status"].startswith("stopped"):
        if follower.started and isinstance(observer, Ending):
            observer.broke_off(str(content["status"]))
        raise _why(str(content["status"]), link.processes.said("run", 3000))
    observer.finished(content)


def _why(status: str, output: str) -> RuntimeError:
    """The error of a deployed run: its last one in one line, or the end of its output where it left none."""
    errors = _OWN_ERROR.findall(output)
    if errors:
        return FederationError(f"the deployed run {status}: {errors[-1]}")
    return RuntimeError(f"the deployed run {status}; the end of its output:\n{output}")


# Ray gives its own processes 30 seconds to start; two other programs on two cores can make it more.
_RAY_WAS_SLOW = "node timed out during startup"


def run_submitted(directory: Path, nodes: int, modules: Sequence[str] = (), *, resume: bool = False) -> None:
    """Run the prepared job of `directory` through Flower's own command and engine, on a SuperLink for this run only.

    Raises:
        RuntimeError: with the end of Flower's output, if the run did not leave a completed summary.
    """
    summary = Replaced(directory / RunFile.SUMMARY)
    log = _submit(directory, nodes, modules, resume=resume)
    if not summary.is_new() and _RAY_WAS_SLOW in log:  # nothing has begun, so nothing is charged
        log = _submit(directory, nodes, modules, resume=resume)
    ended = (read_json(summary.path) if summary.is_new() else None) or {"status": "never started"}
    status = ended["status"]
    if status != "completed" and not status.startswith("stopped"):
        raise RuntimeError(f"the run {status} on Flower's engine; its last output:\n{log[-3000:]}")


def _submit(directory: Path, nodes: int, modules: Sequence[str], *, resume: bool) -> str:
    """Hand the prepared job to a SuperLink of its own, wait for its end, and return what Flower printed."""
    with (
        tempfile.TemporaryDirectory(prefix="fedsw-flwr-") as folder,
        Processes(Path(folder), {"FLWR_HOME": folder}) as processes,
    ):
        home, port = Path(folder), free_port()
        (home / "config.toml").write_text(profile(f"127.0.0.1:{port}", None), encoding="utf-8")
        quiet = ["--insecure", "--simulation", "--disable-runtime-dependency-installation"]
        link = [script("flower-superlink"), *quiet, "--host", "127.0.0.1", "--port", str(port)]
        processes.start_listening("superlink", link, port)
        command = [script("flwr"), "run", str(write_bundle(home / "bundle")), "fedsw", "--stream"]
        config = ["--run-config", run_config(directory, modules, resume=resume)]
        shared = ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
        processes.start("run", [*command, *config, *shared]).wait()
        return processes.said("run", _MOST_SAID)
