"""Laws of the rehearsal: what can fail after a charge is tried on made-up records before it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.data import read_table
from fedsw.desk.own_data import rehearsal
from fedsw.desk.own_data import synthetic_table as synthesis
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.runs.evaluation.evaluator import Evaluator
from fedsw.runs.run_files import RunFile

DECLARED = """
name = "own"
training = { rounds = 2, batch_fraction = 0.5 }
privacy = { epsilon = 1.0, delta = 1e-4, trust = "TRUST" }
federation = { clients = 2 }
[data]
source = "files"
unit = "pid"
[data.columns]
features = [
  {name = "age", kind = "integer", low = 18, high = 90, missing = [""], fill = 40},
  {name = "seen", kind = "date", low = 2020-01-01, high = 2020-12-31},
  {name = "smoker", kind = "boolean"},
  {name = "work", categories = ["a", "b"]},
]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "ill", values = ["no", "yes"]}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment on two clients' tables whose rows say whose they are."""
    monkeypatch.chdir(tmp_path)
    for client in range(2):
        place = tmp_path / "DATA" / str(client)
        place.mkdir(parents=True)
        rows = [
            [f"p{client}-{i % 40}", 20 + i % 60, f"2020-02-{1 + i % 20:02}", "yn"[i % 2], "ab"[i % 2],
             "fm"[i % 40 // 2 % 2], ("no", "yes")[i // 4 % 2]]
            for i in range(60)
        ]  # fmt: skip
        with (place / "t.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["pid", "age", "seen", "smoker", "work", "sex", "ill"], *rows])
    (tmp_path / "own.toml").write_text(DECLARED.replace("TRUST", "central"))
    return tmp_path / "own.toml"


def verb(name: str, own: Path, *more: str) -> int:
    return main([name, str(own), "--data-dir", str(own.parent / "DATA"), *more, "--quiet"])


def spent(place: Path) -> list[Path]:
    """Every ledger below the runs that were begun."""
    return sorted((place / "runs").rglob(RunFile.LEDGER))


def test_a_table_whose_rows_are_persons_is_written_with_made_up_ones(own, monkeypatch):
    monkeypatch.setattr(synthesis, "STEPS", 5)
    out = own.parent / "synthetic.csv"
    assert verb("synthesize", own, "--rows", "50", "-o", str(out)) == 0
    rows = list(csv.DictReader(out.open()))
    assert len({row["pid"] for row in rows}) == 50 and all(row["pid"].startswith("made-up-") for row in rows)
    columns = load_experiment(str(own)).data.columns
    assert columns is not None and len(read_table(out, columns)) == 50


@pytest.mark.parametrize("name", ["run", "synthesize"])
def test_what_fails_after_a_release_is_refused_before_it(own, monkeypatch, capsys, name):
    def missing(*_args, **_more):
        raise KeyError("pid")

    monkeypatch.setattr(Evaluator, "write_outputs", missing)
    monkeypatch.setattr("fedsw.runs.write.card", missing)
    monkeypatch.setattr("fedsw.desk.own_data.card.card", missing)
    assert verb(name, own) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "fails on made-up records" in said and "KeyError: 'pid'" in said and "Nothing was spent" in said
    assert not spent(own.parent)


@pytest.mark.parametrize(
    ("name", "place"),
    [("run", "fedsw.runs.write.card"), ("run", "fedsw.desk.use.predictions.inputs_of"),
     ("synthesize", "fedsw.desk.own_data.card.card"), ("synthesize", "fedsw.learning.tasks.measures.cells_of_table")],
)  # fmt: skip
def test_the_table_the_card_and_predictions_are_rehearsed(own, monkeypatch, name, place):
    def missing(*_args, **_more):
        raise KeyError("pid")

    monkeypatch.setattr(place, missing)
    assert verb(name, own) == 2 and not spent(own.parent)


@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_a_rehearsal_of_what_works_leaves_nothing_behind(own, monkeypatch, trust):
    own.write_text(DECLARED.replace("TRUST", trust))
    experiment = load_experiment(str(own), ["data.account=persons"])
    seen: list[Path] = []
    rehearsal.rehearse(experiment, seen.append)
    (place,) = seen
    assert not place.exists() and not (own.parent / "runs").exists()


@pytest.mark.parametrize("trust", ["distributed", "local-gradient"])
def test_a_charge_is_seen_wherever_its_ledger_is(own, monkeypatch, trust):
    own.write_text(DECLARED.replace("TRUST", trust))
    monkeypatch.setattr(Evaluator, "write_outputs", lambda *_args, **_more: 1 / 0)
    with pytest.raises(ExperimentError, match="the run fails on made-up records"):
        rehearsal.rehearse(load_experiment(str(own)))


def test_what_is_refused_before_a_charge_is_left_to_the_run(own, monkeypatch):
    experiment = load_experiment(str(own))
    monkeypatch.setattr(Evaluator, "__init__", lambda *_args, **_more: 1 / 0)
    rehearsal.rehearse(experiment, lambda place: pytest.fail("nothing was released"))
    monkeypatch.undo()
    with pytest.raises(ExperimentError, match="what becomes of the run fails on made-up records.*ZeroDivisionError"):
        rehearsal.rehearse(experiment, lambda place: 1 / 0)
