"""Whoever reads clients' files of one machine reads one table of each client, or refuses: nobody is left out unsaid."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.data import BadRecords
from fedsw.data.sources import require_one_client_each, visible_tables
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.federation.engines import Engine
from fedsw.federation.node.held_records import held_records
from fedsw.federation.server.settling import sizes_at_hand
from fedsw.learning.tasks.problem import Problem

OWN = """\
name = "own"
[data]
source = "files"
held_out = "held-out.csv"
[data.columns]
features = [{name = "age", low = 0, high = 100}]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "ill", values = ["no", "yes"]}
[objective]
task = "classification"
[privacy]
epsilon = 3.0
delta = 1e-6
"""
ALL_AT_ONCE = {"partition-id": 0, "num-partitions": 1}
VERBS = {
    "check": ("check", "own.toml", "--no-estimate"),
    "run": ("run", "own.toml"),
    "deploy local": ("deploy", "local", "own.toml"),
    "plan": ("plan", "own.toml"),
    "compare": ("compare", "own.toml", "--seeds", "1"),
    "tune": ("tune", "own.toml", "--most", "1"),
    "tune on records": ("tune", "own.toml", "--try", "objective.alpha=0.1,0.2", "--on-records"),
    "describe": ("describe", "own.toml", "--epsilon", "1"),
    "synthesize": ("synthesize", "own.toml", "--epsilon", "1"),
}


@pytest.fixture
def four(tmp_path, monkeypatch) -> Path:
    """An experiment beside four folders of 40 different records each."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "DATA"
    for client in range(4):
        rows = [f"{20 + client * 10 + row % 30},{'fm'[row % 2]},{('no', 'yes')[row // 3 % 2]}" for row in range(40)]
        (folder / str(client)).mkdir(parents=True)
        (folder / str(client) / "records.csv").write_text("\n".join(["age,sex,ill", *rows, ""]))
    Path("held-out.csv").write_text("age,sex,ill\n91,f,no\n92,m,yes\n93,f,yes\n94,m,no\n")
    Path("own.toml").write_text(OWN)
    return folder


def own(folder: Path, clients: int):
    return load_experiment("own.toml", (f'data.data_dir="{folder}"', f"federation.clients={clients}"))


@pytest.mark.parametrize("clients", [1, 3, 5])
@pytest.mark.parametrize(
    "read",
    [
        lambda experiment: visible_tables(experiment.data, experiment.federation.clients),
        lambda experiment: require_one_client_each(experiment.data, experiment.federation.clients),
        sizes_at_hand,
        lambda experiment: held_records(Problem.from_experiment(experiment), ALL_AT_ONCE),
        *(
            pytest.param(lambda experiment, engine=engine: fedsw.run(experiment, engine=engine), id=engine)
            for engine in Engine.__args__
        ),
    ],
)
def test_more_or_fewer_folders_than_clients_are_refused_by_whatever_reads_them(four, clients, read):
    with pytest.raises(ExperimentError, match=rf"has {clients} clients?, and .* has folders for 4 \(0 to 3\).*= 4"):
        read(own(four, clients))
    assert not Path("runs").exists(), "no run is begun"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_four_folders_of_three_clients(four, verb, capsys):
    assert main([*VERBS[verb], "--data-dir", str(four), "--set", "federation.clients=3"]) != 0
    said = capsys.readouterr()
    assert "folders for 4" in " ".join((said.out + said.err).split())
    assert not list(Path().rglob("ledger.sqlite")), "nothing was charged"


def test_a_table_of_all_clients_beside_their_own_is_refused_and_alone_is_split(four):
    shutil.copy(four / "0" / "records.csv", four / "train.csv")
    with pytest.raises(BadRecords, match=r"train.csv, for all clients together, and .*records.csv of client 0"):
        visible_tables(own(four, 4).data, 4)
    for client in range(4):
        shutil.rmtree(four / str(client))
    assert visible_tables(own(four, 3).data, 3) == [four / "train.csv"]
    assert sum(sizes_at_hand(own(four, 3)).values()) == 40


def test_a_run_in_python_that_is_not_told_where_files_are_says_how_to(four):
    with pytest.raises(ExperimentError, match="own learns from clients' own files, and nothing says where.*data_dir"):
        fedsw.run(load_experiment("own.toml"))
