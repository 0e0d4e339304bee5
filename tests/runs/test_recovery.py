"""Laws of recovery: whatever kills a server or fills its disk, what was spent is known, nothing released twice."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from fedsw._tools import files
from fedsw._tools.settings import FederationError
from fedsw.cli.app import main
from fedsw.federation.server.federation import Job, federate
from fedsw.privacy.accounting import Ledger, LedgerReplaced
from fedsw.runs import checkpoint, recovery
from fedsw.runs.checkpoint import CheckpointDamaged
from fedsw.runs.directory import RunDirectory
from fedsw.runs.recovery import RunBusy, StorageFault
from tests.federation.local_runs import parameters_of
from tests.federations import Saboteur, small
from tests.laws.chaos.faults import Chaos, ChaosGrid, Fault
from tests.laws.runs.test_matching_runs import AUTOENCODER, experiment
from tests.runs.crashes import Host

pytestmark = pytest.mark.slow

SLOW = pytest.mark.slow

LOCAL = ("privacy.trust=local-gradient", "privacy.epsilon=5.0")


@pytest.fixture(scope="module")
def host():
    found = Host()
    yield found
    found.close()


def charges(directory: Path) -> list[tuple[int, int]]:
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        return [(entry.round, entry.attempt) for entry in ledger.entries() if entry.group == "A=0"]


def spent(directory: Path) -> float:
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        return ledger.replay()


def attempts(directory: Path) -> list[str]:
    return (directory / "attempts.log").read_text().splitlines()


def summary_of(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())


def run_with(directory: Path, fault: str, round_: int, *overrides: str, resume: bool = False, chosen=None) -> dict:
    """A run in this process in which one fault happens."""
    chosen = chosen or small(*overrides)
    clients = chosen.federation.clients
    fired: list[Fault] = []
    chaos = Chaos([Fault(round_, fault, clients - 1)], chosen.federation.timeout, fired.append)
    grid = ChaosGrid(chaos, clients)
    try:
        with chaos.server():
            return federate(grid, Job(chosen, directory, resume=resume))
    finally:
        grid.close()
        assert [each.kind for each in fired] == [fault]


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        ("killed before the second exchange", "2 1"),
        pytest.param("killed before the charge", "2 1", marks=SLOW),
        ("killed after the charge", "2 1"),
        ("killed before the checkpoint", "2 1"),
        ("killed while a release is appended", "2 1"),
        ("killed while the checkpoint is renamed", None),
        ("killed after the checkpoint", None),
        pytest.param("killed between rounds", None, marks=SLOW),
    ],
)
def test_a_killed_server_goes_on_at_the_guarantee_of_what_was_released(host, tmp_path, fault, again):
    directory = tmp_path / "run"
    assert host.run(directory, fault=fault, round_=2) == -9
    before, epsilon_before = charges(directory), spent(directory)
    assert before == ([(1, 0)] if fault.endswith(("exchange", "before the charge")) else [(1, 0), (2, 0)])
    assert host.run(directory, resume=True) == 0
    after, summary = charges(directory), summary_of(directory)
    assert after[: len(before)] == before and len(set(after)) == len(after)
    assert attempts(directory)[:2] == ["1 0", "2 0"] and len(set(attempts(directory))) == len(attempts(directory))
    assert attempts(directory)[2] == (again or "3 0")
    assert epsilon_before <= summary["epsilon_spent"] == spent(directory) <= summary["epsilon"]
    twice = len(after) - len({round_ for round_, _ in after})
    assert twice == (1 if again and (2, 0) in before else 0)
    # A round that was paid twice leaves too little for the last one: the model so far is kept.
    assert summary["released_rounds"] == 4 - twice and (directory / "model.safetensors").exists()
    assert summary["status"] == "completed" if not twice else summary["status"].startswith("stopped before round 4")


@pytest.mark.parametrize(
    "fault", ["killed after the checkpoint", "killed while the checkpoint is renamed", "killed between rounds"]
)
def test_a_server_killed_outside_of_a_round_resumes_bit_for_bit_in_seeded_mode(host, tmp_path, fault):
    overrides = ("seed=3", "training.optimizer=adam", "training.averaging=0.5")
    assert host.run(tmp_path / "whole", *overrides) == 0
    assert host.run(tmp_path / "broken", *overrides, fault=fault, round_=3) == -9
    assert host.run(tmp_path / "broken", *overrides, resume=True) == 0
    assert torch.equal(parameters_of(tmp_path / "whole"), parameters_of(tmp_path / "broken"))
    assert spent(tmp_path / "whole") == spent(tmp_path / "broken")


def test_clients_with_ledgers_of_their_own_never_forget_a_charge_of_a_killed_server(host, tmp_path):
    directory, paths = tmp_path / "run", [tmp_path / f"run/clients/client-{client}.sqlite" for client in range(3)]
    assert host.run(directory, *LOCAL, fault="killed before the checkpoint", round_=2) == -9
    before = [_local(path) for path in paths]
    assert host.run(directory, *LOCAL, resume=True) == 0
    for path, (rows, epsilon) in zip(paths, before, strict=True):
        later, total = _local(path)
        assert later[: len(rows)] == rows and len(set(later)) == len(later) and (2, 1) in later
        assert epsilon <= total <= 5.0 + 1e-9
    reported = summary_of(directory)["epsilon_spent_by_client"]
    assert [reported[str(client)] for client in range(3)] == pytest.approx(
        [_local(path)[1] for path in paths], rel=1e-9
    )


def _local(path: Path) -> tuple[list[tuple[int, int]], float]:
    with Ledger.open(path, read_only=True) as ledger:
        return [(entry.round, entry.attempt) for entry in ledger.entries()], ledger.replay()


def test_an_older_checkpoint_makes_the_run_pay_again_and_says_so(federation):
    directory = federation.folder / "run1"
    first: list[bytes] = []

    class Keeper:
        def started(self, plan): ...
        def finished(self, summary): ...
        def round_done(self, record):
            if record["round"] == 1:
                first.append((directory / checkpoint.NAME).read_bytes())

    whole = federation.run(small("privacy.epsilon=2.0"), observer=Keeper())
    (directory / checkpoint.NAME).write_bytes(first[0])
    with pytest.raises(CheckpointDamaged, match="released up to round 0, and rounds 1 to 4 were released, too"):
        federation.run(small("privacy.epsilon=2.0"), directory=directory, resume=True)
    assert attempts(directory)[-1] == "4 0", "nothing was begun"
    RunDirectory(directory).agree_to_go_on()
    again = federation.run(small("privacy.epsilon=2.0"), directory=directory, resume=True)
    assert again["status"].startswith("stopped before round 1"), "all of the budget had been spent"
    assert again["epsilon_spent"] == whole["epsilon_spent"] == spent(directory)
    assert charges(directory) == [(1, 0), (2, 0), (3, 0), (4, 0)] and attempts(directory)[-1] == "1 1"


class Breaks:
    """An observer that breaks a run off after a round, as a fault would that leaves the checkpoint's files there."""

    def __init__(self, last: int) -> None:
        self.last = last

    def started(self, plan): ...
    def finished(self, summary): ...
    def round_done(self, record):
        if record["round"] == self.last:
            raise OSError("cable out")


