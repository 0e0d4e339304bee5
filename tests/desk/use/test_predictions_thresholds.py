"""Laws of thresholds: rules hold on the held-out records that they are found on, and look at no others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.data.formats import BadRecords
from fedsw.desk.use.predictions import settle
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import HeldOutOutputs
from tests.runs.kept_runs import frame, kept_run, tables

NAMES = {"groups": ("female", "male"), "classes": ("low", "high")}
EXPERIMENT = parse_experiment({"name": "own", "objective": {"task": "classification"}})


def outputs(count: int = 600) -> HeldOutOutputs:
    """Probabilities of class 1, higher in group 1, and classes that follow them."""
    draws = np.random.default_rng(0)
    sensitive, scores = draws.integers(2, size=count), draws.uniform(size=count)
    scores = np.where(sensitive == 1, 0.2 + 0.7 * scores, 0.1 + 0.6 * scores)
    target = (scores + draws.normal(0, 0.15, size=count) > 0.45).astype(np.int64)
    return HeldOutOutputs(scores[:, None], sensitive, target)


def chosen(found, measured: HeldOutOutputs) -> np.ndarray:
    own = np.array([found.by_group.get(group, found.one) for group in NAMES["groups"]])
    return measured.values[:, 0] > own[measured.sensitive]


def test_parity_selects_all_groups_alike():
    measured = outputs()
    picked = chosen(settle("parity", EXPERIMENT, measured, **NAMES), measured)
    rates = [picked[measured.sensitive == group].mean() for group in (0, 1)]
    assert abs(rates[0] - rates[1]) < 0.005 and 0.2 < rates[0] < 0.9
    plain = measured.values[:, 0] > 0.5
    assert abs(plain[measured.sensitive == 0].mean() - plain[measured.sensitive == 1].mean()) > 0.1


def test_opportunity_finds_the_second_class_alike_in_all_groups():
    measured = outputs()
    picked = chosen(settle("opportunity", EXPERIMENT, measured, **NAMES), measured)
    rates = [picked[(measured.sensitive == group) & (measured.target == 1)].mean() for group in (0, 1)]
    assert abs(rates[0] - rates[1]) < 0.01 and 0.2 < rates[0] < 0.99


def test_best_is_right_most_often():
    measured = outputs()
    scores, target = measured.values[:, 0], measured.target == 1
    found = settle("best", EXPERIMENT, measured, **NAMES)
    most = max(((scores > at) == target).mean() for at in [0.0, *scores])
    assert ((scores > found.one) == target).mean() == most


def test_where_thresholds_come_from_is_said():
    words = str(settle("parity", EXPERIMENT, outputs(), **NAMES))
    assert "600 held-out records" in words and "does not cover" in words and "female" in words
    assert str(settle(0.3, EXPERIMENT, None, **NAMES)) == "threshold 0.3 of 'high' (as given)"


def test_rules_look_at_held_out_records_only():
    with pytest.raises(ExperimentError, match="has none; give numbers"):
        settle("best", EXPERIMENT, None, **NAMES)
    data = EXPERIMENT.data.model_copy(update={"source": "files", "held_out": "x.csv", "held_out_overlap": "allow"})
    private = EXPERIMENT.model_copy(update={"data": data})
    assert private.data.shows_private_rows
    with pytest.raises(ExperimentError, match="may be private ones"):
        settle("parity", private, outputs(), **NAMES)


def test_a_group_of_few_records_gets_no_threshold_of_its_own():
    measured = outputs(60)
    few = dataclasses.replace(measured, sensitive=np.where(np.arange(60) < 5, 1, 0))
    with pytest.raises(ExperimentError, match="there are 5 held-out records of the group 'male'"):
        settle("parity", EXPERIMENT, few, **NAMES)
    assert not settle("best", EXPERIMENT, few, **NAMES).by_group


@pytest.mark.parametrize("asked", ["nice", 1.5, float("nan"), {"female": 0.3}, {"female": 0.3, "male": "x"}, True])
def test_what_is_no_threshold_is_refused(asked):
    with pytest.raises(ExperimentError, match="threshold"):
        settle(asked, EXPERIMENT, outputs(), **NAMES)


def test_thresholds_by_group_need_the_group_and_decide_by_it(classifier, place):
    frame = pd.read_csv(place / "held-out.csv")
    model = fedsw.load(classifier, thresholds={"female": 0, "male": 1})
    found = model.predict(frame)["predicted_income"]
    assert ((found == "high") == (frame["sex"] == "female")).all()
    with pytest.raises(BadRecords, match="has no column 'sex'"):
        model.predict(frame.drop(columns="sex"))


def test_a_run_that_shows_no_held_out_output_has_parity_from_the_counts_that_it_released(tmp_path, capsys):
    asked = ("thresholds.share=0.2", "privacy.noise_multiplier=0.5")
    run = fedsw.run(kept_run(tables(tmp_path / "data", 60, 60, 60), *asked), runs=tmp_path / "runs")
    assert not (run.directory / RunFile.OUTPUTS).exists() and run.summary["held_out_release"]["records"] > 0
    cuts = {group: entry["threshold"] for group, entry in run.summary["thresholds"]["by_group"].items()}
    given, output = frame(9, 40), tmp_path / "predictions.csv"
    given.to_csv(tmp_path / "table.csv", index=False)
    words = ["predict", str(run.directory), str(tmp_path / "table.csv"), "-o", str(output), "--threshold", "parity"]
    assert main(words) == 0 and "within the run's guarantee" in capsys.readouterr().out
    found = pd.read_csv(output)
    above = found["probability_high"].to_numpy() > given["sex"].map(cuts).to_numpy()
    assert ((found["predicted_income"] == "high").to_numpy() == above).all()
