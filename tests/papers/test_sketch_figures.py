"""Laws of the sketches' figures: labels are judged as they are generated, and trust has its price at equal epsilon."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from fedsw import data
from fedsw.learning.models import Particles
from fedsw.learning.models.labelled import generate
from simulations.papers.cells import beside_of, cells_of
from simulations.papers.compared import page_text
from simulations.papers.computed.real import RealImages, classifier, constant
from simulations.papers.derived.sketches import price_of_masks, price_of_trust
from simulations.papers.figure import load_figure
from simulations.papers.finished import Finished
from simulations.papers.measures.labelled import beside_sketches
from simulations.papers.measures.synthesis import labelled, with_shifts
from simulations.papers.page import section
from simulations.papers.store import Measured, Stored, write
from simulations.papers.study import Result, Study, measured, read_study


def moved(records: data.Records, shift: int) -> RealImages:
    """Draws images of a class from records; every label moved on by `shift`."""
    return RealImages(records.features, (records.target + shift) % 10)


@pytest.mark.parametrize(("shift", "least", "most"), [(0, 0.8, 1.0), (1, 0.0, 0.2)])
def test_generated_labels_are_judged_as_they_are_generated(shift: int, least: float, most: float) -> None:
    digits = data.digits(seed=0)
    run = SimpleNamespace(
        model=moved(digits.train, shift),
        problem=SimpleNamespace(classes=10),
        experiment=SimpleNamespace(sketch=SimpleNamespace(generated=4000)),
        dataset=digits,
        record=SimpleNamespace(summary={"bytes_up": 7, "seconds": 120.0}),
    )
    found = labelled(cast(Finished, run))
    assert least <= found.values["accuracy_generated"] <= most
    assert (found.values["bytes"], found.values["minutes"]) == (7, 2.0)
    assert found.arrays["images"].shape == (40, 64)


@pytest.mark.parametrize(("shift", "least", "most"), [(0, 0.3, 1.0), (1, 0.0, 0.2)])
def test_classifiers_that_are_taught_with_shifts_learn_the_labels_as_they_are_generated(
    shift: int, least: float, most: float
) -> None:
    digits = data.digits(seed=0)
    run = SimpleNamespace(
        model=moved(digits.train, shift),
        problem=SimpleNamespace(classes=10),
        experiment=SimpleNamespace(training=SimpleNamespace(rounds=15)),
        dataset=digits,
        record=SimpleNamespace(summary={"sketch": {"distance": 0.5, "later": [{"distance": 0.25}, {"distance": 1.0}]}}),
    )
    found = with_shifts(cast(Finished, run)).values
    assert all(least <= found[name] <= most for name in ("accuracy_lenet", "accuracy_shifted"))
    assert found["distance"] == 1.75


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "least", "most"), [(0, 0.8, 1.0), (1, 0.0, 0.2)])
def test_particles_are_judged_by_the_class_that_stands_beside_each(shift: int, least: float, most: float) -> None:
    digits = data.digits(seed=0)

    def coded(part: Any, moved: int) -> Tensor:
        return torch.cat([part.features, 3.0 * nn.functional.one_hot((part.target + moved) % 10, 10)], dim=1)

    cloud = Particles(len(digits.train.target), 74)
    with torch.no_grad():
        cloud.points.copy_(coded(digits.train, shift))
    run = SimpleNamespace(
        model=cloud,
        problem=SimpleNamespace(classes=10),
        dataset=SimpleNamespace(
            train=digits.train, test=SimpleNamespace(features=coded(digits.test, 0), target=digits.test.target)
        ),
        record=SimpleNamespace(summary={"bytes_up": 7, "seconds": 120.0}),
    )
    found = beside_sketches(cast(Finished, run))
    assert least <= found.values["accuracy_generated"] <= most
    assert (found.values["bytes"], found.values["minutes"]) == (7, 2.0)
    assert found.arrays["images"].shape == (40, 64)


def test_the_price_of_trust_is_the_difference_at_equal_epsilon_and_data() -> None:
    def result(series: str, epsilon: float, seed: int, accuracy: float) -> Result:
        point: dict[str, Any] = {"source": "mnist", "epsilon": epsilon}
        return Result(series, point, seed, {"accuracy_generated": accuracy}, {}, {})

    results = (
        result("best", 10.0, 0, 0.90),
        result("best", 10.0, 1, 0.92),
        result("nobody trusted", 10.0, 0, 0.89),
        result("smaller network", 10.0, 0, 0.88),
        result("distributed", 10.0, 0, 0.875),
        result("DP-SWD", 10.0, 0, 0.30),
        result("best", 1.0, 0, 0.80),
    )
    (found,) = price_of_trust(Study(load_figure("sketches/images"), results, 0))
    assert found.point == {"source": "mnist", "epsilon": 10.0} and found.series == "best"
    assert found.values["lost_without_trust"] == pytest.approx(0.02)
    (masked,) = price_of_masks(Study(load_figure("sketches/images"), results, 0))
    assert masked.point == found.point and masked.values["lost_without_trust"] == pytest.approx(0.005)


def test_lessons_of_real_images_draw_every_image_of_a_class_equally_often() -> None:
    images = torch.arange(6.0).repeat_interleave(4).reshape(6, 4)
    labels = torch.tensor([1, 0, 1, 0, 1, 1])
    real = RealImages(images, labels)
    drawn, cells = generate(real, real.counts / 6, 12_000)
    seen = torch.bincount(drawn[:, 0].long(), minlength=6)
    assert bool((labels[drawn[:, 0].long()] == cells).all()) and bool((drawn == drawn[:, :1]).all())
    assert float(seen.min()) > 1800 and float(seen.max()) < 2200
    edges = torch.tensor([[-40.0], [40.0]])
    assert real(edges, torch.tensor([1, 1]))[:, 0].tolist() == [0.0, 5.0], "the ends of the noise are images, too"


def test_real_images_teach_more_than_a_constant_and_a_constant_is_the_most_frequent_label() -> None:
    digits = data.digits(seed=0)
    names, least = ("generated", "lenet", "shifted"), constant("digits").values
    found = {key: value for name in names for key, value in classifier("digits", name, 2).values.items()}
    assert set(found) == set(least) == {f"accuracy_{name}" for name in names}
    share = float((digits.test.target == digits.train.target.mode().values).double().mean())
    assert set(least.values()) == {share} and found["accuracy_generated"] > 5 * share


def test_what_stands_beside_runs_is_a_column_at_all_their_points_and_is_made_once(tmp_path: Path) -> None:
    figure = load_figure("sketches/stages")
    beside = {each.name: beside_of(figure, each) for each in figure.beside}
    for name, accuracy in (("real images", 0.97), ("constant", 0.1)):
        for point, computation in beside[name]:
            value = Measured({"accuracy_lenet": accuracy + (point["source"] == "mnist") / 100})
            write(tmp_path, computation.key, Stored({"seconds": 1.0}, {"held-out": value}))
    cells = cells_of(figure)
    for cell in cells[:6]:
        names = ("held-out", *cell.measures)
        write(tmp_path, cell.key, Stored({"seconds": 1.0}, {name: Measured({"accuracy_lenet": 0.9}) for name in names}))
    study = read_study(tmp_path, figure)
    assert study.absent == len(cells) - 6 and len(study.results) == 6
    (row,) = [each for each in figure.rows if each.what == "MNIST, ε = 10: LeNet (paper: CNN)"]
    numbers = [measured(study, row, name) for name in ("best", "real images", "constant")]
    assert [each.mean for each in numbers if each is not None] == pytest.approx([0.9, 0.98, 0.11])
    text = section(study, (), tmp_path / "page.md").parts
    table = next(part for part in text if part.startswith("| what"))
    assert table.splitlines()[0] == "| what | paper | best | real images | constant | goal of best |"
    assert "\n*real images*: the same classifiers" in page_text([study])
