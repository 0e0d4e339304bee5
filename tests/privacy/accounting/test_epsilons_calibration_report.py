"""`fedsw budget` in one function: two of three give the third, with the bracket and the other accountants."""

import json
import subprocess
import sys

import pytest

from fedsw.privacy.accounting import Slicing, Step, budget_report, epsilon


def test_the_known_epsilon_is_reported_with_its_bracket_and_rivals():
    report = budget_report(sampling_rate=0.01, steps=5000, delta=1e-5, noise_multiplier=1.0)
    assert report["solved"] == "epsilon" and 5.372 <= report["epsilon"] <= 5.375
    assert report["bracket"]["lower"] < report["bracket"]["upper"] == report["epsilon"]
    assert report["relation"] == "replace-one" and "sigma / Delta" in report["convention"]
    assert [row["name"] for row in report["accountants"]] == ["pld", "gdp-clt-uniform", "gdp-clt-poisson", "rdp-wor"]
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_any_two_give_the_third_within_the_epsilon_asked():
    by_noise = budget_report(sampling_rate=0.1, delta=1e-6, epsilon=3.0, steps=200)
    assert by_noise["solved"] == "noise_multiplier" and 2.99 < by_noise["epsilon"] <= 3.0
    by_steps = budget_report(sampling_rate=0.1, delta=1e-6, epsilon=3.0, noise_multiplier=by_noise["noise_multiplier"])
    assert by_steps["solved"] == "steps" and by_steps["steps"] in (200, 201) and by_steps["epsilon"] <= 3.0


def test_of_several_groups_the_most_sampled_decides():
    several = budget_report(sampling_rate=[0.05, 0.2, 0.1], delta=1e-5, noise_multiplier=2.0, steps=50)
    assert several["sampling_rate"] == 0.2
    assert several["epsilon"] == epsilon({Step(0.2, 0.5): 50}, 1e-5)


def test_slices_are_reported_with_their_diameter_sigma_and_what_a_norm_would_have_meant():
    asked = {"sampling_rate": 0.05, "delta": 1e-5, "epsilon": 2.0, "steps": 100, "slicing": Slicing(50, 10)}
    report = budget_report(**asked, diameter=0.5)
    sigma = report["noise_multiplier"] * 0.5
    assert report["slicing"] == {"d": 50, "k": 10, "scheme": "iid", "diameter": 0.5, "sigma": sigma}
    assert "the diameter of the features" in report["convention"] and 1.99 < report["epsilon"] <= 2.0
    norm = {row["name"]: row["epsilon"] for row in report["accountants"]}["pld-norm"]
    assert norm == epsilon({Step(0.05, 2 * 0.5 / sigma, slicing=Slicing(50, 10)): 100}, 1e-5)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert "slicing" not in budget_report(sampling_rate=0.1, delta=1e-5, noise_multiplier=1.0, steps=10)


def test_poisson_names_its_relation_and_convention():
    report = budget_report(sampling_rate=0.01, delta=1e-5, noise_multiplier=1.0, steps=100, sampling="poisson")
    assert report["relation"] == "add-or-remove-one" and "addition or removal" in report["convention"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epsilon": 1.0}, "exactly two .*3 were given"),
        ({"steps": None}, "exactly two .*1 were given"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"steps": 0}, "steps is 0"),
        ({"sampling_rate": []}, "sampling_rate is"),
        ({"sampling_rate": [0.1, 0.0]}, "sampling_rate is"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"steps": None, "epsilon": 1e-3, "noise_multiplier": 0.5}, "does not allow a single step"),
        ({"diameter": 1.0}, "diameter is 1.0, but no slicing"),
        ({"slicing": Slicing(5, 2), "diameter": float("nan")}, "diameter is nan"),
        ({"slicing": Slicing(5, 2), "sampling": "poisson"}, "sampling is 'poisson' for random slices"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_by_name(change, named):
    asked = {"sampling_rate": 0.1, "delta": 1e-5, "noise_multiplier": 1.0, "steps": 10} | change
    with pytest.raises(ValueError, match=named):
        budget_report(**asked)


def test_accounting_imports_nobody_elses_accountant():
    code = (
        "import sys, fedsw.privacy.accounting as a; a.epsilon({a.Step(.1, 1.): 3}, 1e-5); "
        "a.epsilon_by('gdp-clt-uniform', {a.Step(.1, 1.): 3}, 1e-5); "
        "print([m for m in ('opacus', 'dp_accounting', 'flwr', 'matplotlib', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
