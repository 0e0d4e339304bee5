"""Laws of a regression's numbers: errors are in the units of the declared column everywhere, and coded where asked."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.runs.view import read_run
from tests.desk.use.conftest import PAY, settings

WIDTH = 10.0
ROUNDING = 2**-19
"""Of one number from 10 to 20, in single precision; groups of the held-out records are about ten times that apart."""


@pytest.fixture(scope="module")
def truth(regression, place) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions and pay of the held-out records in its own unit, from 10 to 20, and their groups."""
    frame = pd.read_csv(place / "held-out.csv")
    predicted = fedsw.load(regression).predict(frame)["predicted_pay"].to_numpy()
    return predicted, frame["pay"].to_numpy(dtype=float), frame["sex"].to_numpy()


def test_what_is_stored_of_a_run_is_in_the_units_of_the_column(regression, truth):
    predicted, pay, sex = truth
    summary = json.loads((regression / "summary.json").read_text())
    error = float(np.square(predicted - pay).mean())
    assert summary["held_out"]["mean_squared_error"] == pytest.approx(error, rel=1e-5)
    assert summary["held_out"]["root_mean_squared_error"] == pytest.approx(error**0.5, rel=1e-5)
    for name in ("mean_squared_error", "root_mean_squared_error"):
        low, high = summary["held_out_intervals"][name]
        assert low < summary["held_out"][name] < high
    spread = float(np.square(pay - pay.mean()).mean())
    assert summary["constant"]["mean_squared_error"] == pytest.approx(spread, rel=1e-5)
    assert summary["constant_answers"] == f"always the mean, {pay.mean():.3g}"
    assert summary["gain"]["value"] == pytest.approx(spread - error, rel=1e-4)
    apart = np.sort(predicted[sex == "female"]), np.sort(predicted[sex == "male"])
    distance = float(np.square(apart[0] - apart[1]).mean()) ** 0.5
    assert summary["held_out"]["w2_squared"] ** 0.5 == pytest.approx(distance, rel=1e-3, abs=ROUNDING)
    for group, each in summary["held_out_by_group"].items():
        gaps = (predicted - pay)[sex == group]
        assert each["mean_absolute_error"] == pytest.approx(float(np.abs(gaps).mean()), rel=1e-5)
        assert each["r2"] < 1
    last = read_run(regression).history[-1]["held_out"]
    assert last["mean_squared_error"] == pytest.approx(error, rel=1e-5)
    assert all("mean squared error 0.0" not in warning for warning in summary["warnings"])


def test_coded_errors_are_shown_where_they_are_asked_for(regression, capsys):
    def shown(*more: str) -> dict:
        capsys.readouterr()
        assert main(["show", str(regression), "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    own, coded = shown(), shown("--coded")
    for part in ("held_out", "constant", "held_out_intervals"):
        for name, power in (("mean_squared_error", 2), ("root_mean_squared_error", 1)):
            assert np.array(coded[part][name]) * WIDTH**power == pytest.approx(np.array(own[part][name]))
    assert coded["held_out"]["w2_squared"] * WIDTH**2 == pytest.approx(own["held_out"]["w2_squared"])
    assert coded["held_out"]["ks"] == own["held_out"]["ks"] and coded["held_out"]["loss"] == own["held_out"]["loss"]
    assert coded["gain"]["value"] * WIDTH**2 == pytest.approx(own["gain"]["value"])
    assert main(["show", str(regression)]) == 0
    screen = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "error (RMS)" in screen and "loss (coded)" in screen and "in squared error" in screen


def test_errors_of_what_clients_kept_are_in_units_too(place, tmp_path, capsys):
    kept = {"held_out": None, "held_out_fraction": 0.4, "held_out_to": "everybody"}
    asked = settings(place, PAY, objective={"task": "regression"})
    asked |= {"data": asked["data"] | kept, "privacy": {"trust": "none"}}
    run = fedsw.run(asked, runs=tmp_path).directory
    summary = json.loads((run / "summary.json").read_text())
    assert main(["evaluate", str(run), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)[-1]
    for name in ("mean_squared_error", "root_mean_squared_error"):
        assert summary["held_out"][name] == pytest.approx(evaluated["metrics"][name], rel=1e-3)
        assert summary["constant"][name] == pytest.approx(evaluated["constant"][name], rel=1e-3)
    assert 10 < float(summary["constant_answers"].rpartition(" ")[2]) < 20
