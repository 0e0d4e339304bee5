"""Laws of an examination: every fault of every file is listed, where it is; what fits is counted, and can run."""

from __future__ import annotations

import csv
import errno
import json
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from fedsw._tools.settings import FederationError
from fedsw.cli.app import main
from fedsw.cli.options import of_system
from fedsw.desk.own_data.examine import examine
from fedsw.desk.own_data.rehearsal import made_up
from fedsw.desk.own_data.screen import examination_view, measured_cost
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.engines.driver import run

RAW = {
    "name": "own",
    "data": {
        "source": "files",
        "columns": {
            "features": [{"name": "age", "low": 0, "high": 100}, {"name": "work", "categories": ["a", "b"]}],
            "sensitive": {"name": "sex", "values": ["female", "male"]},
            "target": {"name": "income", "values": ["low", "high"]},
        },
    },
    "training": {"rounds": 3, "batch_fraction": 0.5},
    "federation": {"clients": 2},
}
EXPERIMENT = parse_experiment(RAW)
FINE = [[20 + i, "ab"[i % 2], ("female", "male")[i // 2 % 2], ("low", "high")[i % 2]] for i in range(20)]


def write(folder: Path, rows, header=("age", "work", "sex", "income")) -> None:
    folder.mkdir(parents=True)
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_every_fault_of_every_file_is_listed_with_its_row_and_column(tmp_path):
    write(tmp_path / "0", [*FINE, ["x", "c", "female", "low"], [5, "a", "woman", "low"]])
    write(tmp_path / "1", [*FINE, [101, "a", "male", "high"]])
    found = examine(EXPERIMENT, tmp_path)
    places = [[(fault.row, fault.column) for fault in file.faults] for file in found.files]
    assert places == [[(22, "age"), (22, "work"), (23, "sex")], [(22, "age")]]
    assert not found.fits and [file.rows for file in found.files] == [22, 21]
    assert found.files[1].groups == {"female": 10, "male": 11} and found.files[1].classes == {"low": 10, "high": 11}


def test_cells_that_seem_to_be_missing_have_one_line_a_column_with_the_setting(tmp_path, capsys):
    write(tmp_path / "0", [*FINE, *[["", "a", "male", "low"]] * 60, ["NA", "?", "", "low"]])
    write(tmp_path / "1", FINE)
    found = examine(EXPERIMENT, tmp_path)
    assert found.files[0].absent == {"age": {"empty": 60, "'NA'": 1}, "work": {"'?'": 1}, "sex": {"empty": 1}}
    assert not found.fits and not found.files[0].faults and found.files[0].more == 0
    Console(width=400).print(examination_view(EXPERIMENT, found, None))
    shown = capsys.readouterr().out
    assert "column 'age': 60 cells are empty and 1 cell is 'NA'; if they stand for" in shown
    assert 'declare missing = ["", "NA"], fill = 50 for it' in shown
    assert "column 'work': 1 cell is '?'" in shown and 'declare missing = ["?"] for it' in shown
    assert "column 'sex': 1 cell is empty; a group, a target or a unit cannot be missing" in shown
    assert shown.count("cell is") + shown.count("cells are") == 4 and "a run cannot start" in shown


def test_faults_of_one_kind_share_a_paragraph_that_has_every_row_of_them(tmp_path, capsys):
    write(tmp_path / "0", [*FINE, *[[f"{place},5", "a", "male", "low"] for place in range(9)], [5, "c", "male", "low"]])
    write(tmp_path / "1", FINE)
    Console(width=4000).print(examination_view(EXPERIMENT, examine(EXPERIMENT, tmp_path), None))
    lines = [line for line in capsys.readouterr().out.splitlines() if "train.csv" in line]
    assert len(lines) == 2 and "row 31 (the header is row 1), column 'work' is 'c'" in lines[1]
    assert all(f"row {22 + place} is '{place},5'" in lines[0] for place in range(9))
    assert lines[0].count("from 0 to 100 is declared; for decimal commas set decimal") == 1


def test_faults_of_one_value_name_it_once(tmp_path, capsys):
    write(tmp_path / "0", [*FINE, *[[5, "a", "other", "low"]] * 6, [5, "a", "none", "low"]])
    Console(width=4000).print(examination_view(EXPERIMENT, examine(EXPERIMENT, tmp_path, 0), None))
    assert "rows 22, 23, 24, 25, 26, 27 are 'other'; row 28 is 'none' (" in capsys.readouterr().out


def test_numbers_that_are_cut_have_one_line_a_file(tmp_path):
    write(tmp_path / "0", [[age, 5000, "male", "low"] for age in (10, 20, 101)], header=("age", "pay", "sex", "income"))
    raw = json.loads(json.dumps(RAW))
    raw["data"]["columns"]["features"] = [
        {"name": name, "low": 0, "high": 100, "outside": "cut"} for name in ("age", "pay")
    ]
    said = examine(parse_experiment(raw), tmp_path, 0).files[0].warnings
    counts = "'age' 1, 'pay' 3"
    assert said == (f"{tmp_path / '0' / 'train.csv'}: numbers outside their bounds, cut there, by column: {counts}",)


def test_numbers_outside_their_bounds_have_one_remedy_a_column_and_are_counted_once_cut(tmp_path, capsys):
    write(tmp_path / "0", [*FINE, [101, "a", "male", "low"], [102, "a", "male", "low"]])
    write(tmp_path / "1", FINE)
    cut = json.loads(json.dumps(RAW))
    cut["data"]["columns"]["features"][0]["outside"] = "cut"
    for raw, verdict in (
        (RAW, "a run cannot start"),
        (cut, "these records fit what the experiment declares; --estimate tries"),
    ):
        Console(width=400).print(
            examination_view(parse_experiment(raw), examine(parse_experiment(raw), tmp_path), None)
        )
        assert verdict in (shown := capsys.readouterr().out)
        assert shown.count("column 'age': if they are right, outside = \"cut\"") == (raw is RAW)
        assert shown.count("numbers outside their bounds, cut there, by column: 'age' 2") == (raw is cut)


def test_a_file_that_cannot_be_read_hides_no_fault_of_the_others(tmp_path):
    write(tmp_path / "0", FINE, header=("age", "work", "sex", "pay"))
    write(tmp_path / "1", [*FINE[:5], ["x", "a", "male", "low"], [1, "a"]])
    found = examine(EXPERIMENT, tmp_path)
    assert "has no column 'income'" in found.files[0].broken and "row 8 has 2 cells" in found.files[1].broken
    assert [(fault.row, fault.value) for fault in found.files[1].faults] == [(7, "'x'")] and found.files[1].rows == 6
    assert not any("no client holds" in said for said in found.together)


def test_what_is_wrong_with_files_together_is_said(tmp_path):
    for client in range(3):
        write(tmp_path / str(client), [row for row in FINE if row[2] == "female"])
    said = examine(EXPERIMENT, tmp_path).together
    assert said[0].startswith("the experiment has 2 clients") and "no client holds a record of 'male'" in said[1]


def test_a_client_alone_looks_at_its_own_records(tmp_path):
    write(tmp_path / "0", [["x", "a", "male", "low"]])
    write(tmp_path / "1", FINE)
    assert examine(EXPERIMENT, tmp_path, 1).fits and examine(EXPERIMENT, tmp_path / "1", 1).fits
    assert not examine(EXPERIMENT, tmp_path, 0).fits
    with pytest.raises(ExperimentError, match="--client is 5"):
        examine(EXPERIMENT, tmp_path, 5)


def test_made_up_records_have_the_declared_form_and_the_sizes_of_the_groups():
    records = made_up(EXPERIMENT.data.columns, {"female": 7, "male": 0})
    assert records.rows_by_group == {"female": 7, "male": 0} and records.features.shape == (7, 3)


def test_the_cost_of_a_run_is_measured_on_made_up_records():
    cost = measured_cost(EXPERIMENT, [{"female": 20, "male": 20}] * 2)
    assert cost.seconds > 0 and cost.bytes > 0 and "made-up" in cost.how


@pytest.mark.parametrize(("dropped", "most"), [((), 20), (("sensitive",), 40)])
def test_a_batch_of_more_records_than_there_are_is_a_fault_as_a_run_says(tmp_path, dropped, most):
    """Of a group where there are several, of all records else: no run is needed to see it."""
    for client in range(2):
        write(tmp_path / str(client), [[row[0] + client, *row[1:]] for row in FINE])
    columns = {name: value for name, value in RAW["data"]["columns"].items() if name not in dropped}
    data = {"source": "files", "columns": columns, "data_dir": str(tmp_path)}
    for size in (most, most + 1):
        training = {"rounds": 1, "batch_size": size}
        experiment = parse_experiment(RAW | {"data": data, "objective": {"alpha": 0.0}, "training": training})
        said = examine(experiment, tmp_path).together
        if size == most:
            assert said == () and run(experiment, runs=tmp_path / "runs").summary["status"] == "completed"
        else:
            assert len(said) == 1 and f"train on {most} records" in said[0] and f"set it to {most} or less" in said[0]
            with pytest.raises(FederationError, match=f"batch of {size} records asked"):
                run(experiment, runs=tmp_path / "runs")


def test_the_command_exits_with_2_unless_a_run_can_start(tmp_path, capsys):
    lines = [
        'name = "own"', "[data]", 'source = "files"', 'data_dir = "DATA"', "[data.columns]",
        'features = [{name = "age", low = 0, high = 100}]', 'sensitive = {name = "sex", values = ["female", "male"]}',
        'target = {name = "income", values = ["low", "high"]}', "[federation]", "clients = 1",
    ]  # fmt: skip
    path, text = tmp_path / "own.toml", "\n".join(lines)
    path.write_text(text)
    write(tmp_path / "DATA" / "0", FINE)
    assert main(["check", str(path), "--json", "--no-estimate"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True
    write(tmp_path / "DATA" / "1", [*FINE, [1, "a", "other", "low"]])
    assert main(["check", str(path), "--no-estimate", "federation.clients=2"]) == 2
    assert "column 'sex' is 'other'" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("held_out", [False, True])
def test_an_examination_and_a_run_open_every_file_once(tmp_path, monkeypatch, held_out):
    """Identifiers are looked for, and held-out rows among the private ones, in what was read for the faults."""
    for client in range(2):
        rows = [[*row, f"p{place // 2}", place + client] for place, row in enumerate(FINE)]
        write(tmp_path / str(client), rows, header=("age", "work", "sex", "income", "pid", "note"))
    write(tmp_path / "public", [[row[0] + 0.5, *row[1:]] for row in FINE])
    named = {"held_out": str(tmp_path / "public" / "train.csv")} if held_out else {}
    data = RAW["data"] | named | {"data_dir": str(tmp_path)}
    experiment = parse_experiment(RAW | {"data": data, "privacy": {"epsilon": 1.0}})
    opened, plain = Counter[str](), Path.open
    monkeypatch.setattr(Path, "open", lambda path, *a, **k: opened.update([path.parent.name]) or plain(path, *a, **k))
    found = examine(experiment, tmp_path)
    assert found.fits and all("column 'pid'" in file.warnings[0] for file in found.files)
    assert opened == {"0": 1, "1": 1} | ({"public": 1} if held_out else {})
    opened.clear()
    run(experiment, runs=tmp_path / "runs")
    assert {name: opened[name] for name in ("0", "1", "public")} == {"0": 1, "1": 1, "public": int(held_out)}


def test_held_out_rows_that_are_private_too_are_found_in_what_was_read(tmp_path):
    for client in range(2):
        write(tmp_path / str(client), FINE[:: 1 - 2 * client])
    write(tmp_path / "public", [[50.5, "a", "male", "low"], [51.5, "a", "female", "low"], *FINE[:3]])
    data = RAW["data"] | {"held_out": str(tmp_path / "public" / "train.csv"), "data_dir": str(tmp_path)}
    said = examine(parse_experiment(RAW | {"data": data}), tmp_path).together
    assert len(said) == 1 and "3 of its 5 rows are also in the private records" in said[0]


def test_a_faulty_column_leaves_groups_and_classes_counted(tmp_path):
    for client in range(2):
        write(tmp_path / str(client), [[f"?{client}", *row[1:]] for row in FINE])
    found = examine(EXPERIMENT, tmp_path)
    assert not found.fits and found.together == ()
    assert all(file.groups == {"female": 10, "male": 10} for file in found.files)
    assert all(file.classes == {"low": 10, "high": 10} for file in found.files)


def test_a_class_that_nobody_holds_is_a_warning_where_a_run_completes_and_a_fault_where_it_cannot(tmp_path):
    for client in range(2):
        write(tmp_path / "DATA" / str(client), [[row[0] + client, *row[1:3], "low"] for row in FINE])
    about = RAW | {"data": RAW["data"] | {"data_dir": str(tmp_path / "DATA")}}
    found = examine(parse_experiment(about), tmp_path / "DATA")
    assert found.fits and "no client holds a record of the class 'high'" in found.warnings[0]
    assert run(about, runs=tmp_path / "runs").summary["status"] == "completed"
    odds = parse_experiment(about | {"objective": {"penalty": "equality-of-odds"}})
    found = examine(odds, tmp_path / "DATA")
    assert not found.fits and "'high', one of the classes that are declared" in found.together[0]
    with pytest.raises(FederationError, match="is empty"):
        run(odds, runs=tmp_path / "runs")


def test_the_error_of_a_broken_link_names_where_it_leads(tmp_path, capsys):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "t.csv").symlink_to("/nowhere/t.csv")
    with pytest.raises(FileNotFoundError, match=r"t.csv, a link to /nowhere/t.csv, which is not there"):
        examine(EXPERIMENT, tmp_path)
    (tmp_path / "0" / "t.csv").unlink()
    write(tmp_path / "a", FINE)
    (tmp_path / "a").rename(tmp_path / "0" / "x")
    (tmp_path / "1").symlink_to("/nowhere/1")
    with pytest.raises(FileNotFoundError, match=r"1 is a link to /nowhere/1, which is not there"):
        examine(EXPERIMENT, tmp_path)


def test_a_file_that_may_not_be_opened_is_no_place_to_write_to(tmp_path):
    (tmp_path / "t.csv").touch()
    there, elsewhere = (
        of_system(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / name))) for name in ("t.csv", "x")
    )
    assert there.endswith("this user may not open it: let its owner allow that, or name another")
    assert elsewhere.endswith("name a place that can be written to")


def test_more_groups_than_can_be_compared_in_time_are_reported_and_nothing_is_estimated(tmp_path, capsys):
    groups = [f"g{place}" for place in range(30)]
    columns = RAW["data"]["columns"] | {"sensitive": {"name": "sex", "values": groups}}
    for client in range(2):
        write(
            tmp_path / "D" / str(client),
            [[30 + client, "a", name, ("low", "high")[i % 2]] for i, name in enumerate(groups)],
        )
    lines = ['name = "own"', "[data]", 'source = "files"', "[data.columns]", f"features = {toml(columns['features'])}"]
    lines += [f"sensitive = {toml(columns['sensitive'])}", f"target = {toml(columns['target'])}"]
    (tmp_path / "own.toml").write_text("\n".join([*lines, "[federation]", "clients = 2", ""]))
    assert main(["check", str(tmp_path / "own.toml"), "--data-dir", str(tmp_path / "D"), "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"] is None and "30 groups: every two are compared" in found["warnings"][-1]


def toml(value) -> str:
    """A nested value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(each)}" for name, each in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)
