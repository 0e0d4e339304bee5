"""Private post-processing of a finished run: its histograms are paid for once, and what is measured again is free."""

from __future__ import annotations

import numpy as np
import pytest

from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.federation.engines.driver import run
from fedsw.privacy.accounting import Ledger
from simulations.papers.finished import Finished
from simulations.papers.measures.regression import EPSILON, RADII, one_number, post_processed

SMALL = ["training.rounds=2", "data.records=600", "data.test_records=300", "federation.clients=2", "objective.alpha=0"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Finished:
    experiment = load_experiment(find_experiment("fair-regression-1d"), SMALL)
    return Finished(run(experiment, runs=tmp_path_factory.mktemp("runs")).directory)


def test_numbers_are_in_the_units_of_the_paper(finished):
    held_out, found = finished.record.summary["held_out"], one_number(finished).values
    assert found["mse"] == pytest.approx(4 * held_out["mean_squared_error"], rel=1e-5)
    assert found["w2"] == pytest.approx(4 * held_out["w2_squared"], rel=1e-4)
    assert found["ks"] == pytest.approx(held_out["ks"], abs=1e-3)


def test_histograms_are_paid_for_once_and_measuring_again_spends_nothing(finished):
    first, again = post_processed(finished), post_processed(finished)
    assert all(np.array_equal(first.arrays[name], again.arrays[name]) for name in first.arrays)
    assert first.arrays["beta"].tolist() == list(RADII) and len(first.arrays["mse"]) == len(RADII)
    with Ledger.open(finished.directory / "histograms-ledger.sqlite", read_only=True) as ledger:
        assert len(ledger.entries()) == 1 and ledger.epsilon() == pytest.approx(EPSILON, rel=1e-6)


def test_a_wider_ball_leaves_predictions_nearer_to_what_they_were(finished):
    costs = post_processed(finished).arrays
    assert costs["ks"][0] < 0.25  # 300 records; the noise of 1 is in it


@pytest.mark.parametrize("changed", [["data.source=adult"]])
def test_a_target_that_nobody_predicts_is_refused(changed):
    with pytest.raises(ExperimentError, match=r"(data: |data\.)(target|source)"):
        load_experiment(find_experiment("fair-regression-1d"), changed)
