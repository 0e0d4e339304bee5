"""A run's releasable numbers in Weights & Biases."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from fedsw.observers.values import flat, numbers_of, words_of

_NOTHING_ELSE = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Settings under which wandb sends nothing by itself: what the server prints may hold a client's words."""


class WandbObserver:
    """Logs a run to Weights & Biases: the plan as config, rounds at step = round, the summary and how the run ended.

    Only what observers are handed over is sent, all of it releasable: console output, source, machine and packages are
    switched off. wandb dates every step by itself, so a project shows when each round was released: that is for the
    run's operator, not for publication. A resumed run goes on in the wandb run that it had.

    Args:
        project: of wandb; else that of WANDB_PROJECT, else "fedsw".
        mode: "online", "offline" or "disabled"; else that of WANDB_MODE, else online.

    Raises:
        ModuleNotFoundError: naming the extra `wandb`.
    """

    def __init__(self, project: str | None = None, *, mode: str | None = None) -> None:
        try:
            import wandb
        except ModuleNotFoundError as fault:
            raise ModuleNotFoundError(
                "wandb is not installed; pip install 'fedsw[wandb]' brings it", name="wandb"
            ) from fault
        self._wandb = wandb
        self._project, self._mode = project or os.environ.get("WANDB_PROJECT") or "fedsw", mode
        self._run: Any = None

    def started(self, plan: dict[str, Any]) -> None:
        """Begin a wandb run, or go on with that of the same folder, with the plan as its config."""
        folder = str(Path(plan["directory"]).resolve())
        self._run = self._wandb.init(
            project=self._project,
            name=str(plan["name"]),
            id=hashlib.sha256(folder.encode()).hexdigest()[:16],
            resume="allow",
            mode=self._mode,
            config={name: value for name, value in flat(plan) if value is not None},
            settings=self._wandb.Settings(**_NOTHING_ELSE),
        )

    def round_done(self, record: dict[str, Any]) -> None:
        """Log a round's numbers at the step of that number."""
        self._run.log(numbers_of(record), step=int(record["round"]))

    def finished(self, summary: dict[str, Any]) -> None:
        """Keep the summary with the wandb run, and end it."""
        self._run.summary.update({**numbers_of(summary), **words_of(summary)})
        self._run.finish(exit_code=0)

    def broke_off(self, status: str) -> None:
        """End the wandb run as failed."""
        self._run.summary.update({"status": status})
        self._run.finish(exit_code=1)
