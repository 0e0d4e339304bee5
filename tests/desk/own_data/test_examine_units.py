"""Laws of check and init about persons: who has several rows is asked, counted, and warned of where it is private."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.desk.own_data.answers import Words
from fedsw.desk.own_data.draft import DraftRequest, draft
from fedsw.desk.own_data.examine import examine, named_as_identifier
from fedsw.desk.own_data.screen import measured_cost
from fedsw.experiment import Experiment, parse_experiment
from tests.desk.own_data.test_examine import RAW

HEADER = ("age", "work", "sex", "income", "patient_id", "code", "note")


def experiment(*overrides: str, unit: str | None = "patient_id") -> Experiment:
    return parse_experiment({**RAW, "data": {**RAW["data"], **({} if unit is None else {"unit": unit})}}, overrides)


def row(person: int, visit: int, *, prefix: str = "p") -> list[object]:
    """Everybody's second visit has another outcome; women have even numbers."""
    note = f"{person}-{visit}"
    return [
        20 + visit,
        "a",
        ("female", "male")[person % 2],
        ("low", "high")[visit % 2],
        f"{prefix}{person}",
        "x7",
        note,
    ]


def write(folder: Path, rows: list[list[object]]) -> None:
    folder.mkdir(parents=True)
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])


@pytest.fixture
def visits(tmp_path) -> Path:
    """Two clients with twelve persons each, of two visits; the first persons of both have the same names."""
    for client in range(2):
        named = [
            row(person, visit, prefix="p" if person < 3 else f"{client}p") for person in range(12) for visit in (0, 1)
        ]
        write(tmp_path / str(client), named)
    return tmp_path


def test_a_column_that_looks_like_an_identifier_with_repeats_and_no_unit_is_a_warning(visits):
    found = examine(experiment(unit=None), visits)
    assert found.fits and all(len(file.warnings) == 1 for file in found.files)
    assert (
        "column 'patient_id' looks like an identifier, and its 12 values are in 24 rows" in found.files[0].warnings[0]
    )
    assert "set unit = 'patient_id' in [data]" in found.files[0].warnings[0]
    assert all(not file.warnings for file in examine(experiment(), visits).files)


def test_text_that_nobody_declared_is_taken_for_an_identifier_by_its_repeats_and_one_value_for_all_is_not(tmp_path):
    write(
        tmp_path / "0", [[*row(person, visit)[:4], "1", "x7", f"n{person}"] for person in range(12) for visit in (0, 1)]
    )
    said = examine(experiment("federation.clients=1", unit=None), tmp_path).files[0].warnings
    assert ["'patient_id'" in said[0], "'note'" in said[1], len(said)] == [True, True, 2]


def test_check_counts_persons_and_refuses_files_that_have_some_in_common(visits, capsys):
    found = examine(experiment(), visits)
    assert [(file.rows, file.units, file.groups) for file in found.files] == [(24, 12, {"female": 6, "male": 6})] * 2
    assert not found.fits and found.together[0].startswith("3 values of 'patient_id' have rows at several clients")
    path = visits / "own.toml"
    path.write_text(
        'name = "own"\n[data]\nsource = "files"\nunit = "patient_id"\n[data.columns]\n'
        'features = [{name = "age", low = 0, high = 100}, {name = "work", categories = ["a", "b"]}]\n'
        'sensitive = {name = "sex", values = ["female", "male"]}\n'
        'target = {name = "income", values = ["low", "high"]}\n[federation]\nclients = 2\n'
    )
    assert main(["check", str(path), "--data-dir", str(visits), "--no-estimate", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert "3 at clients 0 and 1" in said["together"][0] and not said["fits"]
    assert "the number of different 'patient_id' of each group at each client" in said["public"]
    assert main(["check", str(path), "--data-dir", str(visits), "--no-estimate"]) == 2
    assert "give them to one client" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(path), "--data-dir", str(visits), "--no-estimate", "--client", "1"]) == 0


def test_everybody_of_two_groups_is_listed_and_of_two_classes_only_where_classes_are_public(tmp_path):
    rows = [row(person, visit) for person in range(4) for visit in (0, 1)]
    rows[3][2] = "female"
    rows.append([30, "a", "female", "low", "", "x7", ""])
    write(tmp_path / "0", rows)
    parity = experiment("federation.clients=1")
    (file,) = examine(parity, tmp_path).files
    assert [(fault.row, fault.column) for fault in file.faults] == [(5, "sex")]
    assert file.absent == {"patient_id": {"empty": 1}} and not file.fits
    odds = experiment("federation.clients=1", "objective.penalty=equality-of-odds")
    faults = examine(odds, tmp_path).files[0].faults
    assert sum(fault.column == "income" for fault in faults) == 4


def test_the_cost_of_a_run_of_persons_is_measured_on_made_up_persons():
    assert measured_cost(experiment("training.rounds=2"), [{"female": 6, "male": 6}] * 2).seconds > 0


def test_init_writes_the_unit_that_is_given_and_asks_about_what_looks_like_one(visits):
    def drafted(**more) -> dict:
        return tomllib.loads(draft(DraftRequest(visits, "sex", "income", Words(), **more), name="own").text)["data"]

    given = drafted(unit="note")
    assert given["unit"] == "note" and "note" not in [feature["name"] for feature in given["columns"]["features"]]
    asked: list[str] = []

    def answer(said: str):
        return lambda question: (asked.append(question), said if "one person" in question else "")[1]

    assert drafted(ask=answer("y"))["unit"] == "patient_id" and "column patient_id" in asked[0]
    assert "unit" not in drafted(ask=answer(""))
    text = draft(DraftRequest(visits, "sex", "income", Words()), name="own").text
    assert '# unit = "patient_id"' in text and "unit" not in tomllib.loads(text)["data"]


@pytest.mark.parametrize("name", ["id", "Patient", "patient_id", "PatientID", "customer id", "userId"])
def test_names_of_identifiers(name):
    assert named_as_identifier(name)


@pytest.mark.parametrize("name", ["age", "paid", "covid", "grid", "identity", "member", "room_number"])
def test_names_of_other_columns(name):
    assert not named_as_identifier(name)
