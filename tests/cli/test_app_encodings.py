"""Whatever letters a terminal has, every verb says what it has to say, and no letter ends what was paid for."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsw._tools.text import SPELT
from fedsw.cli import app as cli
from tests.cli.test_options import verbs
from tests.pretended_runs import FakeRuns

ENCODINGS = ("latin-1", "ascii", "cp1252", "koi8-r")


class Strict(io.TextIOWrapper):
    """A standard stream of an encoding, that raises at a letter which it does not have."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)

    @property
    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


def said(line: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Exit code, output and errors of a command line on streams of an encoding."""
    out, err = Strict(encoding), Strict(encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        code = cli.main(line)
    assert (out.errors, err.errors) == ("strict", "strict"), "streams are left as they were"
    return code, out.text, err.text


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_every_verb_shows_its_help(encoding, monkeypatch):
    for name in ["", *verbs()]:
        code, out, err = said([*name.split(), "--help"], encoding, monkeypatch)
        assert (code, err) == (0, "") and "Usage" in out, name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_run_that_was_paid_for_is_shown_and_ends_with_0(fake_runs: FakeRuns, encoding, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsw.cli.execution.draw_run", lambda *_: [])
    code, out, err = said(["run", "fair-classification"], encoding, monkeypatch)
    assert code == 0 and err == "" and (("eps = 1" in out) or ("ε = 1" in out))
    assert said(["show", "fair-classification"], encoding, monkeypatch)[1] == out


LINES: tuple[Callable[[Path], list[str]], ...] = (
    lambda run: ["list"],
    lambda run: ["account"],
    lambda run: ["budget", "--records", "5000", "--epsilon", "2"],
    lambda run: ["show", str(run)],
    lambda run: ["show", str(run), "progress"],
    lambda run: ["show", str(run), "card"],
    lambda run: ["report", str(run)],
    lambda run: ["compare", "--list"],
)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_verbs_that_look_say_the_same_json_and_no_error(finished_run, encoding, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    run = finished_run('title="Bürger über 60 Jahre – Łódź"')
    for line in LINES:
        code, out, err = said(line(run), encoding, monkeypatch)
        assert (code, err) == (0, "") and out, line(run)
    code, out, _ = said(["show", str(run), "--json"], encoding, monkeypatch)
    assert code == 0 and json.loads(out)["title"] == "Bürger über 60 Jahre – Łódź"
    assert json.loads(out) == json.loads(said(["show", str(run), "--json"], "utf-8", monkeypatch)[1])


def test_a_table_of_predictions_is_not_written_with_other_letters(monkeypatch):
    """A category that a terminal cannot write would be another one in whoever's table comes of it."""
    from fedsw.cli.columns import require_written

    require_written({"ort": ["Łódź", "Köln"]}, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    require_written({"ort": ["Köln"]}, Strict("latin-1"))
    with pytest.raises(ValueError, match=r"'Łódź'.*iso8859-1.*-o FILE"):
        require_written({"ort": ["Köln", "Łódź"]}, Strict("latin-1"))


def test_letters_are_spelt_by_name():
    assert "ε ≤ 1 µ ☃ – ü".encode("latin-1", SPELT).decode("latin-1") == "eps <= 1 µ ? - ü"


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                                    {"PYTHONIOENCODING": "latin-1"}])  # fmt: skip
def test_a_process_in_a_plain_locale_says_what_it_has_to_say(locale):
    source = "from fedsw.cli.app import program; program()"
    command = [sys.executable, "-c", source, "list"]
    ended = subprocess.run(command, env={**os.environ, **locale}, capture_output=True)
    assert ended.returncode == 0 and b"fair-classification" in ended.stdout and ended.stderr == b""


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_streams_that_cannot_be_put_back_once_all_is_shown_change_no_exit_code(monkeypatch, fault, capsys):
    @contextmanager
    def broken():
        yield
        raise fault

    monkeypatch.setattr("fedsw.cli.options._any_letter", broken)
    assert cli.main(["budget", "--help"]) == 0 and "Usage" in capsys.readouterr().out
