"""Every error is one short message with the right exit code; --debug shows the rest."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

import pytest
import typer

from fedsw._tools.exits import Exit
from fedsw.cli.execution import RunRefused, explaining
from fedsw.cli.options import RunStopped, invoke, new_group, split_debug
from fedsw.runs.recovery import RunBusy, explaining_storage


def group_that(raises: BaseException | None = None, warns: str = "") -> typer.Typer:
    group = new_group()

    @group.command()
    def act(count: int = 1) -> None:
        if warns:
            warnings.warn(warns, stacklevel=1)
        if raises is not None:
            raise raises

    @group.command()
    def other() -> None:
        pass

    return group


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        (ValueError("epsilon is 0; it must be above 0"), 2, "fedsw: epsilon is 0; it must be above 0\n"),
        (FileNotFoundError("no adult.data in /data"), 2, "fedsw: no adult.data in /data\n"),
        (RunStopped("stopped: client 2 is gone", Exit.BROKE_OFF), 3, "fedsw: stopped: client 2 is gone\n"),
        (RunBusy("runs/own/1 is being run"), 1, "fedsw: runs/own/1 is being run\n"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "fedsw: No space left on device; make room, or write to another disk\n",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "out/report.html.part"),
            1,
            "fedsw: out/report.html: Read-only file system; name a place that can be written to\n",
        ),
        (OSError("the folder is a link"), 1, "fedsw: the folder is a link\n"),
        (KeyError("x"), 1, "fedsw: KeyError: 'x'\nfedsw: --debug shows where it happened\n"),
    ],
)
def test_an_error_is_one_short_message_and_a_code(
    fault: Exception, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(group_that(fault), ["act"], debug=False) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message)


def test_the_error_of_a_disk_that_takes_nothing_before_a_run_begins_names_no_run_to_resume(tmp_path: Path) -> None:
    with (
        pytest.raises(RunRefused, match="accounts: Read-only file system; name a place .*Nothing had begun") as told,
        explaining(lambda: None),
        explaining_storage(tmp_path),
    ):
        raise OSError(errno.EROFS, "Read-only file system", "accounts")
    assert "resume" not in str(told.value)


def test_debug_lets_the_error_through() -> None:
    with pytest.raises(ValueError, match="here"):
        invoke(group_that(ValueError("here")), ["act"], debug=True)


def test_a_command_that_ends_well_returns_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group_that(), ["act"], debug=False) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["atc"], ["No such command 'atc'"]),
        (["act", "--cuont", "1"], ["fedsw act", "--cuont", "--count"]),
        (["act", "--count", "many"], ["--count", "many", "integer"]),
        (["act", "extra"], ["unexpected extra argument"]),
    ],
)
def test_a_command_line_that_makes_no_sense_is_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(group_that(), arguments, debug=False) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    for word in words:
        assert word in error


def test_an_interruption_is_code_130_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group_that(KeyboardInterrupt()), ["act"], debug=False) == 130
    assert capsys.readouterr().err.split("\n")[-2] == "fedsw: interrupted"


def test_a_warning_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group_that(warns="delta is large"), ["act"], debug=False) == 0
    assert capsys.readouterr().err == "fedsw: warning: delta is large\n"


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(group_that(), ["--version"], debug=False) == 0
    assert capsys.readouterr().out.startswith("fedsw ")


def test_debug_is_taken_wherever_it_stands() -> None:
    assert split_debug(["run", "x", "--debug", "--seed", "1"]) == (True, ["run", "x", "--seed", "1"])
    assert split_debug(["run", "x"]) == (False, ["run", "x"])
    assert split_debug(["--", "--debug"]) == (False, ["--", "--debug"])


def test_a_module_that_an_extra_brings_is_named_with_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ModuleNotFoundError("No module named 'flwr.app'", name="flwr.app")
    assert invoke(group_that(missing), ["act"], debug=False) == 2
    said = "fedsw: flwr.app is not installed; pip install '.[app]' in fedsw's checkout brings it\n"
    assert capsys.readouterr().err == said
    other = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert invoke(group_that(other), ["act"], debug=False) == 1
