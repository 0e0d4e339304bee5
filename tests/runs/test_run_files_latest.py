"""An experiment's name stands for its latest run by a number and UTC, and every verb says which run it took."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest

from fedsw._tools.files import fresh_folder
from fedsw.cli import app as cli
from fedsw.runs.run_files import find_run, in_order

CLI = Path(cli.__file__).parent


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An empty folder of runs, and the time that runs begin at, which no zone and no summer time move."""
    now = [1_800_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda seconds=None: real(now[0] if seconds is None else seconds))
    yield tmp_path / "runs", now
    monkeypatch.undo()
    time.tzset()


def named(folder: Path, begun: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({} if begun is None else {"begun": begun}))
    return folder


def test_the_latest_run_is_the_one_that_was_begun_last_wherever_and_whatever_the_clock_says(runs, monkeypatch):
    place, now = runs
    for zone, step in (("Pacific/Kiritimati", 0), ("UTC", 60), ("Europe/Berlin", 60), ("UTC", -7200), ("UTC", 0)):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        now[0] += step
        begun = named(fresh_folder(place / "own"))
        assert find_run("own", place) == begun
    assert [folder.name[:5] for folder in in_order((place / "own").iterdir())] == [f"{n:04d}-" for n in range(1, 6)]


def test_more_runs_than_a_number_has_digits_stay_in_order(runs):
    place, _ = runs
    named(place / "own" / "9999-20270115T080000Z")
    assert named(fresh_folder(place / "own")).name.startswith("10000-") and find_run("own", place).name[:5] == "10000"


def test_runs_of_older_versions_are_read_in_the_order_in_which_they_were_begun(runs):
    """Their names have the local time, and -2 to -999 within a second."""
    place, _ = runs
    order = [
        named(place / "own" / "20261025-025959", "2026-10-25T00:59:59+00:00"),  # summer time
        named(place / "own" / "20261025-020001", "2026-10-25T01:00:01+00:00"),  # winter time, two seconds later
        *(named(place / "own" / f"20261026-100000{n}", "2026-10-26T09:00:00+00:00") for n in ("", "-2", "-9", "-12")),
        named(place / "own" / "20261026-080000", "2026-10-26T12:00:00+00:00"),  # elsewhere
    ]
    assert in_order(reversed(order)) == order and find_run("own", place) == order[-1]
    first = named(fresh_folder(place / "own"), "2027-01-15T08:00:00+00:00")
    second = named(fresh_folder(place / "own"), "2027-01-16T08:00:00+00:00")
    between = named(place / "own" / "20270115-120000", "2027-01-15T11:00:00+00:00")
    copy = named(place / "own" / "backup", "2027-01-16T08:00:00+00:00")
    assert in_order((place / "own").iterdir()) == [*order, first, between, copy, second]
    renamed = named(place / "own" / "the good one", "2027-01-17T08:00:00+00:00")
    assert find_run("own", place) == renamed


def test_two_that_begin_at_once_get_folders_of_their_own(runs, monkeypatch):
    place, _ = runs
    seen, looked = Path.iterdir, []

    def late(folder):
        looked.append(folder)
        return iter(()) if len(looked) == 1 else seen(folder)  # the other one is made after this look

    (place / "own" / "0001-20270115T080000Z").mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", late)
    assert fresh_folder(place / "own").name == "0002-20270115T080000Z"


VERBS = ("show RUN", "show RUN progress", "show RUN ledger", "show RUN card", "report RUN", "audit RUN -o found")
VERBS += ("evaluate RUN", "predict RUN table.csv", "export RUN -o model.pt", "distance RUN", "resume RUN")
VERBS += ("plan --after-moments RUN", "server --certs fed --resume RUN")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_takes_a_name_says_which_run_it_took(runs, verb, monkeypatch, capsys):
    place, _ = runs
    monkeypatch.chdir(place.parent)
    named(fresh_folder(place / "own"))
    latest = named(fresh_folder(place / "own")).relative_to(place.parent)
    cli.main(verb.replace("RUN", "own").split())  # what it then says of an empty configuration is told elsewhere
    assert f"fedsw: the run is {latest}\n" in capsys.readouterr().err
    cli.main(verb.replace("RUN", str(latest)).split())
    assert "fedsw: the run is" not in capsys.readouterr().err


def test_no_verb_finds_a_run_without_saying_which():
    finding = {
        path.name
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if "find_run" in (getattr(node, "attr", None), getattr(node, "name", None), getattr(node, "id", None))
    }
    assert finding == {"options.py"}
