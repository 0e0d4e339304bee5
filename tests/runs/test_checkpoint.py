"""Laws of checkpoints: a run goes on bit for bit from what is whole on file, whatever cut the last write short."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
import torch

from fedsw.audit.record import Folder
from fedsw.experiment.sections import Training
from fedsw.privacy.accounting import Head
from fedsw.runs import checkpoint
from fedsw.runs.checkpoint import CheckpointDamaged, Checkpoints
from fedsw.runs.optimizer import Trainer

ROUNDS = 6
VECTORS = [torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(ROUNDS)]


class Killed(BaseException):
    pass


class Run:
    """A server's rounds over vectors that are the same whenever they are released."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trainer = Trainer(torch.ones(5, dtype=torch.float64), Training(optimizer="adam", averaging=0.5, rounds=6))
        if (state := checkpoint.load(folder)) is not None:
            self.trainer.restore(state)

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder, self.trainer.step, self.trainer.state, self.head)

    def head(self) -> Head:
        return Head(10 + self.trainer.steps, f"{1 + self.trainer.steps:064x}")

    def go(self, checkpoints: Checkpoints, last: int = ROUNDS) -> None:
        for round_ in range(self.trainer.steps + 1, last + 1):
            checkpoints.take(round_, VECTORS[round_ - 1])

    def bits(self) -> list[torch.Tensor]:
        moved = [part["exp_avg_sq"] for part in self.trainer.state().optimizer["state"].values()]
        return [self.trainer.theta.clone(), self.trainer.model.clone(), *moved]


def whole(last: int = ROUNDS) -> list[torch.Tensor]:
    """Where the rounds lead without any file."""
    run = Run(Path("/nowhere"))
    for vector in VECTORS[:last]:
        run.trainer.step(vector)
    return run.bits()


def same(run: Run, expected: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, run.bits(), expected))


def broken_off(folder: Path, last: int) -> bytes:
    """What the releases' file holds when a process vanishes after a round."""
    run = Run(folder)
    run.go(run.checkpoints(), last)
    return (folder / checkpoint.RELEASED).read_bytes()


