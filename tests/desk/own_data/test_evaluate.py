"""Laws of what clients keep out of training: who it is follows from places alone, and nothing of it leaves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fedsw.cli.app import main
from fedsw.data import concatenate
from fedsw.desk.own_data.evaluate import evaluate
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import held_back, held_out_records, held_records
from fedsw.learning.tasks.metrics import accuracy, predictions
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.report.metric_names import group_table, measured_cell

COLUMNS = {
    "features": [{"name": "x0"}, {"name": "x1"}],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "target": {"name": "income", "values": ["low", "high"]},
}
CLIENTS, PERSONS = 2, 30


def experiment(folder: Path, *overrides: str, **data) -> Experiment:
    raw = {
        "name": "kept",
        "data": {"source": "files", "columns": COLUMNS, "data_dir": str(folder), "held_out_fraction": 0.25, **data},
        "training": {"rounds": 3, "batch_fraction": 0.5},
        "privacy": {"noise_multiplier": 2.0, "delta": "1/n^2"},
        "federation": {"clients": CLIENTS},
        "seed": 3,
    }
    return parse_experiment(raw, overrides)


def visits(client: int, *, rows: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(client)
    who = np.repeat(np.arange(PERSONS), rows)
    frame = pd.DataFrame(rng.normal(size=(len(who), 2)).round(3), columns=["x0", "x1"])
    frame["sex"] = np.array(["female", "male"])[who % 2]
    frame["income"] = np.array(["low", "high"])[(frame["x0"] > 0).astype(int)]
    frame["patient"] = [f"{client}-{number}" for number in who]
    return frame


def folders(base: Path, frames=None) -> Path:
    for client in range(CLIENTS):
        (base / str(client)).mkdir(parents=True)
        (frames[client] if frames else visits(client)).to_csv(base / str(client) / "train.csv", index=False)
    return base


@pytest.mark.parametrize("unit", [None, "patient"])
def test_the_split_is_by_unit_of_the_stated_size_and_the_same_in_every_process(tmp_path, unit):
    asked = experiment(folders(tmp_path / "data"), **({} if unit is None else {"unit": unit}))
    task = Problem.from_experiment(asked)
    site = {"partition-id": 0, "num-partitions": 1}
    trained, kept = held_records(task, site), held_out_records(task, site)
    assert sorted([*trained.records.ids.tolist(), *kept.records.ids.tolist()]) == list(range(CLIENTS * PERSONS * 2))
    units = PERSONS if unit else 2 * PERSONS
    if unit:
        assert not set(trained.records.unit.tolist()) & set(kept.records.unit.tolist())
    for client in range(CLIENTS):
        own = kept.records.take(kept.owner == client)
        names = own.ids if own.unit is None else own.unit
        for group in range(2):
            assert len(set(names[own.sensitive == group].tolist())) == units // 2 // 4
        alone = held_out_records(task, {"partition-id": client, "num-partitions": CLIENTS})
        given = {"partition-id": client, "num-partitions": CLIENTS, "data-dir": str(tmp_path / "data" / str(client))}
        assert alone.records.ids.tolist() == own.ids.tolist() == held_out_records(task, given).records.ids.tolist()


def test_whom_the_split_keeps_does_not_depend_on_what_rows_say_or_how_many_a_person_has(tmp_path):
    asked = experiment(folders(tmp_path / "data"), unit="patient")
    task, site = Problem.from_experiment(asked), {"partition-id": 0, "num-partitions": CLIENTS}
    whole = [held_records(task, site).records, held_out_records(task, site).records]
    kept = set(whole[1].unit.tolist())
    everybody = replace(concatenate(whole), unit=torch.cat([part.unit for part in whole]))
    everybody = everybody.take(torch.argsort(everybody.ids))
    owner, clients = np.zeros(len(everybody), np.int64), np.zeros(1, np.int64)
    for person in (int(everybody.unit[0]), next(iter(kept))):
        said = replace(everybody, features=everybody.features * (everybody.unit != person)[:, None])
        once = torch.ones(len(said), dtype=torch.bool)
        once[(said.unit == person).nonzero()[1:, 0]] = False
        for other in (said, said.take(once)):
            back = held_back(task, other, owner[: len(other)], clients)
            assert set(other.unit[torch.from_numpy(back)].tolist()) == kept


def test_nothing_that_a_run_leaves_depends_on_what_was_kept_out(tmp_path):
    asked = experiment(folders(tmp_path / "data"), unit="patient")
    task, changed = Problem.from_experiment(asked), []
    for client in range(CLIENTS):
        kept = held_out_records(task, {"partition-id": client, "num-partitions": CLIENTS})
        frame = visits(client)
        rows = (kept.records.ids - client).numpy() // CLIENTS
        frame.loc[rows, ["x0", "x1"]] += 1e3
        changed.append(frame)
    found = []
    for name, frames in (("as", None), ("other", changed)):
        nodes._nodes.clear()
        folder = folders(tmp_path / name, frames)
        found.append(run(experiment(folder, unit="patient"), runs=tmp_path / f"runs-{name}"))
    models = [(each.directory / "model.safetensors").read_bytes() for each in found]
    assert models[0] == models[1]
    plan = json.loads((found[0].directory / "plan.json").read_text())
    assert list(plan["groups"].values()) == [CLIENTS * (PERSONS // 2 - PERSONS // 2 // 4)] * 2
    assert found[0].summary["delta"] == float(sum(plan["groups"].values())) ** -2
    assert "only clients can see: `fedsw evaluate`" in " ".join(found[0].summary["warnings"])
    assert found[0].summary["held_out"] == {} and "keeps 0.25 of its records" in found[0].summary["measured_on"]


def test_evaluate_measures_the_model_on_the_kept_records_of_each_client_and_of_all(tmp_path, capsys):
    data = folders(tmp_path / "data")
    asked = experiment(data)
    found = run(asked, runs=tmp_path / "runs")
    measured = evaluate(found.directory, None)
    assert [each.name for each in measured] == ["client 0", "client 1", "all clients"]
    task = Problem.from_experiment(asked)
    model = task.build_model()
    model.load_state_dict(load_file(found.directory / "model.safetensors"))
    kept = held_out_records(task, {"partition-id": 0, "num-partitions": 1}).records
    with torch.no_grad():
        outputs = task.outputs(model(task.inputs(kept)), task.given(kept)) + asked.clip.centre
    worth = measured[2].worth
    assert worth.metrics["accuracy"] == accuracy(predictions(outputs), kept.target)
    assert measured[2].count == len(kept) == measured[0].count + measured[1].count
    assert worth.quality.constant["accuracy"] == float(kept.target.bincount().max()) / len(kept)
    assert set(worth.by_group.numbers) == {"female", "male"} and worth.quality.standard_errors["accuracy"] > 0
    before = {path: path.read_bytes() for path in found.directory.rglob("*") if path.is_file()}
    assert main(["evaluate", str(found.directory), "--data-dir", str(data / "1"), "--client", "1", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own[0]["name"] == "client 1" and own[0]["metrics"] == dict(measured[1].worth.metrics) and len(own) == 1
    assert main(["evaluate", str(found.directory)]) == 0
    assert "all clients" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in found.directory.rglob("*") if path.is_file()}


def test_of_persons_one_row_each_is_measured(tmp_path):
    data = folders(tmp_path / "data")
    found = run(experiment(data, unit="patient"), runs=tmp_path / "runs")
    kept = PERSONS // 2 // 4 * 2
    assert [each.count for each in evaluate(found.directory, None)] == [kept, kept, 2 * kept]


def test_what_cannot_be_evaluated_is_refused_in_words(tmp_path):
    data = folders(tmp_path / "data")
    found = run(experiment(data), runs=tmp_path / "runs")
    with pytest.raises(ExperimentError, match="--client is 7, and the run has clients 0 to 1"):
        evaluate(found.directory, None, 7)
    (found.directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="there is no model"):
        evaluate(found.directory, None)
    none = run(experiment(data, held_out_fraction=0.0), runs=tmp_path / "runs")
    with pytest.raises(ExperimentError, match="kept no records out of training"):
        evaluate(none.directory, None)
    with pytest.raises(ExperimentError, match="'adult' has a held-out part already"):
        parse_experiment({"name": "x", "data": {"source": "adult", "held_out_fraction": 0.2}})


NUMBERS = {
    "features": [{"name": "x0", "low": -4, "high": 4}, {"name": "x1", "low": -4, "high": 4}],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "targets": [{"name": "score", "low": 0, "high": 1}],
}


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("rows", [3, 4])
def test_a_client_that_kept_hardly_a_record_has_a_line_and_words_in_place_of_numbers(tmp_path, capsys, task, rows):
    """Of rows of one group and class a fourth, rounded down, is kept out: none, or one record."""
    many = visits(0, rows=1)
    few = many[(many["sex"] == "male") & (many["income"] == "low")].iloc[:rows]
    frames = [frame.assign(score=(frame["x0"] > 0) * 0.8) for frame in (many, few)]
    columns = COLUMNS if task == "classification" else NUMBERS
    asked = experiment(folders(tmp_path / "data", frames), f"objective.task={task}", columns=columns)
    directory = run(asked, runs=tmp_path / "runs").directory
    why = ("client 1 kept no record out of training", "client 1 kept 1 record out of training")[rows - 3]
    for options in ([], ["--client", "1"]):
        assert main(["evaluate", str(directory), *options]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"! {why}" in shown and f"client 1 {rows - 3}" in shown
        assert main(["evaluate", str(directory), *options, "--json"]) == 0
        found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
        assert found["client 1"]["count"] == rows - 3 and len(found) == (1 if options else 3)
        assert "client 1" not in " ".join(found.get("all clients", {}).get("warnings", ()))


def test_how_many_records_a_group_has_is_shown_whole():
    numbers = {"a": {"count": 1003.0, "accuracy": 0.81234}, "b": {"count": 12_345, "accuracy": math.nan}}
    headings, rows = group_table(numbers, {"a": {"accuracy": (0.79, 0.83)}}, measured_cell)
    assert headings == ["count", "accuracy"] and rows == [["a", "1,003", "0.812\n0.79 to 0.83"], ["b", "12,345", "–"]]


def test_a_number_that_noise_hides_takes_few_letters_of_a_cell():
    assert measured_cell(-0.1, (0.0, 0.2)) == "not to be seen\n0 to 0.2"
    assert measured_cell(1.1, (0.8, 1.0)) == "not to be seen\n0.8 to 1"
