"""A task of one's own in one file: it runs, learns what it says, and has the guarantee of any other task."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsw.data.sources import Shape
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.task import Inputs
from fedsw.runs.write import draw_run
from tests.federations import SMALL, Federation

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
TASK = "objective.task=quantile_regression:Quantiles"
REGRESSION = "objective.task=regression"
CLIP = ("clip.centre=0.5", "clip.output=0.8")


@pytest.fixture
def quantiles(monkeypatch):
    """The example's module, found as a user's module is."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import quantile_regression

    return quantile_regression


def experiment(*overrides: str):
    return parse_experiment(SMALL, (*CLIP, *overrides))


def test_pinball_losses_are_scikit_learns(quantiles):
    metrics = pytest.importorskip("sklearn.metrics")
    levels = [0.05, 0.3, 0.5, 0.95]
    task = quantiles.Quantiles(levels)
    raw, target = torch.randn(40, 8, dtype=torch.float64), torch.rand(40, 2, dtype=torch.float64)
    given = Inputs(torch.zeros(40, 1), target, Shape(1, ("a", "b"), 0, 2))
    predicted = task.outputs(raw, given)
    assert torch.equal(predicted, torch.sigmoid(raw))
    losses = task.pinball(predicted, target)
    expected = np.zeros((40, 2, 4))
    for i in range(40):
        for t in range(2):
            for place, level in enumerate(levels):
                one, other = target[i, t].item(), predicted[i, 4 * t + place].item()
                expected[i, t, place] = metrics.mean_pinball_loss([one], [other], alpha=level)
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(task.loss(raw, given).numpy(), expected.mean(axis=2).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.8])
def test_no_constant_has_a_smaller_pinball_loss_than_the_samples_quantile(quantiles, level):
    task, sample = quantiles.Quantiles([level]), torch.rand(501, 1, dtype=torch.float64)

    def mean_loss(constant: torch.Tensor) -> float:
        return float(task.pinball(constant.expand(501, 1), sample).mean())

    least = mean_loss(sample.quantile(level, interpolation="nearest"))
    assert all(mean_loss(torch.tensor(c)) >= least - 1e-12 for c in np.linspace(0, 1, 201))


@pytest.mark.parametrize("levels", [[], [0.0, 0.5], [0.5, 1.0], [0.9, 0.1], [0.5, 0.5]])
def test_levels_that_are_none_are_refused_when_the_experiment_is_made_concrete(quantiles, levels):
    with pytest.raises(ExperimentError, match=r"quantile_regression:Quantiles.*levels rise strictly between 0 and 1"):
        Problem.from_experiment(experiment(TASK, f"objective.arguments.quantiles={levels}"))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_guarantee_is_that_of_a_regression_of_the_same_sizes_and_dimension(quantiles, tmp_path, alpha):
    federation, found = Federation(tmp_path), []
    for task in (REGRESSION, TASK):
        levels = () if task == REGRESSION else ("objective.arguments.quantiles=[0.5]",)  # two outputs, as two targets
        summary = federation.run(experiment(task, *levels, f"objective.alpha={alpha}"))
        found.append(summary)
    one, other = found
    for key in ("epsilon", "epsilon_spent", "delta"):
        assert one[key] == other[key]
    assert 0 < one["epsilon_spent"] <= 1
    assert one["guarantee"] == other["guarantee"]
    ledgers = [(tmp_path / f"run{i}" / "ledger.sqlite") for i in (1, 2)]
    charged = [charges(path) for path in ledgers]
    assert charged[0] == charged[1] and len(charged[0]) >= 4


def charges(path: Path) -> list[tuple[object, ...]]:
    """Group, rate, sensitivity and sigma of everything that a ledger was charged for."""
    from fedsw.privacy.accounting import Ledger

    ledger = Ledger.open(path)
    try:
        entries = ledger.entries()
        return [(e.round, e.group, e.sampling_rate, e.sensitivity, e.sigma) for e in entries]
    finally:
        ledger.close()


@pytest.mark.slow
def test_it_is_run_by_name_with_its_own_metrics_and_figures(quantiles, tmp_path):
    directory = tmp_path / "run"
    summary = Federation(tmp_path).run(experiment(TASK), directory=directory)
    held_out = summary["held_out"]
    groups = [name for name in held_out if name.startswith("pinball_")]
    assert len(groups) == 2 and {"loss", "w2_squared", "coverage_0.1", "coverage_0.5", "coverage_0.9"} <= set(held_out)
    assert all(0 <= held_out[name] <= 1 for name in held_out if name.startswith("coverage"))
    assert {path.name for path in draw_run(directory)} == {"metrics.png", "privacy.png", "outputs.png"}


@pytest.mark.slow
def test_without_noise_and_penalty_the_predictions_cover_what_they_say(quantiles, tmp_path):
    found = Federation(tmp_path).run(
        experiment(
            TASK, "objective.alpha=0", "privacy.trust=none", "training.rounds=400", "training.learning_rate=5",
            "training.batch_fraction=1.0", "clip.loss=10", "data.records=3000", "data.test_records=3000",
            "evaluate_every=400", "federation.clients=1",
        )
    )["held_out"]  # fmt: skip
    for level in (0.1, 0.5, 0.9):
        assert found[f"coverage_{level:g}"] == pytest.approx(level, abs=0.06)


@pytest.mark.slow
def test_the_file_runs_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "quantile_regression.py", "--rounds", "2", "--runs", tmp_path / "runs"],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^epsilon 1 at delta .*quantile-regression", done.stdout, re.MULTILINE)
    assert re.search(r"^coverage_0\.5 +0\.\d+$", done.stdout, re.MULTILINE)
