"""Laws of what is computed for RR and RCO: class-wise slices, the authors' distance, samples in a LeNet's features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsw.data import digits, resized
from fedsw.runs.report.figures import house_style
from simulations.papers.computed import as_coded, classwise, legible
from simulations.papers.drawn.labels import name_of
from simulations.papers.drawn.samples import _fault as fault
from simulations.papers.drawn.samples import of_cases
from simulations.papers.figure import load_figure
from simulations.papers.study import Result, Study


def test_the_published_network_has_the_papers_size_and_makes_images_of_the_asked_classes() -> None:
    network = classwise.ClassConditional()
    assert sum(each.numel() for each in network.parameters()) == 166_161
    images = network(torch.arange(10))
    assert images.shape == (10, 784) and bool(((images > 0) & (images < 1)).all())


def test_without_noise_every_class_is_drawn_towards_its_own_records() -> None:
    light, dark = torch.full((6, 784), 0.9), torch.full((6, 784), 0.1)
    case = {"accountant": "none", "batch": 4, "rounds": 25, "directions": 20, "order": 1, "rate": 0.03, "decay": 1.0}
    torch.manual_seed(0)
    network = classwise.trained([dark, light], case, sigma=0.0, centre=0.0).eval()
    with torch.no_grad():
        means = network(torch.tensor([0, 1]).repeat(50)).reshape(50, 2, 784).mean(dim=(0, 2))
    assert means[0] < 0.3 and means[1] > 0.7


def test_the_authors_distance_of_a_translation_is_the_mean_of_what_directions_see_of_it() -> None:
    """Of z: E |<theta, z>| = ||z|| sqrt(2 / (pi d)) about, and the root of E <theta, z>^2 is ||z|| / sqrt(d)."""
    torch.manual_seed(0)
    points, dimension = torch.randn(40, 100), 100
    moved = points + 3.0
    length = 3.0 * dimension**0.5
    rooted = as_coded.distance(points, moved, 20_000, 5.0, "plain")
    assert float(rooted) == pytest.approx(length / dimension**0.5, rel=0.03)
    first = as_coded.distance(points, moved, 20_000, 0.0, "first")
    assert float(first) == pytest.approx(length * (2 / (np.pi * dimension)) ** 0.5, rel=0.03)


def test_panels_say_where_they_show_nothing_and_are_silent_over_pictures() -> None:
    ramp = np.tile(np.linspace(0, 255, 28), (4, 28)).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (4, 784), dtype=np.uint8)
    assert fault(ramp) == ""
    assert fault(noise) == "static"
    assert fault(np.zeros((4, 784), dtype=np.uint8)) == "blank: nothing was learnt"


def test_a_case_of_a_computation_has_a_panel_with_its_accuracy() -> None:
    images = np.tile(np.linspace(0, 255, 784), (10, 8, 1)).astype(np.uint8)
    result = Result("computed", {}, 0, {"exact_perceptron": 0.5}, {"exact_images": images}, {})
    with house_style():
        figure = of_cases(Study(load_figure("rr/table2-classwise"), (result,), 0))[""]
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["exact\naccuracy 0.5"]


def test_in_features_real_digits_are_nearer_to_held_out_ones_than_static_is(monkeypatch, tmp_path) -> None:
    static = np.random.default_rng(0).integers(0, 256, (40, 784), dtype=np.uint8)
    stored = Result("shortened", {"epsilon": 1.0}, 0, {}, {"samples": static}, {})
    monkeypatch.setattr(legible, "mnist", lambda: resized(digits(), 28))
    monkeypatch.setattr(legible, "read_study", lambda results, figure: Study(figure, (stored,), 0))
    cases = [{"name": "static", "series": "shortened", "epsilon": 1.0}]
    found = legible.digits(results=tmp_path, figure="rco/fig7", cases=cases).values
    assert found["real_w2"] < found["static_w2"]
    with pytest.raises(ValueError, match=r"no samples are stored of rco/fig7, series 'best', ε = 1.0: .* --results"):
        legible.digits(results=tmp_path, figure="rco/fig7", cases=[{**cases[0], "series": "best"}])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1000.0, "ε = 1000"),
        (1.755, "ε = 1.76"),
        ("inf", "ε = ∞"),
        (3.0, "ε = 3"),
        (999.2, "ε = 999.2"),
        (999.99, "ε = 1000"),
        (31268.4, "ε = 31269"),
    ],
)
def test_an_epsilon_in_the_thousands_is_written_out(value: float | str, text: str) -> None:
    assert name_of("epsilon", value) == text
