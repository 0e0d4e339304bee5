"""Laws of verdicts: a constant is never praised, chance is named, signal and noise are parted by releases alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsw.data import Records
from fedsw.runs.evaluation.intervals import Gain
from fedsw.runs.evaluation.quality import Quality, calibration_error, quality_of_classes, quality_of_numbers
from fedsw.runs.evaluation.verdict import signal_to_noise, warnings_of


def records(target, sensitive=None) -> Records:
    target = torch.as_tensor(target)
    sensitive = torch.arange(len(target)) % 2 if sensitive is None else torch.as_tensor(sensitive)
    return Records(torch.zeros((len(target), 1)), sensitive, target, torch.arange(len(target)))


def said(outputs, target, **more) -> str:
    data, outputs = records(target), torch.as_tensor(outputs, dtype=torch.float64)[:, None]
    found = quality_of_classes(outputs, data, groups=2, classes=2, names=("bad", "good"))
    accuracy = float(((outputs[:, 0] > 0.5).long() == data.target).double().mean())
    given = {"metrics": {"accuracy": accuracy, "loss": 0.5}, "quality": found, "records": len(target), "start": 0.7}
    given |= {"epsilon": 1.0}
    return "\n".join(warnings_of(**(given | more)))


def test_a_model_below_the_constant_is_called_worse_with_both_numbers():
    target = [1] * 684 + [0] * 316
    outputs = np.where(np.arange(1000) % 2, 0.9, 0.1)
    words = said(outputs, target)
    assert "worse than a constant: accuracy 0.5 (0.469 to 0.531), where always 'good' scores 0.684 (" in words
    assert "cannot be told" not in words


def test_a_good_model_on_enough_records_has_no_warning():
    target = np.arange(1000) % 2
    assert said(np.where(target, 0.9, 0.1), target.tolist()) == ""


def test_few_records_cannot_tell_a_model_from_a_constant():
    target = [1] * 14 + [0] * 6
    outputs = [0.9] * 14 + [0.1] + [0.9] * 5
    words = said(outputs, target)
    assert words.startswith("cannot be told from a constant: accuracy 0.75 (0.")
    assert "the difference, 0.05 (-0." in words and "is within what 20 held-out records allow" in words


def test_one_answer_for_all_is_said_to_be_one_and_parity_no_merit():
    assert "answers the same for every record" in said([0.9] * 10, [1] * 7 + [0] * 3)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metrics": {"loss": math.inf}}, "the loss is not finite"),
        ({"metrics": {"loss": math.nan}}, "the loss is not finite"),
        ({"metrics": {"loss": 0.8}, "rise": Gain(0.1, 0.05, 0.15)}, "the loss rose from 0.7 before training to 0.8"),
        (
            {"metrics": {"loss": 0.6752}, "start": 0.6751, "rise": Gain(0.0001, 0.00005, 0.00015)},
            "the loss rose from 0.6751 before training to 0.6752, by 0.0001 (5e-05 to 0.00015)",
        ),
        ({"epsilon": 11.0}, "ε = 11 is above 10"),
        ({"records": 0}, "no held-out records"),
    ],
)
def test_what_a_reader_must_know_is_said(more, words):
    target = np.arange(100) % 2
    assert words in said(np.where(target, 0.9, 0.1), target.tolist(), **more)
    assert "ε" not in said(np.where(target, 0.9, 0.1), target.tolist(), epsilon=None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=30))
@example([(1.0, True), (0.9999999999999999, False)])
def test_no_threshold_is_right_more_often_than_the_best_one(pairs):
    outputs = torch.tensor([pair[0] for pair in pairs], dtype=torch.float64)
    target = torch.tensor([int(pair[1]) for pair in pairs])
    best = quality_of_classes(outputs[:, None], records(target), groups=2, classes=2).best_threshold
    tried = [-1.0, *outputs.tolist(), 0.5, best["threshold"]]
    right = [float(((outputs > threshold).long() == target).double().mean()) for threshold in tried]
    assert max(right) == pytest.approx(best["accuracy"]) == pytest.approx(right[-1])


def test_standard_errors_are_those_of_fresh_draws_of_held_out_records():
    numbers = np.random.default_rng(5)

    def draw(n=400):
        target, group = numbers.integers(0, 2, n), numbers.integers(0, 2, n)
        predicted = np.where(numbers.random(n) < 0.8, target, 1 - target)
        predicted = np.where((group == 1) & (numbers.random(n) < 0.2), 1, predicted)
        return torch.from_numpy(predicted * 0.8 + 0.1)[:, None], records(target, group)

    stated = quality_of_classes(*draw(), groups=2, classes=2).standard_errors
    seen = []
    for _ in range(300):
        outputs, data = draw()
        predicted = (outputs[:, 0] > 0.5).double()
        rates = [float(predicted[data.sensitive == group].mean()) for group in (0, 1)]
        accuracy = float((predicted == data.target).double().mean())
        seen.append((accuracy, min(rates) / max(rates)))
    spread = np.array(seen).std(axis=0)
    assert stated["accuracy"] == pytest.approx(spread[0], rel=0.25)
    assert stated["disparate_impact"] == pytest.approx(spread[1], rel=0.35)


def test_a_loss_that_rose_within_its_paired_error_is_no_warning():
    target = np.arange(100) % 2
    outputs = np.where(target, 0.9, 0.1)
    for rise in (None, Gain(0.0002, -0.01, 0.0104), Gain(-0.1, -0.2, -0.05)):
        assert "rose" not in said(outputs, target.tolist(), metrics={"loss": 0.7002}, rise=rise)


def test_a_regression_is_compared_with_the_mean():
    target = torch.rand((200, 1), generator=torch.Generator().manual_seed(0))
    data = records(torch.zeros(200, dtype=torch.long))
    data = Records(data.features, data.sensitive, target, data.ids)
    perfect, poor = quality_of_numbers(target.double(), data), quality_of_numbers(1 - target.double(), data)
    assert perfect.constant["mean_squared_error"] == pytest.approx(float(target.double().var(correction=0)))
    assert perfect.gain.above and not perfect.gain.below and poor.gain.below


def test_signal_to_noise_is_found_from_releases_alone():
    numbers, r, sigma = np.random.default_rng(2), 50, 0.3
    for signal, words in ((0.0, "mostly noise"), (3.0, "whether the model is of use, only held-out metrics say")):
        history = []
        for _ in range(200):
            noisy = sigma * numbers.standard_normal(r)
            noisy[0] += signal * sigma * math.sqrt(r)
            history.append({"sigma": sigma, "gradient_norm": float(np.linalg.norm(noisy))})
        found = signal_to_noise(history, r)
        assert found["a_round"] == pytest.approx(signal, abs=0.25) and words in found["words"]
    assert signal_to_noise([{"sigma": None, "gradient_norm": 1.0}], r) == {}


def test_calibration_is_exact_where_scores_are_shares():
    target = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    scores = np.array([0.75, 0.75, 0.75, 0.75, 0.25, 0.25, 0.25, 0.25])
    assert calibration_error(target, scores) == pytest.approx(0.0, abs=1e-12)
    assert calibration_error(np.zeros(4), np.full(4, 0.9)) == pytest.approx(0.9)
    assert Quality().gain is None and not Quality().one_answer


def test_a_ratio_of_groups_is_in_doubt_for_its_smallest_group_which_is_named():
    draw = np.random.default_rng(0)
    target, sensitive = draw.integers(0, 2, 800), (np.arange(800) >= 760).astype(int)
    outputs = torch.as_tensor(np.where(draw.random(800) < np.where(sensitive == 1, 0.35, 0.5), 0.9, 0.1))[:, None]
    found = quality_of_classes(outputs, records(target, sensitive), groups=2, classes=2, names=("no", "yes"))
    metrics = {"disparate_impact": 0.7}
    words = "\n".join(
        warnings_of(metrics=metrics, quality=found, records=800, start=None, epsilon=1.0, groups={"a": 760, "b": 40})
    )
    assert "too few held-out records of 'b': about 40 of 800 cannot tell disparate impact of 'yes' 0.7" in words
    wide = found.intervals["disparate_impact"].high - 0.7
    assert f"about {40 * (wide / 0.1) ** 2 - 40:.2g}"[:7] in words


def test_a_warning_of_a_model_with_a_penalty_names_its_weight():
    target = [1] * 684 + [0] * 316
    outputs = np.where(np.arange(1000) % 2, 0.9, 0.1)
    assert "objective.alpha = 0.2" in said(outputs, target, alpha=0.2) and "alpha" not in said(outputs, target)


def test_a_regression_that_answers_too_little_on_average_is_called_biased():
    draw = np.random.default_rng(0)
    truth = torch.as_tensor(draw.poisson(0.32, 1000) / 10).float()[:, None]
    held = Records(torch.zeros((1000, 1)), torch.arange(1000) % 2, truth, torch.arange(1000))

    def words(answers) -> str:
        found = quality_of_numbers(answers, held, (0.0, 10.0))
        metrics = {"mean_squared_error": 0.3, "root_mean_squared_error": 0.5}
        return "\n".join(warnings_of(metrics=metrics, quality=found, records=1000, start=None, epsilon=1.0))

    assert "biased: answers are 0.16 on average, where 0.3" in words(torch.full_like(truth, 0.016))
    assert "biased" not in words(torch.full_like(truth, float(truth.mean())))
