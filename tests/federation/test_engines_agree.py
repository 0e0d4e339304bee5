"""One code path: the engines end with the same model, bit for bit, and leave nothing running."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedsw.federation.engines.driver import run
from tests.federation.local_runs import attempts_in, parameters_of
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
@pytest.mark.parametrize(
    ("engine", "overrides", "masked"),
    [
        ("ray", ("privacy.trust=distributed", "privacy.epsilon=2.0", "federation.sites=3"), 3),
        ("flwr", ("thresholds.share=0.2", "federation.clients=2"), 0),
    ],
    ids=["ray", "flwr"],
)
def test_flowers_own_engine_ends_with_the_same_bits_and_nothing_left_running(
    tmp_path, engine, overrides, masked, monkeypatch
):
    """On Ray with masks and a ledger a client; by Flower's own command with what is released after the rounds."""
    mark(monkeypatch)
    experiment = small("seed=5", "training.rounds=3", "federation.timeout=600.0", *overrides)
    ours = run(experiment, runs=tmp_path / "ours")
    theirs = run(experiment, engine=engine, runs=tmp_path / "theirs")
    assert torch.equal(parameters_of(ours.directory), parameters_of(theirs.directory))
    assert theirs.summary["epsilon_spent"] == ours.summary["epsilon_spent"]
    assert all(attempts_in(theirs.directory, client) == [(1, 0), (2, 0), (3, 0)] for client in range(masked))
    chosen = [result.summary.get("thresholds", {}).get("by_group") for result in (ours, theirs)]
    assert chosen[0] == chosen[1] and (masked or chosen[0])
    assert not left_of_this_test()
