"""Laws of checkpoints: the newest readable one, whole or not at all."""

from __future__ import annotations

import os

import pytest
import torch

from fedsw.runs import trainer
from fedsw.runs.trainer import Checkpoint, Checkpoints


def _state(round_: int) -> Checkpoint:
    theta = torch.full((3,), float(round_), dtype=torch.float64)
    return Checkpoint(round_, theta, theta / 2, {"state": {}, "param_groups": []})


def test_the_newest_state_is_loaded_whether_it_was_synchronised_or_not(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert trainer.load(tmp_path) is None
    for round_ in range(1, 5):
        checkpoints.save(_state(round_))
        found = trainer.load(tmp_path)
        assert found is not None and found.round == round_ and torch.equal(found.theta, _state(round_).theta)


@pytest.mark.parametrize("step", ["unlink", "replace"])
@pytest.mark.parametrize("killed", range(2, 6))
def test_whoever_is_killed_while_writing_a_round_has_the_round_before(tmp_path, monkeypatch, killed, step):
    class Killed(BaseException):
        pass

    def die(*anything, **named):
        raise Killed

    checkpoints = Checkpoints(tmp_path)
    for round_ in range(1, killed):
        checkpoints.save(_state(round_))
    holder = trainer.Path if step == "unlink" else os
    monkeypatch.setattr(holder, step, die)
    with pytest.raises(Killed):
        checkpoints.save(_state(killed))
    monkeypatch.undo()
    found = trainer.load(tmp_path)
    assert found is not None and found.round == killed - 1
    checkpoints.save(_state(killed))
    again = trainer.load(tmp_path)
    assert again is not None and again.round == killed


@pytest.mark.parametrize("content", [b"", b"half of a zip file"])
def test_a_file_that_a_dying_machine_left_unfinished_falls_back_to_the_synchronised_one(tmp_path, content):
    checkpoints = Checkpoints(tmp_path)
    for round_ in (1, 2):
        checkpoints.save(_state(round_))
    (tmp_path / trainer.RECENT[0]).write_bytes(content)
    found = trainer.load(tmp_path)
    assert found is not None and found.round == 1


def test_slow_rounds_are_synchronised_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_SYNCHRONISE_SECONDS", 0.0)
    checkpoints = Checkpoints(tmp_path)
    for round_ in (1, 2, 3):
        checkpoints.save(_state(round_))
    assert [path.name for path in tmp_path.iterdir()] == [trainer.NAME]
