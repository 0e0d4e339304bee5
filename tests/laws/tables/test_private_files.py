"""Laws of what verbs beside `run` leave: their owner's alone, with the folders above, whatever the umask."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest

import fedsw
from fedsw._tools import files
from fedsw.audit.finding import Finding
from fedsw.cli.app import main
from fedsw.federation.messages import SLICES
from fedsw.federation.node.own_ledger import Answered
from fedsw.runs.report.figures import new_panels
from tests.desk.use.conftest import INCOME, settings

pytestmark = pytest.mark.usefixtures("open_to_all")

SMALL = ["data.records=200", "data.test_records=100", "federation.clients=2"]
QUICK = [*(word for setting in SMALL for word in ("--set", setting)), "--rounds", "2", "--jobs", "1"]


def open_below(place: Path) -> set[str]:
    """Files and folders in a place that others can read, write or enter."""
    return {str(path) for path in place.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077}


def test_what_is_made_of_a_run_is_private_as_the_run_is(place, tmp_path):
    run = fedsw.run(settings(place, INCOME), runs=tmp_path / "deep" / "runs").directory
    table = str(place / "held-out.csv")
    (tmp_path / "there.csv").touch()
    for line in (
        ["predict", str(run), table, "-o", str(tmp_path / "predicted" / "here" / "out.csv")],
        ["predict", str(run), table, "-o", str(tmp_path / "there.csv"), "--force"],
        ["export", str(run), "-o", str(tmp_path / "exported" / "model.pt"), "--format", "torchscript"],
        ["show", str(run), "card"],
        ["audit", str(run), "-o", str(tmp_path / "audits")],
    ):
        assert main(line) == 0, line
    found = {path.name for path in tmp_path.rglob("*")}
    assert {"out.csv", "there.csv", "model.pt", "finding.json", "card.md", "summary.json"} <= found
    assert not open_below(tmp_path)


def test_a_comparison_with_all_its_cells_is_private(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["compare", "fair-classification", "--methods", "central", "--epsilon", "1", "--seeds", "1", *QUICK]
    assert main(line) == 0
    assert {"table.json", "table.csv", "summary.json"} <= {path.name for path in tmp_path.rglob("*")}
    assert not open_below(tmp_path)


def test_findings_and_their_figures_are_private(tmp_path):
    drawn = partial(new_panels, 1, 1, size=(1.0, 1.0))
    found = Finding("canary", "a", 1.0, 1e-5, 0.5, 0.95, "passed", "fine", draw=lambda: drawn()[0])
    assert [path.name for path in found.write(tmp_path / "audits" / "a")] == ["finding.json", "finding.png"]
    assert not open_below(tmp_path)


def test_a_state_folder_is_its_operator_s(tmp_path):
    config = {"state-dir": str(tmp_path / "srv" / "state"), "own-data": 1}
    Answered.of(config, 0, "run", {}).note(SLICES, 1, 0)
    assert list((tmp_path / "srv" / "state").glob("answered-*.log")) and not open_below(tmp_path)


def test_folders_that_are_there_stay_as_they_are_and_devices_too(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o755)
    files.new_folder(tmp_path / "shared" / "a" / "b")
    assert open_below(tmp_path) == {str(tmp_path / "shared")}
    before = stat.S_IMODE(os.stat(os.devnull).st_mode)
    with files.opened(Path(os.devnull), "w") as file:
        file.write("nothing")
    assert stat.S_IMODE(os.stat(os.devnull).st_mode) == before
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        files.new_folder(tmp_path / "file")
