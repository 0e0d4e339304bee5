"""Every figure of every paper is made at its smallest size from nothing: runs, measures, pictures, page.

Data sets are stand-ins that the command writes; one command in a process of its own makes all figures, as
`make reproduce FIGURE=all QUICK=1` does.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from simulations.papers.figure import figures, load_figure
from simulations.papers.stand_ins import TEST, TRAIN, write_stand_ins

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@functools.cache
def _made() -> dict[str, Any]:
    """What the command says after making all papers from an empty folder."""
    without = {key: value for key, value in os.environ.items() if key not in ("FEDSW_DATA", "FEDSW_CACHE")}
    command = [sys.executable, "-m", "simulations.papers", "--all", "--quick", "--jobs", "1", "--json"]
    with tempfile.TemporaryDirectory(prefix="fedsw-quick-") as folder:
        done = subprocess.run(
            [*command, "--runs", folder], cwd=ROOT, env=without, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2_000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("name", figures())
def test_every_figure_is_made_at_its_smallest_size_from_an_empty_folder(name: str) -> None:
    figure = load_figure(name).smallest()
    said = _made()
    assert said["failed"] == {}
    (shown,) = [each for each in said["figures"] if each["id"] == name]
    assert shown["results"] > 0 and shown["missing"] == 0
    written = {Path(path).name for path in said["files"]}
    assert figure.draw is None or any(file.startswith(name.replace("/", "-")) for file in written), written
    assert f"{figure.paper}.md" in written


def test_stand_ins_are_as_many_as_they_say_and_are_written_once(tmp_path: Path) -> None:
    from fedsw.data import adult, communities, fashion_mnist, law_school, mnist, usps

    write_stand_ins(tmp_path)
    for images in (mnist, fashion_mnist, usps):
        made = images(tmp_path)
        assert (len(made.train), len(made.test)) == (TRAIN, TEST)
        assert len(made.train.target.unique()) == 10 and 0.5 < float(made.train.features.max()) <= 1
    for table in (adult, communities, law_school):
        made = table(tmp_path)
        assert len(made.train) + len(made.test) == TRAIN + TEST
        assert len(made.train.sensitive.unique()) == len(made.groups)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    write_stand_ins(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
