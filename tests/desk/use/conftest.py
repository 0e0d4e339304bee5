"""Small finished runs on tables of somebody's own, made once."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fedsw

HEADER = ["id", "age", "work", "sex", "income", "pay"]
COLUMNS = {
    "features": [{"name": "age", "low": 0, "high": 400}, {"name": "work", "categories": ["a", "b"]}],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
}
INCOME = {"target": {"name": "income", "values": ["low", "high"]}}
PAY = {"targets": [{"name": "pay", "low": 10, "high": 20}]}


def row(age: int) -> list[object]:
    return [
        f"p{age}",
        age,
        "ab"[age % 2],
        ("female", "male")[age // 2 % 2],
        ("low", "high")[age // 4 % 2],
        10 + age % 9,
    ]


def write(path: Path, ages: range) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *map(row, ages)])


def settings(place: Path, columns: dict, **sections: dict) -> dict:
    return {
        "name": "own",
        "data": {"source": "files", "data_dir": str(place / "DATA"), "held_out": str(place / "held-out.csv")}
        | {"columns": COLUMNS | columns},
        "training": {"rounds": 2, "batch_fraction": 0.5},
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
        "federation": {"clients": 2},
        **sections,
    }


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two clients' tables and a held-out one."""
    found = tmp_path_factory.mktemp("own")
    write(found / "DATA" / "0" / "train.csv", range(0, 60))
    write(found / "DATA" / "1" / "train.csv", range(60, 140))
    write(found / "held-out.csv", range(200, 320))
    return found


@pytest.fixture(scope="session")
def classifier(place: Path) -> Path:
    """The folder of a finished classification."""
    return fedsw.run(settings(place, INCOME), runs=place / "runs").directory


@pytest.fixture(scope="session")
def regression(place: Path) -> Path:
    """The folder of a finished regression."""
    asked = settings(place, PAY, objective={"task": "regression"})
    return fedsw.run(asked, runs=place / "regressions").directory
