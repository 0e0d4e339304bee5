"""The commands that go on with a run, by the engine and the data that its folder names."""

from __future__ import annotations

import json
from pathlib import Path

from fedsw._tools.own_objects import is_held
from fedsw.runs.run_files import RunFile, found_json

SERVED = "served"
"""Clients on other machines, through a SuperLink that `fedsw server` keeps for this run."""
SERVICE = "service"
"""Clients on other machines, submitted with `flwr run` to a server that goes on serving."""
ELSEWHERE = (SERVED, SERVICE)


def command_for(directory: Path) -> str:
    """The command or call that resumes the run of a folder; its operator replaces the words in capitals."""
    engine, source = _stored(directory)
    if is_held(source):
        return f"fedsw.resume(Path({str(directory)!r}), data=...)"
    if engine == SERVED:
        return f"fedsw server --certs DIR --resume {directory}"
    if engine == SERVICE:
        config = f"directory={json.dumps(str(directory.resolve()), ensure_ascii=False)} resume=true"
        return f"FLWR_HOME=HOME flwr run APP fedsw --stream --run-config '{config}'"
    return f"fedsw resume {directory}"


def command_to_charge(directory: Path) -> str:
    """The command for a folder that is older than what its run's clients answered, which is then charged."""
    return _command_with(directory, "charge-lost")


def command_to_go_on(directory: Path) -> str:
    """The command for a folder with a checkpoint that lacks released rounds: these are then released again."""
    return _command_with(directory, "go-on")


def _command_with(directory: Path, option: str) -> str:
    engine, source = _stored(directory)
    if is_held(source):
        return f"{command_for(directory).removesuffix(')')}, {option.replace('-', '_')}=True)"
    if engine == SERVICE:
        return f"fedsw resume {directory} --{option}"
    return f"{command_for(directory)} --{option}"


def _stored(directory: Path) -> tuple[str, str]:
    """Engine and data source by its config.json; empty if that cannot be read: resuming then explains the fault."""
    try:
        config = found_json(directory / RunFile.CONFIG)
        return str(config["engine"]), str(config["experiment"]["data"]["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""
