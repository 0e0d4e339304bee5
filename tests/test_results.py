"""The page of results says of every table how it was made."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import audits, sections, sketch_sections
from fedsw.compare.grid import make_grid

STORED = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("compare-*.json"))


def read(path: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return stored


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_comparison_names_the_command_that_makes_its_table(path: Path) -> None:
    stored = read(path)
    found = re.search(r"`fedsw compare ([^`]+)`", sections.comparison(stored))
    assert found is not None
    task, *options = shlex.split(found[1])
    given = dict(zip(options[::2], options[1::2], strict=True))
    epsilons = [float(epsilon) for epsilon in given["--epsilon"].split(",")]
    grid = make_grid(task, methods=given["--methods"].split(","), epsilons=epsilons, seeds=int(given["--seeds"]))
    assert len(grid.cells) == stored["cells"]["all"]
    rows = {(row["method"], float(row["epsilon_asked"])) for group in stored["groups"] for row in group["rows"]}
    assert {(cell.method, cell.epsilon) for cell in grid.cells} == rows


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_comparison_tells_its_machine_in_words(path: Path) -> None:
    last = sections.comparison(read(path)).splitlines()[-1]
    assert re.fullmatch(r"\*[^{}\[\]']+ cores, [^{}\[\]']+; python [^{}\[\]']+\*", last)


def test_the_page_of_audits_holds_the_tables_of_the_findings_that_are_kept() -> None:
    page = audits.PAGE.read_text(encoding="utf-8")
    assert audits.table(audits.RESULTS) in page
    assert audits.attackers(audits.RESULTS) in page


@pytest.mark.parametrize(("minutes", "words"), [(400.0, "met in all rows"), (199.0, "MISSED beside")])
def test_a_generator_that_is_not_twenty_times_slower_than_a_sketch_is_named(minutes: float, words: str) -> None:
    def row(megabytes: float, spent: float) -> dict[str, Any]:
        names = {"bytes_up": 1e6 * megabytes, "bytes_down": 0.0, "seconds": 60 * spent}
        return {"rounds": 100, **{name: {"planned": each} for name, each in names.items()}}

    rows = {"sketch": row(8, 10), "swae, as printed": row(8000, 250), "DP-SWD, best": row(8000, minutes)}
    rows["swae, as printed"]["seconds"]["planned"] *= 2
    found = sketch_sections.one_message({"clients": 10, "rounds": 20, "rows": rows})
    assert words in found.splitlines()[-1]
    assert ("DP-SWD" in found.splitlines()[-1]) == (minutes < 200) and "autoencoder" not in found.splitlines()[-1]
