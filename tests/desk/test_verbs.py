"""Verbs by their Python names: objects with a page, a table and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsw
from fedsw._tools.text import json_text
from fedsw.cli.app import main
from fedsw.runs.report.answer import Answer
from fedsw.runs.report.document import Document

DELTA = 1e-5


pytestmark = pytest.mark.usefixtures("elsewhere")


def people(rows: int = 80, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    age, sex = draw.uniform(18, 90, rows), draw.choice(["f", "m"], rows)
    return pd.DataFrame({"age": age, "sex": sex, "ill": (age > 50).astype(int)})


COLUMNS: dict[str, Any] = {
    "features": [{"name": "age", "low": 18, "high": 90}],
    "sensitive": {"name": "sex", "values": ["f", "m"]},
    "target": {"name": "ill", "values": [0, 1]},
}


OWN = """
name = "clinic"
training = {rounds = 2, batch_fraction = 0.25}
federation = {clients = 2}
[data]
source = "files"
[data.columns]
features = [{name = "age", low = 18, high = 90}]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "ill", values = [0, 1]}
"""


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    for client in range(2):
        (tmp_path / "data" / str(client)).mkdir(parents=True)
        people(seed=client).to_csv(tmp_path / "data" / str(client) / "train.csv", index=False)
    return {
        "name": "clinic",
        "training": {"rounds": 2, "batch_fraction": 0.25},
        "federation": {"clients": 2},
        "data": {
            "source": "files",
            "data_dir": str(tmp_path / "data"),
            "columns": COLUMNS,
            "held_out_fraction": 0.2,
            "account": "people",
        },
    }


def printed(line: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main([*line, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_names_say_what_their_verbs_print(own: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    checked = fedsw.check(own)
    assert checked["fits"] and list(checked.to_frame()["rows"]) == [80, 80]
    run = fedsw.run(own, "epsilon=5", "random_state=1")
    evaluated = fedsw.evaluate(run.directory)
    assert printed(["evaluate", str(run.directory)], capsys) == json.loads(json_text(evaluated.content))
    assert len(evaluated.to_frame()) == len(evaluated.content)
    account = fedsw.account("people")
    assert printed(["account", "show", "people"], capsys) == json.loads(json_text(account.content))
    assert len(account.to_frame()) == 1 and len(fedsw.account().to_frame()) == 1
    table = people(5, seed=9)
    predicted = fedsw.predict(run.directory, table)
    assert list(predicted.to_frame()["predicted_ill"]) == list(
        fedsw.load(run.directory).predict(table)["predicted_ill"]
    )
    page = fedsw.report(run.directory)
    assert "differential privacy" in page and "iframe" in page._repr_html_()
    audited = fedsw.audit(run.directory)
    assert audited["passed"] and "ledger chain" in set(audited.to_frame()["name"]), audited.content
    made = printed(["audit", str(run.directory)], capsys)
    assert {**made, "date": "", "files": []} == {**json.loads(json_text(audited.content)), "date": "", "files": []}
    for answer in (checked, evaluated, account, predicted, audited):
        assert "<" in answer._repr_html_() and answer.page().startswith("<!")
        assert len(repr(answer).splitlines()) == 1 and str(answer).strip()


def test_the_package_of_audits_is_the_verb_and_has_its_modules() -> None:
    import fedsw.audit.canary

    assert callable(fedsw.audit.canary.audit)
    for refused, about in (
        ({"canary": True, "one_run": 3}, "two attacks"),
        ({"trials": 200}, "as it is"),
        ({}, "give"),
    ):
        with pytest.raises(ValueError, match=about):
            fedsw.audit({"name": "own"}, **refused)


def test_an_account_that_is_not_there_is_no_account() -> None:
    with pytest.raises(FileNotFoundError, match="no account of data set 'people'"):
        fedsw.account("people")


def test_a_budget_is_that_of_the_command(capsys: Any) -> None:
    budget = fedsw.budget(epsilon=2.0, records=500)
    assert printed(["budget", "--epsilon", "2", "--records", "500"], capsys) == json.loads(json_text(budget.content))
    assert "pld" in set(budget.to_frame()["name"]) and "bracket" in str(budget)
    with pytest.raises(ValueError, match="no table"):
        fedsw.budget(epsilon=2.0, records=500, compare=False).to_frame()


def test_epsilon_and_noise_multiplier_invert_each_other() -> None:
    about: dict[str, Any] = {"sampling_rate": 0.1, "steps": 50}
    multiplier = fedsw.noise_multiplier(2.0, DELTA, **about)
    assert fedsw.epsilon(multiplier, DELTA, **about) == pytest.approx(2.0, rel=1e-3)
    assert fedsw.epsilon(multiplier, DELTA, **about) <= 2.0
    assert fedsw.epsilon(2 * multiplier, DELTA, **about) < 1.2
    with pytest.raises(ValueError, match="above 0 and finite"):
        fedsw.epsilon(0.0, DELTA, **about)


def test_experiments_objectives_and_clips_print_short_and_as_tables(own: dict[str, Any]) -> None:
    objective = fedsw.Objective("classification", [fedsw.Parity(0.25)])
    for thing, said in (
        (fedsw.load_experiment("fair-classification"), "epsilon=1"),
        (objective, "Parity 0.25"),
        (fedsw.Clip(1.0, 0.5, 2.0), "jacobian=0.5"),
    ):
        assert said in repr(thing) and len(repr(thing)) < 300
        assert thing._repr_html_().startswith("<table>")


@pytest.mark.slow
def test_verbs_that_train_much_have_names_too(own: dict[str, Any], tmp_path: Path) -> None:
    small = {**own, "training": {"preset": "auto"}, "privacy": {"epsilon": 1.0}, "objective": {"alpha": 0.0}}
    forecast = fedsw.forecast(small)
    assert {"epsilon", "records", "kept"} <= set(forecast.to_frame().columns)
    described = fedsw.describe(own, epsilon=2.0)
    assert set(described.to_frame()["name"]) >= {"age", "ill"}
    (folder,) = (tmp_path / "runs").glob("clinic*/*")
    again = fedsw.describe(folder)
    assert again["columns"] == described["columns"]
    drawn = fedsw.synthesize(own, rows=20, epsilon=2.0)
    assert drawn.to_frame().shape[0] == 20 and set(drawn.to_frame().columns) == {"age", "sex", "ill"}
    tiny = ("data.records=200", "training.rounds=1", "federation.clients=2")
    compared = fedsw.compare("fair-classification", *tiny, methods=["central"], epsilons=[3.0], seeds=1, jobs=1)
    assert len(compared.to_frame()) == 1 and compared._repr_html_().startswith("<table>")
    (tmp_path / "own.toml").write_text(OWN)
    tuned = fedsw.tune(tmp_path / "own.toml", tries=["training.learning_rate=0.1,0.3"], data_dir=tmp_path / "data")
    assert len(tuned.to_frame()) == 2 and "<" in tuned._repr_html_()


def test_an_answer_as_text_moves_no_cursor_and_is_a_hundred_columns_wide():
    answer = Answer({}, lambda: Document("title", begins=("red \x1b[31m, up \x1b[A, bell \x07", "long " * 60)))
    text = str(answer)
    assert "red" in text and not [letter for letter in text if letter != "\n" and not letter.isprintable()]
    assert max(map(len, text.splitlines())) <= 100
