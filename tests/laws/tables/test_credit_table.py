"""A table of credits, 20 columns with codes, units and dates: from init to the page without a line by hand."""

from __future__ import annotations

import csv
import random
import tomllib
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.desk.use.trained import load

CODES = {
    "status": ["A11", "A12", "A13", "A14"], "history": ["A30", "A31", "A32", "A33", "A34"],
    "purpose": ["A40", "A41", "A410", "A42", "A43"], "savings": ["A61", "A62", "A63", "None"],
    "employment": ["A71", "A72", "A73"], "debtors": ["A101", "A102", "None"], "property": ["A121", "A122", "A123"],
    "plans": ["A141", "A142", "-"], "housing": ["A151", "A152"], "job": ["A171", "A172", "A173"],
    "branch": ["007", "012", "120"], "zip": ["01067", "10115", "99084"],
}  # fmt: skip
WHOLE = {"duration": (4, 72), "rate": (1, 4), "residence": (1, 4), "age": (19, 75), "credits": (1, 4)}
BOOK = """column,kind,low,high,unit
duration,integer,4,72,months
amount,integer,250,"20000",DM
age,integer,18,80,years
"""


def credits(path: Path, count: int) -> None:
    """Made-up credits, whose risk goes with duration and status."""
    chance = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*CODES, *WHOLE, "amount", "opened", "phone", "sex", "risk"])
        for _ in range(count):
            codes = {name: chance.choice(values) for name, values in CODES.items()}
            numbers = {name: chance.randint(*bounds) for name, bounds in WHOLE.items()}
            worse = numbers["duration"] / 72 + 0.3 * (codes["status"] == "A11")
            opened = f"{chance.randint(1, 28):02}.{chance.randint(1, 12):02}.{chance.randint(1993, 2001)}"
            amount, phone = f"{chance.randint(250, 18_000):,}", chance.choice(["yes", "no"])
            risk = "bad" if chance.random() < 0.2 + 0.5 * worse else "good"
            sex = chance.choice(["female", "male"])
            rows.writerow([*codes.values(), *numbers.values(), amount, opened, phone, sex, risk])


def drafted() -> None:
    """Draft and check own.toml for a table of credits, in the working folder."""
    Path("DATA").mkdir()
    credits(Path("DATA/credits.csv"), 400)
    Path("codes.csv").write_text(BOOK)
    init = ["init", "DATA", "--group", "sex", "--target", "risk", "--from-public", "--code-book", "codes.csv"]
    assert main([*init, "--thousands", ","]) == 0
    assert main(["check", "own.toml", "--data-dir", "DATA", "--no-estimate"]) == 0


def test_a_table_of_credits_is_declared_with_its_codes_units_and_dates(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drafted()
    assert "nothing left to fill in. Next" in " ".join(capsys.readouterr().out.split())
    declared = tomllib.loads(Path("own.toml").read_text())["data"]["columns"]
    features = {feature["name"]: feature for feature in declared["features"]}
    assert len(features) == 20 and declared["target"] == {"name": "risk", "values": ["bad", "good"], "positive": "good"}
    amount = {"name": "amount", "kind": "integer", "units": "DM", "low": 250, "high": 20_000}
    assert features["amount"] == amount and declared["thousands"] == ","
    assert features["branch"]["kind"] == features["zip"]["kind"] == "code"
    assert features["opened"]["format"] == "%d.%m.%Y" and features["phone"]["kind"] == "boolean"
    assert features["savings"]["missing"] == ["None"] and features["plans"]["missing"] == ["-"]


@pytest.mark.slow
def test_a_table_of_credits_goes_from_init_to_the_page_without_a_line_by_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drafted()
    run = ["run", "own.toml", "--data-dir", "DATA", "--epsilon", "5", "training.rounds=3"]
    assert main(run) == 0
    assert main(["report", "own", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "integer from 250 to 20000 DM" in page and "date from 1993-" in page and "01067" in page
    answers = load("own").predictions("DATA/credits.csv", keep=["amount"])
    assert len(answers["row"]) == 400 and set(answers["predicted_risk"]) <= {"bad", "good"}
