"""A deployment that is meant to be broken: who may be killed, who is started again, and what is left of it."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import psutil

from fedsw._tools.files import private_folder
from fedsw.experiment import Experiment
from fedsw.federation.deploy.flower_processes import SuperLink
from fedsw.federation.deploy.processes import Processes
from fedsw.federation.engines.deployed import LocalFederation, follow, node_name
from fedsw.runs.observer import NoObserver
from fedsw.runs.recovery import is_running

_LOOK_SECONDS = 0.2
_RECOVERY_SECONDS = 240.0
_LEAVING_SECONDS = 20.0
_RESTART_SECONDS = (2.0, 5.0)


class Site:
    """A SuperLink and SuperNodes whose supervisor starts a node again some seconds after it ended, as systemd would.

    Injections reach only processes that were started here, and the children of those. Use it as a context manager.

    Args:
        directory: gets `run`, the run's own folder, `nodes`, the clients' lasting state, and `place`, keys and logs.
    """

    def __init__(self, directory: Path, experiment: Experiment, seed: int) -> None:
        self.run, self.states, self._place = directory / "run", directory / "nodes", directory / "place"
        self.mutex = threading.RLock()  # of who starts and who kills
        self.seen = set[psutil.Process]()
        self.processes = Processes(private_folder(private_folder(self._place) / "logs"))
        self._experiment, self._chance = experiment, random.Random(seed)
        self._federation = LocalFederation(self.processes, self._place, self.states, experiment)
        self._link: SuperLink | None = None
        self._due: dict[int, float] = {}  # when a node that ended is started again; inf while it is kept away
        self._frozen: dict[int, float] = {}  # when a stopped node goes on
        self._stale: dict[int, int] = {}  # nodes of a SuperLink that is dead, by process number
        self._stop = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def __enter__(self) -> Self:
        self.processes.__enter__()
        try:
            self._link = self._federation.start_link()
            for client in self._federation.clients:
                self._federation.start_node(client)
            self._supervisor.start()
            self._wait_until(lambda: len(self.online()) == len(self._federation.clients), "all nodes are online")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *ended: object) -> None:
        self._stop.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        self.processes.stop()
        self._federation.remove_secrets()

    @property
    def link(self) -> SuperLink:
        """The SuperLink that was started last."""
        assert self._link is not None
        return self._link

    def run_once(self, *, resume: bool) -> str:
        """Submit the run and follow it to its end; returns how it ended: "completed", or why not.

        Afterwards the whole site is up again: nobody is away, and nobody holds the run.
        """
        try:
            follow(self.link, self.run, self._experiment, NoObserver(), resume=resume)
            return "completed"
        except RuntimeError as fault:
            with self.mutex:  # an injection that is under way is written down whole
                pass
            self._recover()
            return str(fault)

    def server_app(self) -> psutil.Process | None:
        """The process of the running ServerApp."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.link.process.pid).children(recursive=True):
                if "serverapp" in child.cmdline():
                    return child
        return None

    def online(self) -> list[int]:
        """The clients whose SuperNode runs, is connected, and is not stopped."""
        return [
            client
            for client in self._federation.clients
            if client not in self._frozen
            and self._stale.get(client) != self.processes.pid(node_name(client))
            and self._federation.is_online(client)
        ]

    def strangers(self) -> list[psutil.Process]:
        """Living processes of this deployment that nobody needs any more: whose parent died, and who should have left.

        They have some seconds to find out.
        """
        deadline = time.monotonic() + _LEAVING_SECONDS
        while (left := self._unneeded()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return left

    def _unneeded(self) -> list[psutil.Process]:
        with self.mutex, contextlib.suppress(psutil.NoSuchProcess):
            link = psutil.Process(self.link.process.pid)
            needed = {link, *link.children(recursive=True)}
            for client in self._federation.clients:
                needed.update(self._tree(client))
            return [process for process in self.processes.alive() if process not in needed]
        return []

    def kill_nodes(self, clients: Iterable[int], *, workers: bool, keep_away: bool) -> None:
        """SIGKILL to SuperNodes, with their workers or without; kept away until `let_back`."""
        for client in clients:
            for process in self._tree(client)[: None if workers else 1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._frozen.pop(client, None)
            if keep_away:
                self._due[client] = math.inf

    def kill_worker(self, client: int) -> None:
        """SIGKILL to what a SuperNode has started."""
        for process in self._tree(client)[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def freeze(self, client: int, seconds: float) -> None:
        """SIGSTOP to a SuperNode and its worker; SIGCONT some seconds later."""
        for process in self._tree(client):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        self._frozen[client] = time.monotonic() + seconds

    def kill_link(self) -> None:
        """SIGKILL to the SuperLink; what it started must find that out by itself."""
        self.link.process.kill()
        self.link.process.wait()
        connected = filter(self._federation.is_online, self._federation.clients)  # others find the next SuperLink
        self._stale = {client: self.processes.pid(node_name(client)) for client in connected}

    def let_back(self, clients: Iterable[int] | None = None) -> None:
        """Start nodes again that are kept away; None for all."""
        with self.mutex:
            for client in self._federation.clients if clients is None else clients:
                if self._due.get(client) == math.inf:
                    self._due[client] = time.monotonic() + self._chance.uniform(*_RESTART_SECONDS)

    def _recover(self) -> None:
        """What an operator does before `fedsw resume`: see that the server runs and that everybody is there."""
        submitted = self.processes.pid("run")
        if not self.processes.ended("run"):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(submitted).terminate()
            self._wait_until(lambda: self.processes.ended("run"), "the submission has ended")
        self.let_back()
        with self.mutex:
            self._frozen = dict.fromkeys(self._frozen, 0.0)
        self._wait_until(lambda: not is_running(self.run), "nobody holds the run")
        if self.link.process.poll() is not None:
            self._link = self._federation.start_link()
        self._wait_until(lambda: self.server_app() is None, "the ServerApp has ended")
        self._wait_until(lambda: len(self.online()) == len(self._federation.clients), "all nodes are online")

    def _supervise(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(_LOOK_SECONDS):
            with self.mutex:
                now = time.monotonic()
                for client in [client for client, until in self._frozen.items() if now >= until]:
                    for process in self._tree(client):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            process.send_signal(signal.SIGCONT)
                    del self._frozen[client]
                for client in self._federation.clients:
                    if self.processes.ended(node_name(client)):
                        due = self._due.setdefault(client, now + self._chance.uniform(*_RESTART_SECONDS))
                        if now >= due:
                            del self._due[client]
                            self._federation.start_node(client)
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seen.update(me.children(recursive=True))

    def _tree(self, client: int) -> list[psutil.Process]:
        """The SuperNode of a client as it was started here, and its children."""
        if self.processes.ended(node_name(client)):
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            node = psutil.Process(self.processes.pid(node_name(client)))
            return [node, *node.children(recursive=True)]
        return []

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while not holds():
            if time.monotonic() >= deadline:
                raise RuntimeError(f"not within {_RECOVERY_SECONDS:g} s: {what}; see {self._place / 'logs'}")
            time.sleep(_LOOK_SECONDS)
