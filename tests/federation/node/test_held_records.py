"""Laws of records that a client brings: from its own path, checked before anything leaves, with its own schema."""

from __future__ import annotations

import csv
import logging
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw._tools.settings import FederationError
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid
from fedsw.federation.node import held_records as partition
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import held_records, require_agreement
from fedsw.federation.node.replies import join
from fedsw.federation.server.federation import Job, federate
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.directory import RunDirectory
from tests.federations import Saboteur

YOUNG, OLD = (0, 50), (50, 101)
COLUMNS = {
    "features": [{"name": "age", "low": 0, "high": 100}, {"name": "work", "categories": ["private", "public"]}],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "target": {"name": "income", "values": ["low", "high"]},
}
SCHEMA = """
features = [{name = "age", low = 0, high = 100}, {name = "work", categories = ["private", "public"]}]
[sensitive]
name = "sex"
values = ["female", "male"]
[target]
name = "income"
values = ["low", "high"]
"""


def write(
    path: Path, rows: int = 60, *, seed: int = 0, spoiled: str | None = None, ages: tuple[int, int] = (0, 101)
) -> Path:
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "work", "sex", "income"])
        for row in range(rows):
            age = spoiled if spoiled is not None and row == 7 else rng.integers(*ages)
            work, sex = ("private", "public")[row % 2], ("female", "male")[row // 2 % 2]
            income = ("low", "high")[row % 2]
            writer.writerow([age, work, sex, income])
    return path


def own(*overrides: str, **data) -> Experiment:
    raw = {
        "name": "own",
        "data": {"source": "files", "columns": COLUMNS, **data},
        "training": {"rounds": 2, "batch_fraction": 0.25},
        "privacy": {"noise_multiplier": 2.0, "delta": 1e-5},
        "federation": {"clients": 2, "timeout": 20.0},
    }
    return parse_experiment(raw, overrides)


def run(folder: Path, experiment: Experiment, configs: list[dict]) -> dict:
    nodes = [
        {"partition-id": i, "num-partitions": len(configs), "state-dir": str(folder / "clients"), **config}
        for i, config in enumerate(configs)
    ]
    grid = InProcessGrid(client_app, nodes)
    try:
        return federate(grid, Job(experiment, folder / "run"))
    finally:
        grid.close()


def records(experiment: Experiment, part: int = 0, parts: int = 2, **config):
    return held_records(
        Problem.from_experiment(experiment), {"partition-id": part, "num-partitions": parts, **config}
    ).records


def test_the_server_needs_nothing_but_the_declaration(tmp_path):
    """Two nodes with folders of their own; no path is in the experiment, and no metric is made up."""
    configs = [{"data-dir": str(write(tmp_path / f"node{i}" / "train.csv", seed=i).parent)} for i in range(2)]
    summary = run(tmp_path, own(), configs)
    assert (summary["status"], summary["released_rounds"], summary["held_out"]) == ("completed", 2, {})
    assert summary["measured_on"].startswith("nothing: clients bring their own records")
    assert not (tmp_path / "run" / "outputs.npz").exists()


def test_held_out_metrics_come_from_the_servers_own_file(tmp_path):
    write(tmp_path / "all" / "train.csv", ages=YOUNG)
    held = write(tmp_path / "held-out.csv", 40, seed=9, ages=OLD)
    summary = run(tmp_path, own(data_dir=str(tmp_path / "all"), held_out=str(held)), [{}, {}])
    assert 0 <= summary["held_out"]["accuracy"] <= 1 and str(held) in summary["measured_on"]
    write(held, spoiled="101")
    with pytest.raises(ValueError, match=r"held-out\.csv: row 9 \(the header is row 1\), column 'age' is '101'"):
        run(tmp_path / "again", own(data_dir=str(tmp_path / "all"), held_out=str(held)), [{}, {}])
    assert not (tmp_path / "again" / "run" / "ledger.sqlite").exists()


def linked(private: Path, path: Path) -> None:
    path.symlink_to(private)


def copied(private: Path, path: Path) -> None:
    path.write_bytes(private.read_bytes())


def mixed(private: Path, path: Path) -> None:
    """Three private rows, in another order and with a column that nobody declared, behind twenty others."""
    lines = write(path, 20, seed=4, ages=OLD).read_text().splitlines()
    lines += private.read_text().splitlines()[5:2:-1]
    path.write_text("\n".join(f"{line},{place}" for place, line in enumerate(lines)).replace(",0\n", ",note\n", 1))


SEEN = {
    "the private file itself": (lambda private, path: os.link(private, path), "is the private file .*, or a copy"),
    "a link to the private file": (linked, "is the private file"),
    "a copy of the private file": (copied, "is the private file .*, or a copy of it.*other records"),
    "rows of the private file": (mixed, "3 of its 23 rows are also in the private records.*'allow'"),
}


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("each", [False, True])
def test_a_held_out_file_that_holds_private_records_is_refused_before_anything_is_spent(tmp_path, name, each):
    make, words = SEEN[name]
    folders = [tmp_path / "all" / str(client) for client in range(2)] if each else [tmp_path / "all"]
    tables = [write(folder / "train.csv", 60, seed=seed, ages=YOUNG) for seed, folder in enumerate(folders)]
    held = tmp_path / "held-out.csv"
    make(tables[-1], held)
    with pytest.raises(ExperimentError, match=rf"(?s)held-out\.csv.*{words}"):
        run(tmp_path, own(data_dir=str(tmp_path / "all"), held_out=str(held)), [{}, {}])
    assert not list(tmp_path.rglob("*.sqlite"))


def test_rows_in_common_may_be_allowed_and_the_record_then_promises_its_reader_nothing(tmp_path):
    table = write(tmp_path / "all" / "train.csv", ages=YOUNG)
    mixed(table, held := tmp_path / "held-out.csv")
    asked = {"data_dir": str(table.parent), "held_out": str(held)}
    summary = run(tmp_path, own(**asked, held_out_overlap="allow"), [{}, {}])
    assert summary["status"] == "completed" and summary["epsilon"] < math.inf == summary["epsilon_of_reader"]
    assert "for the models alone" in summary["guarantee"]["statement"]
    assert "for a reader of this record epsilon = infinity" in summary["guarantee"]["statement"]
    assert "may share rows with private records" in summary["measured_on"]
    for allowed in ("refuse", "allow"):
        with pytest.raises(ExperimentError, match="is the private file"):
            run(tmp_path / allowed, own(**{**asked, "held_out": str(table)}, held_out_overlap=allowed), [{}, {}])
    with pytest.raises(ExperimentError, match=r"held_out_overlap is about the file of data\.held_out"):
        own(held_out_overlap="allow")


def test_equal_rows_of_other_people_keep_the_guarantee_and_the_record_says_whose_word_it_is(tmp_path):
    table = write(tmp_path / "all" / "train.csv", ages=YOUNG)
    mixed(table, held := tmp_path / "held-out.csv")
    asked = {"data_dir": str(table.parent), "held_out": str(held), "held_out_overlap": "other-people"}
    summary = run(tmp_path, own(**asked), [{}, {}])
    assert summary["epsilon"] == summary["epsilon_of_reader"] < math.inf
    word = "of other people is the word of whoever ran this"
    assert word in summary["guarantee"]["statement"] and word in summary["measured_on"]
    with pytest.raises(ExperimentError, match="is the private file"):
        run(tmp_path / "file", own(**{**asked, "held_out": str(table)}), [{}, {}])


def test_rows_that_nobody_shares_are_no_reason_to_promise_less(tmp_path):
    table = write(tmp_path / "all" / "train.csv", ages=YOUNG)
    held = write(tmp_path / "held-out.csv", 40, ages=OLD)
    summary = run(tmp_path, own(data_dir=str(table.parent), held_out=str(held)), [{}, {}])
    assert summary["epsilon_of_reader"] == summary["epsilon"] < math.inf


def test_a_node_refuses_that_its_own_file_is_measured_on_and_opens_no_file_of_the_servers(tmp_path, monkeypatch):
    mine = write(tmp_path / "mine" / "train.csv", 10, seed=2)
    (tmp_path / "link.csv").symlink_to(mine)
    other = write(tmp_path / "server.csv", 10, seed=2)
    for config in ({"data-dir": str(mine.parent)}, {"data-path": str(mine)}):
        with pytest.raises(ExperimentError, match=r"link\.csv is client 0's own file"):
            records(own(held_out=str(tmp_path / "link.csv")), **config)
    opened, read = [], partition.read_table

    def watched(path, *rest, **more):
        opened.append(path)
        return read(path, *rest, **more)

    monkeypatch.setattr(partition, "read_table", watched)
    records(own(held_out=str(other)), **{"data-path": str(mine)})  # a copy of its file, which is not for a node to tell
    assert opened == [mine]


def test_a_node_with_a_path_of_its_own_reads_nothing_else(tmp_path):
    """The experiment, which the server writes, cannot point such a node elsewhere."""
    experiment = own(data_dir=str(write(tmp_path / "servers" / "train.csv", 60, seed=1).parent))
    mine = write(tmp_path / "mine" / "train.csv", 10, seed=2)
    exact = write(tmp_path / "mine" / "other.csv", 12, seed=3)
    assert len(records(experiment, **{"data-dir": str(mine.parent)})) == 10
    assert len(records(experiment, **{"data-dir": "/nowhere", "data-path": str(exact)})) == 12
    for config in ({"data-dir": str(mine.parent)}, {"data-path": str(mine)}):
        ids = [records(experiment, part, 3, **config).ids for part in range(3)]
        assert len(set(torch.cat(ids).tolist())) == 30  # no two clients' records share an id
    with pytest.raises(FileNotFoundError, match="no folder /nowhere"):
        records(experiment, **{"data-dir": "/nowhere"})


def test_a_simulation_splits_one_file_or_gives_every_client_its_folder(tmp_path):
    table = write(tmp_path / "one" / "train.csv", 61)
    parts = [records(own("federation.clients=3", data_dir=str(table.parent)), part, 3) for part in range(3)]
    ids = torch.cat([part.ids for part in parts])
    assert sorted(ids.tolist()) == list(range(61)) and all(len(part) in (20, 21) for part in parts)

    for client, rows in enumerate((5, 8)):
        write(tmp_path / "each" / str(client) / "train.csv", rows)
    separate = [records(own(data_dir=str(tmp_path / "each")), part) for part in range(2)]
    assert [len(part) for part in separate] == [5, 8]
    assert len(set(torch.cat([part.ids for part in separate]).tolist())) == 13
    with pytest.raises(ExperimentError, match=r"has 3 clients, and .*each has folders for 2"):
        records(own(data_dir=str(tmp_path / "each")), 2, 3)
    with pytest.raises(ExperimentError, match="data.source 'files' needs to know where"):
        records(own())


def test_a_simulations_file_is_read_again_when_it_changed(tmp_path):
    table = write(tmp_path / "train.csv", 20)
    assert len(records(own(data_dir=str(tmp_path)), 0, 1)) == 20
    write(table, 30)
    os.utime(table, ns=(1, 1))
    assert len(records(own(data_dir=str(tmp_path)), 0, 1)) == 30


CENTRAL, LOCAL = (), ("privacy.trust=local-gradient",)


@pytest.mark.parametrize("overrides", [CENTRAL, LOCAL])
def test_a_fault_is_refused_at_the_greeting_and_quoted_to_a_trusted_server_only(tmp_path, caplog, overrides):
    good, bad = write(tmp_path / "a.csv"), write(tmp_path / "b.csv", spoiled="123.25")
    with caplog.at_level(logging.ERROR, "fedsw.clients"), pytest.raises(FederationError) as refused:
        run(tmp_path, own(*overrides), [{"data-path": str(good)}, {"data-path": str(bad)}])
    fault = ": row 9 (the header is row 1), column 'age' is '123.25'; a finite number from 0 to 100 is declared"
    reason, logged = str(refused.value), caplog.text
    assert f"{bad}{fault}" in logged and str(bad) not in reason
    if overrides == CENTRAL:
        assert f"[a path of this client]{fault}" in reason
    else:
        assert "client 1's records do not fit the declared columns; its own log says where" in reason
        assert "123.25" not in reason and "row" not in reason and fault in logged
    assert not list(tmp_path.rglob("*.sqlite"))


LIMITED = {"trust": "local-gradient", "max-epsilon": "3.0"}


def limited(tmp_path: Path, **config) -> dict:
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    return {"partition-id": 0, "num-partitions": 2, "own-data": 1, "schema": str(schema), **LIMITED, **config}


def test_what_a_node_does_not_agree_to_is_refused_before_a_file_is_opened(tmp_path, monkeypatch):
    """Among it the trust: it decides whether the server may learn what is wrong with a record."""
    monkeypatch.setattr(nodes, "held_records", lambda *a: pytest.fail("a file was opened"))
    node = limited(tmp_path, **{"data-path": str(write(tmp_path / "a.csv", spoiled="123.25"))})
    asked = {"noise_multiplier": None, "epsilon": 1.0}
    for overrides, reason in (
        ((), "privacy.trust is 'central'"),
        (("privacy.trust=local-gradient", "privacy.epsilon=4.0"), "epsilon is 4"),
        (("privacy.trust=local-gradient", "seed=1"), "seed is 1"),
        (("privacy.trust=local-gradient", "data.columns.target.values=['low', 'higher']"), "the columns of"),
    ):
        experiment = parse_experiment(own().model_dump() | {"privacy": asked}, overrides)
        with pytest.raises(ExperimentError, match=reason):
            join(experiment.model_dump_json(), "", 107, node)


@pytest.mark.parametrize("limit", [{"max-epsilon": "3.0"}, {"trust": "central"}])
def test_a_node_with_limits_tells_no_server_what_is_wrong_with_a_record(tmp_path, caplog, limit):
    node = limited(tmp_path, **{"data-path": str(write(tmp_path / "a.csv", spoiled="123.25"))})
    node = {key: value for key, value in node.items() if key not in LIMITED} | limit
    experiment = own("privacy={epsilon = 1.0}")
    with caplog.at_level(logging.ERROR, "fedsw.clients"), pytest.raises(ValueError) as refused:
        join(experiment.model_dump_json(), "", 108, node)
    assert "123.25" not in str(refused.value) and "its own log says where" in str(refused.value)
    assert "'123.25'" in caplog.text


@pytest.mark.parametrize("limit", [{"max-epsilon": "3.0"}, {"trust": "local-gradient, local-slices"}])
def test_a_node_with_limits_brings_its_own_records_under_its_own_schema_only(tmp_path, monkeypatch, limit):
    """Or greetings would read them off: the server chooses bounds and the public group, and greets again."""
    nodes._nodes.clear()
    node = limited(tmp_path, **{"data-path": str(write(tmp_path / "a.csv"))})
    experiment = own("privacy={trust = 'local-gradient', epsilon = 1.0}")
    bare = {key: value for key, value in node.items() if key not in {"schema", *LIMITED}} | limit
    with monkeypatch.context() as patched, pytest.raises(ExperimentError, match="start the node with --schema FILE"):
        patched.setattr(nodes, "held_records", lambda *a: pytest.fail("a file was opened"))
        join(experiment.model_dump_json(), "", 109, bare)
    assert len(join(experiment.model_dump_json(), "", 109, node).records) == 60
    named = {"name": "a", "data": {"records": 600, "test_records": 50}, "privacy": experiment.privacy.model_dump()}
    join(parse_experiment(named).model_dump_json(), "", 110, bare)


def test_a_node_refuses_an_experiment_that_declares_other_columns_than_its_own(tmp_path):
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    config = {"schema": str(schema), "data-path": str(write(tmp_path / "a.csv"))}
    assert run(tmp_path / "same", own(), [config, config])["status"] == "completed"

    wider = parse_experiment(own().model_dump(), ["data.columns.target.values=['low', 'high', 'highest']"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FederationError, match=r"the columns of \[a path of this client\]; in the experiment, target"):
        run(tmp_path / "other", wider, [config, config])
    written = {path.name for path in set(tmp_path.rglob("*")) - set(before) if not path.match("run-*.json")}
    assert written <= {"other", "run", "clients"}, "but that it was greeted and refuses, for its operator"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"features": COLUMNS["features"][:1]}, "features are 1, not 2"),
        ({"features": [{"name": "age", "low": 0, "high": 120}, COLUMNS["features"][1]]}, r"features\[0\] is .*120"),
        ({"sensitive": None}, "sensitive is not declared, not"),
        ({"target": {"name": "income", "values": ["high", "low"]}}, r"target is .*'high', 'low'"),
    ],
)
def test_the_first_difference_between_two_declarations_is_named(tmp_path, changed, reason):
    from fedsw.data.columns.declaration import Columns

    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    require_agreement(Columns.model_validate(COLUMNS), {"schema": str(schema)})
    with pytest.raises(ExperimentError, match=reason):
        require_agreement(Columns.model_validate(COLUMNS | changed), {"schema": str(schema)})


