"""The scripted run: faults of every kind, and an account that is right to the last digit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.laws.chaos.conductor import CLIENTS, ChaosFailed, audit
from tests.laws.chaos.faults import EVERY, FAULTS, schedule

ROOT = Path(__file__).resolve().parents[3]


def chaos(seed: int, rounds: int, directory: Path) -> dict:
    """In a process of its own, which has trained nothing before it forks."""
    command = [sys.executable, "-m", "tests.laws.chaos", "--seed", str(seed), "--rounds", str(rounds)]
    done = subprocess.run(
        [*command, "--out", str(directory)], cwd=ROOT, text=True, capture_output=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kind_of_fault_comes_before_any_comes_again():
    planned = schedule(7, 500, CLIENTS)
    assert [(fault.round - 1) // EVERY for fault in planned] == list(range(50))
    counts = Counter(fault.kind for fault in planned[: 2 * len(FAULTS)])
    assert set(counts.values()) == {2} and set(counts) == set(FAULTS)
    assert schedule(7, 500, CLIENTS) == planned != schedule(8, 500, CLIENTS)


@pytest.mark.slow
def test_forty_rounds_with_four_faults_end_with_an_account_that_is_right(tmp_path):
    found = chaos(3, 40, tmp_path / "chaos")
    assert found["status"] == "completed" and sum(found["faults"].values()) == 4
    assert found["epsilon"] == found["epsilon_replayed"] == found["epsilon_of_the_witness"] <= found["budget"]
    assert found["charges"] - found["charged_but_not_released"] == found["releases"] >= 40
    # The audit can fail: a charge that the witness saw and the ledger does not have, and one that it did not see.
    witness = tmp_path / "chaos" / "witness.jsonl"
    lines = witness.read_text().splitlines()
    charged = [line for line in lines if '"charged"' in line]
    for spoilt in (lines + [charged[0].replace('"round": 1,', '"round": 99,')], [x for x in lines if x != charged[5]]):
        witness.write_text("\n".join(spoilt) + "\n")
        with pytest.raises(ChaosFailed, match="not what was charged"):
            audit(tmp_path / "chaos", schedule(3, 40, CLIENTS))


@pytest.mark.slow
def test_a_run_with_every_kind_of_fault_ends_with_an_account_that_is_right(tmp_path):
    found = chaos(0, EVERY * len(FAULTS), tmp_path / "chaos")
    assert found["status"] == "completed" and found["processes_left"] == 0
    assert found["faults"] == dict.fromkeys(FAULTS, 1)
