"""The command or call that resumes a stopped run, by the run's engine."""

from __future__ import annotations

import json
from pathlib import Path

from fedsw.experiment.held import is_held
from fedsw.runs.files import CONFIG, found_json

SERVED = "served"
"""Clients on other machines, through a SuperLink that `fedsw server` keeps for this run."""
SERVICE = "service"
"""Clients on other machines, submitted with `flwr run` to a server that goes on serving."""
ELSEWHERE = (SERVED, SERVICE)


def command_for(directory: Path) -> str:
    """The command or call that resumes the run of a folder; its operator replaces the words in capitals."""
    engine, source = _stored(directory)
    if is_held(source):
        return f"fedsw.engines.driver.resume(Path({str(directory)!r}), data=...)"
    if engine == SERVED:
        return f"fedsw server --certs DIR --resume {directory}"
    if engine == SERVICE:
        config = f"directory={json.dumps(str(directory.resolve()), ensure_ascii=False)} resume=true"
        return f"FLWR_HOME=HOME flwr run APP fedsw --stream --run-config '{config}'"
    return f"fedsw resume {directory}"


def _stored(directory: Path) -> tuple[str, str]:
    """Engine and data source by its config.json; empty if that cannot be read: resuming then explains the fault."""
    try:
        config = found_json(directory / CONFIG)
        return str(config["engine"]), str(config["experiment"]["data"]["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""
