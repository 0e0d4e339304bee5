"""Figures are drawn from files alone, and whatever files there are."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image

from fedsw.learning.tasks import Classification
from fedsw.runs.group_names import Names
from fedsw.runs.report.figures import COLOURS, MOST_BYTES, compact, draw_latent, limits_of, picture, save
from fedsw.runs.report.plots import draw_histogram_grid, draw_metrics, draw_outputs, draw_privacy, draw_trade_off
from fedsw.runs.view import HeldOutOutputs, read_run
from fedsw.runs.write import draw_run

MakeRun = Callable[..., Path]
PNG = b"\x89PNG"
OF_OUTPUTS = [f"{name}.png" for name in Classification.facts.figures]
"""The pictures of held-out outputs that the task names."""


def test_a_finished_run_leaves_metrics_privacy_and_outputs(finished_run: MakeRun) -> None:
    directory = finished_run()
    drawn = draw_run(directory)
    assert [path.name for path in drawn] == ["metrics.png", "privacy.png", *OF_OUTPUTS]
    assert all(path.parent == directory / "plots" and path.read_bytes().startswith(PNG) for path in drawn)


def test_drawing_again_replaces_the_figures(finished_run: MakeRun) -> None:
    directory = finished_run()
    assert draw_run(directory) == draw_run(directory)
    assert len(list((directory / "plots").iterdir())) == 2 + len(OF_OUTPUTS)


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ("outputs.npz", ["metrics.png", "privacy.png"]),
        ("metrics.jsonl", OF_OUTPUTS),
        ("summary.json", ["metrics.png", "privacy.png", *OF_OUTPUTS]),
    ],
)
def test_a_figure_without_its_data_is_left_out(finished_run: MakeRun, missing: str, left: list[str]) -> None:
    directory = finished_run()
    (directory / missing).unlink()
    assert [path.name for path in draw_run(directory)] == left


def test_a_run_without_noise_has_no_privacy_figure(finished_run: MakeRun) -> None:
    assert draw_privacy(read_run(finished_run("privacy.epsilon=inf"))) is None


def test_the_metrics_figure_has_a_panel_for_each_held_out_metric(finished_run: MakeRun) -> None:
    directory = finished_run()
    figure = draw_metrics(read_run(directory))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes if axes.axison] == ["accuracy", "loss", "DI", "odds gap"]
    curve = figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == list(range(5, 61, 5))
    assert curve.get_ydata()[-1] == pytest.approx(0.8)


def test_training_loss_is_drawn_and_marked_unsafe_only_where_it_was_recorded(finished_run: MakeRun) -> None:
    directory = finished_run("unsafe_metrics=true")
    path = directory / "metrics.jsonl"
    rounds = [json.loads(line) | {"training_loss": 0.5} for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(record) for record in rounds))
    figure = draw_metrics(read_run(directory))
    assert figure is not None
    assert "training loss (unsafe)" in [axes.get_title() for axes in figure.axes]


def test_a_metric_that_was_undefined_for_a_while_leaves_a_gap(finished_run: MakeRun) -> None:
    directory = finished_run()
    path = directory / "metrics.jsonl"
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    rounds[4]["held_out"]["accuracy"] = "nan"
    path.write_text("\n".join(json.dumps(record) for record in rounds))
    figure = draw_metrics(read_run(directory))
    assert figure is not None
    values = np.asarray(figure.axes[0].lines[0].get_ydata(), dtype=float)
    assert np.isnan(values[0])
    assert np.isfinite(values[1:]).all()


def test_the_privacy_figure_shows_the_budget_and_names_a_seeded_run(finished_run: MakeRun) -> None:
    figure = draw_privacy(read_run(finished_run("seed=1")))
    assert figure is not None
    assert "nominal" in figure.get_suptitle()
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["spent", "budget 1"]


@pytest.mark.parametrize(("dimension", "panels"), [(1, 1), (2, 4), (3, 3), (20, 12)])
def test_outputs_are_drawn_in_any_dimension(finished_run: MakeRun, dimension: int, panels: int) -> None:
    figure = draw_outputs(read_run(finished_run(dimension=dimension)))
    assert figure is not None
    assert len(figure.axes) == panels


@pytest.mark.parametrize(("dimension", "panels"), [(1, 2), (2, 8)])
def test_equality_of_odds_compares_groups_within_each_class(finished_run: MakeRun, dimension: int, panels: int) -> None:
    figure = draw_outputs(read_run(finished_run("objective.penalty=equality-of-odds", dimension=dimension)))
    assert figure is not None
    assert len(figure.axes) == panels
    titles = [axes.get_title() for axes in figure.axes]
    assert {"Y=0", "Y=1"} <= set(titles)


def test_groups_differ_by_colour_and_are_named(finished_run: MakeRun) -> None:
    figure = draw_outputs(read_run(finished_run()))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["A=0", "A=1"]
    assert len(set(COLOURS)) == len(COLOURS)


def test_no_text_of_a_users_is_read_as_mathematics(finished_run: MakeRun, tmp_path: Path) -> None:
    """Groups "$0 to $50k" stood as "0to50k", and half a formula ended the drawing with a message of its parser."""
    names = ("$0 to $50k", r"$\frac{$")
    for dimension in (1, 2):
        record = replace(read_run(finished_run(dimension=dimension)), names=Names(groups=names, classes=names))
        for draw in (draw_outputs, draw_metrics, draw_privacy):
            figure = draw(record)
            assert figure is not None
            texts = [text for text in figure.findobj(Text) if "$" in text.get_text()]
            assert not [text.get_text() for text in texts if text.get_parse_math()]
            save(figure, tmp_path / "figure.png")
            picture(figure, name="a", caption="a", says="a")
            shown = {text.get_text() for text in texts}
            assert draw is not draw_outputs or set(names) <= shown


def test_every_figure_of_the_package_is_drawn_in_the_house_style() -> None:
    """Outside of it matplotlib parses what stands between two $."""
    loose, makers = list[str](), ("new_figure", "new_panels")  # these are called inside of it
    for path in sorted(Path("fedsw").rglob("*.py")):
        for function in [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]:
            calls = [ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)]
            styled = any("house_style" in ast.unparse(each) for each in function.decorator_list)
            public = not function.name.startswith("_") and function.name not in makers
            if public and {*makers, "Figure"} & set(calls) and not styled:
                loose.append(function.name)
    assert loose == []


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("task", ["autoencoder", "adaptation"])
def test_codes_are_drawn_in_any_dimension_with_every_label(finished_run: MakeRun, task: str, dimension: int) -> None:
    record = read_run(finished_run(dimension=dimension))
    goal = record.experiment.objective.model_copy(update={"task": task})
    figure = draw_latent(replace(record, experiment=record.experiment.model_copy(update={"objective": goal})))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["0", "1"]


@pytest.mark.parametrize("values", [[], [0.5], [np.nan, 1.0, np.inf], [2.0, 2.0]])
def test_a_range_is_never_empty(values: list[float]) -> None:
    low, high = limits_of(np.array(values))
    assert np.isfinite([low, high]).all()
    assert low < high


def demo_rows() -> list[dict[str, float | str]]:
    return [
        {"alpha": alpha, "target_epsilon": epsilon, "accuracy": 0.8 - alpha / 10, "disparate_impact": 0.4 + alpha / 2}
        for alpha in (0.0, 0.5, 0.75)
        for epsilon in ("inf", 3.0, 1.0)
    ]


def test_the_trade_off_has_a_curve_for_each_epsilon_and_a_point_for_each_alpha() -> None:
    figure = draw_trade_off(demo_rows())
    assert [line.get_label() for line in figure.axes[0].lines] == ["ε = ∞", "ε = 3", "ε = 1"]
    assert all(len(line.get_xdata()) == 3 for line in figure.axes[0].lines)
    assert [text.get_text() for text in figure.axes[0].texts] == ["α = 0", "α = 0.5", "α = 0.75"]


def test_the_histograms_of_the_demo_stand_in_a_grid_even_if_some_are_missing() -> None:
    generator = np.random.default_rng(0)
    outputs = HeldOutOutputs(generator.random((50, 1)), generator.integers(0, 2, 50), generator.integers(0, 2, 50))
    cells = [(row, outputs) for row in demo_rows()]
    assert len(draw_histogram_grid(cells).axes) == 9
    assert len(draw_histogram_grid(cells[:4]).axes) == 6


def test_plots_do_not_load_matplotlib_before_they_draw() -> None:
    code = (
        "import sys, fedsw.runs.report.plots, fedsw.runs.report.screens, fedsw.cli.app\n"
        "assert 'matplotlib' not in sys.modules"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def test_a_picture_of_noise_is_made_smaller_until_it_fits() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    small = compact(_png(noise))
    assert len(small) <= MOST_BYTES
    with Image.open(io.BytesIO(small)) as opened:
        assert opened.width == opened.height < 600


def test_a_compact_picture_stays_what_it_is() -> None:
    once = compact(_png(np.zeros((40, 60, 4), dtype=np.uint8)))
    assert compact(once) == once


def test_a_compact_picture_keeps_white_and_the_rare_colours_of_classes_apart() -> None:
    pixels = np.full((300, 300, 3), 255, dtype=np.uint8)
    colours = [tuple(int(colour[start : start + 2], 16) for start in (1, 3, 5)) for colour in COLOURS]
    pixels[:100] = np.linspace(0, 255, 300).astype(np.uint8)[None, :, None]
    for position, colour in enumerate(colours):
        pixels[200, 10 * position : 10 * position + 4] = colour
    with Image.open(io.BytesIO(compact(_png(pixels)))) as opened:
        seen = np.asarray(opened.convert("RGB")).astype(int)
    assert seen[250, 150].tolist() == [255, 255, 255]
    for position, colour in enumerate(colours):
        assert np.abs(seen[200, 10 * position] - np.array(colour)).max() <= 8
