"""A federation whose model has diverged stops: its weights are public, and no further round is charged."""

from __future__ import annotations

import io
import json
import math
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from fedsw.experiment import parse_experiment
from fedsw.federation.server import federation as server
from fedsw.learning.tasks.divergence import divergence
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting.selection import Selection
from fedsw.runs.report.run_documents import summary_screen
from fedsw.runs.view import read_run
from tests.brief import brief  # noqa: F401
from tests.federations import small

AWAY = "training.learning_rate=1e30"


def charged(folder) -> list[int]:
    with Ledger.open(folder, read_only=True) as ledger:
        return sorted({entry.round for entry in ledger.entries()})


def test_a_run_that_diverged_charges_no_further_round_and_says_what_is_left(federation):
    summary = federation.run(small(AWAY, "privacy.epsilon=2.0"))
    assert summary["status"].startswith("stopped after round 1: the model has diverged (a weight is ")
    assert "3 of 4 rounds are left" in summary["status"] and 0 < summary["epsilon_spent"] < 2.0
    directory = federation.folder / "run1"
    assert charged(directory / "ledger.sqlite") == [1] == [
        json.loads(line)["round"] for line in (directory / "metrics.jsonl").read_text().splitlines()
    ]  # fmt: skip
    again = federation.run(small(AWAY, "privacy.epsilon=2.0"), directory=directory, resume=True)
    assert again["status"] == summary["status"] and charged(directory / "ledger.sqlite") == [1]


@pytest.mark.parametrize("trust", ["local-gradient", "distributed"])
def test_clients_that_account_for_themselves_are_asked_for_no_further_round(federation, trust):
    summary = federation.run(small(AWAY, f"privacy.trust={trust}", "privacy.epsilon=5.0"))
    assert summary["status"].startswith("stopped after round 1: the model has diverged")
    assert summary["released_rounds"] == 1 and 0 < summary["epsilon_spent"] < 5.0


def test_metrics_of_a_model_that_diverged_are_no_numbers_and_the_screen_says_why(federation):
    summary = federation.run(small("training.learning_rate=1e300", "privacy.epsilon=2.0"))
    assert [name for name, value in summary["held_out"].items() if math.isfinite(value)] == []
    rows = summary["held_out_by_group"].values()
    assert rows and {name for row in rows for name, value in row.items() if math.isfinite(value)} == {"count"}
    shown = Console(width=1000, file=io.StringIO(), record=True)
    shown.print(summary_screen(read_run(federation.folder / "run1")))
    screen = " ".join(shown.export_text().split())
    assert "DI of Y=1 –" in screen and "(what the model returns is not finite)" in screen


LOCAL = {
    "name": "local",
    "data": {"source": "gaussians", "records": 60, "test_records": 30},
    "model": {"kind": "generator", "latent": 2, "hidden": [8, 8]},
    "objective": {"task": "generation", "penalty": "distribution-matching", "alpha": 1.0},
    "slicing": {"directions": 4},
    "training": {"rounds": 3, "learning_rate": 1e30, "optimizer": "adam"},
    "federation": {"clients": 2, "timeout": 20.0},
    "evaluate_every": 1,
}


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"trust": "local-slices", "noise_multiplier": 2.0, "delta": 1e-4}},
        {"privacy": {"trust": "local-slices", "noise_multiplier": 2.0, "delta": 1e-4}, "local": {"order": 1}},
        {
            "privacy": {"trust": "local-slices", "noise_multiplier": 2.0, "delta": 1e-4},
            "model": {"kind": "particles", "particles": 20},
            "training": {"rounds": 3, "learning_rate": 1e300},
            "local": {"algorithm": "flow"},
        },
        {"privacy": {"trust": "local-release", "epsilon": 10.0, "delta": 1e-4}},
    ],
    ids=["slices", "slices of order 1", "flow", "release"],
)
def test_points_that_are_not_finite_end_no_round_of_noised_slices_and_records(federation, monkeypatch, settings):
    """One of several runs of a selection goes on to its planned end, whatever its model is."""
    monkeypatch.setattr(server.RoundRun, "divergence", lambda run: None)
    summary = federation.run(parse_experiment(LOCAL | settings))
    rounds = (federation.folder / "run1" / "metrics.jsonl").read_text().splitlines()
    assert summary["status"] == "completed" and len(rounds) == 3
    assert not math.isfinite(summary["held_out"]["sw2"])


def test_one_of_several_runs_of_a_selection_goes_on_to_its_planned_end():
    """That another run than the best one stopped would tell of what is not paid for."""
    run = SimpleNamespace(
        trainer=SimpleNamespace(steps=1),
        job=SimpleNamespace(experiment=small()),
        ledger=SimpleNamespace(epsilon=lambda: 0.5),
        plan=SimpleNamespace(epsilon=2.0),
        divergence=lambda: "a weight is nan",
        selection=None,
    )
    said = server.RoundRun.unsound(run)
    assert said.endswith("what is spent adds up") and "epsilon 0.5 of 2 is spent" in said
    run.selection = object.__new__(Selection)
    assert server.RoundRun.unsound(run) == ""


def test_weights_alone_say_it_and_where_they_are_large_what_made_up_inputs_give():
    sound, large = torch.ones(3), torch.tensor([1.0, -1e4])
    assert divergence([sound]) is None and divergence([large], lambda: torch.ones(3, 1)) is None
    for weight in (torch.nan, torch.inf, -1e19):
        assert divergence([sound, torch.tensor([weight])], None) is not None
    assert "made-up inputs" in str(divergence([large], lambda: (torch.ones(3), torch.full((3, 1), torch.inf))))
    assert divergence([sound], lambda: pytest.fail("a sound model answers nothing")) is None
