"""Real client processes on this machine: a SuperLink with TLS, and a SuperNode with its own key for every client."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from fedsw.deploy.flower_processes import SuperLink
from fedsw.deploy.local import local_federation
from fedsw.deploy.node_file import Follower, Replaced
from fedsw.errors import FederationError
from fedsw.experiment import Experiment
from fedsw.experiment.stored import modules_of
from fedsw.runs.files import SUMMARY, read_json
from fedsw.runs.observer import Ending, Observer
from fedsw.runs.recovery import held, is_running, require_free

_DEPLOYED = "deployment.lock"
_LOOK_SECONDS = 0.2
_LOCK_SECONDS = 2.0
_OWN_ERROR = re.compile(r"^fedsw(?:\.\w+)+: (.+)$", re.MULTILINE)
"""How a traceback of Flower's ServerApp ends, where an error of fedsw is at its end."""
_GONE = 3  # times that nobody holds a run which has no summary; its last words may still be on their way


def run(
    directory: Path, experiment: Experiment, observer: Observer, *, resume: bool = False, stock: bool = False
) -> None:
    """Run the prepared job of `directory` on a federation of processes that runs as long as the run does.

    Certificates, node keys and Flower's folders are made for this run in `directory`/deployment (mode 0700) and
    removed at its end, with every process; after a failure the logs stay. What a client must remember beyond its
    process is in `directory`/nodes/<client>.

    Args:
        stock: Flower's own executors, which start a Python process for every message, instead of warm ones.

    Raises:
        RunBusy: if the run is going on; nothing of it is touched.
        RuntimeError: with the end of the output, if a process does not start or the run leaves no completed summary.
    """
    place = directory / "deployment"
    with held(directory, _DEPLOYED):  # before the server has started, its own lock does not show it
        require_free(directory)
        shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
        with local_federation(place, directory / "nodes", experiment, stock=stock) as link:
            follow(link, directory, experiment, observer, resume=resume)
        shutil.rmtree(place)


def follow(link: SuperLink, directory: Path, experiment: Experiment, observer: Observer, *, resume: bool) -> None:
    """Submit the prepared job of a folder to a running SuperLink, show its rounds, and return when it is done.

    Raises:
        RuntimeError: with the end of the output, if it leaves no completed summary.
    """
    summary = Replaced(directory / SUMMARY)  # the old one names the ledger's last row, which the run reads
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
    """What ended a deployed run: its own last error in one line, or the end of its output where it left none."""
    errors = _OWN_ERROR.findall(output)
    if errors:
        return FederationError(f"the deployed run {status}: {errors[-1]}")
    return RuntimeError(f"the deployed run {status}; the end of its output:\n{output}")
