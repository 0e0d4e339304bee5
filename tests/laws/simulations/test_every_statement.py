"""Whatever statement fails once something is charged: files agree, the code says so, and nothing is spent twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsw._tools.exits import Exit, of_signal
from fedsw.privacy.accounting import Ledger
from fedsw.runs import checkpoint, recovery
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile, client_ledgers, has_ended
from tests.runs.statements import FAULTS, SAID, Host, Place

SETTINGS = """
name = "small"
evaluate_every = 1
data = {{ records = 60, test_records = 20 }}
objective = {{ alpha = {alpha} }}
training = {{ rounds = 2, learning_rate = 0.5, batch_fraction = 0.2 }}
federation = {{ clients = 2, timeout = {timeout} }}
privacy = {{ delta = 1e-3, trust = "{trust}", moments = {moments} }}
"""
KINDS = {
    "central": {"trust": "central", "alpha": 0.5, "moments": 0.0},
    "moments": {"trust": "central", "alpha": 0.0, "moments": 0.3},
    "local-gradient": {"trust": "local-gradient", "alpha": 0.0, "moments": 0.0},
}
ACCOUNTING = "_", "composition", "discretise", "journal", "ledger", "pld", "slicing"
DECIDING = (
    *("cli/", "runs/", "federation/", "privacy/release.py", "_tools/files.py"),
    *(f"privacy/accounting/{name}" for name in ACCOUNTING),
)
"""Where it is decided what is charged, kept and said; of other files one statement in `OTHERS` is tried."""
OTHERS = 25
SHOWN = ("runs/report/", "runs/evaluation/", "runs/group_names.py")
"""What only words and measures: as other files."""
QUICK, SLOW = 1, 240
"""Statements that the quick stage tries of one kind, and one in how many the slow stage tries."""
PATIENCE, WHOLE = 5.0, 20.0
"""Seconds that a round waits for a client's answer, which some faults leave out; and in a run that nothing ails."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    running = Host()
    yield running
    running.close()


def folder_of(tmp_path: Path, kind: str, timeout: float = PATIENCE) -> Path:
    tmp_path.mkdir(parents=True, exist_ok=True)
    (tmp_path / "small.toml").write_text(SETTINGS.format(**KINDS[kind], timeout=timeout))
    return tmp_path


def statements(host: Host, tmp_path: Path, kind: str) -> list[Place]:
    """Every statement of the package that a run comes to once something is charged, in their order."""
    folder = folder_of(tmp_path / f"whole-{kind}", kind, WHOLE)
    assert host.run(folder, "run", "small.toml", "--quiet", seen="seen.json") == Exit.DONE, said(folder)
    return [(file, line) for file, line in json.loads((folder / "seen.json").read_text())]


def said(folder: Path) -> str:
    return (folder / SAID).read_text()


def decide(place: Place) -> bool:
    return place[0].startswith(DECIDING) and not place[0].startswith(SHOWN)


def chosen(places: list[Place]) -> list[Place]:
    """All that decide, and a few of the others."""
    others = [place for place in places if not decide(place)]
    return [*filter(decide, places), *others[::OTHERS]]


def ledgers_in(run: Path) -> list[Path]:
    return [path for path in (run / RunFile.LEDGER, *client_ledgers(run)) if path.exists()]


def require_consistent(run: Path) -> None:
    """Hold the files of a run against each other, as whoever goes on with it does."""
    charged = set[tuple[int, int]]()
    for path in ledgers_in(run):
        with Ledger.open(path, read_only=True) as ledger:
            assert ledger.epsilon() <= ledger.budget * (1 + 1e-9), path
            charged |= {(entry.round, entry.attempt) for entry in ledger.entries()}
    assert charged, "nothing was charged"
    state, lines = checkpoint.load(run), RunDirectory(run).read_metrics()
    if (run / RunFile.LEDGER).exists():
        ledger = recovery.reopened(run / RunFile.LEDGER, run / RunFile.SUMMARY, state)
        assert ledger is not None
        ledger.close()
    assert {(line["round"], line["attempt"]) for line in lines} <= charged
    told, released = [line["round"] for line in lines], 0 if state is None else state.last.round
    assert told == sorted(set(told)) and max(told, default=0) <= released <= max(round_ for round_, _ in charged)
    assert len(told) >= released - 1, "a line may be missing of the round that failed between its checkpoint and it"
    begun = RunDirectory(run).begun_attempts()
    assert charged <= {*begun} and len(begun) == len({*begun}), "an attempt's number, and with it its key, is used once"


def require_no_harm(host: Host, folder: Path, place: Place, fault: str = "an error") -> None:
    code = host.run(folder, "run", "small.toml", "--quiet", at=place, fault=fault)
    (run,) = (folder / "runs" / "small").iterdir()
    words = said(folder)
    require_consistent(run)
    if code == Exit.DONE:  # what failed was done without
        assert has_ended(run), words
    elif has_ended(run) and not words.startswith(f"runs/small/{run.name}\n"):  # else all was shown
        assert code in (Exit.NOT_SHOWN, of_signal(2)) and f"fedsw show runs/small/{run.name}" in words, (code, words)
    elif not has_ended(run) and code != Exit.ENDED_EARLY:
        assert code in (Exit.BROKE_OFF, of_signal(2)) and f"fedsw resume runs/small/{run.name}" in words, (code, words)
    again = host.run(folder, "resume", "small", "--quiet")
    assert again in (Exit.DONE, Exit.ENDED_EARLY), said(folder)
    require_consistent(run)
    if again == Exit.DONE:
        assert has_ended(run) and RunDirectory(run).read_summary()["released_rounds"] == 2, said(folder)


def tried(host: Host, tmp_path: Path, kind: str, places: list[Place], fault: str = "an error") -> dict[Place, str]:
    """What went wrong, by the statement that failed."""
    wrong = {}
    for number, place in enumerate(places):
        try:
            require_no_harm(host, folder_of(tmp_path / str(number), kind), place, fault)
        except Exception as fault_of_law:
            wrong[place] = f"{type(fault_of_law).__name__}: {str(fault_of_law)[:1500]}"
        except AssertionError as broken:
            wrong[place] = str(broken)[:1500]
    return wrong


def test_some_statements_that_fail_after_the_first_charge_harm_nothing(host, tmp_path):
    places = chosen(statements(host, tmp_path, "local-gradient"))
    assert len(places) > 500
    line = next(place for place in places if place[0] == "federation/server/summary.py")  # after a round's checkpoint
    assert tried(host, tmp_path, "local-gradient", [line, *places[:: len(places) // QUICK]]) == {}


def dealt(host: Host, tmp_path: Path, kind: str) -> list[Place]:
    """The statements of a kind of run that no other comes to, and its part of those that all do, in their order."""
    found = {one: dict.fromkeys(chosen(statements(host, tmp_path, one))) for one in KINDS}
    comers = {place: [one for one in KINDS if place in found[one]] for place in found[kind]}
    return [place for place, ones in comers.items() if ones[place[1] % len(ones)] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_statements_that_fail_after_the_first_charge_harm_nothing(host, tmp_path, kind, fault):
    """Every one of them where `FEDSW_STATEMENTS` is `all`, which takes hours; else one in `SLOW`, of one kind each."""
    if os.environ.get("FEDSW_STATEMENTS") == "all":
        places = chosen(statements(host, tmp_path, kind))
    else:
        places = dealt(host, tmp_path, kind)[SLOW // 2 :: SLOW]
    assert tried(host, tmp_path, kind, places, fault) == {}
