"""Laws of a trainer that calibrates: one release, charged once, inside the budget, of the counts that a run has."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsw
from fedsw.learning.models import flatten
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks import calibration
from fedsw.learning.tasks.score_counts import COARSE, ScoreCounts
from fedsw.mathematics.clipping import UnsupportedModule
from fedsw.privacy.accounting import Step, epsilon_by
from fedsw.privacy.accounting.lifetime import DatasetAccount, accounts_folder
from fedsw.runs.single.objective import Batch
from tests.runs.single.examples import Scores, records

CLIP = Clip(output=0.5, jacobian=1.0, loss=1.0)
PLAIN = fedsw.Objective("classification", [fedsw.Parity(0.5)])


def plan(objective=PLAIN, **other):
    asked = {"sizes": (24, 24), "batch_fraction": 0.5, "rounds": 4, "epsilon": 5.0, "delta": 1e-3, "calibration": 0.2}
    return fedsw.plan(objective, CLIP, **{**asked, **other})


def trainer(folder, found=None, objective=PLAIN, width=1, **other):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, width).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return fedsw.PrivateTrainer(net, optimizer, objective, CLIP, found or plan(), directory=folder, **other)


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """Models that are calibrated, however little of a signal their few records have."""
    monkeypatch.setattr(calibration, "TELLS", -math.inf)


@pytest.mark.parametrize("asked", [{}, {"epsilon": None, "noise_multiplier": 2.0}, {"batch_fraction": 1.0}])
def test_rounds_and_counts_of_scores_compose_to_the_promised_epsilon(asked):
    found = plan(**asked)
    steps = [(Step(max(found.rates), 1 / found.multiplier), 4), (Step(1.0, 1 / found.scores), 1)]
    assert found.epsilon * (1 - 1e-3) < epsilon_by("pld", steps, 1e-3) <= found.epsilon * (1 + 1e-9)
    reserved = found.reserved()
    assert sorted(reserved.values()) == [1, 4] and "the counts of scores after them" in found.guarantee
    assert epsilon_by("pld", [*reserved.items()], 1e-3) == pytest.approx(found.epsilon, rel=1e-3)
    if max(found.rates) == 1.0:  # squares of mu add
        assert (1 / found.scores**2) / sum(count * step.mu**2 for step, count in steps) == pytest.approx(0.2, rel=1e-3)


def test_counts_are_charged_once_after_the_rounds_at_the_bound_and_have_noise_of_its_scale(tmp_path):
    one = trainer(tmp_path / "run")
    net = one.fit(records())
    with fedsw.Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        last = [entry for entry in ledger.entries() if entry.round == 5]
        assert ledger.epsilon() == one.epsilon <= 5.0 * (1 + 1e-9) and one.epsilon > 0.99 * 5.0
    assert {entry.group for entry in last} == set(PLAIN.strata) and {entry.sampling_rate for entry in last} == {1.0}
    assert all(math.sqrt(2) <= entry.sensitivity < 1.01 * math.sqrt(2) for entry in last)
    stored = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert stored["sigma"] == pytest.approx(plan().scores * last[0].sensitivity) and stored["records"] == [48]
    data = records()
    with torch.no_grad():
        outputs = torch.sigmoid(net(data.features.double()))
    exact = ScoreCounts(1, 1, COARSE).of(outputs, data.target, torch.zeros(48, dtype=torch.int64))
    noise = (np.array(stored["values"]) - exact.numpy()) / stored["sigma"]
    assert 0.3 < noise.std() < 2.0 and int(exact.sum()) == 48


def test_the_calibration_is_the_counts_own_and_a_function_of_logits(tmp_path):
    one = trainer(tmp_path / "run", plan(epsilon=math.inf))
    net = one.fit(records())
    found, logits = one.calibration, net(records().features.double())
    assert torch.allclose(found.logits(logits), found.scale * logits + found.shift[0])
    assert math.isinf(one.epsilon)
    again = calibration.calibration_of(ScoreCounts(1, 1, COARSE), np.array(stored(tmp_path)["values"]), 0.0, 48.0)
    assert again == found


def stored(folder):
    return json.loads((folder / "run" / "scores.json").read_text())


@pytest.mark.parametrize("classes", [2, 3])
def test_a_replaced_record_moves_the_counts_by_at_most_what_is_charged(classes):
    objective = fedsw.Objective("classification", [], classes=classes)
    net, data = torch.nn.Linear(3, 1 if classes == 2 else classes).double(), records()
    for seed in range(20):
        other = records(seed=seed + 1)
        mixed = replace(data, features=data.features.clone(), target=data.target.clone())
        mixed.features[seed], mixed.target[seed] = 9 * other.features[seed], (data.target[seed] + 1) % classes
        counts = [objective.count_scores(net, Batch(1, 0, of, (48,), (1.0,))) for of in (data, mixed)]
        values = [bounded._take() for bounded in counts]
        assert float(torch.linalg.vector_norm(values[0] - values[1])) <= counts[0].sensitivity.value
        assert int(values[0].sum()) == 48 * (1 if classes == 2 else classes)
    assert counts[0].sensitivity.value >= math.sqrt(2 * (1 if classes == 2 else classes))


class Centred(torch.nn.Linear):
    """Moves every record by the mean of all."""

    def forward(self, features):
        return super().forward(features - features.mean(dim=0))


def test_scores_of_a_model_that_mixes_records_are_not_counted():
    """Its outputs all move with one record: no sensitivity of counts bounds that."""
    with pytest.raises(UnsupportedModule, match="row i may depend on record i only"):
        PLAIN.count_scores(Centred(3, 1).double(), Batch(1, 0, records(), (24, 24), (1.0, 1.0)))


def test_of_a_person_one_row_is_counted(tmp_path):
    """Two records a person, but for the first two, who have all others of their groups."""
    index = torch.arange(48)
    visits = replace(records(), unit=torch.where(index < 8, index, index % 2))
    trainer(tmp_path / "run", plan(sizes=(4, 4), unit="person")).fit(visits)
    assert stored(tmp_path)["records"] == [8]


def test_a_training_that_goes_on_has_the_counts_that_it_had(tmp_path):
    one = trainer(tmp_path / "run")
    model = flatten(one.fit(records()))
    again = trainer(tmp_path / "run")
    with pytest.warns(UserWarning, match="holds a training that is finished"):
        assert torch.equal(flatten(again.fit(records())), model)
    assert again.calibration == one.calibration and again.epsilon == one.epsilon


def test_counts_that_were_charged_and_are_not_on_file_are_not_released_again(tmp_path):
    trainer(tmp_path / "run").fit(records())
    (tmp_path / "run" / "scores.json").unlink()
    again = trainer(tmp_path / "run")
    with pytest.warns(UserWarning, match="not released again"):
        again.fit(records())
    assert again.calibration is None and not (tmp_path / "run" / "scores.json").exists()


def test_an_account_sets_the_counts_aside_too(tmp_path):
    one = trainer(tmp_path / "run", account="calibrated-trainer")
    one.fit(records())
    state = DatasetAccount(accounts_folder(), "calibrated-trainer").state()
    (run,) = state.runs.values()
    assert sum(run.steps.values()) == 5 and state.spent(1e-3) == pytest.approx(5.0, rel=0.02)


@pytest.mark.parametrize(
    ("objective", "changes", "reason"),
    [
        (PLAIN, {"calibration": 0.7}, "from 0 to 0.5"),
        (fedsw.Objective(Scores(), [fedsw.Parity(0.5)]), {}, "The objective has other outputs"),
        (fedsw.Objective("regression", [fedsw.Parity(0.5)], classes=0, targets=1), {}, "other outputs"),
        (PLAIN, {"mechanism": "laplace", "accountant": "pld"}, "is for Gaussian noise|norm|noise"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused_when_the_plan_is_made(objective, changes, reason):
    with pytest.raises(ValueError, match=reason):
        plan(objective, **changes)


def test_without_a_share_nothing_is_counted(tmp_path):
    one = trainer(tmp_path / "run", plan(calibration=0.0))
    one.fit(records())
    assert one.calibration is None and not (tmp_path / "run" / "scores.json").exists() and not one.plan.scores
    assert "plan.calibration" not in json.loads((tmp_path / "run" / "training.json").read_text())