def damaged(path: Path, how: str) -> None:
    """Leave the first of the releases' file alone, if any."""
    content = path.read_bytes()
    one = len(content) // 6
    if how == "deleted":
        path.unlink()
    else:
        cut = content[: one + 9]
        path.write_bytes(cut if how == "cut" else cut + bytes([content[one + 9] ^ 1]) + content[one + 10 :])


@pytest.mark.parametrize("how", ["a bit", "cut", "deleted"])
@pytest.mark.parametrize("trust", [(), ("privacy.trust=distributed",)])
def test_releases_that_are_gone_are_named_and_made_again_for_who_agrees_alone(federation, how, trust):
    """A flipped bit cost up to a hundred rounds, which were charged a second time without a word."""
    chosen, directory = small(*trust, "training.rounds=8", "privacy.epsilon=5.0"), federation.folder / "run1"
    with pytest.raises(OSError, match="cable out"):
        federation.run(chosen, observer=Breaks(6))
    damaged(directory / checkpoint.RELEASED, how)
    last, before = (0 if how == "deleted" else 1), attempts(directory)
    with pytest.raises(CheckpointDamaged, match=f"up to round {last}, and rounds {last + 1} to 6 were .*--go-on"):
        federation.run(chosen, directory=directory, resume=True)
    assert attempts(directory) == before, "nothing was asked of anybody"
    RunDirectory(directory).agree_to_go_on()
    with pytest.raises(OSError, match="cable out"):
        federation.run(chosen, directory=directory, resume=True, observer=Breaks(last + 2))
    assert attempts(directory)[len(before)] == f"{last + 1} 1"
    summary = federation.run(chosen, directory=directory, resume=True)  # what was agreed to is not asked again
    assert summary["status"].startswith("stopped before round"), "some rounds were paid twice"
    assert summary["epsilon_spent"] <= 5.0


