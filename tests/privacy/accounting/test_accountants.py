"""Laws of accountants of a user's own: a run says whose word its epsilon is, and nobody takes it for a proven bound."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

import fedsw
from fedsw._tools.settings import ExperimentError
from fedsw.audit.record import audit
from fedsw.experiment import parse_experiment
from fedsw.federation.node.limits import require_limits
from fedsw.privacy.accounting import ACCOUNTANTS, Ledger, Step, accountant, epsilon, epsilon_by

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "own_accountant.py"
STEPS = {Step(0.1, 0.5): 3, Step(1.0, 0.2): 2}


@pytest.fixture
def known(monkeypatch):
    """The accountants that there are; what a test registers is gone after it."""
    monkeypatch.setattr(ACCOUNTANTS, "_things", dict(ACCOUNTANTS._things))
    return ACCOUNTANTS


@pytest.fixture
def example(known):
    spec = importlib.util.spec_from_file_location("own_accountant", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs_and_its_guarantee_is_stated_by_the_user(example, capsys):
    statement = example.main()
    assert statement.startswith("No guarantee but by the user's word: that the accountant renyi-of-all")
    assert "epsilon 4 by renyi-of-all" in capsys.readouterr().out


def test_an_audit_takes_the_run_for_what_it_says(example, tmp_path):
    directory = fedsw.run(example.SETTINGS, runs=tmp_path).directory
    assert audit(directory).passed
    del ACCOUNTANTS._things["renyi-of-all"]
    without = audit(directory)
    assert not without.passed and "import what registers yours first" in str(without.rows)


def test_a_client_with_a_limit_on_epsilon_takes_no_ones_word(example):
    experiment = parse_experiment(
        {**example.SETTINGS, "privacy": {"trust": "local-gradient", "accountant": "renyi-of-all"}}
    )
    with pytest.raises(ExperimentError, match="'renyi-of-all' of 'gaussian' noise is not a guarantee"):
        require_limits(experiment, {"max-epsilon": 8.0})


def test_a_stated_bound_below_what_is_known_is_refused_and_one_that_is_not_stated_is_not(known):
    def halved(steps, delta):
        return epsilon(steps, delta) / 2

    with pytest.raises(ValueError, match="no upper bound"):
        accountant("halved", note="too small", upper_bound=True)(halved)
    assert "halved" not in known
    accountant("halved", note="too small")(halved)
    assert not known.get("halved").stated and not known.get("halved").guarantee
    assert epsilon_by("halved", STEPS, 1e-5) == pytest.approx(epsilon(STEPS, 1e-5) / 2, rel=1e-9)


def test_a_name_is_taken_once_and_costs_that_are_no_epsilon_are_refused_before_they_are_spent(known, tmp_path):
    with pytest.raises(ValueError, match="there is an accountant 'pld'"):
        accountant("pld", note="mine")(lambda steps, delta: 0.0)
    accountant("nan", note="mine")(lambda steps, delta: math.nan)
    with Ledger.create(tmp_path / "own.ledger", groups=["a"], delta=1e-5, epsilon=1.0, accountant="nan") as ledger:
        with pytest.raises(ValueError, match="says epsilon = nan"):
            ledger.spend(0, 0, [fedsw.privacy.accounting.Charge("a", 0.1, 1.0)], 2.0)
        assert ledger.entries() == []


def test_free_and_noiseless_steps_are_settled_before_an_own_accountant_is_asked(known):
    accountant("strict", note="mine")(lambda steps, delta: 1 / min(step.mu for step, _ in steps))
    assert epsilon_by("strict", {Step(0.0, 1.0): 3, Step(0.5, 0.0): 2}, 1e-5) == 0.0
    assert epsilon_by("strict", {Step(0.1, math.inf): 1}, 1e-5) == math.inf
    assert epsilon_by("strict", {Step(0.5, 0.0): 2, Step(0.1, 0.25): 1}, 1e-5) == 4.0
