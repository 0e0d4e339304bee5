"""Laws of baselines in figures: a run of their own, with arguments that may vary, beside the papers' columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from simulations.papers.cells import cells_of
from simulations.papers.drawn import frontier
from simulations.papers.figure import Figure, Series, load_figure
from simulations.papers.origin import why_nominal
from simulations.papers.page import section
from simulations.papers.study import Result, Study
from simulations.papers.work import pieces_of


def result(series: str, point: dict[str, float], relation: str, trust: str, error: float) -> Result:
    guarantee = {"relation": relation, "trust": trust, "randomness": "torch's"}
    values = {"error": error, "violation": 0.1}
    return Result(series, {"epsilon": 1.0, **point}, 0, values, {}, {"guarantee": guarantee, "nominal": True})


def test_a_baseline_is_another_run_than_the_experiment_and_than_itself_with_other_arguments() -> None:
    figure = load_figure("rll/baselines")
    cells = cells_of(figure, seeds=1)
    assert len({cell.key for cell in cells}) == len(cells) == len(pieces_of([figure], seeds=1))
    of = {name: [cell for cell in cells if cell.series == name] for name in {cell.series for cell in cells}}
    same = {str(cell.experiment.model_dump()) for cell in of["barycentre"]}
    assert len(same) == 1 and [cell.arguments for cell in of["barycentre"]] == [
        {"radius": radius} for radius in (0.4, 0.2, 0.1, 0.05, 0.0)
    ]
    assert all(cell.settings["baseline"] == {"name": "puffle", **cell.arguments} for cell in of["puffle, tuned"])
    assert "baseline" not in of["best"][0].settings
    assert all(cell.experiment.federation.clients == 150 for cell in of["puffle"])
    assert {cell.experiment.privacy.epsilon for cell in cells} == {1.0}


def test_arguments_without_a_baseline_are_refused() -> None:
    with pytest.raises(ValidationError, match="no baseline that takes them"):
        Series(name="best", experiment="adult", over={"arguments.radius": (0.1,)})


def test_every_series_has_its_column_and_an_epsilon_that_is_nominal_says_why() -> None:
    row = {"what": "error", "metric": "error", "at": {"alpha": 0.0}, "better": "lower"}
    series = [{"name": name, "experiment": "adult"} for name in ("best", "opacus")]
    figure = Figure.model_validate(
        {"id": "rll/x", "source": "s", "title": "t", "caption": "c", "series": series, "rows": [row]}
    )
    results = (result("best", {"alpha": 0.0}, "replace-one", "central", 0.25),)
    results += (result("opacus", {"alpha": 0.0}, "add-remove-one", "central", 0.125),)
    text = "\n".join(map(str, section(Study(figure, results, 0), [], Path("docs/papers/rll.md")).parts))
    assert "| error | 0.25 | 0.125 |" in text
    assert why_nominal(results[0].about) == "torch's"
    assert why_nominal({"nominal": False}) == ""


def test_servers_that_are_trusted_and_those_that_are_not_have_panels_of_their_own() -> None:
    figure = load_figure("rll/baselines")
    results = (
        result("best", {"alpha": 0.0}, "replace-one", "central", 0.2),
        result("best", {"alpha": 0.2}, "replace-one", "central", 0.21),
        result("dp-fedavg", {"alpha": 0.0}, "add-remove-one (…)", "local", 0.22),
        result("puffle, tuned", {"target": 0.1}, "add-remove-one (…)", "local", 0.23),
    )
    (drawn,) = frontier.baselines(Study(figure, results, 0)).values()
    left, right = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in drawn.axes]
    assert "best (replace-one)" in left and "dp-fedavg (add-remove-one)" not in left
    assert {"dp-fedavg (add-remove-one)", "puffle, tuned (add-remove-one)"} <= set(right)
    assert any("DP-FERMI" in text for text in left) and any("DP-FERMI" in text for text in right)
