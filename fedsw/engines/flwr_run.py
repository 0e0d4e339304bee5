"""`flwr run` on Flower's simulation engine, with a SuperLink that is stopped again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedsw.deploy.bundle import run_config, write_bundle
from fedsw.deploy.node_file import Replaced
from fedsw.deploy.processes import free_port
from fedsw.federation import OFFLINE
from fedsw.runs.files import SUMMARY, read_json

_MARK = "FEDSW_ENGINE_RUN"
_START_SECONDS = 60.0
# Ray gives its own processes 30 seconds to start; two other programs on two cores can make it more.
_RAY_WAS_SLOW = "node timed out during startup"


def run(directory: Path, nodes: int, modules: Sequence[str] = (), *, resume: bool = False) -> None:
    """Run the prepared job of `directory` through Flower's own command and engine.

    `flwr run .` alone starts a SuperLink that goes on running afterwards; here one is started on a free port of the
    loopback interface for this run only, and everything it started is stopped, whatever happens.

    Args:
        modules: what the job's settings may name as `module:name`; the server's process reads them from the folder.

    Raises:
        RuntimeError: with the end of Flower's output, if the run did not leave a completed summary.
    """
    summary = Replaced(directory / SUMMARY)
    log = _submit(directory, nodes, modules, resume=resume)
    if not summary.is_new() and _RAY_WAS_SLOW in log:  # nothing has begun, so nothing is charged
        log = _submit(directory, nodes, modules, resume=resume)
    ended = (read_json(summary.path) if summary.is_new() else None) or {"status": "never started"}
    status = ended["status"]
    if status != "completed" and not status.startswith("stopped"):
        raise RuntimeError(f"the run {status} on Flower's engine; its last output:\n{log[-3000:]}")


def _submit(directory: Path, nodes: int, modules: Sequence[str], *, resume: bool) -> str:
    """Hand the prepared job to a SuperLink of its own, wait for its end, and return what Flower printed."""
    with tempfile.TemporaryDirectory(prefix="fedsw-flwr-") as home, _superlink(Path(home)) as (port, environment):
        (Path(home) / "config.toml").write_text(
            f'[superlink]\ndefault = "fedsw"\n\n[superlink.fedsw]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        return subprocess.run(
            [
                str(_script("flwr")),
                "run",
                str(write_bundle(Path(home) / "bundle")),
                "fedsw",
                "--stream",
                "--run-config",
                run_config(directory, modules, resume=resume),
                "--federation-config",
                f"num-supernodes={nodes} client-resources-num-cpus=1",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ).stdout


@contextlib.contextmanager
def _superlink(home: Path) -> Iterator[tuple[int, dict[str, str]]]:
    port = free_port()
    environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home), _MARK: str(home)}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment.get("PATH", "")))
    log = (home / "superlink.log").open("wb")
    link = subprocess.Popen(
        [
            str(_script("flower-superlink")),
            "--insecure",
            "--simulation",
            "--disable-runtime-dependency-installation",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _wait_until_open(link, port, home / "superlink.log")
        yield port, environment
    finally:
        link.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            link.wait(10)
        log.close()
        _stop_all_marked(str(home))
        link.wait()


def _wait_until_open(link: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and link.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"Flower's SuperLink did not open port {port}:\n{log.read_text(errors='replace')[-2000:]}")


def _stop_all_marked(mark: str) -> None:
    """End every process that inherited this run's mark in its environment (SuperLink, apps, Ray)."""
    wanted = f"{_MARK}={mark}".encode()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        left = [pid for pid in _processes() if wanted in _environment(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        if left:
            time.sleep(2.0 if sign == signal.SIGTERM else 0.2)


def _processes() -> list[int]:
    own = os.getpid()
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != own]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _script(name: str) -> Path:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(
            f"{name} is not installed beside {sys.executable}; install the extra: pip install 'fedsw[app]'"
        )
    return path
