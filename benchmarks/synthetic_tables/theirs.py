"""Tables of MST and AIM as their authors run them, by an interpreter of its own: see theirs_job.py."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.synthetic_tables.sets import Table
from fedsw.data import Records
from fedsw.data.codes import cells_of_table, records_of_table

HOW = (
    "git clone https://github.com/ryan112358/mbi /tmp/mbi && python3 -m venv /tmp/mbi/venv && "
    "/tmp/mbi/venv/bin/pip install /tmp/mbi pandas matplotlib, then --others /tmp/mbi/venv/bin/python --mechanisms "
    "/tmp/mbi/mechanisms"
)
ADD_REMOVE, REPLACE = "add-remove", "replace"
RELATIONS = (ADD_REMOVE, REPLACE)
_GAUSSIAN, _EXPONENTIAL = 2.0, 4.0
"""How much more zCDP the same mechanism costs where a record is replaced in place of added or removed: a marginal's L2
distance is sqrt(2) in place of 1, and rho goes with its square; an L1 error, the score of a choice, moves by 2 in place
of 1, which doubles the epsilon of the exponential mechanism, whose rho is epsilon^2 / 8."""
CHOICES = {"aim": 0.1, "mst": 1 / 3}
"""The part of rho that goes into choices; of AIM at most."""
AIM = {"max_model_size": "80", "max_iters": "1000", "degree": "2", "max_cells": "10000"}
"""Its authors' settings."""
_JOB = Path(__file__).with_name("theirs_job.py")


def dearer(method: str) -> float:
    """By what rho is divided so that the promise is about the replacement of a record."""
    return (1 - CHOICES[method]) * _GAUSSIAN + CHOICES[method] * _EXPONENTIAL


@dataclass(frozen=True)
class Others:
    """An interpreter with `mbi`, and the folder of the authors' aim.py and mst.py."""

    python: Path
    mechanisms: Path

    def made(
        self,
        method: str,
        relation: str,
        table: Table,
        settings: Sequence[str],
        *,
        epsilon: float,
        delta: float,
        seed: int,
        minutes: float | None,
    ) -> tuple[Records, dict[str, Any]]:
        """Records that the method makes up, from the same codes of columns, and what it says of its run.

        Raises:
            subprocess.TimeoutExpired: after the minutes.
        """
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "codes.npy", Path(folder) / "rows.npz"
            np.save(source, table.codes(table.private).numpy())
            job = {
                "method": method,
                "seed": seed,
                "epsilon": epsilon,
                "delta": delta,
                "divided_by": dearer(method) if relation == REPLACE else 1.0,
                "sizes": table.sizes,
                "source": str(source),
                "target": str(target),
                "mechanisms": str(self.mechanisms),
                "settings": AIM | dict(each.split("=") for each in settings) if method == "aim" else {},
            }
            command = [str(self.python), str(_JOB), json.dumps(job)]
            seconds = None if minutes is None else 60 * minutes
            subprocess.run(command, check=True, env=_environment(), timeout=seconds)
            with np.load(target) as found:
                rows, facts = torch.from_numpy(found["rows"]).to(torch.int64), json.loads(str(found["facts"]))
        nowhere = torch.zeros(len(rows), dtype=torch.int64)
        cells = cells_of_table(rows[:, :-1], rows[:, -1], nowhere, table.columns, table.coded, seed=seed)
        return records_of_table(cells, table.columns), {**facts, "commit": self._commit()}

    def _commit(self) -> str:
        command = ["git", "-C", str(self.mechanisms), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _environment() -> Mapping[str, str]:
    """One thread, and no path to fedsw."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return own | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
