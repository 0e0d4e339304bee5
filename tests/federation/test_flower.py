"""Flower's insides that fedsw stands on are in one file: an upgrade that moves a name fails here first."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from fedsw.federation import flower
from tests.syntax import nodes

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(flower.__file__).resolve()
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
NAMES = [*flower.MODULES, *flower.MODULE_OF]
FIELDS = {field for part in flower.PARTS for field in part.fields}
OURS = {"_error", "_data", "_content"}
"""Fields that objects of fedsw have, too: those of Flower's are reached by `vars(...)` and `__dict__`."""
SOURCES = sorted(path.resolve() for folder in ("clients", "server", "fedsw") for path in (ROOT / folder).rglob("*.py"))


@cache
def all_sources() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_where_it_is_looked_for_and_is_used(name: str) -> None:
    assert getattr(flower, name) is not None
    use = re.compile(rf"\b(_names|flower|_?FLOWER)\.{name}\b")
    assert use.search(all_sources()), f"nothing uses {name}: leave it out"


def test_a_name_is_in_the_table_once_with_what_would_replace_it_and_another_one_is_refused() -> None:
    rows = [
        *(name for part in flower.PARTS for names in part.names.values() for name in names),
        *(name for part in flower.PARTS for name in (*part.modules, *part.fields)),
    ]
    assert len(rows) == len(set(rows)) and not set(flower.MODULE_OF.values()) & PUBLIC
    assert all(part.use and part.instead for part in flower.PARTS)
    assert len({part.instead for part in flower.PARTS}) == len(flower.PARTS)
    with pytest.raises(AttributeError, match="does not use 'Simulation' of Flower; add it to PARTS"):
        _ = flower.Simulation


def looked_up(tree: Iterable[ast.AST]) -> Iterator[str]:
    """Attributes that a file asks of the table, and hidden ones that it asks of any other object."""
    for node in tree:
        of = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        if of in ("_names", "flower", "FLOWER", "_FLOWER"):
            yield node.attr
        hidden = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else ""
        if isinstance(hidden, str) and re.fullmatch(r"_[a-z]\w*", hidden):
            yield hidden


def test_every_name_that_is_asked_for_has_its_row() -> None:
    """The table is looked up by attribute, so that nothing else notices a name without a row before it is used."""
    using = [path for path in SOURCES if path != HERE and re.search(r"\b_?FLOWER\b|import flower\b", path.read_text())]
    assert len(using) > 5
    asked = {name for path in using for name in looked_up(nodes(path)) if not name.startswith("_")}
    asked |= set(looked_up(nodes(HERE)))
    assert asked - set(NAMES) - FIELDS - set(vars(flower)) == set()
    assert FIELDS - asked == {"InMemoryGrid"}


def test_what_is_replaced_is_there() -> None:
    assert callable(flower.superlink_program._get_superexec_command) and callable(flower.extensions.get_middleware)
    assert callable(flower.fleet_handlers.push_messages) and callable(flower.fleet_handlers.activate_node)
    client = flower.node_requests.FleetHttpClient
    assert callable(client.ActivateNode) and callable(client.SendNodeHeartbeat) and callable(client.__enter__)
    assert flower.heartbeat.HEARTBEAT_DEFAULT_INTERVAL == flower.node_requests.HEARTBEAT_DEFAULT_INTERVAL
    assert (
        flower.subprocess_executor.subprocess.Popen and flower.HttpGrid.push_messages and flower.HttpGrid.pull_messages
    )
    assert {"server_app", "client_app", "num_supernodes", "backend_config"} <= set(
        inspect.signature(flower.run_simulation).parameters
    )


def test_hidden_fields_are_those_that_flower_reads() -> None:
    from flwr.app import ConfigRecord, Error, Message, RecordDict

    from fedsw.federation.engines import inprocess

    inprocess.identify(5)
    message = Message(RecordDict({"config": ConfigRecord({"x": 1})}), 7, "train.x", ttl=1.0)
    flower.number(message, "42")
    assert message.metadata.message_id == "42" and message.metadata.run_id == 5
    assert inprocess.delivered(message).metadata is message.metadata
    twin = flower.copied(message)
    twin.content["config"]["x"] = 2
    assert message.content["config"]["x"] == 1 and flower.records_in(message.content) is not flower.records_in(
        twin.content
    )
    flower.put_records(message.content, {"other": ConfigRecord({})})
    assert list(message.content) == ["other"] and flower.error_of(message) is None
    assert flower.error_of(Message(Error(2, "why"), reply_to=message)).reason == "why"


def test_clients_of_the_simulation_engine_are_known_by_their_grid() -> None:
    assert import_module("flwr.simulation.run_simulation").InMemoryGrid.__name__ == flower.SIMULATED


@pytest.mark.parametrize(
    "name",
    ["FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"],
)
def test_flower_is_set_not_to_phone_home(name: str) -> None:
    from fedsw.federation import OFFLINE

    assert os.environ[name] == OFFLINE[name]


def insides(tree: Iterable[ast.AST]) -> Iterator[str]:
    """What a file touches that is not public in Flower."""
    for node in tree:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "flwr")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr" and not node.level:
            yield from () if node.module in PUBLIC else (str(node.module),)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module = re.fullmatch(r"flwr(\.\w+)+", node.value) is not None and node.value not in PUBLIC
            yield from (node.value,) if module or node.value in FIELDS else ()
        elif isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            yield from (name,) if name in FIELDS - OURS | {"TaskIdentity"} else ()


@pytest.mark.parametrize(
    "source",
    [
        "import flwr",
        "import flwr.supercore.run as run",
        "def f():\n    from flwr.common.constant import ErrorCode",
        "from flwr import app",
        "x = importlib.import_module('flwr.supercore.heartbeat')",
        "vars(content)['_data']",
        "message.metadata.__dict__['_message_id'] = '1'",
        "grid._runtime_client",
        "TaskIdentity.run_id = 1",
    ],
)
def test_insides_are_seen_however_they_are_reached(source: str) -> None:
    assert list(insides(ast.walk(ast.parse(source))))


def test_no_other_file_touches_what_is_not_public_in_flower() -> None:
    assert HERE in SOURCES and len(SOURCES) > 100
    assert list(insides(nodes(HERE)))
    touched = {
        path.relative_to(ROOT).as_posix(): names
        for path in SOURCES
        if path != HERE and (names := sorted(set(insides(nodes(path)))))
    }
    assert touched == {}
    public = [path for path in SOURCES if re.search(r"^\s*from flwr\.\w+ import", path.read_text(), re.MULTILINE)]
    assert len(public) > 10
