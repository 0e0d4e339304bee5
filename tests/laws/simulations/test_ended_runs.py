"""Laws of how commands end and what they leave: signals end a run in order, and a run is its owner's alone."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import found_json
from fedsw.runs.write import write_card
from tests.processes import interruptible

COMMAND = [sys.executable, "-c", "from fedsw.cli.app import program; program()"]
SMALL = ["data.records=400", "data.test_records=100", "federation.clients=2"]
LOCAL = ["privacy.trust=local-gradient", "privacy.epsilon=2.0", "privacy.delta=1e-4"]


@pytest.mark.parametrize("trust", [[], LOCAL])
def test_a_run_is_its_owners_alone_whatever_the_umask(tmp_path, open_to_all, monkeypatch, trust):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    runs = tmp_path / "runs"
    arguments = ["run", "fair-classification", *SMALL, *trust, "training.rounds=2", "data.account=a", "--quiet"]
    assert main([*arguments, "--runs", str(runs)]) == 0
    (directory,) = (runs / "fair-classification").iterdir()
    write_card(directory)
    found = [*runs.rglob("*"), runs, *(tmp_path / "accounts").rglob("*")]
    assert {path.suffix for path in found} >= {".png", ".json", ".jsonl", ".safetensors", ".npz", ".md", ".log"}
    open_ = {str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077}
    assert not open_
    assert any(path.suffix == ".sqlite" for path in found)


SIGNALS = [
    signal.SIGTERM,
    *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGHUP, signal.SIGINT)),
]
LONG_RUN = ["training.rounds=2000", "evaluate_every=2000"]


def stopped(words: list[str], runs: Path, number: signal.Signals) -> Path:
    """The folder of a run that a signal ended in order, some rounds after its command began."""
    process = subprocess.Popen(
        [*COMMAND, *words, "--quiet"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=interruptible,
    )
    deadline = time.monotonic() + 60
    while not list(runs.rglob("metrics.jsonl")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    (directory,) = (runs / "fair-classification").iterdir()
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said and f"fedsw resume {directory}` goes on from there" in said
    summary = found_json(directory / "summary.json")
    assert summary["status"].startswith("failed") or "interrupted" in summary["status"]
    assert 0 < summary["released_rounds"] < 2000 and (directory / "ledger.sqlite").exists()
    return directory


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_run_with_a_summary_from_which_it_goes_on(tmp_path, number):
    stopped(["run", "fair-classification", *SMALL, *LONG_RUN, "--runs", str(tmp_path)], tmp_path, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_resumed_run_likewise(tmp_path, number):
    """Of one that had written its settings, and released nothing yet."""
    directory = tmp_path / "fair-classification" / "run"
    directory.mkdir(parents=True)
    RunDirectory(directory).write_config(
        load_experiment(find_experiment("fair-classification"), [*SMALL, *LONG_RUN]), "inprocess"
    )
    assert stopped(["resume", str(directory)], tmp_path, number) == directory


def test_a_signal_that_the_caller_ignores_stays_ignored():
    source = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from fedsw.cli.options import _ending_on_signals\n"
        "with _ending_on_signals():\n"
        "    os.kill(os.getpid(), signal.SIGHUP); print('on')\n"
    )
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "on\n"


@pytest.mark.parametrize("verb", [["list"], ["list", "--json"], ["--help"], ["run", "--help"]])
def test_an_output_that_nobody_reads_is_no_traceback(verb):
    read, write = os.pipe()
    os.close(read)
    broken = subprocess.run([*COMMAND, *verb], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert broken.stderr == "" and broken.returncode in (0, 1)
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *verb], stderr=subprocess.PIPE, text=True)
    assert closed.stderr == "" and closed.returncode == 0


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", LONG],
        ["run", "fair-classification", "--runs", f"/tmp/{LONG}"],
        ["show", LONG],
        ["show", LONG, "progress"],
        ["show", LONG, "client"],
        ["resume", LONG],
        ["predict", LONG, "a.csv"],
        ["export", LONG, "-o", "a"],
        ["server", "--certs", LONG],
        ["client", "--init", "-o", LONG],
        ["client", "--trust", "any", "--config", LONG],
        ["bundle", LONG],
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
def test_a_path_that_is_too_long_is_bad_input(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and "too long" in said and len(said) < 500


@pytest.mark.parametrize(
    "setting",
    [
        "model.hidden=[1000000,1000000]",
        "federation.clients=1000000000000",
        "training.rounds=1000000000000000",
        "data.records=1000000000000000",
        "data.test_records=1000000000000000",
    ],
)
@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_number_too_large_for_this_machine_is_named_with_what_it_takes(tmp_path, capsys, verb, setting):
    more = ["--quiet", "--runs", str(tmp_path)] if verb == "run" else ["--records", "1000"]
    assert main([verb, "fair-classification", "model.kind=mlp", "model.hidden=[4]", setting, *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fedsw: {setting.split('=')[0]} is ") and "the run takes" in said and "Lower" in said
    assert not list(tmp_path.rglob("ledger.sqlite"))
