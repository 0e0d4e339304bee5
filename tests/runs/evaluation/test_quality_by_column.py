"""Laws of metrics by each column of groups that several columns make together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedsw.data import Records
from fedsw.experiment import parse_experiment
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Counts
from fedsw.runs.evaluation.held_out_metrics import Tallied, held_out_of
from fedsw.runs.evaluation.quality import area_under_curve, by_column

N = 900


def problem() -> Problem:
    columns = {
        "features": [{"name": "age", "low": 0, "high": 1}],
        "sensitive": {
            "of": [{"name": "sex", "values": ["f", "m"]}, {"name": "race", "values": ["a", "b"]}],
            "values": ["f × a", "f × b", "m × a", "other"],
            "other": "other",
        },
        "target": {"name": "ill", "values": ["no", "yes"], "positive": "yes"},
    }
    return Problem.from_experiment(parse_experiment({"name": "own", "data": {"source": "object", "columns": columns}}))


def made(seed: int) -> tuple[torch.Tensor, Records]:
    law = np.random.default_rng(seed)
    group, target = law.integers(0, 4, N), law.integers(0, 2, N)
    outputs = np.clip(0.2 + 0.3 * target + 0.1 * group + law.normal(0, 0.25, N), 0.001, 0.999)
    rows = [torch.from_numpy(column) for column in (group, target, np.arange(N))]
    return torch.from_numpy(outputs[:, None]), Records(torch.zeros(N, 1), rows[0], rows[1], rows[2])


def test_each_value_of_a_column_has_what_its_records_have_and_the_column_what_compares_them():
    outputs, records = made(0)
    table = by_column(problem(), outputs, records)
    assert list(table.numbers) == [
        "sex = f",
        "sex = m",
        "sex: largest gap",
        "race = a",
        "race = b",
        "race: largest gap",
    ]
    answer, target, score = (outputs[:, 0] > 0.5).numpy(), records.target.numpy() == 1, outputs[:, 0].numpy()
    rates = {}
    for name, groups in (("f", [0, 1]), ("m", [2])):
        rows = np.isin(records.sensitive.numpy(), groups)
        rates[name] = {
            "selection_rate": answer[rows].mean(),
            "true_positive_rate": answer[rows & target].mean(),
            "false_positive_rate": answer[rows & ~target].mean(),
            "accuracy": (answer == target)[rows].mean(),
        }
        said = table.numbers[f"sex = {name}"]
        assert said["count"] == rows.sum() and said["auc"] == pytest.approx(roc_auc_score(target[rows], score[rows]))
        assert {key: said[key] for key in rates[name]} == pytest.approx(rates[name])
    gaps = {key: abs(rates["f"][key] - rates["m"][key]) for key in rates["f"]}
    said, around = table.numbers["sex: largest gap"], table.around["sex: largest gap"]
    assert {key: said[key] for key in gaps} == pytest.approx(gaps)
    selected = sorted(rates[name]["selection_rate"] for name in "fm")
    assert said["disparate_impact"] == pytest.approx(selected[0] / selected[1])
    assert said["demographic_parity_difference"] == pytest.approx(gaps["selection_rate"])
    odds = max(gaps["true_positive_rate"], gaps["false_positive_rate"])
    assert said["equalized_odds_difference"] == pytest.approx(odds)
    assert all(around[name].low <= value <= around[name].high for name, value in said.items())


def tallied(outputs: torch.Tensor, records: Records, sigma: float, seed: int) -> Tallied:
    vectors = Counts(4, 2).vectors(outputs.float(), records.target)
    sums = torch.stack([vectors[records.sensitive == group].sum(0) for group in range(4)]).numpy()
    sizes = np.bincount(records.sensitive.numpy(), minlength=4)
    noise = np.random.default_rng(seed).normal(0, sigma, sums.shape)
    return Tallied(sums + noise, sigma, sizes, clients=2, attempt=1, spent=1.0, round=1)


def test_counts_without_noise_tell_of_each_column_what_records_do():
    outputs, records = made(1)
    by_records, by_counts = (
        by_column(problem(), outputs, records).numbers,
        held_out_of(problem(), Counts(4, 2), tallied(outputs, records, 0.0, 0)).by_column.numbers,
    )
    assert list(by_counts) == list(by_records)
    for row, said in by_counts.items():
        whole = {key: value for key, value in said.items() if key not in ("auc", "calibration_error")}
        assert whole == pytest.approx({key: by_records[row][key] for key in whole}) and len(whole) >= 5
        assert abs(said.get("auc", 0.0) - by_records[row].get("auc", 0.0)) < 0.01


@pytest.mark.slow
def test_intervals_of_a_column_hold_its_rates_with_the_noise_of_all_its_groups():
    outputs, records = made(2)
    task, held = problem(), list[bool]()
    for seed in range(150):
        sums = tallied(outputs, records, 25.0, seed)
        low, high = held_out_of(task, Counts(4, 2), sums).by_column.around["sex = f"]["accuracy"]
        held.append(low <= _accuracy(outputs, records) <= high)
    assert np.mean(held) > 0.92


def _accuracy(outputs: torch.Tensor, records: Records) -> float:
    rows = records.sensitive < 2
    return float(((outputs[rows, 0] > 0.5) == (records.target[rows] == 1)).double().mean())


@pytest.mark.parametrize("levels", [2, 7, 10**9])
def test_the_area_is_the_library_s_whatever_scores_are_equal(levels: int) -> None:
    law = np.random.default_rng(levels)
    target = law.integers(0, 2, 400)
    scores = np.round(target * 0.3 + law.normal(size=400) * levels) / levels
    assert area_under_curve(target, scores) == pytest.approx(roc_auc_score(target, scores), abs=1e-12)
    assert math.isnan(area_under_curve(np.ones(5, dtype=int), scores[:5]))
    assert math.isnan(area_under_curve(target, np.where(np.arange(400) == 3, np.inf, scores)))
