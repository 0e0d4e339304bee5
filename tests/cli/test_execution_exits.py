"""Exit codes say what was spent: one table, and nothing that comes after the last release changes what it was."""

from __future__ import annotations

import errno
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsw._tools import exits
from fedsw._tools.exits import MEANINGS, Exit
from fedsw.audit.finding import EXIT_CODES, Outcome
from fedsw.cli import app as cli
from fedsw.cli.execution import Begun, explaining
from fedsw.cli.options import RunInterrupted, RunStopped
from fedsw.federation.engines.driver import resume, run
from fedsw.runs.recovery import held
from tests.federations import small
from tests.pretended_runs import FakeRuns
from tests.site.pages import built

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


def test_every_code_has_one_meaning_that_the_pages_have():
    assert set(MEANINGS) == set(Exit) and len({int(code) for code in Exit}) == len(Exit)
    assert set(EXIT_CODES) == set(Outcome.__args__) and set(EXIT_CODES.values()) <= set(Exit)
    page = built("docs/reference/commands.md")
    for row in exits.rows():
        assert f"| {' | '.join(row)} |" in page


def test_no_verb_and_no_page_has_codes_of_its_own():
    for path in (ROOT / "fedsw").rglob("*.py"):
        assert not re.search(r"typer\.Exit\(\d|sys\.exit\(\d", path.read_text(encoding="utf-8")), path


@pytest.fixture
def ended(fake_runs: FakeRuns, monkeypatch, tmp_path):
    """A run that ends as it should, and a place for what may go wrong afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsw.cli.execution.draw_run", lambda *_: [])
    return fake_runs


def raising(fault: BaseException) -> Callable[..., None]:
    def raises(*_: object, **__: object) -> None:
        raise fault

    return raises


AFTERWARDS = {
    "a full disk": OSError(errno.ENOSPC, "No space left on device", "out"),
    "nobody reads": BrokenPipeError(errno.EPIPE, "Broken pipe"),
    "a terminal that is gone": OSError(errno.EIO, "Input/output error"),
    "a letter": UnicodeEncodeError("ascii", "ε", 0, 1, "ordinal not in range(128)"),
    "bad input": ValueError("this is no input"),
    "anything": ZeroDivisionError("division by zero"),
}


@pytest.mark.parametrize("fault", AFTERWARDS)
def test_what_was_spent_and_could_not_be_shown_has_a_code_of_its_own_and_says_where_it_lies(
    ended, fault, monkeypatch, capsys
):
    monkeypatch.setattr("fedsw.cli.execution.summary_screen", raising(AFTERWARDS[fault]))
    assert cli.main(["run", "fair-classification"]) == Exit.NOT_SHOWN
    (folder,) = Path("runs/fair-classification").iterdir()
    said = capsys.readouterr().err
    assert f"released is in {folder}; `fedsw show {folder}` shows it" in said and "resume" not in said


@pytest.mark.parametrize("where", ["draw_run", "summary_screen"])
def test_ctrl_c_after_the_last_round_says_where_the_run_is(ended, where, monkeypatch, capsys):
    monkeypatch.setattr(f"fedsw.cli.execution.{where}", raising(KeyboardInterrupt()))
    assert cli.main(["run", "fair-classification"]) == 130
    (folder,) = Path("runs/fair-classification").iterdir()
    assert f"interrupted\nIt has ended, and all that was released is in {folder}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "code"), [(RuntimeError("MLflow is away"), Exit.NOT_SHOWN), (KeyboardInterrupt(), 130)]
)
def test_an_observer_that_fails_when_all_is_released_makes_no_run_that_broke_off(
    ended, fault, code, monkeypatch, capsys
):
    monkeypatch.setattr("fedsw.runs.progress.RunProgress.finished", raising(fault))
    assert cli.main(["run", "fair-classification"]) == code
    (folder,) = Path("runs/fair-classification").iterdir()
    assert f"fedsw show {folder}" in (said := capsys.readouterr().err) and "resume" not in said


def test_standard_output_that_takes_nothing_is_told_from_a_run_that_failed(ended, monkeypatch, capsys):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code = cli.main(["run", "fair-classification", "--quiet"])
    assert code == Exit.NOT_SHOWN and "No space left on device" in capsys.readouterr().err


def test_a_run_that_broke_off_says_whether_something_was_spent(tmp_path):
    begun = Begun(tmp_path, "fedsw resume x")
    with (
        pytest.raises(RunStopped, match="Nothing was spent; `fedsw resume x` goes on") as stopped,
        explaining(lambda: begun),
    ):
        raise RuntimeError("no")
    assert stopped.value.exit_code == Exit.FAILED
    (tmp_path / "attempts.log").write_text("1 0\n")
    with (
        pytest.raises(RunStopped, match="on record; `fedsw resume x` goes on from") as stopped,
        explaining(lambda: begun),
    ):
        raise RuntimeError("no")
    assert stopped.value.exit_code == Exit.BROKE_OFF
    with pytest.raises(RunInterrupted), explaining(lambda: begun):
        raise KeyboardInterrupt


def test_a_run_that_its_budget_ends_early_does_not_end_with_0(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsw.cli.execution.draw_run", lambda *_: [])
    monkeypatch.setattr("fedsw.desk.own_data.rehearsal.rehearse", lambda *_: None)
    with pytest.raises(RuntimeError), monkeypatch.context() as patch:
        patch.setattr("fedsw.runs.checkpoint.Checkpoints.take", raising(RuntimeError("off")))
        run(small("training.rounds=2"), runs=Path("runs"))
    assert cli.main(["resume", "small", "--quiet"]) == Exit.ENDED_EARLY
    assert "fedsw: the run stopped before round 2" in capsys.readouterr().err


def test_a_second_resume_asks_nobody_and_says_that_the_run_has_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsw.cli.execution.draw_run", lambda *_: [])
    ended = run(small("training.rounds=1"), runs=Path("runs"))
    before = (ended.directory / "ledger.sqlite").read_bytes(), (ended.directory / "summary.json").read_bytes()
    monkeypatch.setattr("fedsw.federation.engines.driver._drive", raising(AssertionError("somebody was asked")))
    for line in (["resume", "small", "--quiet"], ["server", "--certs", "none", "--resume", "small", "--quiet"]):
        assert cli.main(line) == 0
        assert f"{ended.directory} has ended: nothing is left to go on with" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="nothing is spent"):
        assert resume(ended.directory).summary == ended.summary
    after = (ended.directory / "ledger.sqlite").read_bytes(), (ended.directory / "summary.json").read_bytes()
    assert after == before


def test_a_run_that_another_process_runs_is_said_so_in_plain_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended = run(small("training.rounds=1"), runs=Path("runs"))
    with held(ended.directory):
        assert cli.main(["resume", "small"]) == Exit.FAILED
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"fedsw: {ended.directory} is being run by another process; wait until it ends, or stop it"


def test_a_port_that_is_taken_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["certs", "--host", "localhost", "--clients", "2", "--out", "fed"]) == 0
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = ["server", "fair-classification", "--certs", "fed/server", "--port", port]
        assert cli.main(line) == Exit.FAILED
    assert f"port {port} cannot be opened" in capsys.readouterr().err and not Path("runs").exists()
