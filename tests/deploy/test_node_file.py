"""A node's configuration in a file: what is in it is what the node is started with, and nothing is passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedsw.cli.app import app, main
from fedsw.columns import read_columns
from fedsw.deploy import serving
from fedsw.deploy.bundle import bundle_hash
from fedsw.deploy.node_file import NodeFile, read_node_file
from fedsw.deploy.supernode import NodeSettings
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.node.limits import allowed_modules

CLIENTS = Path(__file__).resolve().parents[2] / "clients"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a client's operator: the two files of clients/, keys, and records where the file names them."""
    for name in ("node.toml", "columns.toml"):
        shutil.copy(CLIENTS / name, tmp_path / name)
    (tmp_path / "client").mkdir()
    for name in ("client/ca.crt", "client/node.key", "train.csv"):
        (tmp_path / name).touch()
    text = (tmp_path / "node.toml").read_text()
    assert '"/srv/records/train.csv"' in text
    (tmp_path / "node.toml").write_text(text.replace('"/srv/records/train.csv"', '"train.csv"'))
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NodeSettings, Path, bool]]:
    """What `fedsw client` would have kept connected."""
    calls: list[Any] = []
    monkeypatch.setattr(serving, "keep_connected", lambda node, home, *, stock, say: calls.append((node, home, stock)))
    return calls


def test_the_example_starts_the_node_that_it_describes(place, started, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["client", "--config", str(place / "node.toml")]) == 0
    ((node, home, stock),) = started
    assert (node.superlink, node.key, stock) == ("fed.example.org:9092", place / "client" / "node.key", False)
    assert home == place / "state" / "flower"
    assert node.node_config == {
        "partition-id": 0,
        "num-partitions": 2,
        "own-data": 1,
        "data-path": str(place / "train.csv"),
        "schema": str(place / "columns.toml"),
        "state-dir": str(place / "state"),
        "trust": "local-gradient,local-slices",
        "max-epsilon": "3.0",
        "bundle": bundle_hash(),
        "modules": "",
    }


def test_the_command_line_comes_before_the_file(place, started):
    options = ["--partition-id", "1", "--max-epsilon", "0.5", "--bundle", "a" * 64, "--stock"]
    modules = ["--allow-module", "hospital.models", "--allow-module", "hospital"]
    assert main(["client", "--config", str(place / "node.toml"), *options, *modules]) == 0
    ((node, _, stock),) = started
    assert stock and (node.client, node.clients, node.max_epsilon, node.bundle) == (1, 2, 0.5, "a" * 64)
    assert node.node_config["modules"] == "hospital.models,hospital"


def test_a_node_of_several_clients_says_how_many_there_are(place, started):
    assert main(["client", "--config", str(place / "node.toml"), "--num-clients", "10"]) == 0
    ((node, _, _),) = started
    assert node.node_config["num-clients"] == 10
    assert main(["client", "--config", str(place / "node.toml"), "--num-clients", "1"]) != 0


def test_every_option_of_the_command_is_a_key_of_the_file():
    command = get_command(app).commands["client"]  # type: ignore[attr-defined]
    options = {option.removeprefix("--") for parameter in command.params for option in parameter.opts}
    keys = {field.alias or name.replace("_", "-") for name, field in NodeFile.model_fields.items()}
    assert keys == (options - {"config", "help", "allow-module"}) | {"modules"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("max-epsilom = 3.0", "max-epsilom"),
        ("max-epsilon = 'three'", "max-epsilon"),
        ("partition-id = -1", "greater than or equal to 0"),
        ("trust = 'local-gradient'", "trust"),
        ("stock = 1", "stock"),
        ("partition-id = ", "not valid TOML"),
    ],
)
def test_a_fault_in_the_file_is_named_with_the_file_and_nothing_is_started(tmp_path, started, line, reason):
    (tmp_path / "node.toml").write_text(line, encoding="utf-8")
    with pytest.raises(ExperimentError, match=rf"{tmp_path / 'node.toml'}.*{reason}"):
        read_node_file(tmp_path / "node.toml")
    assert main(["client", "--config", str(tmp_path / "node.toml")]) == 2 and not started


def test_a_file_that_is_not_there_and_a_setting_that_is_nowhere_are_named(tmp_path, started, capsys):
    with pytest.raises(ExperimentError, match="cannot be read: No such file"):
        read_node_file(tmp_path / "node.toml")
    (tmp_path / "node.toml").write_text("certs = 'client'", encoding="utf-8")
    assert main(["client", "--config", str(tmp_path / "node.toml")]) == 2 and not started
    assert "--superlink is missing" in capsys.readouterr().err


def test_the_columns_template_is_a_declaration_that_an_experiment_can_have():
    columns = read_columns(CLIENTS / "columns.toml")
    assert [feature.name for feature in columns.features] == ["age", "balance", "visits", "work"]
    declared = columns.model_dump(mode="json", exclude_defaults=True)
    raw = {"name": "own", "data": {"source": "files", "columns": declared}}
    assert parse_experiment(raw).data.columns == columns


def test_any_module_is_for_nodes_of_who_wrote_the_experiment_and_not_for_an_operator_to_say(place, started):
    assert main(["client", "--config", str(place / "node.toml"), "--allow-module", "*"]) == 2 and not started
    files = {"authority": place / "client" / "ca.crt", "key": place / "client" / "node.key"}
    local = NodeSettings(superlink="127.0.0.1:1", client=0, clients=1, data_dir=place, modules=None, **files)
    assert allowed_modules(local.node_config) is None
    assert allowed_modules(NodeSettings("127.0.0.1:1", client=0, clients=1, **files).node_config) == frozenset()