def test_wherever_the_last_write_was_cut_short_the_rounds_before_it_are_there_bit_for_bit(tmp_path):
    content, expected = broken_off(tmp_path, 4), [whole(last) for last in range(5)]
    one = len(content) // 4
    for length in sorted({*range(0, len(content), 37), *(k * one + near for k in (1, 2, 3) for near in (-1, 0))}):
        (tmp_path / checkpoint.RELEASED).write_bytes(content[:length])
        state = checkpoint.load(tmp_path)
        assert state is not None and state.round == 0 and state.last.round == length // one
        assert same(Run(tmp_path), expected[length // one])
    (tmp_path / checkpoint.RELEASED).write_bytes(content[: 2 * one + 5])
    with (run := Run(tmp_path)).checkpoints() as checkpoints:
        run.go(checkpoints)
    assert same(run, whole()) and same(Run(tmp_path), whole())


def test_a_server_killed_in_the_middle_of_a_release_goes_on_as_if_it_had_never_died(tmp_path):
    """With the kernel's own kill."""
    child = os.fork()
    if not child:
        write = os.write

        def dying(handle: int, content: memoryview) -> int:
            if (tmp_path / checkpoint.RELEASED).stat().st_size > 200:
                write(handle, content[:50])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(handle, content)

        os.write = dying
        broken_off(tmp_path, ROUNDS)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    state = checkpoint.load(tmp_path)
    assert state is not None and 1 < state.last.round < ROUNDS
    assert (tmp_path / checkpoint.RELEASED).stat().st_size % 50 != 0
    run = Run(tmp_path)
    assert run.trainer.steps == state.last.round and same(run, whole(state.last.round))
    with run.checkpoints() as checkpoints:
        run.go(checkpoints)
    assert same(Run(tmp_path), whole())


def test_a_changed_byte_leaves_its_release_and_all_later_ones_out(tmp_path):
    content = broken_off(tmp_path, 4)
    one = len(content) // 4
    for position in (*range(0, 2 * one, 23), *range(2 * one, 2 * one + 9), len(content) - 1):
        changed = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        (tmp_path / checkpoint.RELEASED).write_bytes(changed)
        state = checkpoint.load(tmp_path)
        assert state is not None and state.last.round == position // one


@pytest.mark.parametrize("step", ["replace", "ftruncate"])
@pytest.mark.parametrize("killed", [0, 2, 4, 6])
def test_whoever_is_killed_while_a_whole_state_takes_their_place_steps_along_no_release_twice(
    tmp_path, monkeypatch, killed, step
):
    def die(*anything):
        if run.trainer.steps == killed:
            raise Killed
        genuine(*anything)

    genuine, first_of_file = getattr(os, step), (step, killed) == ("ftruncate", 0)
    monkeypatch.setattr(checkpoint, "_MOST_ROUNDS", 2)
    monkeypatch.setattr(os, step, die)
    run = Run(tmp_path)
    with contextlib.suppress(Killed), run.checkpoints() as checkpoints:
        run.go(checkpoints)
    monkeypatch.undo()
    run = Run(tmp_path)
    assert run.trainer.steps == (ROUNDS if first_of_file else killed)
    with run.checkpoints() as checkpoints:
        run.go(checkpoints)
    assert same(run, whole()) and same(Run(tmp_path), whole())


def test_releases_that_follow_another_state_are_left_out(tmp_path):
    older, newer = tmp_path / "older", tmp_path / "newer"
    for folder, last in ((older, 2), (newer, 4)):
        folder.mkdir()
        broken_off(folder, last)
    with (run := Run(newer)).checkpoints() as checkpoints:
        run.go(checkpoints, 5)
        (older / checkpoint.RELEASED).replace(newer / checkpoint.RELEASED)
        state = checkpoint.load(newer)
        assert state is not None and state.round == state.last.round == 4


def test_the_ledgers_last_row_is_known_of_every_release(tmp_path):
    run, checkpoints = (run := Run(tmp_path)), run.checkpoints()
    for round_ in range(1, 4):
        run.go(checkpoints, round_)
        state = checkpoint.load(tmp_path)
        assert state is not None and state.last.round == round_ and state.last.ledger is not None
        assert state.last.ledger.sequence == 10 + round_ - 1


def test_every_release_is_on_file_before_the_optimizer_steps_along_it(tmp_path):
    """The first one, too: a step that failed had forgotten a release that was paid for, at every try again."""
    run = Run(tmp_path)

    def failing(released: torch.Tensor) -> None:
        raise Killed

    with contextlib.suppress(Killed), Checkpoints(tmp_path, failing, run.trainer.state, run.head) as checkpoints:
        run.go(checkpoints)
    state = checkpoint.load(tmp_path)
    assert state is not None and state.last.round == 1 and same(Run(tmp_path), whole(1))


def test_a_run_that_ends_in_order_leaves_a_whole_state_alone(tmp_path):
    broken_off(tmp_path, 3)
    with Run(tmp_path).checkpoints():  # nothing was left to do
        pass
    state = checkpoint.load(tmp_path)
    assert state is not None and state.round == 3 and [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]


@pytest.mark.parametrize("cut", [0, 1, 128, 300])  # of four releases of 128 bytes
def test_an_audit_reads_the_same_round_and_row_off_the_files(tmp_path, cut):
    content = broken_off(tmp_path, 4)
    (tmp_path / checkpoint.RELEASED).write_bytes(content[: len(content) - cut])
    state, audited = checkpoint.load(tmp_path), Folder(tmp_path, {}, {}).checkpoint
    assert state is not None and state.last.ledger is not None and audited is not None
    assert (audited["round"], audited["ledger"]) == (state.last.round, vars(state.last.ledger))


def test_releases_without_a_whole_state_are_damage(tmp_path):
    broken_off(tmp_path, 3)
    (tmp_path / checkpoint.NAME).unlink()
    with pytest.raises(CheckpointDamaged, match="gone"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(("seconds", "waits"), [(0.0, ROUNDS), (1e6, 0)])
def test_releases_are_synchronised_as_often_as_it_says(tmp_path, monkeypatch, seconds, waits):
    waited: list[int] = []
    monkeypatch.setattr(checkpoint, "_SYNCHRONISE_SECONDS", seconds)
    monkeypatch.setattr(os, "fdatasync", waited.append)
    broken_off(tmp_path, ROUNDS)
    assert len(waited) == waits


def test_what_is_stepped_along_again_is_at_most_so_many_rounds_or_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_MOST_BYTES", 150)  # of releases of 88
    run, checkpoints, longest = (run := Run(tmp_path)), run.checkpoints(), 0
    for round_ in range(1, ROUNDS + 1):
        run.go(checkpoints, round_)
        state = checkpoint.load(tmp_path)
        assert state is not None
        longest = max(longest, len(state.later))
    assert longest == 1
