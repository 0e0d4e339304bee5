"""Laws of the sketches' figures: labels are judged as they are generated, and trust has its price at equal epsilon."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from fedsw import data
from fedsw.models import Particles
from simulations.papers.derived.sketches import price_of_masks, price_of_trust
from simulations.papers.figure import load_figure
from simulations.papers.finished import Finished
from simulations.papers.measures.labelled import beside_sketches
from simulations.papers.measures.synthesis import labelled, with_shifts
from simulations.papers.study import Result, Study


class Replayed(nn.Module):
    """Draws images of a class from a table; every label moved on by `shift`."""

    latent, cells = 1, 10

    def __init__(self, images: Tensor, labels: Tensor, shift: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._by_class = [images[(labels + shift) % 10 == each] for each in range(10)]

    def forward(self, noise: Tensor, cells: Tensor) -> Tensor:
        pick = torch.special.ndtr(noise[:, 0])
        found = [self._by_class[c][int(u * len(self._by_class[c]))] for c, u in zip(cells.tolist(), pick, strict=True)]
        return torch.stack(found).to(noise)


@pytest.mark.parametrize(("shift", "least", "most"), [(0, 0.8, 1.0), (1, 0.0, 0.2)])
def test_generated_labels_are_judged_as_they_are_generated(shift: int, least: float, most: float) -> None:
    digits = data.digits(seed=0)
    run = SimpleNamespace(
        model=Replayed(digits.train.features, digits.train.target, shift),
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
        model=Replayed(digits.train.features, digits.train.target, shift),
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
        dataset=SimpleNamespace(test=SimpleNamespace(features=coded(digits.test, 0), target=digits.test.target)),
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
        result("distributed", 10.0, 0, 0.905),
        result("DP-SWD", 10.0, 0, 0.30),
        result("best", 1.0, 0, 0.80),
    )
    (found,) = price_of_trust(Study(load_figure("sketches/images"), results, 0))
    assert found.point == {"source": "mnist", "epsilon": 10.0} and found.series == "best"
    assert found.values["lost_without_trust"] == pytest.approx(0.02)
    (masked,) = price_of_masks(Study(load_figure("sketches/images"), results, 0))
    assert masked.point == found.point and masked.values["lost_without_trust"] == pytest.approx(0.005)
