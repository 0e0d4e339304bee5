"""RR's and SPF's files: every figure loads, its runs' settings hold, and what is measured can be drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulations.papers.cells import cells_of, computation_of
from simulations.papers.figure import chosen, load_figure
from simulations.papers.pictures import draw
from simulations.papers.study import Result, Study
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
    (piece,) = pieces_of([figure])
    assert make(tmp_path, tmp_path, piece) and not missing(tmp_path, [piece])
    from simulations.papers.study import read_study

    study = read_study(tmp_path, figure)
    (result,) = study.results
    asked = {row.metric for row in figure.rows}
    assert name == "rr/noise" or asked <= set(result.values)
    assert (len(draw(study, tmp_path)) > 0) == (figure.draw is not None)
    assert computation_of(figure) is not None


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
