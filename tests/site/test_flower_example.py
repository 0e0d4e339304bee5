"""The app of docs/examples runs in this process, and is one that Flower builds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedsw.flower import simulate

APP = Path(__file__).parents[2] / "docs" / "examples" / "flower_app"


@pytest.fixture
def apps(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from digits import client_app, server_app

    yield server_app.app, client_app.app
    for name in [name for name in sys.modules if name.split(".")[0] == "digits"]:
        del sys.modules[name]


@pytest.mark.slow
def test_clients_of_the_example_learn_digits_within_one_budget_each(apps, tmp_path):
    ended = simulate(*apps, nodes=3, node_config={"state-dir": str(tmp_path)}, run_config=APP)
    result = ended.state["result"]
    assert 7.9 < result["epsilon"] <= 8.0 and result["accuracy"] > 0.5
    assert len(list(tmp_path.glob("client-*/ledger.sqlite"))) == 3


def test_one_round_of_the_example_runs(apps, tmp_path):
    run = {"num-server-rounds": 1, "steps": 2}
    ended = simulate(*apps, nodes=2, node_config={"state-dir": str(tmp_path)}, run_config=run)
    assert ended.state["result"]["epsilon"] <= 8.0


def test_the_training_function_of_the_example_has_few_lines():
    text = (APP / "digits" / "client_app.py").read_text(encoding="utf-8")
    body = text.split("def train")[1].split("@app")[0].splitlines()[2:]
    assert len([line for line in body if line.strip()]) <= 16


def test_flower_builds_the_example(tmp_path, monkeypatch):
    from flwr.cli.build import build_fab_from_disk

    assert len(build_fab_from_disk(APP)) > 1000
