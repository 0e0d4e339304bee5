"""The page of results says of every table how it was made."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import audits, sections
from fedsw.desk.compare.comparison_grid import make_grid

STORED = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("compare-*.json"))


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


def test_every_finding_that_is_kept_has_its_row() -> None:
    kept = {path.stem for path in audits.RESULTS.glob("*.json")}
    assert set(re.findall(r"results/audits/([\w.-]+)\.json", audits.table(audits.RESULTS))) == kept != set()


@pytest.mark.parametrize(("minutes", "words"), [(400.0, "met in all rows"), (199.0, "MISSED beside")])
def test_a_generator_that_is_not_twenty_times_slower_than_a_sketch_is_named(minutes: float, words: str) -> None:
    def row(megabytes: float, spent: float) -> dict[str, Any]:
        names = {"bytes_up": 1e6 * megabytes, "bytes_down": 0.0, "seconds": 60 * spent}
        return {"rounds": 100, **{name: {"planned": each} for name, each in names.items()}}

    rows = {"sketch": row(8, 10), "swae, as printed": row(8000, 250), "DP-SWD, best": row(8000, minutes)}
    rows["swae, as printed"]["seconds"]["planned"] *= 2
    found = sections.one_message({"clients": 10, "rounds": 20, "rows": rows})
    assert words in found.splitlines()[-1]
    assert ("DP-SWD" in found.splitlines()[-1]) == (minutes < 200) and "autoencoder" not in found.splitlines()[-1]


_SCORES = ("logistic_accuracy", "logistic_auc", "boosting_accuracy", "boosting_auc")


def made(method: str, score: float, apart: float, **more: Any) -> dict[str, Any]:
    measured = dict.fromkeys(_SCORES, score) | {"one_way": apart, "two_way": apart, "cpu_seconds": 1.0}
    own = {"table": "adult", "public": 2000, "method": method, "seed": 0, "epsilon": 1.0}
    return {**own, "settings": ["generator=auto"] if method == "sketch" else [], **measured, **more}


@pytest.mark.parametrize("behind", [True, False])
def test_a_table_is_said_to_be_behind_where_it_is_and_every_epsilon_says_of_which_neighbours(behind: bool) -> None:
    ran = {"rho": 0.01, "commit": "abc", "versions": {"mbi": "1"}, "model_mb": 2.0}
    others = made("aim", 0.8, 0.05, relation="add-remove", **ran), made("mst", 0.1, 0.9, relation="replace", **ran)
    ours = made("sketch", 0.7, 0.06) if behind else made("sketch", 0.9, 0.04)
    found = sections.synthetic_tables({"rows": [{**made("constant", 0.5, 1)}, ours, *others]})
    table, beside = found.split("means of `sketch` less")
    lines = {line.split(" | ")[0].strip("| "): line for line in table.splitlines() if line.startswith("|")}
    assert "| added or removed | 1 |" in lines["AIM"]
    assert all("| replaced | 1 |" in lines[name] for name in ("MST", "`sketch`: the server is trusted"))
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[3:] for line in beside.splitlines() if "|" in line}
    assert [cell.startswith("**") for cell in cells["AIM"]] == [behind] * 6
    assert not any(cell.startswith("**") for cell in cells["MST"])
