"""Laws of a selected run: what remains says nothing of the other runs, and it has one epsilon everywhere."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

import fedsw
from fedsw._tools.settings import FederationError
from fedsw.audit import record
from fedsw.audit.record import cost
from fedsw.cli.app import main
from fedsw.desk.planning import private_search as private
from fedsw.desk.planning.search import Candidate
from fedsw.experiment import parse_experiment
from fedsw.federation.engines import driver
from fedsw.privacy import release
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting import ledger as ledgers
from fedsw.privacy.accounting import selection as renyi
from fedsw.privacy.accounting.lifetime import dataset_account as accounts
from fedsw.privacy.accounting.selection import Repetitions
from fedsw.runs.run_files import RunFile
from tests.federations import SMALL
from tests.laws.simulations.test_neighbours import same_numbers

LAW = Repetitions(0.0, 0.05)
ONE_RUN = 7.319
START = 1_700_000_000.0


@pytest.fixture(autouse=True, scope="module")
def fewer_orders():
    """Fewer orders are a bound as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renyi, "ORDERS", renyi.ORDERS[::3])
        yield


def candidates() -> list[Candidate]:
    rates = ("training.learning_rate=0.1", "training.learning_rate=1.0")
    changes = ["data.account=people", "data.records=300", f"privacy.epsilon={ONE_RUN}", "privacy.delta=1e-5"]
    return [Candidate((rate,), parse_experiment(SMALL, [*changes, rate])) for rate in rates]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of two runs, for real; its cost and the folder of the run that was selected."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSW_ACCOUNTS", str(folder / "accounts"))
        patch.setattr(Repetitions, "draw", lambda law, uniform: 2)
        return private.select(candidates(), LAW, "accuracy", 1.0, runs=folder / "runs")


@pytest.fixture
def chosen(searched, tmp_path):
    """A copy of that folder."""
    shutil.copytree(searched.directory, tmp_path / "small" / "run")
    return tmp_path / "small" / "run"


class Clock(datetime.datetime):
    """A clock that only tests move."""

    at = START

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(cls.at, tz)


class Repeated:
    """Stands in for runs: each leaves the same files, dated by the clock; which one scores best is chosen."""

    def __init__(self, made: Path, best: int, watched: Path) -> None:
        self.made, self.best, self.watched, self.made_so_far, self.before = made, best, watched, 0, {}

    def __call__(self, experiment, folder, selection):
        self.before = self.before or modified(self.watched)
        begun, number = Clock.at, self.made_so_far
        self.made_so_far += 1
        Clock.at += 100.0 + 7 * number
        directory = folder / f"run{number}"
        shutil.copytree(self.made, directory)
        config, summary = (json.loads((directory / name).read_text()) for name in (RunFile.CONFIG, RunFile.SUMMARY))
        ended = datetime.datetime.fromtimestamp(Clock.at, datetime.UTC).isoformat()
        config["begun"] = summary["begun"] = datetime.datetime.fromtimestamp(begun, datetime.UTC).isoformat()
        summary |= {"date": ended, "seconds": Clock.at - begun}
        summary["held_out"]["accuracy"] = 0.9 if number == self.best else 0.1
        (directory / RunFile.CONFIG).write_text(json.dumps(config))
        (directory / RunFile.SUMMARY).write_text(json.dumps(summary))
        (directory / RunFile.LOG).write_text(json.dumps({"time": ended, "level": "info", "event": "run ended"}) + "\n")
        (directory / "run.lock").write_text(str(number))
        return summary, directory


