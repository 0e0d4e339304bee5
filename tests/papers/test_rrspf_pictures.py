"""RR's and SPF's files: every figure loads, its runs' settings hold, and what is measured can be drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulations.papers.cells import cells_of, computations_of
from simulations.papers.figure import chosen, load_figure
from simulations.papers.pictures import draw
from simulations.papers.study import Result, Study, read_study
from simulations.papers.work import make, missing, pieces_of

FIGURES = chosen(["rr", "spf"])
RNG = np.random.default_rng(0)
ARRAYS = {
    "labelled.accuracy": {"images": RNG.integers(0, 255, (10, 8, 784)).astype(np.uint8)},
    "public_features.samples": {"images": RNG.integers(0, 255, (40, 784)).astype(np.uint8)},
    "adaptation.retrained": {},
}
VALUES = {"perceptron_accuracy": 0.7, "logistic_accuracy": 0.6, "frechet_lenet": 30.0, "accuracy": 0.8}


@pytest.mark.parametrize("figure", [each for each in FIGURES if not each.compute], ids=lambda each: each.id)
def test_a_figures_rows_ask_for_points_that_are_made(figure) -> None:
    best = [cell for cell in cells_of(figure) if cell.series == "best"]
    assert best and figure.rows
    for row in figure.rows:
        assert any(row.at.items() <= dict(cell.point).items() for cell in best), row.what


@pytest.mark.parametrize("name", [each.id for each in FIGURES if each.compute])
def test_a_computed_figure_is_made_and_drawn(name: str, tmp_path: Path) -> None:
    figure = load_figure(name).smallest()
    pieces = pieces_of([figure])
    assert all(make(tmp_path, tmp_path, piece) for piece in pieces) and not missing(tmp_path, pieces)
    study = read_study(tmp_path, figure)
    (result,) = study.results
    asked = {row.metric for row in figure.rows}
    assert name == "rr/noise" or asked <= set(result.values)
    assert (len(draw(study, tmp_path)) > 0) == (figure.draw is not None)
    assert len(computations_of(figure)) == len(pieces)


@pytest.mark.parametrize("name", ["rr/table1", "rr/table2", "spf/table1"])
def test_a_figure_of_runs_is_drawn_from_what_its_measures_leave(name: str, tmp_path: Path) -> None:
    figure = load_figure(name)
    results = [
        Result(
            cell.series, cell.point, cell.seed, VALUES, {k: v for m in cell.measures for k, v in ARRAYS[m].items()}, {}
        )
        for cell in cells_of(figure)
        if cell.point["source"] == "mnist"
    ]
    assert draw(Study(figure, tuple(results), 0), tmp_path)


def test_a_case_that_is_stored_is_not_computed_again_and_shows_before_the_others(tmp_path: Path) -> None:
    figure = load_figure("rr/table2-classwise").smallest()
    first, *others = pieces_of([figure])
    assert make(tmp_path, tmp_path, first)
    assert missing(tmp_path, [first, *others]) == others
    study = read_study(tmp_path, figure)
    assert study.absent == len(others)
    assert {name.partition("_")[0] for name in study.results[0].values} == {first.what.settings["cases"][0]["name"]}
