"""Laws of runs on records from Python: they end where the same table in files ends, and nothing of them is written."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fedsw._tools.settings import FederationError
from fedsw.data import DeclaredRecords, as_records
from fedsw.data import own_records as own
from fedsw.data.columns.declaration import Columns
from fedsw.data.records import Records
from fedsw.data.sources import load_shape
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.driver import resume, run
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.replies import join
from fedsw.federation.server.federation import Job, federate
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.commands import command_for
from fedsw.runs.directory import RunDirectory

COLUMNS = {
    "features": [
        {"name": "age", "low": 0, "high": 100},
        {"name": "work", "categories": ["private", "public"]},
        {"name": "sex", "categories": ["female", "male"]},
    ],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "target": {"name": "income", "values": ["low", "high"]},
}
MODULE = """
import pandas as pd
from fedsw.data import as_records
from fedsw.data.records import Records
CALLS = []
def table():
    CALLS.append("table")
    return pd.read_csv({path!r})
def part(client, clients):
    CALLS.append((client, clients))
    return pd.read_csv({path!r}).iloc[client::clients]
def broken():
    raise KeyError("patient 123.25")
def three(one, two, three): ...
whole = pd.read_csv({path!r})
parts = [whole.iloc[0::2], whole.iloc[1::2]]
features = [{{"name": "age", "low": 0, "high": 100}}, {{"name": "work", "categories": ["private", "public"]}}]
features.append({{"name": "sex", "categories": ["female", "male"]}})
declared = as_records(whole, features=features, group="sex", target="income", classes=["low", "high"])
held = as_records(lambda: pd.read_csv({held!r}), columns=declared.columns)
"""


def declared_columns() -> Columns:
    return Columns.model_validate(COLUMNS)


def frame(rows: int = 80, *, seed: int = 0, low: int = 0, high: int = 50) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.uniform(low, high, rows).round(4),
            "work": np.array(["private", "public"])[rng.integers(0, 2, rows)],
            "sex": np.array(["female", "male"])[np.arange(rows) % 2],
            "income": np.array(["low", "high"])[rng.integers(0, 2, rows)],
        }
    )


def experiment(source: str | None = "object", *overrides: str, **data) -> Experiment:
    raw = {
        "name": "own",
        "data": {} if source is None else {"source": source, **data},
        "training": {"rounds": 3, "batch_fraction": 0.25},
        "privacy": {"noise_multiplier": 2.0, "delta": 1e-5},
        "federation": {"clients": 2, "timeout": 20.0},
        "seed": 7,
    }
    return parse_experiment(raw, overrides)


def parameters(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    first, second = parameters(one), parameters(other)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    kept = [
        [
            {key: value for key, value in line.items() if "seconds" not in key}
            for line in RunDirectory(each).read_metrics()
        ]
        for each in (one, other)
    ]
    assert kept[0] == kept[1]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """An importable module with the table, and its name."""
    table = tmp_path / "table.csv"
    frame().to_csv(table, index=False)
    frame(30, seed=1, low=60, high=100).to_csv(tmp_path / "held.csv", index=False)
    name = f"records_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        textwrap.dedent(MODULE).format(path=str(table), held=str(tmp_path / "held.csv"))
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)
    nodes._nodes.clear()


@pytest.mark.parametrize("scheme", ["iid", "group"])
def test_a_run_on_a_data_frame_ends_bit_for_bit_where_the_same_table_in_a_file_ends(tmp_path, scheme):
    (tmp_path / "data").mkdir()
    frame().to_csv(tmp_path / "data" / "train.csv", index=False)
    frame(30, seed=1, low=60, high=100).to_csv(tmp_path / "held.csv", index=False)
    split = f"partition.scheme={scheme}"
    held = {"held_out": str(tmp_path / "held.csv")}
    from_file = run(experiment("files", split, columns=COLUMNS, data_dir=str(tmp_path / "data"), **held), runs=tmp_path)
    from_frame = run(
        experiment("object", split, columns=COLUMNS),
        runs=tmp_path,
        data=frame(),
        held_out=frame(30, seed=1, low=60, high=100),
    )
    assert_same_run(from_file.directory, from_frame.directory)
    assert from_frame.summary["held_out"] == from_file.summary["held_out"] != {}
    assert "the object held_out" in from_frame.summary["measured_on"]


def test_a_list_of_data_frames_ends_where_a_folder_for_every_client_ends(tmp_path):
    frames = [frame(40, seed=3), frame(52, seed=4)]
    for client, part in enumerate(frames):
        (tmp_path / "data" / str(client)).mkdir(parents=True)
        part.to_csv(tmp_path / "data" / str(client) / "train.csv", index=False)
    from_files = run(experiment("files", columns=COLUMNS, data_dir=str(tmp_path / "data")), runs=tmp_path)
    from_frames = run(experiment("object", columns=COLUMNS), runs=tmp_path, data=frames)
    assert_same_run(from_files.directory, from_frames.directory)
    declared = [as_records(part, columns=from_frames.experiment.data.columns) for part in frames]
    assert_same_run(from_files.directory, run(experiment(None), runs=tmp_path, data=declared).directory)
    called = run(experiment(None), runs=tmp_path, data=lambda client, clients: declared[client])
    assert_same_run(from_files.directory, called.directory)


def test_records_from_python_of_no_two_clients_share_an_id():
    numbers = torch.zeros(5, dtype=torch.int64)
    records = Records(torch.zeros(5, 1), numbers, numbers, torch.arange(5))
    ids = torch.cat([own.numbered(records, client, 3).ids for client in range(3)])
    assert len(ids.unique()) == 15


@pytest.mark.parametrize("name", ["table", "part", "whole", "parts"])
def test_a_module_gives_the_same_run_as_its_object(tmp_path, module, name):
    halves = [frame().iloc[0::2], frame().iloc[1::2]]
    data = {"part": lambda client, clients: halves[client], "parts": halves}.get(name, frame())
    from_module = run(experiment(f"{module}:{name}", columns=COLUMNS), runs=tmp_path, engine="inprocess")
    from_object = run(experiment("object", columns=COLUMNS), runs=tmp_path, data=data)
    assert_same_run(from_module.directory, from_object.directory)
    assert resume(from_module.directory, allow_modules=[module]).summary["status"] == "completed"


def test_a_modules_own_declaration_is_written_down_for_everybody_else(tmp_path, module):
    """So that a run can be read, and its other processes know what comes, where the experiment declares nothing."""
    asked = experiment(f"{module}:declared", held_out=f"{module}:held")
    result = run(asked, runs=tmp_path)
    assert RunDirectory(result.directory).read_config([module])[0].data.columns == declared_columns()
    assert_same_run(result.directory, run(experiment("object", columns=COLUMNS), runs=tmp_path, data=frame(),
                                          held_out=frame(30, seed=1, low=60, high=100)).directory)  # fmt: skip
    with pytest.raises(ValueError, match="holds text; declare its public categories"):  # which column is the group?
        run(experiment(f"{module}:table"), runs=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("count", [1, 3])
def test_a_regression_of_any_number_of_targets_ends_where_the_same_table_in_a_file_ends(tmp_path, count):
    table = frame()
    targets = [{"name": f"t{place}", "low": 0, "high": 10 + place} for place in range(count)]
    for place, target in enumerate(targets):
        table[target["name"]] = np.random.default_rng(place).uniform(0, target["high"], len(table)).round(3)
    columns = {name: COLUMNS[name] for name in ("features", "sensitive")} | {"targets": targets}
    (tmp_path / "data").mkdir()
    table.to_csv(tmp_path / "data" / "train.csv", index=False)
    task = "objective.task=regression"
    from_file = run(experiment("files", task, columns=columns, data_dir=str(tmp_path / "data")), runs=tmp_path)
    read = as_records(table, features=columns["features"], group="sex", targets=targets)
    from_frame = run(experiment(None, task), runs=tmp_path, data=read)
    assert_same_run(from_file.directory, from_frame.directory)
    assert any(tensor.shape[0] == count for tensor in parameters(from_frame.directory).values())


def test_records_and_a_model_may_both_be_python_objects(tmp_path):
    model = torch.nn.Linear(5, 1)
    passed = {"data": frame(), "model": model}
    result = run(experiment("object", columns=COLUMNS), runs=tmp_path, **passed)
    assert {tensor.shape for tensor in parameters(result.directory).values()} == {(1, 5), (1,)}
    with pytest.raises(ExperimentError, match=r"resume\(folder, model=\.\.\.\)"):
        resume(result.directory, data=frame())
    assert resume(result.directory, **passed).summary["status"] == "completed"


def test_nothing_of_the_records_but_their_type_and_number_is_written(tmp_path):
    values = frame()
    values.loc[3, "age"] = 31.4159
    result = run(experiment(None), runs=tmp_path, data=as_records(values, columns=declared_columns()))
    config = json.loads((result.directory / "config.json").read_text())["experiment"]["data"]
    assert config["objects"] == [{"kind": "pandas.DataFrame", "records": 80}]
    written = b"".join(path.read_bytes() for path in result.directory.rglob("*") if path.is_file())
    assert b"31.4159" not in written
    changed = values.assign(age=values["age"] + 1)
    other = run(experiment(None), runs=tmp_path, data=as_records(changed, columns=declared_columns()))
    theirs = json.loads((other.directory / "config.json").read_text())["experiment"]["data"]
    assert {**config, "source": ""} == {**theirs, "source": ""} and config["source"] != theirs["source"]


@pytest.mark.parametrize(
    ("declared", "read_off"),
    [
        ({}, ["classes", "groups"]),
        ({"classes": ["low", "high"]}, ["groups"]),
        ({"groups": ["female", "male"]}, ["classes"]),
        ({"classes": ["low", "high"], "groups": ["female", "male"]}, []),
    ],
)
def test_lists_that_nobody_declared_are_on_record_as_read_off_the_records_also_when_the_run_goes_on(
    tmp_path, declared, read_off
):
    def read() -> DeclaredRecords:
        return as_records(frame(), features=COLUMNS["features"], group="sex", target="income", **declared)

    result = run(experiment(None), runs=tmp_path, data=read())
    data = result.experiment.data
    assert sorted(data.read_off) == read_off == sorted(read().read_off)
    assert data.occurring == (f"which {' and '.join(read_off)} occur" if read_off else None)
    assert sorted(resume(result.directory, data=frame()).experiment.data.read_off) == read_off


def test_lists_that_the_experiment_declares_are_not_read_off_the_records():
    with pytest.raises(ExperimentError, match="read_off is written by a run"):
        parse_experiment({"name": "x", "data": {"source": "object", "read_off": ["groups"]}})
    mixed = own.read_all(
        [as_records(frame(), columns=declared_columns()), as_records(frame(), columns=declared_columns())],
        declared_columns(), 2, what="data",
    )  # fmt: skip
    assert mixed.read_off == ()


def test_experiments_with_tables_of_settings_differ_as_keys(tmp_path):
    """Comparisons keep their cells by experiment."""
    one = run(experiment("object", columns=COLUMNS), runs=tmp_path, data=frame()).experiment
    same = parse_experiment(one.model_dump())
    assert (
        {one: 1}[same] == 1 and hash(one) == hash(same) and parse_experiment(one.model_dump(), ["seed=8"]) not in {one}
    )


def test_going_on_asks_for_the_same_objects_again(tmp_path):
    held = frame(20, seed=9, low=60, high=100)
    begun = run(experiment("object", columns=COLUMNS), runs=tmp_path, data=frame(), held_out=held)
    assert command_for(begun.directory) == f"fedsw.resume(Path({str(begun.directory)!r}), data=...)"
    for wrong, reason in [
        ({}, r"Python objects of the process that started it.*fedsw\.resume\(directory, data=\.\.\.\)"),
        ({"data": frame()}, "began with an object held_out; go on with it"),
        (
            {"data": frame(60), "held_out": held},
            "began with the records of pandas.DataFrame with 80 records.*goes on",
        ),
        ({"held_out": held}, "held_out is given and data is not"),
    ]:
        with pytest.raises(ExperimentError, match=reason):
            resume(begun.directory, **wrong)
    again = resume(begun.directory, data=frame(), held_out=held)
    assert again.summary["status"] == "completed" and again.summary["held_out"] == begun.summary["held_out"]
    assert own.in_this_process(begun.experiment.data.source) is None


@pytest.mark.parametrize("engine", ["ray", "flwr", "deployed"])
def test_other_engines_refuse_python_objects_and_name_the_remedy(tmp_path, engine):
    with pytest.raises(
        ExperimentError, match=f"engine '{engine}' .*use engine 'inprocess', or data.source = 'module:name'"
    ):
        run(experiment("object", columns=COLUMNS), runs=tmp_path, data=frame(), engine=engine)
    assert not list(tmp_path.iterdir())


SPOILED = frame()
SPOILED.loc[5, "age"] = np.nan
LACKING = frame()[["age", "work", "sex"]]


@pytest.mark.parametrize(
    ("source", "passed", "reason"),
    [
        ("adult", {"data": frame()}, "data.source is 'adult' and data is passed too"),
        ("object", {}, r"data.source 'object' is passed in Python: .*run\(experiment, data=\.\.\.\)"),
        ("object", {"held_out": frame()}, "held_out is given and data is not"),
        (
            "object",
            {"data": SPOILED},
            r"data: pandas.DataFrame: row 5 \(the first record is row 0\), column 'age' is nan",
        ),
        ("object", {"data": LACKING}, "data: pandas.DataFrame has no column 'income'"),
        ("object", {"data": [frame()] * 3}, "data has 3 objects for 2 clients"),
        ("object", {"data": [frame(), SPOILED]}, "data of client 1: pandas.DataFrame: row 5 .*column 'age' is nan"),
        ("object", {"data": 3}, "records in int cannot be read; pass a torch tensor"),
        ("object", {"data": lambda: 1 / 0}, "data, called for client 0 of 2, raised ZeroDivisionError"),
        ("object", {"data": lambda a, b, c: frame()}, "data is a function of 3 arguments"),
        ("object", {"data": frame(), "held_out": SPOILED}, "held_out: pandas.DataFrame: row 5"),
        (
            "object",
            {"data": frame(), "held_out": frame().iloc[:10]},
            "held_out: 10 of its 10 rows are also in the private records",
        ),
        ("object", {"data": frame(), "held_out": frame().iloc[::2]}, "held_out: no record of group male"),
    ],
)
def test_what_cannot_be_used_is_refused_before_there_is_a_folder(tmp_path, source, passed, reason):
    data = {"columns": COLUMNS} if source == "object" else {}
    with pytest.raises(ValueError, match=reason):
        run(experiment(source, **data), runs=tmp_path, **passed)
    assert not list(tmp_path.iterdir())


def test_clients_whose_declarations_differ_are_refused_by_name(tmp_path):
    parts = [as_records(frame(), features=["age"], group="sex", target="income") for _ in range(2)]
    lacking = frame().assign(income="low")
    lacking.loc[0, "income"] = "none"
    parts[1] = as_records(lacking, features=["age"], group="sex", target="income")
    with pytest.raises(
        ExperimentError, match="data of client 1 is read under other columns than client 0's: target .*groups="
    ):
        run(experiment(None), runs=tmp_path, data=parts)
    with pytest.raises(ValueError, match="were read under other columns: features are 1, not 3"):
        run(experiment("object", columns=COLUMNS), runs=tmp_path, data=parts[0])


def test_records_that_do_not_serve_the_task_are_refused_with_the_remedy(tmp_path):
    unlabelled = torch.rand(50, 3)
    with pytest.raises(ExperimentError, match=r"compares groups.*as_records\(\.\.\., group="):
        run(experiment(None), runs=tmp_path, data=unlabelled)
    regression = as_records(torch.rand(50, 3), group=np.arange(50) % 2, targets=torch.rand(50))
    with pytest.raises(ExperimentError, match=r"predicts numbers in \[0, 1\]; column 'targets' needs public bounds"):
        run(experiment(None, "objective.task=regression"), runs=tmp_path, data=regression)


def test_held_out_rows_that_are_private_may_be_allowed_and_the_record_says_so(tmp_path):
    result = run(
        experiment("object", columns=COLUMNS, held_out_overlap="allow"), runs=tmp_path, data=frame(), held_out=frame()
    )
    assert result.summary["epsilon_of_reader"] == "inf" and result.summary["epsilon"] != "inf"


def test_a_module_on_a_client_of_its_own_is_asked_for_that_client_alone_if_its_operator_allows_it(tmp_path, module):
    asked = experiment(
        f"{module}:part",
        columns=COLUMNS,
    ).model_dump_json()
    node = {"partition-id": 1, "num-partitions": 2, "own-data": 1, "trust": "any"}
    for config in (node, {**node, "modules": "another, records"}):
        with pytest.raises(
            ExperimentError, match=f"data.source is '{module}:part'; modules whose code may run on this"
        ):
            join(asked, "", 201, config)
    assert module not in sys.modules
    found = join(asked, "", 202, {**node, "modules": f"another,{module}"}).records
    assert sys.modules[module].CALLS == [(1, 2)]
    expected = as_records(frame().iloc[1::2], columns=declared_columns())
    assert torch.equal(found.features, expected.features) and found.ids.tolist() == list(range(1, 81, 2))
    alone = join(experiment(f"{module}:table", columns=COLUMNS).model_dump_json(), "", 203, {**node, "modules": module})
    assert len(alone.records) == 80 and alone.records.ids.tolist() == list(range(1, 161, 2))
    with pytest.raises(ExperimentError, match="a client on its own machine brings one"):
        join(experiment(f"{module}:parts", columns=COLUMNS).model_dump_json(), "", 204, {**node, "modules": module})


def test_what_a_function_raises_is_not_for_a_server_that_is_not_trusted(module):
    node = {"partition-id": 0, "num-partitions": 2}
    local = ("privacy.trust=local-gradient", "seed=1")
    with pytest.raises(ValueError) as refused:
        join(experiment(f"{module}:broken", *local, columns=COLUMNS).model_dump_json(), "", 205, node)
    assert "123.25" not in str(refused.value) and "its own log" in str(refused.value)
    with pytest.raises(ValueError, match="raised KeyError: 'patient 123.25'"):
        join(experiment(f"{module}:broken", columns=COLUMNS).model_dump_json(), "", 206, node)


def test_simulated_clients_of_other_processes_share_one_table_of_a_module(module):
    nodes._nodes.clear()
    own._shared_table.cache_clear()
    asked = experiment(f"{module}:table", columns=COLUMNS)
    problem = Problem.from_experiment(asked)
    parts = [held_records(problem, {"partition-id": client, "num-partitions": 2}).records for client in range(2)]
    assert sorted(torch.cat([part.ids for part in parts]).tolist()) == list(range(80))
    assert sys.modules[module].CALLS == ["table"]


def test_a_server_that_cannot_ask_needs_the_columns(module):
    with pytest.raises(ExperimentError, match=r"declare \[data.columns\]"):
        load_shape(experiment(f"{module}:table").record_source)


@pytest.mark.parametrize(
    ("source", "data", "reason"),
    [
        ("adlt", {}, "source 'adlt' is unknown; nearest: 'adult'; choose one of synthetic"),
        ("object", {"data_dir": "/x"}, "data: data_dir is where files are"),
        ("synthetic", {"objects": [{"kind": "a", "records": 1}]}, "objects is written by a run of Python objects"),
    ],
)
def test_a_source_that_there_is_not_is_refused(source, data, reason):
    with pytest.raises(ExperimentError, match=reason):
        experiment(source, **data)


def test_a_client_without_records_of_a_run_that_is_over_is_refused(tmp_path):
    gone = run(experiment("object", columns=COLUMNS), runs=tmp_path, data=frame()).experiment
    grid = InProcessGrid(client_app, node_configs(2, tmp_path / "ledgers"))
    try:
        with pytest.raises(FederationError, match="Python objects of the process"):
            federate(grid, Job(gone, tmp_path / "again"))
    finally:
        grid.close()