def modified(folder: Path) -> dict[str, int]:
    """When every file and folder was last written to."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def search(home: Path, made: Path, *, runs: int, best: int, monkeypatch) -> tuple[Path, Repeated]:
    """A search on clocks of its own; its home, with everything that remains, and the runs."""
    clock = SimpleNamespace(
        strftime=lambda form, at: at.strftime(form), gmtime=Clock.now, monotonic=time.monotonic, sleep=time.sleep
    )
    monkeypatch.setattr("fedsw._tools.files.time", clock)  # a folder's name
    for module in (private, accounts):
        monkeypatch.setattr(module, "datetime", SimpleNamespace(datetime=Clock, UTC=datetime.UTC))
        monkeypatch.setattr(module, "uuid4", lambda: UUID(int=5))
    monkeypatch.setattr(Repetitions, "draw", lambda law, uniform: runs)
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(home / "accounts"))
    temporary = home.with_name(home.name + "-temporary")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    Clock.at = START
    training = Repeated(made, best, home)
    found = private.select(candidates()[:1], LAW, "accuracy", 1.0, runs=home / "runs", train=training)
    assert training.made_so_far == runs and not list(temporary.iterdir())
    return found.directory, training


@pytest.mark.parametrize(("runs", "best"), [(7, 0), (7, 6), (2, 1)])
def test_what_remains_of_a_search_is_the_same_whatever_the_number_of_runs(searched, tmp_path, monkeypatch, runs, best):
    one, _ = search(tmp_path / "one", searched.directory, runs=1, best=0, monkeypatch=monkeypatch)
    more, training = search(tmp_path / "more", searched.directory, runs=runs, best=best, monkeypatch=monkeypatch)
    assert contents(tmp_path / "more") == contents(tmp_path / "one")
    assert modified(more) == modified(one) and set(modified(more).values()) == {int(START) * 10**9}
    assert more.stat().st_mtime == START == one.stat().st_mtime
    after = modified(tmp_path / "more")
    inside = str(more.relative_to(tmp_path / "more"))
    assert {name: at for name, at in after.items() if not name.startswith(inside)} == {
        name: at for name, at in training.before.items() if name != inside
    }
    assert RunFile.LOG not in {path.name for path in more.iterdir()} and not list(more.glob("*lock*"))


def left_by_real_runs(
    home: Path, *, runs: int, best: int, monkeypatch, capsys
) -> tuple[dict[str, object], dict[str, object]]:
    """What is left of a search whose runs were all made, each a second longer than the one before: files and words.

    Noise is the same in every run, and so are random names; the time at which the search began is called so.
    """
    scores = iter([0.9 if number == best else 0.1 for number in range(runs)])
    monkeypatch.setattr(private, "score_of", lambda *arguments: next(scores))
    monkeypatch.setattr(Repetitions, "draw", lambda law, uniform: runs)
    monkeypatch.setattr(release, "_noised", same_numbers)
    monkeypatch.setattr("secrets.token_hex", lambda count: "ab" * count)
    for module in (private, accounts, ledgers):
        monkeypatch.setattr(module, "uuid4", lambda: UUID(int=5))
    monkeypatch.setattr(accounts, "datetime", SimpleNamespace(datetime=Clock, UTC=datetime.UTC))  # rows are chained
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(home / "accounts"))
    made, charged = [], {}

    def train(experiment, folder, selection):
        if not made:
            charged.update(modified(home / "accounts"))
            charged[""] = time.time()
        made.append(private._train(experiment, folder, selection))
        time.sleep(1.1 * len(made))
        return made[-1]

    directory = private.select(candidates()[:1], LAW, "accuracy", 1.0, runs=home / "runs", train=train).directory
    assert len({summary["seconds"] for summary, _ in made}) == runs and not any(each.exists() for _, each in made)
    begun = json.loads((directory / RunFile.CONFIG).read_text())["begun"]
    at = datetime.datetime.fromisoformat(begun)
    assert set(modified(directory).values()) == {int(at.timestamp()) * 10**9}
    assert directory.stat().st_mtime == at.timestamp()
    named = datetime.datetime.strptime(directory.name, "0001-%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()
    assert at.timestamp() <= named <= charged.pop("") and modified(home / "accounts") == charged

    def timeless(text: str) -> str:
        """Words without when the search began, for which an account's own clock is a moment later."""
        text = text.replace(str(home), "HOME").replace(directory.name, "BEGUN")
        text = re.sub(r"\d+ s ago", "SINCE BEGUN", text)  # by the clock of who looks
        return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+\d\d:\d\d)?", soon, text)

    def soon(found: re.Match[str]) -> str:
        after = (datetime.datetime.fromisoformat(found[0]).replace(tzinfo=datetime.UTC) - at).total_seconds()
        return "BEGUN" if -60 < after < 1 else found[0]

    files: dict[str, object] = {}
    for path in sorted(home.rglob("*")):
        name = timeless(str(path.relative_to(home)))
        if path.suffix in (".sqlite", ".account"):
            with closing(sqlite3.connect(path)) as database:
                files[name] = [timeless(line) for line in database.iterdump()]
        elif path.is_file():
            text = path.suffix in (".json", ".jsonl", ".md", ".log", ".toml", "")
            files[name] = timeless(path.read_text()) if text else path.read_bytes()
    said: dict[str, object] = {}
    for line in (["card"], ["progress"], ["summary"], ["ledger"], ["summary", "--json"], ["ledger", "--json"]):
        assert main(["show", str(directory), *line]) == 0
        said[" ".join(line)] = " ".join(timeless(capsys.readouterr().out).split())
    return files, said


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "best"), [(4, 0), (4, 3)])
def test_what_remains_of_real_runs_is_the_same_whatever_their_number(tmp_path, monkeypatch, capsys, runs, best):
    left = {"monkeypatch": monkeypatch, "capsys": capsys}
    one, said_of_one = left_by_real_runs(tmp_path / "home", runs=1, best=0, **left)
    (tmp_path / "home").rename(tmp_path / "one")
    more, said_of_more = left_by_real_runs(tmp_path / "home", runs=runs, best=best, **left)
    assert one.keys() == more.keys() and len(one) > 5 and any("people" in name for name in one)
    assert [name for name in one if one[name] != more[name]] == []
    assert said_of_one == said_of_more


