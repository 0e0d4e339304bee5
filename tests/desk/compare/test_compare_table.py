"""Laws of what a comparison shows: guarantees are never mixed, spreads, curves and panels."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedsw._tools.text import measured
from fedsw.desk.compare import comparison_page as page
from fedsw.desk.compare import table as screen
from fedsw.desk.compare.comparison_grid import make_grid, write_result
from fedsw.desk.compare.table import make_table, write_table
from tests.desk.compare.comparing import FAIR, UNPROTECTED, begun, leave_run, rows_of, summary_of, table_of


def test_guarantees_are_never_mixed_in_one_group(tmp_path: Path) -> None:
    chosen = ["none", "central", "central-paper", "central-both", "dp-swd", "flow", "entropic", "laplace"]
    table = table_of(tmp_path, make_grid("ring", methods=chosen, epsilons=[1, 3], seeds=2))
    members = [{row["method"] for row in group["rows"]} for group in table["groups"]]
    assert members == [
        {"central", "central-paper", "central-both"},
        {"dp-swd", "flow", "entropic", "laplace"},
        {"none"},
    ]
    for group in table["groups"]:
        kinds = {
            (row["guarantee"], row["protects"], row["against"], row["relation"], row["why_not"])
            for row in group["rows"]
        }
        assert len(kinds) == 1
    headings = [group["heading"] for group in table["groups"]]
    assert len(set(headings)) == 3
    assert headings[0].startswith("protects each record of every client, against readers of the models")
    assert not any("inputs" in heading for heading in headings), "a generator's follow from a public seed"
    assert "against everyone, including the server" in headings[1]
    assert headings[2] == "no guarantee: no noise was added"
    assert [group["guarantee"] for group in table["groups"]] == [True, True, False]


@pytest.mark.parametrize(
    ("methods_", "settings", "nominal", "why"),
    [
        (["dp-swd"], ["privacy.accountant=clt"], False, "accountant clt"),
        (["entropic"], ["local.diameter=paper"], False, "half of what a replaced record moves"),
        (["central"], [], True, "nominal"),
    ],
)
def test_what_is_not_a_guarantee_is_grouped_apart_with_the_reason(
    tmp_path: Path, methods_: list[str], settings: list[str], nominal: bool, why: str
) -> None:
    grid = make_grid("ring", methods=methods_, epsilons=[1], seeds=1, settings=settings, nominal=nominal)
    table = table_of(tmp_path, grid)
    assert not any(group["guarantee"] for group in table["groups"])
    ((row,),) = [group["rows"] for group in table["groups"]]
    assert not row["guarantee"]
    assert why in row["why_not"]
    assert table["groups"][0]["heading"].startswith("no guarantee (")


def test_a_record_that_shows_private_metrics_is_no_guarantee_for_its_readers(tmp_path: Path) -> None:
    grid = make_grid("ring", methods=["central"], epsilons=[1], seeds=1)
    table = table_of(tmp_path, grid, lambda cell: {"epsilon_of_reader": "inf"})
    assert table["groups"][0]["rows"][0]["why_not"] == "the record shows metrics of private records"


def test_a_row_has_the_mean_and_spread_over_seeds_and_the_worst_epsilon(tmp_path: Path) -> None:
    grid = make_grid("fair-classification", epsilons=[1, 3], seeds=3)
    table = table_of(tmp_path, grid, lambda cell: {"epsilon": cell.epsilon * (1 + 0.01 * cell.seed)})
    row = rows_of(table)["central", 3.0]
    assert row["epsilon"] == pytest.approx(3 * 1.02)
    assert row["metrics"]["accuracy"] == pytest.approx({"mean": 0.71, "sd": 0.01})
    assert (row["seconds"], row["bytes_up"], row["seeds"], row["rounds"]) == (3.0, 1001.0, 3, 250)
    assert row["delta"] == 3.3e-6
    assert rows_of(table)["none", math.inf]["delta"] is None


def test_a_row_s_interval_holds_the_draw_of_records_that_no_seed_averages_out(tmp_path: Path) -> None:
    grid = make_grid("fair-classification", methods=["central"], epsilons=[1], seeds=3)
    around = {"held_out_intervals": {"accuracy": [0.66, 0.74]}}
    found = rows_of(table_of(tmp_path, grid, lambda cell: around))["central", 1.0]["metrics"]["accuracy"]
    assert found["mean"] - found["low"] >= 0.04 and found["high"] - found["mean"] >= 0.04
    assert found["high"] - found["low"] < 0.08 + 4 * found["sd"]
    assert screen.spread(found) == measured(found["mean"], [found["low"], found["high"]])
    assert screen.spread({"mean": 0.7, "sd": 0.01}) == "0.7 ± 0.01"


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    table = table_of(tmp_path, make_grid("fair-classification", methods=["central"], epsilons=[1], seeds=1))
    assert rows_of(table)["central", 1.0]["metrics"]["accuracy"] == {"mean": pytest.approx(0.7), "sd": None}


def test_json_and_csv_name_for_every_row_who_is_protected_from_whom_and_at_what_cost(tmp_path: Path) -> None:
    table = table_of(tmp_path, make_grid("fair-classification", epsilons=[1, 3], seeds=2))
    write_table(tmp_path, table)

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} in JSON")

    stored = json.loads((tmp_path / "table.json").read_text(), parse_constant=refuse)
    assert stored["versions"] == [{"fedsw": "0.1.0"}] and stored["hardware"] == [{"cores": 2}] and stored["date"]
    assert "compose" in stored["caption"]
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 + 4 * 2 == sum(len(group["rows"]) for group in stored["groups"])
    for row in rows:
        for column in ("group", "method", "what", "protects", "against", "relation", "epsilon", "rounds", "bytes_up"):
            assert row[column]
        assert row["seeds"] == "2" and float(row["seconds"]) == 2.5 and float(row["bytes_down"]) == 2e6
        assert float(row["accuracy_mean"]) == pytest.approx(0.705)
        assert float(row["accuracy_sd"]) == pytest.approx(0.01 / math.sqrt(2))
        assert (row["delta"] == "") == (row["method"] in UNPROTECTED)
    assert {row["epsilon"] for row in rows} == {"inf", "1.0", "3.0"}


def test_the_screen_shows_every_group_under_its_heading(tmp_path: Path) -> None:
    grid = make_grid("fair-classification", epsilons=[1, 3], seeds=2)
    table = table_of(tmp_path, grid, lambda cell: {"status": "stopped"} if cell.method == "central" else {})
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(page.Comparison(tmp_path, table, private=False).document(operator=True))
    text = console.export_text()
    places = [text.index(group["heading"][1:60]) for group in table["groups"]]
    assert places == sorted(places) and len(places) == 3
    assert places[0] < text.index("central-paper") < places[1] < text.index("local-gradient") < places[2]
    assert "2, 2 stopped" in text and "0.705 ± 0.0071" in text and "compose" in text


def test_the_figure_has_a_curve_for_each_private_method_and_a_dashed_line_for_none(tmp_path: Path) -> None:
    table = table_of(tmp_path, make_grid("fair-classification", epsilons=[1, 3, 10], seeds=2))
    drawn = page.draw_utility(table)
    assert drawn is not None
    left, right = drawn.axes
    curves = {line.get_label(): line for line in left.get_lines() if line.get_label() in FAIR}
    assert set(curves) == set(FAIR)
    assert (curves["reference"].get_linestyle(), curves["none"].get_linestyle()) == ("-", "--")
    assert [list(curves[name].get_xdata()) for name in FAIR[2:]] == [[1, 3, 10]] * 4
    assert left.get_xscale() == right.get_xscale() == "log"
    assert (left.get_title(), right.get_title()) == ("accuracy (higher is better)", "DI")


def test_planar_samples_have_a_panel_for_each_method(tmp_path: Path) -> None:
    grid = begun(tmp_path, make_grid("ring", methods=["none", "central", "dp-swd"], epsilons=[1, 3], seeds=1))
    points = np.random.default_rng(0).normal(size=(50, 2))
    for cell in grid.cells:
        directory = leave_run(tmp_path, cell, points)
        write_result(tmp_path, cell, summary=summary_of(cell.experiment), directory=directory)
    drawn = page.draw_all_samples(tmp_path, make_table(tmp_path))
    assert drawn is not None
    titles = [axes.get_title() for axes in drawn.axes]
    assert [title.split("\n")[0] for title in titles] == ["none, no privacy", "central, ε = 3", "dp-swd, ε = 3"]
    assert all(len(axes.collections) == 2 for axes in drawn.axes)