def test_a_node_with_a_schema_takes_part_in_nothing_without_one(tmp_path):
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    require_agreement(None, {})
    with pytest.raises(ExperimentError, match="the experiment has no data.columns"):
        require_agreement(None, {"schema": str(schema)})


def test_a_real_client_reads_no_folder_that_the_server_chose(tmp_path):
    """`fedsw client` reads what its operator named, or nothing; a simulation reads what its settings say."""
    write(tmp_path / "train.csv")
    theirs = own(data_dir=str(tmp_path)).model_dump_json()
    named_folder = parse_experiment({"name": "a", "data": {"source": "adult", "data_dir": "/etc"}})
    node = {"partition-id": 0, "num-partitions": 2, "own-data": 1, "trust": "any"}
    with pytest.raises(ExperimentError, match="the server's word; start the node with --data-path"):
        join(theirs, "", 101, node)
    with pytest.raises(ExperimentError, match="data.data_dir is None"):
        join(own().model_dump_json(), "", 102, node)
    with pytest.raises(ExperimentError, match="the server's word"):
        join(named_folder.model_dump_json(), "", 103, node)
    mine = write(tmp_path / "mine" / "records.csv", rows=20)
    with pytest.raises(ExperimentError, match="the server's word"):
        join(named_folder.model_dump_json(), "", 103, node | {"data-path": str(mine)})
    assert len(join(theirs, "", 104, node | {"data-path": str(mine)}).records) == 20
    assert len(join(theirs, "", 105, {"partition-id": 0, "num-partitions": 2}).records) == 30


