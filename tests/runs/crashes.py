"""Servers that die: forked, one by one, from a process that has trained nothing itself (autograd survives no fork).

Run as `python -m tests.runs.crashes`: every line of standard input is a JSON list of arguments for `_process`; the
answer is its exit status, negative for a signal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

# Everything that a process needs, once.
import sklearn.metrics  # noqa: F401
import torch._dynamo  # noqa: F401

from fedsw.learning.tasks import Classification  # noqa: F401
from tests.federations import small
from tests.laws.chaos.faults import Chaos, ChaosGrid, Fault


class Host:
    """A process that starts servers, one by one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.crashes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )

    def run(self, directory: Path, *overrides: str, fault: str = "", round_: int = 0, resume: bool = False) -> int:
        """Run a small experiment until it ends or the fault kills it; its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([str(directory), overrides, fault, round_, resume]), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _process(directory: str, overrides: list[str], fault: str, round_: int, resume: bool) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        _serve(Path(directory), overrides, fault, round_, resume)
        code = 0
    except BaseException as failure:
        Path(directory).with_suffix(".failure").write_text("".join(traceback.format_exception(failure)))
    finally:
        os._exit(code)


def _serve(directory: Path, overrides: list[str], fault: str, round_: int, resume: bool) -> None:
    from fedsw.federation.engines.pool import environment
    from fedsw.federation.node.own_ledger import STATE_VARIABLE, held_open
    from fedsw.federation.server.federation import Job, federate

    experiment = small(*overrides)
    clients = experiment.federation.clients
    chaos = Chaos([Fault(round_, fault, clients - 1)] if fault else [], experiment.federation.timeout, lambda _: None)
    grid = ChaosGrid(chaos, clients)
    ledgers = directory / "clients"
    with environment({STATE_VARIABLE: str(ledgers.resolve())}), held_open(ledgers), chaos.server():
        federate(grid, Job(experiment, directory, resume=resume))


def main() -> None:
    for line in sys.stdin:
        print(_process(*json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
