"""Flower's semi-public names that the engines use: an upgrade that moves one fails here first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def test_every_semi_public_name_is_where_the_engines_look_for_it():
    from flwr.simulation.run_simulation import _run_simulation  # noqa: F401
    from flwr.supercore.telemetry import EventType

    from fedsw.federation.engines import inprocess

    assert hasattr(EventType, "PYTHON_API_RUN_SIMULATION_LEAVE")
    run = inprocess.Run.create_empty(run_id=5)
    assert run.run_id == 5
    inprocess.identify(5)
    message = inprocess.Message(inprocess.RecordDict({}), 7, "train.x", ttl=1.0)
    inprocess.number(message, "42")
    assert message.metadata.message_id == "42" and message.metadata.run_id == 5
    assert inprocess.delivered(message).metadata is message.metadata


def test_clients_of_the_simulation_engine_are_known_by_their_grid():
    from importlib import import_module

    from fedsw.federation.server import app

    assert import_module("flwr.simulation.run_simulation").InMemoryGrid.__name__ == app._SIMULATION


@pytest.mark.parametrize(
    "name",
    ["FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"],
)
def test_flower_is_set_not_to_phone_home(name):
    from fedsw.federation import OFFLINE

    assert os.environ[name] == OFFLINE[name]


def test_semi_public_names_are_used_in_one_module_the_builder_of_bundles_and_the_optional_warm_ones_only():
    root = Path(__file__).resolve().parents[3]
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    private = {
        "fedsw/federation/engines/inprocess.py": None,
        "fedsw/federation/deploy/bundle.py": public | {"flwr.cli.build"},
    }
    looked = 0
    for folder in ("clients", "server", "fedsw"):
        for path in (root / folder).rglob("*.py"):
            name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            allowed = private.get(name, public)
            if allowed is None or name.startswith("fedsw/federation/deploy/"):
                continue
            assert '_message_id"]' not in text and "TaskIdentity" not in text, path
            for line in text.splitlines():
                words = line.split()
                if words[:1] in (["from"], ["import"]) and words[1].split(".")[0] == "flwr":
                    looked += 1
                    assert words[1] in allowed, f"{path}: {line}"
    assert looked > 5
