"""Processes that a deployment starts, and only those, are stopped again: on exit, on an error, and if it is killed."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from fedsw.federation import OFFLINE
from fedsw.federation.deploy.watchdog import end, marked

MARK = "FEDSW_DEPLOYMENT"
_WATCHDOG = Path(__file__).with_name("watchdog.py")
_START_SECONDS = 90.0
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_SOCKS = ("socks", "socks4", "socks4a", "socks5", "socks5h")
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


class Processes:
    """A set of processes with everything they start, marked by a random word in their environment; a context manager.

    Each has a session of its own (Ctrl-C reaches only us, and we stop them in order) and a log file, if `logs` names
    their folder. A watchdog that holds one end of a pipe stops the marked processes if this process dies without doing
    so, whatever killed it. Telemetry, update checks and run-time installs are off. None asks this machine through a
    proxy.
    """

    def __init__(self, logs: Path | None, environment: Mapping[str, str] | None = None) -> None:
        self.mark = secrets.token_hex(16)
        self._logs = logs
        own_scripts = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        self._environment = {
            **straight(os.environ),
            "PATH": own_scripts,
            **(environment or {}),
            **OFFLINE,
            MARK: self.mark,
        }
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._logged: dict[str, int] = {}  # bytes in a log before its last process started
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._watchdog = subprocess.Popen(
            [sys.executable, "-P", str(_WATCHDOG), MARK, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command; what it prints goes to `<name>.log`, after what one of that name printed before."""
        path = self._log(name)
        self._logged[name] = path.stat().st_size if path is not None and path.exists() else 0
        with contextlib.ExitStack() as stack:
            log = None if path is None else stack.enter_context(path.open("ab"))
            process = subprocess.Popen(
                list(command),
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                start_new_session=True,
            )
        self._started[name] = process
        return process

    def start_listening(
        self, name: str, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command, and wait until it listens on a port of this machine; an error has what it printed."""
        process, deadline = self.start(name, command, environment), time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return process
            time.sleep(0.1)
        what = "ended" if process.poll() is not None else f"did not listen on port {port} within {_START_SECONDS:g} s"
        raise RuntimeError(f"the {name} {what}; it said:\n{self.said(name)}")

    def said(self, name: str, characters: int = 2000) -> str:
        """The end of what a process, the last of its name, printed into its log file."""
        path = self._log(name)
        if path is None or not path.exists():
            return ""
        said = path.read_bytes()[self._logged.get(name, 0) :]
        return said.decode("utf-8", errors="replace")[-characters:].strip()

    def ended(self, name: str) -> bool:
        """True if the process of this name has ended."""
        return self._started[name].poll() is not None

    def pid(self, name: str) -> int:
        """The process number of the last process of this name."""
        return self._started[name].pid

    def alive(self) -> list[psutil.Process]:
        """Every living process that carries the mark: those started here, and all that they started."""
        return marked(MARK, self.mark)

    def stop(self) -> None:
        """Ask all of them to end (SIGTERM), wait, and kill what is left; returns when none is left."""
        end(MARK, self.mark)
        for process in self._started.values():
            process.wait()
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait()

    def _log(self, name: str) -> Path | None:
        return None if self._logs is None else self._logs / f"{name}.log"


def straight(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which nothing asks this machine through a proxy, whichever its variables name.

    Those of SOCKS proxies are left out, for Flower's client does not begin with one, wherever it is going; others stay:
    a server elsewhere, and a download, may need them.
    """
    plain = {
        name: value
        for name, value in environment.items()
        if name.lower() not in _PROXIES or urllib.parse.urlsplit(value).scheme not in _SOCKS
    }
    excepted = [word for name in ("no_proxy", "NO_PROXY") for word in plain.get(name, "").split(",") if word.strip()]
    return plain | dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(dict.fromkeys([*excepted, *_THIS_MACHINE])))


def is_this_machine(host: str) -> bool:
    """True for a name or an address of the loopback interface, which no proxy is asked for."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def script(name: str) -> str:
    """The path of one of Flower's commands, beside the Python that runs this."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(
            f"{name} is not installed beside {sys.executable}; install the extra: "
            "pip install '.[app]' in fedsw's checkout"
        )
    return str(path)


def require_free_port(host: str, port: int, option: str) -> None:
    """Refuse a port that another program listens on, or that this user may not open, before anything is started.

    OSError that names the port, and the option with which another one is named.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as fault:
            taken = fault.errno == errno.EADDRINUSE
            why = "another program listens there" if taken else str(fault.strerror)
            remedy = f"stop it (`ss -ltnp 'sport = :{port}'` names it), or" if taken else ""
            said = f"port {port} cannot be opened: {why}; {remedy} choose another with {option}"
            raise OSError(fault.errno, said) from None


_given: deque[int] = deque(maxlen=256)  # a node that is started again for days must not run out of ports
_mutex = threading.Lock()


def free_port() -> int:
    """A free port of the loopback interface that was not given out lately.

    It is free again until its process binds it, and the system could choose it twice in between.
    """
    with _mutex:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in _given:
                _given.append(port)
                return port
