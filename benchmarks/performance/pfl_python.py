"""Where Apple's pfl-research is, and one private job on it: its own interpreter runs `pfl_job.py`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsw.data import Records

PYTHON = "FEDSW_PFL_PYTHON"
"""Environment variable that names an interpreter with pfl."""
_JOB = Path(__file__).with_name("pfl_job.py")
_HOW = (
    f"python3 -m venv /tmp/pfl && /tmp/pfl/bin/pip install pfl torch, then --pfl-python /tmp/pfl/bin/python or {PYTHON}"
)


class NoPfl(Exception):
    """There is no interpreter that runs the job; the message says why and how to get one."""


@dataclass(frozen=True)
class Job:
    """The work of both sides.

    Attributes:
        users: whom cohorts are drawn from; records_per_user of each.
        cohort: users of every iteration.
        hidden: widths of the hidden layers; none for the logistic model.
        clip: norm of one user's update; noise is its standard deviation over the clip.
    """

    users: int
    records_per_user: int
    cohort: int
    iterations: int
    hidden: tuple[int, ...] = ()
    clip: float = 2.0
    noise: float = 1.0
    learning_rate: float = 0.5


class Pfl:
    """pfl on the same records, as a way that takes turns: every call is a fresh process that times its own iterations.

    Raises:
        NoPfl: if no interpreter is named, or the one that is cannot import pfl and torch.
    """

    def __init__(self, job: Job, records: Records) -> None:
        self._job, self._records = job, records
        self._python = os.environ.get(PYTHON, "")
        if not self._python:
            raise NoPfl(f"no interpreter with pfl is named: {_HOW}")
        code = "import importlib.metadata as m, pfl, torch; print(m.version('pfl'), torch.__version__)"
        try:
            found = subprocess.run([self._python, "-c", code], capture_output=True, text=True, check=False)
        except OSError as failure:
            raise NoPfl(f"{self._python} does not start ({failure}): {_HOW}") from None
        if found.returncode != 0:
            raise NoPfl(f"{self._python} cannot import pfl: {found.stderr.strip().splitlines()[-1]}. {_HOW}")
        self.pfl, self.torch = found.stdout.split()

    def iterations(self) -> list[float]:
        """Seconds of every central iteration but the first, in a fresh process.

        Raises:
            RuntimeError: with what the process wrote last, if it failed.
        """
        job = self._job
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "records.npz"
            np.savez(data, features=self._records.features.numpy(), target=self._records.target.numpy())
            settings: dict[str, Any] = {**job.__dict__, "hidden": list(job.hidden), "data": str(data)}
            command = [self._python, str(_JOB), json.dumps(settings)]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            environment["OMP_NUM_THREADS"] = "1"
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"pfl's job failed: {done.stderr.strip().splitlines()[-1:]}")
        found: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
        return found[1:]
