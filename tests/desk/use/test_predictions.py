"""Laws of using a run: predictions are the run's own outputs, on any table of its columns; nothing is guessed."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedsw
from fedsw.cli.app import main
from fedsw.data.formats import BadRecords
from fedsw.experiment import ExperimentError
from fedsw.runs.view import read_run

from .conftest import INCOME, settings


def test_predictions_are_the_outputs_that_the_run_measured(classifier, place):
    found = fedsw.load(classifier).predict(place / "held-out.csv")
    measured = read_run(classifier).outputs.values[:, 0]
    assert np.allclose(found["probability_high"], measured, atol=1e-6)
    assert np.allclose(found["probability_low"], 1 - measured, atol=1e-6)
    assert found["predicted_income"].tolist() == np.where(measured > 0.5, "high", "low").tolist()


def test_a_frame_and_its_file_are_predicted_alike_and_rows_keep_their_names(classifier, place):
    model, frame = fedsw.load(classifier), pd.read_csv(place / "held-out.csv").sample(frac=1, random_state=0)
    from_file, from_frame = model.predict(place / "held-out.csv"), model.predict(frame)
    assert from_frame.index.equals(frame.index) and from_file.index.tolist() == list(range(2, 122))
    assert np.allclose(from_frame.sort_index()["probability_high"], from_file["probability_high"], atol=1e-12)


def test_what_is_predicted_and_who_is_compared_need_not_be_in_the_table(classifier, place):
    frame = pd.read_csv(place / "held-out.csv")
    few = fedsw.load(classifier).predict(frame[["work", "age"]])
    assert few.equals(fedsw.load(classifier).predict(frame))


def test_columns_that_are_kept_stand_beside_their_predictions(classifier, place):
    found = fedsw.load(classifier).predict(place / "held-out.csv", keep=["id", "age"])
    assert found["id"].tolist() == [f"p{age}" for age in range(200, 320)]
    with pytest.raises(BadRecords, match="has no column 'name', which is to be kept"):
        fedsw.load(classifier).predict(place / "held-out.csv", keep=["name"])


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("work", "c", "row 1 .*column 'work' is 'c'; declared are 'a', 'b'"),
        ("work", "", "row 1 .*column 'work' is empty; declared are 'a', 'b'"),
        ("age", 401, "row 1 .*column 'age' is 401.0; a finite number from 0 to 400"),
        ("age", float("nan"), "row 1 .*column 'age' is nan; a finite number"),
    ],
)
def test_a_cell_that_was_not_declared_is_refused_and_not_guessed(classifier, place, column, value, said):
    frame = pd.read_csv(place / "held-out.csv").astype({column: object})
    frame.loc[1, column] = value
    with pytest.raises(BadRecords, match=said):
        fedsw.load(classifier).predict(frame if column == "work" else frame.astype({"age": float}))


def test_a_model_that_diverged_predicts_nothing(classifier, place):
    model = fedsw.load(classifier)
    with torch.no_grad():
        next(model.model.parameters()).fill_(torch.nan)
    with pytest.raises(ExperimentError, match="answers to row 2 is not finite: it has diverged in training"):
        model.predict(place / "held-out.csv")


def test_a_table_without_a_column_or_a_record_says_so(classifier, place, tmp_path):
    frame = pd.read_csv(place / "held-out.csv")
    with pytest.raises(BadRecords, match="has no column 'work'"):
        fedsw.load(classifier).predict(frame[["age"]])
    (tmp_path / "none.csv").write_text("age,work\n")
    with pytest.raises(BadRecords, match="nothing to predict"):
        fedsw.load(classifier).predict(tmp_path / "none.csv")


def test_a_regression_answers_in_the_target_s_own_units(regression, place):
    found = fedsw.load(regression).predict(place / "held-out.csv")["predicted_pay"]
    measured = read_run(regression).outputs.values[:, 0]
    assert np.allclose(found, 10 + 10 * measured, atol=1e-5) and found.between(10, 20).all()


def test_a_representation_answers_with_codes(place, tmp_path):
    model = {"kind": "encoder-decoder", "hidden": [3], "latent": 2}
    asked = settings(place, INCOME, objective={"task": "representation"}, model=model)
    run = fedsw.run(asked, runs=tmp_path).directory
    found = fedsw.load(run).predict(place / "held-out.csv")
    assert np.allclose(found[["code_1", "code_2"]], read_run(run).outputs.values, atol=1e-6)


def test_a_generator_says_that_it_predicts_nothing(tmp_path):
    run = fedsw.run("ring", "training.rounds=1", "data.records=40", "federation.clients=2", runs=tmp_path).directory
    assert isinstance(fedsw.load(run).model, nn.Module)
    with pytest.raises(ExperimentError, match="makes records and predicts nothing"):
        fedsw.load(run).outputs(torch.zeros((1, 2)))


def test_shipped_data_has_no_columns_and_takes_features(tmp_path):
    changes = ("training.rounds=1", "data.records=60", "federation.clients=2")
    run = fedsw.run("fair-classification", *changes, runs=tmp_path).directory
    model = fedsw.load(run)
    with pytest.raises(ExperimentError, match="has no declared columns"):
        model.predict({"x": [1.0]})
    assert torch.allclose(model.outputs(torch.zeros((3, model.width))).sum(dim=1), torch.ones(3).double())
    with pytest.raises(ExperimentError, match=rf"\(n, {model.width}\) is what the model takes"):
        model.outputs(torch.zeros((3, model.width + 1)))


def test_a_model_that_was_an_object_is_asked_for_again(place, tmp_path):
    network = nn.Linear(3, 1)
    run = fedsw.run(settings(place, INCOME), model=network, runs=tmp_path).directory
    with pytest.raises(ExperimentError, match=r"using it needs it again: load\(run, model=...\)"):
        fedsw.load(run)
    found = fedsw.load(run, model=nn.Linear(3, 1)).predict(place / "held-out.csv")["probability_high"]
    assert np.allclose(found, read_run(run).outputs.values[:, 0], atol=1e-6)


def test_a_run_without_a_model_and_a_damaged_one_are_named(classifier, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_bytes((classifier / "config.json").read_bytes())
    with pytest.raises(ValueError, match="has released no model"):
        fedsw.load(copy)
    (copy / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not the model of this run's settings"):
        fedsw.load(copy)


def test_the_command_writes_what_the_call_returns(classifier, place, tmp_path, capsys):
    output, table = tmp_path / "new" / "predictions.csv", str(place / "held-out.csv")
    assert main(["predict", str(classifier), table, "-o", str(output), "--keep", "id"]) == 0
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = fedsw.load(classifier).predict(table, keep=["id"])
    assert [row["predicted_income"] for row in rows] == found["predicted_income"].tolist()
    assert [float(row["probability_high"]) for row in rows] == found["probability_high"].tolist()
    said = capsys.readouterr()
    assert "120 records" in said.out and "warning of the run" in said.err
    assert (
        main(["predict", str(classifier), table, "--json", "--threshold", "female=0.1", "--threshold", "male=1"]) == 0
    )
    answers = json.loads(capsys.readouterr().out)
    assert answers["records"] == 120 and len(answers["predictions"]["row"]) == 120
    assert main(["predict", str(classifier), table, "--threshold", "female=0.1", "--threshold", "0.5"]) == 2
    assert "write GROUP=NUMBER" in capsys.readouterr().err


def test_texts_that_a_spreadsheet_would_run_are_warned_of_and_marked_where_asked(classifier, place, tmp_path, capsys):
    frame = pd.read_csv(place / "held-out.csv")
    frame["note"] = ["=1+1", "-5", *["fine"] * (len(frame) - 2)]
    table, output = tmp_path / "table.csv", tmp_path / "predictions.csv"
    frame.to_csv(table, index=False)
    asked = ["predict", str(classifier), str(table), "-o", str(output), "--keep", "note", "--force"]
    for more, first in ((), "=1+1"), (("--spreadsheet",), "'=1+1"):
        assert main([*asked, *more]) == 0
        warned = "'=1+1' would be taken for a formula by a spreadsheet" in capsys.readouterr().err
        assert warned == (not more)
        with output.open(newline="") as file:
            notes = [row["note"] for row in csv.DictReader(file)]
        assert notes[:3] == [first, "-5", "fine"]


def test_every_class_of_several_has_its_probability(place, tmp_path):
    columns = {"target": {"name": "pay", "values": list(range(10, 19))}}
    asked = settings(place, columns, clip={"output": 1.0, "jacobian": 0.5, "loss": 1.0})
    run = fedsw.run(asked, runs=tmp_path).directory
    found = fedsw.load(run).predict(place / "held-out.csv")
    probabilities = found[[f"probability_{value}" for value in range(10, 19)]]
    assert np.allclose(probabilities.sum(axis=1), 1) and np.allclose(probabilities, read_run(run).outputs.values)
    assert (probabilities.idxmax(axis=1) == "probability_" + found["predicted_pay"]).all()
    with pytest.raises(ExperimentError, match="a threshold is for a classifier of two classes"):
        fedsw.load(run, thresholds=0.5)


def test_all_cells_that_do_not_fit_are_named_at_once_or_become_what_is_said(classifier, place, tmp_path, capsys):
    frame = pd.read_csv(place / "held-out.csv").astype({"age": object})
    frame.loc[1, "age"], frame.loc[1, "work"], frame.loc[3, "work"], frame.loc[5, "age"] = 500, "c", "NA", ""
    path, out = tmp_path / "t.csv", tmp_path / "p.csv"
    frame.to_csv(path, index=False)
    model, rows = fedsw.load(classifier), len(frame)
    with pytest.raises(BadRecords) as told:
        model.predict(path)
    said = str(told.value)
    assert all(f"row {row} (the header is row 1), column" in said for row in (3, 5, 7)) and said.count("row 3 ") == 2
    assert "--faults leave-out" in said and "in the declaration" not in said
    assert main(["predict", str(classifier), str(path), "--faults", "leave-out", "-o", str(out)]) == 0
    left = pd.read_csv(out)
    assert len(left) == rows - 3 and not {3, 5, 7} & {*left["row"]}
    whole = model.predictions(place / "held-out.csv")["probability_high"]
    assert np.allclose(left["probability_high"], np.delete(whole, [1, 3, 5]), atol=1e-6)
    missing = model.predictions(path, faults="missing")["probability_high"]
    assert len(missing) == rows and np.allclose(np.delete(missing, [1, 3, 5]), np.delete(whole, [1, 3, 5]), atol=1e-6)
    middle = frame.iloc[[5]].assign(age=200)
    assert missing[5] == pytest.approx(model.predictions(middle)["probability_high"][0], abs=1e-6)
    with pytest.raises(BadRecords, match="'work' is 'c'"):
        model.predictions(path, faults="nearest")
    far = frame.iloc[[1]].assign(work="a")
    near = model.predictions(far, faults="nearest")["probability_high"][0]
    assert near == pytest.approx(model.predictions(far.assign(age=400))["probability_high"][0], abs=1e-6)
