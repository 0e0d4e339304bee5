"""One code path: the engines end with the same model, bit for bit, and leave nothing running."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedsw.federation.engines.driver import run
from tests.federation.local_runs import parameters_of
from tests.federations import small
from tests.processes import left_of_this_test, mark, of_this_test


def test_the_search_finds_a_process_that_left_its_session_and_none_of_another_test(monkeypatch):
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeper, start_new_session=True) as others:
        mark(monkeypatch)
        with subprocess.Popen(sleeper, start_new_session=True) as own:
            try:
                assert set(of_this_test()) == set(left_of_this_test(0.5)) == {own.pid}
            finally:
                own.kill()
                others.kill()
    assert not left_of_this_test()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("engine", ["ray", "flwr"])
def test_flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running(tmp_path, engine, monkeypatch):
    mark(monkeypatch)
    experiment = small("seed=5", "training.rounds=5", "federation.timeout=600.0", "thresholds.share=0.2")
    ours = run(experiment, runs=tmp_path / "ours")
    theirs = run(experiment, engine=engine, runs=tmp_path / "theirs")
    assert torch.equal(parameters_of(ours.directory), parameters_of(theirs.directory))
    assert theirs.summary["epsilon_spent"] == ours.summary["epsilon_spent"]
    assert theirs.summary["thresholds"] == ours.summary["thresholds"] and ours.summary["thresholds"]["by_group"]
    assert not left_of_this_test()


@pytest.mark.slow
@pytest.mark.ray
def test_a_client_that_moves_between_processes_rebuilds_its_secret_batch(tmp_path):
    """Without a seed the batch key is in the node's own state only; Ray hands the node to any of its workers."""
    result = run(small("federation.timeout=600.0", "training.rounds=3"), engine="ray", runs=tmp_path)
    assert result.summary["status"] == "completed" and result.summary["released_rounds"] == 3