@pytest.mark.parametrize("trust", [(), ("privacy.trust=distributed",)])
def test_rounds_that_metrics_lost_are_known_from_what_was_begun(federation, trust):
    chosen, directory = small(*trust, "training.rounds=8", "privacy.epsilon=5.0"), federation.folder / "run1"
    with pytest.raises(OSError, match="cable out"):
        federation.run(chosen, observer=Breaks(6))
    for name in (*checkpoint.NAMES, "metrics.jsonl"):
        (directory / name).unlink()
    with pytest.raises(CheckpointDamaged, match="up to round 0, and rounds 1 to 5 were released"):
        federation.run(chosen, directory=directory, resume=True)


@pytest.mark.parametrize("log", [None, "", "1 0\n2 0\n3", "garbage\n\n4 x\n"])
def test_attempts_that_the_log_lost_are_known_from_the_ledger(federation, log):
    directory = federation.folder / "run1"
    with pytest.raises(StorageFault):
        run_with(directory, "full disk at the checkpoint", 3)
    path = directory / "attempts.log"
    path.unlink() if log is None else path.write_text(log)
    federation.run(small(), directory=directory, resume=True)
    assert charges(directory) == [(1, 0), (2, 0), (3, 0), (3, 1)]


@pytest.fixture
def two_runs(federation):
    """Folders of a finished run, with a copy of its ledger after two rounds, and of another one."""

    class Copier:
        def started(self, plan): ...
        def finished(self, summary): ...
        def round_done(self, record):
            if record["round"] == 2:
                copy(federation.folder / "run1" / "ledger.sqlite", federation.folder / "older.sqlite")

    federation.run(small(), observer=Copier())
    federation.run(small())
    return federation.folder / "run1", federation.folder / "run2"


def copy(source: Path, target: Path) -> None:
    for suffix in ("", "-wal"):
        beside = source.with_name(source.name + suffix)
        if beside.exists():
            shutil.copy(beside, target.with_name(target.name + suffix))


@pytest.mark.parametrize("forgotten", [(), checkpoint.NAMES, ("summary.json",)])
@pytest.mark.parametrize("put", ["older", "another", "none"])
def test_a_ledger_that_forgets_what_was_spent_is_refused_before_anything_is_sent(federation, two_runs, put, forgotten):
    directory, other = two_runs
    for name in forgotten:
        (directory / name).unlink(missing_ok=True)
    for part in directory.glob("ledger.sqlite*"):
        part.unlink()
    source = {"older": federation.folder / "older.sqlite", "another": other / "ledger.sqlite"}.get(put)
    if source is not None:
        copy(source, directory / "ledger.sqlite")
    asked = []
    reason = {
        "older": r"ends at release 2 \(digest \w{12}\), but .* remembers release 4 \(digest \w{12}\).*newest ledger",
        "another": r"ends at release 4 .* remembers release 4 .* another run's ledger",
        "none": r"is gone, but .* remembers release 4 .*Put the ledger back",
    }[put]
    with pytest.raises(LedgerReplaced, match=reason):
        federation.run(
            small(), directory=directory, resume=True, app=Saboteur(lambda m, _: asked.append(m.metadata.message_type))
        )
    assert set(asked) == {"query.hello"} and not (source is None and (directory / "ledger.sqlite").exists())


