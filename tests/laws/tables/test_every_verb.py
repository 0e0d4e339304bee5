"""One drafted file goes through every verb, unchanged, for answers and for numbers, in one process and in many."""

from __future__ import annotations

import csv
import signal
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedsw.cli.app import main
from fedsw.experiment import load_experiment
from fedsw.experiment.preset_rules import left_open
from fedsw.federation.deploy.processes import free_port, script
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import find_run

OWN = ("own.toml", "--data-dir", "DATA")


def tables(target: str, rows: tuple[int, ...] = (60, 80, 100)) -> None:
    """A folder of one CSV file for each client, and a table that nobody has trained on; a yes or no, or a number."""
    draws = np.random.default_rng(0)
    for place, count in [*((Path("DATA", str(client)), n) for client, n in enumerate(rows)), (Path("other"), 30)]:
        place.mkdir(parents=True)
        with (place / "records.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["age", "work", "sex", target])
            for _ in range(count):
                age, work, sex = int(draws.integers(18, 80)), int(draws.integers(3)), int(draws.integers(2))
                price = 10 + 0.5 * age + 5 * work + draws.normal(0, 3)
                said = f"{price:.1f}" if target == "price" else ("no", "yes")[int(price > 40)]
                lines.writerow([age, ("own", "private", "public")[work], ("f", "m")[sex], said])


def drafted(target: str) -> bytes:
    """The draft of `init`, as it came."""
    tables(target)
    assert main(["init", "DATA", "--group", "sex", "--target", target, "-o", "own.toml", "--from-public"]) == 0
    experiment = load_experiment(Path("own.toml"))
    assert left_open(experiment), "a draft leaves its training to the preset"
    return Path("own.toml").read_bytes()


def follow(lines: list[list[str]], capsys: pytest.CaptureFixture[str], file: bytes) -> None:
    """Every command succeeds, and none writes to the draft."""
    for line in lines:
        words = [str(find_run("own", Path("runs"))) if each == "RUN" else each for each in line]
        assert main(words) == 0, f"fedsw {' '.join(words)}\n{capsys.readouterr().err}"
        assert Path("own.toml").read_bytes() == file


@pytest.mark.slow
@pytest.mark.parametrize("target", ["bought", "price"])
def test_a_draft_goes_unchanged_through_the_verbs_of_one_machine(tmp_path, monkeypatch, capsys, target):
    monkeypatch.chdir(tmp_path)
    file = drafted(target)
    lines = [
        ["check", *OWN, "--no-estimate"],
        ["run", *OWN, "--epsilon", "3", "--quiet"],
        ["predict", "own", "other/records.csv", "-o", "predictions.csv"],
        ["evaluate", "RUN", "--data-dir", "DATA"],
        ["describe", *OWN, "--epsilon", "3", "-o", "columns.html", "--quiet"],
        ["synthesize", *OWN, "--epsilon", "3", "--rows", "50", "training.rounds=2", "--quiet"],
    ]
    follow(lines, capsys, file)
    header = Path("synthetic.csv").read_text().splitlines()[0].split(",")
    assert set(header) == {"age", "work", "sex", target}, "numbers to predict are columns of a synthetic table, too"


@pytest.mark.slow
def test_a_draft_goes_unchanged_through_the_verbs_of_many_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = drafted("bought")
    lines = [
        ["plan", *OWN],
        ["compare", *OWN, "--seeds", "1", "--rounds", "2", "--epsilon", "3", "--jobs", "1", "--json"],
        ["tune", *OWN, "--most", "1", "--json"],
    ]
    follow(lines, capsys, file)


@pytest.mark.slow
def test_a_draft_goes_unchanged_to_real_processes_that_settle_the_same_settings(tmp_path, monkeypatch, capsys):
    """In this process, and as a server and clients that are started apart."""
    monkeypatch.chdir(tmp_path)
    file = drafted("bought")
    follow([["run", *OWN, "--quiet"]], capsys, file)
    serve()
    one, other = (RunDirectory(place).read_config()[0] for place in sorted(Path("runs/own").iterdir()))
    assert not left_open(one) and not left_open(other) and Path("own.toml").read_bytes() == file
    assert (one.training, one.clip, one.privacy.moments) == (other.training, other.clip, other.privacy.moments)


def serve() -> None:
    """A run of the draft on clients with a table each, which are started before their server."""
    start, port = partial(subprocess.Popen, start_new_session=True, stderr=subprocess.PIPE, text=True), free_port()
    assert main(["certs", "--host", "localhost", "--clients", "3", "--out", "fed"]) == 0
    common = ["client", "--superlink", f"localhost:{port}", "--num-partitions", "3", "--trust", "central"]
    clients = []
    for number in map(str, range(3)):
        own = ["--certs", f"fed/client{number}", "--partition-id", number, "--state-dir", f"state{number}"]
        clients.append(start([script("fedsw"), *common, *own, "--data-dir", f"DATA/{number}"]))
    try:
        server = start([script("fedsw"), "server", "own.toml", "--certs", "fed/server", "--port", str(port), "--quiet"])
        _, said = server.communicate(timeout=600)
        assert server.returncode == 0, said
    finally:
        for client in clients:
            client.send_signal(signal.SIGTERM)
        for client in clients:
            client.wait(60)