def test_a_search_that_breaks_off_leaves_nothing_but_its_charge(searched, tmp_path, monkeypatch):
    def fail(experiment, folder, selection):
        (folder / "run").mkdir()
        raise RuntimeError("no clients")

    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError, match="no clients"):
        private.select(candidates(), LAW, "accuracy", 1.0, runs=tmp_path / "runs", train=fail)
    assert {path.name for path in tmp_path.iterdir()} == before | {"accounts"}
    assert accounts.DatasetAccount(tmp_path / "accounts", "people").state().spent(1e-5) > ONE_RUN


def smaller(epsilon: float) -> re.Pattern[str]:
    """The text of a number, to the two digits that rounding leaves."""
    low = math.floor(epsilon * 100) / 100
    return re.compile("|".join(rf"(?<![\d.]){low + step:.2f}".replace(".", r"\.") for step in (0.0, 0.01)))


@pytest.mark.slow
def test_a_selected_run_has_one_epsilon_in_every_output_and_file(searched, chosen, capsys):
    with Ledger.open(chosen / RunFile.LEDGER, read_only=True) as ledger:
        (steps, *_) = ledger.steps_by_group().values()
        rows = fedsw.privacy.accounting.epsilon(steps, ledger.delta)
        assert ledger.replay() == searched.cost.selection.epsilon == ledger.budget
    assert rows < ONE_RUN * 1.001 < searched.cost.selection.epsilon
    said = {}
    reads = [["show", "progress"], ["show", "ledger"], ["show", "summary"]]
    for line in (*reads, ["audit", "-o", str(chosen / "audits")], ["show", "card"], ["resume", "--go-on"], *reads):
        for form in ((), ("--json",)):
            assert main([line[0], str(chosen), *line[1:], *form]) == 0, line
            said[line[line[0] == "show"], form, len(said)] = capsys.readouterr().out
    said["load"] = fedsw.load(chosen).guarantee
    said |= {str(path): path.read_text() for path in chosen.rglob("*") if path.suffix in (".json", ".jsonl", ".md")}
    with closing(sqlite3.connect(chosen / RunFile.LEDGER)) as database:
        said["header"] = str(database.execute("SELECT body FROM header").fetchall())
    for where, text in said.items():
        for number in (ONE_RUN, rows):
            assert not smaller(number).search(text), (where, number)
    for verb in ("progress", "ledger", "summary", "audit", "resume"):
        for where, text in said.items():
            if where[0] == verb and where[1]:
                assert f"{searched.cost.selection.epsilon}" in text, where
    assert "best of a random number of runs" in said["load"]


def test_a_selected_run_whose_summary_is_gone_still_has_the_selection_s_epsilon(searched, chosen, capsys):
    (chosen / RunFile.SUMMARY).unlink()
    for what in ("progress", "ledger", "summary"):
        assert main(["show", str(chosen), what]) == 0
        assert not smaller(ONE_RUN).search(capsys.readouterr().out)