def test_a_synthetic_experiment_needs_no_folder(tmp_path):
    experiment = parse_experiment({"name": "a", "data": {"records": 600, "test_records": 50}})
    config = {"partition-id": 0, "num-partitions": 2, "own-data": 1, "trust": "any"}
    assert len(join(experiment.model_dump_json(), "", 106, config).records)


def test_what_a_client_says_of_a_record_is_for_the_terminal_and_never_written(tmp_path):
    """A client that was started again over a changed file cannot come back; then one more is lost: too few are left."""
    tables, spoiled = [write(tmp_path / f"{part}.csv", seed=part) for part in range(3)], []

    def hook(message, context):
        client, round_ = int(context.node_config["partition-id"]), message.content["config"].get("round")
        if (message.metadata.message_type, round_, client) == ("train.outputs", 2, 1) and not spoiled:
            spoiled.append(write(tables[1], seed=1, spoiled="123.25"))
            nodes._nodes.clear()
            del context.state["fedsw"]
        if (message.metadata.message_type, round_, client) == ("train.outputs", 4, 2):
            raise OSError("gone")

    configs = [
        {"partition-id": part, "num-partitions": 3, "data-path": str(path), "state-dir": str(tmp_path / f"state{part}")}
        for part, path in enumerate(tables)
    ]
    grid = InProcessGrid(Saboteur(hook), configs)
    try:
        with pytest.raises(FederationError, match=r"column 'age' is '123\.25'"):
            experiment = own("training.rounds=5", "federation.clients=3", "federation.min_clients=2")
            federate(grid, Job(experiment, tmp_path / "run"))
    finally:
        grid.close()
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"123.25" not in written and b"gone" not in written
    summary = RunDirectory(tmp_path / "run").summary.read_text()
    assert "failed: round 4: 1 of 3 clients are left, fewer than the 2 of federation.min_clients" in summary
