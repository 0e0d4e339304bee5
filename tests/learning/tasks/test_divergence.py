"""A federation whose model has diverged stops: its weights are public, and no further round is charged."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from fedsw.federation.server import _federation as server
from fedsw.learning.tasks.divergence import divergence
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting.selection import Selection
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


def test_one_of_several_runs_of_a_selection_goes_on_to_its_planned_end(monkeypatch):
    """That another run than the best one stopped would tell of what is not paid for."""
    run = SimpleNamespace(
        trainer=SimpleNamespace(steps=1),
        job=SimpleNamespace(experiment=small()),
        ledger=SimpleNamespace(epsilon=lambda: 0.5),
        plan=SimpleNamespace(epsilon=2.0),
    )
    monkeypatch.setattr(server, "_diverged", lambda run: "a weight is nan")
    run.selection = None
    assert server._stopped(run).endswith("what is spent adds up") and "epsilon 0.5 of 2 is spent" in server._stopped(
        run
    )
    run.selection = object.__new__(Selection)
    assert server._stopped(run) == ""


def test_weights_alone_say_it_and_where_they_are_large_what_made_up_inputs_give():
    sound, large = torch.ones(3), torch.tensor([1.0, -1e4])
    assert divergence([sound]) is None and divergence([large], lambda: torch.ones(3, 1)) is None
    for weight in (torch.nan, torch.inf, -1e19):
        assert divergence([sound, torch.tensor([weight])], None) is not None
    assert "made-up inputs" in str(divergence([large], lambda: (torch.ones(3), torch.full((3, 1), torch.inf))))
    assert divergence([sound], lambda: pytest.fail("a sound model answers nothing")) is None
