"""A node's configuration in a file: what is in it is what the node is started with, and nothing is passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedsw.cli.app import app, main
from fedsw.data.columns.declaration import read_columns
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.load import SHIPPED
from fedsw.federation.deploy import serving
from fedsw.federation.deploy.bundle import bundle_hash
from fedsw.federation.deploy.certificates import ServerCertificates, read_signing_key, write_signing_key
from fedsw.federation.deploy.node_settings import OPTIONS, NodeSettings, read_node_file
from fedsw.federation.node.limits import allowed_modules, choice_of, room_of
from fedsw.federation.node.simulated import ONE_PERSON

CLIENTS = Path(__file__).resolve().parents[3] / "clients"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a client's operator: node file, columns, keys, and records where the file names them."""
    for path in (SHIPPED / "node.toml", CLIENTS / "columns.toml"):
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "client").mkdir()
    for name in ("client/ca.crt", "client/node.key", "train.csv"):
        (tmp_path / name).touch()
    write_signing_key(ServerCertificates.of(tmp_path / "client"))
    text = (tmp_path / "node.toml").read_text()
    assert '"/srv/records/train.csv"' in text
    (tmp_path / "node.toml").write_text(text.replace('"/srv/records/train.csv"', '"train.csv"'))
    return tmp_path


def test_a_client_without_the_server_s_key_does_not_start(place: Path, started: Any, capsys: Any) -> None:
    """Without it, whoever the network lets through could ask in the server's name."""
    (place / "client" / "signing.pub").unlink()
    assert main(["client", "--config", str(place / "node.toml")]) == 2 and not started
    assert "signing.pub" in (said := capsys.readouterr().err) and "`fedsw certs`" in said


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
        "accounts": str(place / "state" / "accounts"),
        "trust": "local-gradient,local-slices",
        "max-epsilon": "3.0",
        "bundle": bundle_hash(),
        "modules": "",
        "server-key": read_signing_key(place / "client" / "signing.pub"),
    }


def test_init_writes_the_shipped_file_once_and_never_over_another(place, started, monkeypatch, capsys):
    assert main(["client", "--init", "-o", str(place / "new.toml")]) == 0 and not started
    assert (place / "new.toml").read_bytes() == (SHIPPED / "node.toml").read_bytes()
    assert (place / "new.toml").stat().st_mode & 0o777 == 0o600, "whatever the umask: it says where records are"
    assert f"fedsw client --config {place / 'new.toml'}" in capsys.readouterr().out
    (place / "new.toml").write_text("# mine\n")
    assert main(["client", "--init", "-o", str(place / "new.toml")]) != 0
    assert (place / "new.toml").read_text() == "# mine\n" and "is there already" in capsys.readouterr().err
    monkeypatch.chdir(place / "client")
    assert main(["client", "--init"]) == 0 and (place / "client" / "node.toml").is_file()


CHOICES = [("--trust", "any"), ("--trust", "central,sketch"), ("--max-epsilon", "2")]


def test_a_client_starts_only_when_its_operator_has_chosen(place, started, capsys):
    """Neither on the command line nor in its file: the command says so, and what to run, and nothing is started."""
    text = (place / "node.toml").read_text()
    chosen = [line for line in text.splitlines() if not line.startswith(("trust =", "max-epsilon ="))]
    (place / "node.toml").write_text("\n".join(chosen))
    certs = ["--superlink", "a:1", "--certs", str(place / "client"), "--partition-id", "0", "--num-partitions", "2"]
    for arguments in (["--config", str(place / "node.toml")], certs, []):
        assert main(["client", *arguments]) == 2 and not started
        said = capsys.readouterr().err
        assert "says what it takes part in before it starts; `fedsw client --init`" in said and "--trust any" in said
    for beginning in (["--config", str(place / "node.toml")], [*certs, "--state-dir", str(place / "state")]):
        for choice in CHOICES:
            assert main(["client", *beginning, *choice]) == 0
    assert len(started) == 2 * len(CHOICES)


def test_whatever_the_server_asks_is_a_choice_in_words(place, started, capsys):
    text = (place / "node.toml").read_text().replace("max-epsilon = 3.0", "max-memory = 1.5\nmax-seconds = 60")
    (place / "node.toml").write_text(text.replace('trust = ["local-gradient", "local-slices"]', 'trust = "any"'))
    assert main(["client", "--config", str(place / "node.toml")]) == 0
    ((node, _, _),) = started
    assert node.node_config["trust"] == "any" and room_of(node.node_config) == (1.5 * 2**30, 60.0)
    assert "this client takes part in whatever the server asks (trust any)" in capsys.readouterr().err
    files = {"authority": node.authority, "key": node.key, "own_data": True}
    with pytest.raises(ValueError, match="has not said what it takes part in"):
        NodeSettings("a:1", client=0, clients=1, **files)
    with pytest.raises(ValueError, match="max-memory is 0; it must be positive"):
        NodeSettings("a:1", client=0, clients=1, trust="any", max_memory=0.0, **files)
    with pytest.raises(ValueError, match="names 'any'"):
        NodeSettings("a:1", client=0, clients=1, trust="any,central", **files)