@pytest.mark.parametrize("what", ["ledger", "progress", "card", "summary"])
def test_what_a_run_spent_is_not_shown_by_a_ledger_that_forgets_it(two_runs, federation, what, capsys):
    directory, other = two_runs
    assert main(["show", str(directory), what]) == 0
    older = federation.folder / "older.sqlite"
    for source, reason in ((older, "ends at release 2"), (other / "ledger.sqlite", "another run")):
        for part in directory.glob("ledger.sqlite*"):
            part.unlink()
        copy(source, directory / "ledger.sqlite")
        capsys.readouterr()
        assert main(["show", str(directory), what]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert reason in said and "summary.json remembers release 4" in said and "Traceback" not in said
    for part in directory.glob("ledger.sqlite*"):
        part.unlink()
    assert main(["show", str(directory), what]) == (2 if what in ("ledger", "progress") else 0)


@pytest.mark.parametrize("put", ["older", "none"])
def test_a_client_refuses_an_older_copy_of_its_own_ledger(federation, put):
    directory = federation.folder / "run1"
    path = directory / "clients" / "client-1.sqlite"

    class Copier:
        def started(self, plan): ...
        def finished(self, summary): ...
        def round_done(self, record):
            if record["round"] == 2:
                copy(path, federation.folder / "older.sqlite")

    federation.run(small(*LOCAL), observer=Copier())
    for part in path.parent.glob("client-1.sqlite*"):
        part.unlink()
    if put == "older":
        copy(federation.folder / "older.sqlite", path)
    reason = r"ends at release 2 .* but client-1.head remembers release 4" if put == "older" else "is gone"
    with pytest.raises(FederationError, match=reason):
        federation.run(small(*LOCAL), directory=directory, resume=True)


@pytest.mark.parametrize(
    ("fault", "charged"),
    [
        ("full disk at the attempt", [(1, 0), (2, 0)]),
        ("full disk at the charge", [(1, 0), (2, 0)]),
        ("full disk at the checkpoint", [(1, 0), (2, 0), (3, 0)]),
        ("full disk at the metrics", [(1, 0), (2, 0), (3, 0)]),
    ],
)
def test_a_full_disk_stops_the_run_with_the_remedy_and_loses_nothing(federation, fault, charged):
    directory = federation.folder / "run1"
    with pytest.raises(
        StorageFault, match=rf"(No space left|is full|too large).*fedsw resume {re.escape(str(directory))}"
    ):
        run_with(directory, fault, 3)
    state = checkpoint.load(directory)
    assert state is not None and state.last.round == (3 if fault.endswith("metrics") else 2)
    assert charges(directory) == charged and summary_of(directory)["status"].startswith("failed")
    federation.run(small(), directory=directory, resume=True)
    assert charges(directory)[: len(charged)] == charged and (directory / "model.safetensors").exists()
    assert {round_ for round_, _ in charges(directory)} >= {1, 2, 3}


def test_a_round_that_would_find_no_room_is_not_charged(federation, monkeypatch):
    usage = namedtuple("usage", "total used free")
    seen = []

    def disk_usage(path):
        seen.append(path)
        return usage(2**40, 2**40, 2**40 if len(seen) <= 2 else 1000)

    monkeypatch.setattr(recovery.shutil, "disk_usage", disk_usage)
    with pytest.raises(StorageFault, match=r"1000 bytes are free"):
        federation.run(small())
    assert charges(federation.folder / "run1") == [(1, 0), (2, 0)] and attempts(federation.folder / "run1")[-1] == "2 0"


def test_errors_that_are_not_the_disk_s_pass_unchanged(tmp_path):
    with pytest.raises(PermissionError), recovery.explaining_storage(tmp_path):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.parametrize("engine, waits", [("flwr", 4), ("inprocess", 0)])
def test_attempts_wait_for_the_disk_where_somebody_else_remembers_them(federation, monkeypatch, engine, waits):
    waited: list[Path] = []
    sync = files.sync
    monkeypatch.setattr(files, "sync", lambda path: (waited.append(path), sync(path)))
    federation.run(small(), engine=engine)
    assert [path.name for path in waited].count("attempts.log") == waits


def test_a_checkpoint_is_on_disk_before_it_has_its_name(federation, monkeypatch):
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spied_fsync(handle):
        order.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def spied_replace(source, target):
        order.append("rename " + os.path.basename(source))
        replace(source, target)

    monkeypatch.setattr(checkpoint, "_MOST_ROUNDS", 1)
    monkeypatch.setattr(os, "fsync", spied_fsync)
    monkeypatch.setattr(os, "replace", spied_replace)
    federation.run(small())
    part = f"{checkpoint.NAME}.part"
    begun = [place for place, step in enumerate(order) if step == f"sync {part}"]
    assert len(begun) == 6 == order.count(f"rename {part}")
    for place in begun:
        assert order[place : place + 3] == [f"sync {part}", f"rename {part}", "sync run1"]


def test_a_checkpoint_with_a_changed_byte_is_not_taken_for_whole(federation):
    federation.run(small())
    directory = federation.folder / "run1"
    whole = (directory / checkpoint.NAME).read_bytes()
    for position in range(10, len(whole), len(whole) // 20):
        changed = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        (directory / checkpoint.NAME).write_bytes(changed)
        with pytest.raises(CheckpointDamaged, match="older one will do beside the newest ledger"):
            checkpoint.load(directory)
    with pytest.raises(CheckpointDamaged):
        federation.run(small(), directory=directory, resume=True)


def test_two_servers_never_run_one_run(federation):
    federation.run(small(*LOCAL))
    with recovery.held(federation.folder / "run1"):
        assert recovery.is_running(federation.folder / "run1")
        with pytest.raises(RunBusy, match="another process"):
            federation.run(small(*LOCAL), directory=federation.folder / "run1", resume=True)
    assert not recovery.is_running(federation.folder / "run1")


def test_what_a_run_goes_on_from_is_read_with_its_lock_held(federation, monkeypatch):
    """Else it could be the state before that of a server which ended in between, and its rounds would be lost."""
    federation.run(small("training.rounds=2"))
    directory, load, read, held = federation.folder / "run1", checkpoint.load, [], []

    def loaded(folder):
        held.append(recovery.is_running(directory))
        return load(folder)

    metrics = RunDirectory.read_metrics
    monkeypatch.setattr(checkpoint, "load", loaded)
    monkeypatch.setattr(
        RunDirectory,
        "read_metrics",
        lambda self, **k: read.append(recovery.is_running(directory)) or metrics(self, **k),
    )
    federation.run(small("training.rounds=2"), directory=directory, resume=True)
    assert held == [True] and read and all(read)


@pytest.mark.parametrize("fault", ["every reply twice", "replies of the round before again"])
def test_replies_that_come_twice_or_for_another_round_change_nothing(federation, fault):
    federation.run(small("seed=3"))
    run_with(federation.folder / "disturbed", fault, 2, "seed=3")
    assert torch.equal(parameters_of(federation.folder / "run1"), parameters_of(federation.folder / "disturbed"))


def test_not_a_number_in_outputs_counts_as_zero_and_the_bound_holds(federation):
    summary = run_with(federation.folder / "run", "NaN outputs", 2)
    assert summary["status"] == "completed" and bool(torch.isfinite(parameters_of(federation.folder / "run")).all())


@pytest.mark.parametrize("fault", ["hangs before its outputs", "hangs between the exchanges", "wrong shape of outputs"])
def test_with_enough_clients_left_the_run_goes_on_without_the_one_that_fails(federation, fault):
    overrides = ("federation.timeout=2.0", "federation.min_clients=2")
    summary = run_with(federation.folder / "run", fault, 2, *overrides)
    assert summary["released_rounds"] == 4
    fresh = ["2 1"] if fault != "hangs between the exchanges" else []
    assert attempts(federation.folder / "run") == ["1 0", "2 0", *fresh, "3 0", "4 0"]
    clients = [json.loads(line)["clients"] for line in (federation.folder / "run/metrics.jsonl").open()]
    assert clients == [3, 2, 3, 3]


@pytest.mark.parametrize("fault", ["hangs between the exchanges", "wrong shape of outputs"])
def test_with_too_few_clients_left_the_run_stops_and_names_them_but_no_count(federation, fault):
    with pytest.raises(FederationError, match=r"fewer than the 3 of federation.min_clients|no attempt") as stopped:
        run_with(federation.folder / "run", fault, 2, "federation.timeout=2.0", "federation.max_attempts=1")
    assert "Client 2" in str(stopped.value) and "shape (" not in str(stopped.value)
    assert charges(federation.folder / "run") == [(1, 0)]


@pytest.mark.parametrize(
    "fault", ["NaN contribution", "wrong shape of its contribution", "contribution above its bound"]
)
def test_matching_runs_refuse_a_contribution_outside_its_bound_or_shape(federation, fault):
    autoencoder = experiment(AUTOENCODER, "federation.max_attempts=1")
    with pytest.raises(FederationError, match=r"Client 2: .*(above its clip bound|came with shape)"):
        run_with(federation.folder / "run", fault, 1, chosen=autoencoder)
    with Ledger.open(federation.folder / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert not ledger.entries()