def test_a_selected_run_releases_nothing_more(searched, chosen):
    for path in chosen.glob("checkpoint*"):
        path.unlink()
    driver.resume(chosen, go_on=True)
    summary = json.loads((chosen / RunFile.SUMMARY).read_text())
    with Ledger.open(chosen / RunFile.LEDGER, read_only=True) as ledger:
        assert {(entry.round, entry.attempt) for entry in ledger.entries()} == {(1, 0), (2, 0), (3, 0), (4, 0)}
    assert (
        summary["status"].startswith("stopped before round 1") and summary["epsilon"] == searched.cost.selection.epsilon
    )


def test_a_selected_run_does_not_go_on_without_its_selection(chosen):
    config = json.loads((chosen / RunFile.CONFIG).read_text())
    del config["selection"]
    (chosen / RunFile.CONFIG).write_text(json.dumps(config))
    with pytest.raises(FederationError, match="A run has one guarantee"):
        driver.resume(chosen, go_on=True)


def changed(path: Path, **values) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


def forget_in_config(folder: Path) -> None:
    changed(folder / RunFile.CONFIG, selection=None)


def forget_in_summary(folder: Path) -> None:
    changed(folder / RunFile.SUMMARY, selection=None)


def state_one_run(folder: Path) -> None:
    for name in ("plan.json", RunFile.SUMMARY):
        changed(folder / name, epsilon=ONE_RUN)
    changed(folder / RunFile.SUMMARY, epsilon_spent=ONE_RUN, epsilon_of_reader=ONE_RUN)


def state_less_everywhere(folder: Path) -> None:
    """As whoever can write every digest anew would."""
    state_one_run(folder)
    selection = json.loads((folder / RunFile.CONFIG).read_text())["selection"] | {"epsilon": ONE_RUN}
    for name in (RunFile.CONFIG, RunFile.SUMMARY):
        changed(folder / name, selection=selection)
    lines = [json.loads(line) | {"epsilon": ONE_RUN} for line in (folder / RunFile.METRICS).read_text().splitlines()]
    (folder / RunFile.METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Ledger.open(folder / RunFile.LEDGER, read_only=True) as ledger:
        entries, groups, delta = ledger.entries(), ledger.groups, ledger.delta
        chosen = dataclasses.replace(ledger.selection, epsilon=ONE_RUN)
    for path in folder.glob(f"{RunFile.LEDGER}*"):
        path.unlink()
    with Ledger.create(
        folder / RunFile.LEDGER, groups=groups, delta=delta, epsilon=ONE_RUN, selection=chosen
    ) as ledger:
        for first in range(0, len(entries), len(groups)):
            row = entries[first : first + len(groups)]
            charges = [fedsw.privacy.accounting.Charge(e.group, e.sampling_rate, e.sensitivity) for e in row]
            ledger.spend(row[0].round, row[0].attempt, charges, row[0].sigma)


@pytest.mark.parametrize(
    ("spoil", "failed"),
    [
        (forget_in_config, {"guarantee's words"}),
        (forget_in_summary, {"guarantee's words"}),
        (state_one_run, {"replay", "independent accountant", "guarantee's words"}),
        (state_less_everywhere, {"replay", "independent accountant"}),
    ],
)
def test_an_audit_fails_a_selected_run_that_states_less_or_does_not_say_so(chosen, spoil, failed):
    assert record.audit(chosen).passed
    spoil(chosen)
    found = record.audit(chosen)
    assert not found.passed and failed <= set(found.details["failed"])


def test_an_audit_fails_rows_that_the_selection_did_not_pay_for(chosen):
    book = record.read_folder(chosen).books[0]
    for plan in ({"times": 3}, {"rate": 0.1}, {"mu": 0.2}):
        stored = book.promise["selection"]
        less = {**stored, "plans": [{**stored["plans"][0], **plan}]}
        short = dataclasses.replace(book, promise={**book.promise, "selection": less})
        assert cost.replay(short) == math.inf == cost.independent(short).epsilon


def test_a_damaged_selection_is_refused_with_its_file(chosen):
    changed(chosen / RunFile.CONFIG, selection={"eta": 0.0})
    with pytest.raises(ValueError, match="no configuration of a selected run"):
        driver.resume(chosen, go_on=True)