def test_what_was_chosen_stands_in_words():
    assert choice_of({"trust": "any"}) == "whatever the server asks (trust any)"
    assert choice_of({"trust": "any", "max-epsilon": "2"}) == "up to a guaranteed epsilon of 2"
    both = {"trust": "central, sketch", "max-epsilon": "2"}
    assert choice_of(both) == "trust central, sketch up to a guaranteed epsilon of 2"


def test_the_command_line_comes_before_the_file(place, started):
    options = ["--partition-id", "1", "--max-epsilon", "0.5", "--bundle", "a" * 64, "--stock"]
    modules = ["--allow-module", "hospital.models", "--allow-module", "hospital"]
    assert main(["client", "--config", str(place / "node.toml"), *options, *modules]) == 0
    ((node, _, stock),) = started
    assert stock and (node.client, node.clients, node.max_epsilon, node.bundle) == (1, 2, 0.5, "a" * 64)
    assert node.node_config["modules"] == "hospital.models,hospital"


def test_the_operator_names_the_account_and_never_the_server(place, started, capsys):
    assert main(["client", "--config", str(place / "node.toml"), "--account", "*"]) == 2
    assert "account is '*', which takes the data set's name from each experiment" in capsys.readouterr().err
    assert main(["client", "--config", str(place / "node.toml"), "--account", "a/b"]) == 2 and not started
    assert main(["client", "--config", str(place / "node.toml"), "--account", "patients"]) == 0
    ((node, _, _),) = started
    assert node.node_config["account"] == "patients"


def test_a_node_of_several_clients_says_how_many_there_are(place, started):
    assert main(["client", "--config", str(place / "node.toml"), "--num-clients", "10"]) == 0
    ((node, _, _),) = started
    assert node.node_config["num-clients"] == 10
    assert main(["client", "--config", str(place / "node.toml"), "--num-clients", "1"]) != 0


def test_every_option_of_the_command_is_a_key_of_the_file():
    command = get_command(app).commands["client"]  # type: ignore[attr-defined]
    options = {option.removeprefix("--") for parameter in command.params for option in parameter.opts}
    assert set(OPTIONS) == (options - {"check", "config", "help", "allow-module", "init", "output", "-o"}) | {"modules"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("max-epsilom = 3.0", "max-epsilom.*nearest known: 'max-epsilon'"),
        ("max-epsilon = 'three'", "max-epsilon"),
        ("partition-id = -1", "greater than or equal to 0"),
        ("trust = 'local-gradient'", "trust"),
        ("modules = 'any'", "modules"),
        ("max-memory = 'half'", "max-memory"),
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
    (tmp_path / "node.toml").write_text("certs = 'client'\ntrust = 'any'", encoding="utf-8")
    assert main(["client", "--config", str(tmp_path / "node.toml")]) == 2 and not started
    assert "--superlink is missing" in capsys.readouterr().err


def test_the_columns_template_is_a_declaration_that_an_experiment_can_have():
    columns = read_columns(CLIENTS / "columns.toml")
    assert [feature.name for feature in columns.features] == ["age", "balance", "visits", "work"]
    declared = columns.model_dump(mode="json", exclude_defaults=True)
    raw = {"name": "own", "data": {"source": "files", "columns": declared}}
    assert parse_experiment(raw).data.columns == columns


def test_any_module_is_for_nodes_of_who_wrote_the_experiment_and_not_for_an_operator_to_say(
    place, started, monkeypatch
):
    monkeypatch.setenv(ONE_PERSON, "1")
    assert main(["client", "--config", str(place / "node.toml"), "--allow-module", "*"]) == 2 and not started
    files = {"authority": place / "client" / "ca.crt", "key": place / "client" / "node.key"}
    local = NodeSettings(superlink="127.0.0.1:1", client=0, clients=1, data_dir=place, modules=None, **files)
    assert allowed_modules(local.node_config) is None
    assert allowed_modules(NodeSettings("127.0.0.1:1", client=0, clients=1, **files).node_config) == frozenset()
