"""Laws of parts that no map can make unsafe: codes and moments of any network, under attack one by one and mixed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsw.learning.models.initial import count_parameters, flatten
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.learnt import Classifier, LearntLayer, flat_bytes
from fedsw.learning.sketches.maps import Convolutions, Cosine, Raw, Scattering
from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.sketches.parts import Features, MomentFeatures, diameter
from fedsw.learning.sketches.sketch_law import Law
from fedsw.privacy.sensitivity import SLACK
from tests.learning.sketches.samples import cells_of, normal, sums_of_vectors

SIDE = 8
PIXELS = SIDE**2
TRAINED = flat_bytes(flatten(Classifier(PIXELS, 3, 6, seed=4)))
MAPS = {
    "raw": Raw(),
    "cosine": Cosine(0.5),
    "convolutions": Convolutions(3, 3, shifts=1),
    "scattering": Scattering(1, 2),
    "learnt, early": LearntLayer(3, 6, "early", TRAINED),
    "learnt, late": LearntLayer(3, 6, "late", TRAINED),
}
PARTS = {
    "waves": GaussianKernel((2.0,), 30),
    **{f"features of {name}": Features(chosen, signed=name == "cosine") for name, chosen in MAPS.items()},
    **{f"moments of {name}": MomentFeatures(chosen, 2.0, projected=3) for name, chosen in MAPS.items()},
    "moments of all pixels": MomentFeatures(radius=0.5),
}
SKETCHERS = {name: Law(PIXELS, (part,), classes=2, counts=0.01).drawn() for name, part in PARTS.items()}
EVERYTHING = Law(PIXELS, tuple(PARTS.values()), classes=2, counts=0.01)
SKETCHERS["everything"] = EVERYTHING.drawn()

numbers = st.one_of(st.floats(-2, 2, width=32), st.floats(width=32), st.sampled_from([0.0, 1.0, -1.0, 3e38, math.nan]))


@st.composite
def images(draw) -> Tensor:
    """An image of a few drawn pixels over a flat, a random or an opposite ground."""
    ground = draw(st.sampled_from([0.0, 1.0, -1.0]))
    image = torch.full((PIXELS,), ground)
    if draw(st.booleans()):
        image = normal(PIXELS, seed=draw(st.integers(0, 9))).float() * draw(st.sampled_from([1.0, -1.0, 1e30]))
    for place in draw(st.lists(st.integers(0, PIXELS - 1), max_size=3)):
        image[place] = draw(numbers)
    return image


def moved(sketcher, record: Tensor, cell: int, other: Tensor, other_cell: int) -> float:
    rows, cells = normal(4, PIXELS).float(), cells_of(sketcher.law, 4)

    def total(row: Tensor, its: int) -> Tensor:
        return sketcher.sums(torch.cat([row[None], rows]), torch.cat([torch.tensor([its]), cells]))

    return float((total(record, cell) - total(other, other_cell)).norm())


@pytest.mark.parametrize("name", sorted(SKETCHERS))
def test_no_pair_of_records_moves_a_part_or_all_of_them_by_more_than_the_bound(name):
    sketcher = SKETCHERS[name]
    bound = sketch_sensitivity(sketcher.law).value

    @given(images(), images(), st.integers(0, 1), st.integers(0, 1))
    @settings(max_examples=40, derandomize=True, deadline=None)
    def attacked(record, other, cell, other_cell):
        assert moved(sketcher, record, cell, other, other_cell) <= bound

    attacked()


@pytest.mark.parametrize("name", sorted(PARTS))
def test_gradient_ascent_on_pairs_of_records_of_one_cell_stays_below_a_parts_own_diameter(name):
    part = PARTS[name]
    sketcher = Law(PIXELS, (part,)).drawn(torch.float64)
    points = normal(2, 12, PIXELS).requires_grad_()
    optimizer, best = torch.optim.Adam([points], lr=0.1), 0.0
    for _ in range(40):
        apart = (sketcher(points[0]) - sketcher(points[1])).norm(dim=1)
        best = max(best, float(apart.detach().max()))
        optimizer.zero_grad()
        torch.autograd.backward(-apart.sum())
        optimizer.step()
    assert 0.5 < best <= diameter(part) * SLACK


def test_the_root_of_two_is_attained_by_codes_and_by_moments():
    rows = 5 * torch.eye(PIXELS, dtype=torch.float64)[:2]
    far = {"features of raw": (rows[0], rows[1]), "moments of all pixels": (rows[0], -rows[0])}
    for name, (one, other) in far.items():
        sketcher = Law(PIXELS, (PARTS[name],)).drawn(torch.float64)
        assert float((sketcher(one[None]) - sketcher(other[None])).norm()) == pytest.approx(math.sqrt(2), abs=1e-9)


def test_a_mixed_sensitivity_is_two_and_twice_the_weighted_constants_under_a_root():
    parts = (GaussianKernel((1.0,), 4), Features(weight=2.0), MomentFeatures(weight=1.0))
    assert sketch_sensitivity(Law(PIXELS, parts)).value == pytest.approx(SLACK * math.sqrt(2 + 2 * 0.25))
    assert sketch_sensitivity(Law(PIXELS, parts[1:])).value == pytest.approx(SLACK * math.sqrt(2))


def test_moments_are_the_triangle_of_the_matrix_with_its_mirror_counted():
    row = normal(5) / 10
    vector = Law(5, (MomentFeatures(radius=1.0),)).drawn(torch.float64)(row[None])[0]
    a = np.concatenate([[1.0], row.numpy()]) / math.sqrt(2)
    other = normal(5, seed=3) / 10
    again = Law(5, (MomentFeatures(radius=1.0),)).drawn(torch.float64)(other[None])[0]
    b = np.concatenate([[1.0], other.numpy()]) / math.sqrt(2)
    matrix, places = np.outer(a, a), np.triu_indices(6)
    wanted = matrix[places] * np.where(places[0] == places[1], 1.0, math.sqrt(2))
    np.testing.assert_allclose(vector.numpy(), wanted, atol=1e-12)
    assert float(vector @ again) == pytest.approx(float(a @ b) ** 2, abs=1e-12)


def test_convolutions_are_averaged_over_moves_of_the_image_over_zeros():
    image = normal(1, PIXELS)
    law = Law(PIXELS, (Features(Convolutions(2, 3, shifts=1), radius=100.0),))
    plain = Law(PIXELS, (Features(Convolutions(2, 3), radius=100.0),)).drawn(torch.float64)
    square, total = np.pad(image.numpy().reshape(SIDE, SIDE), 1), 0.0
    for row in range(3):
        for column in range(3):
            part = square[row : row + SIDE, column : column + SIDE]
            total = total + plain(torch.from_numpy(part.copy().reshape(1, -1)))
    torch.testing.assert_close(law.drawn(torch.float64)(image), total / 9)


HOSTILE = {
    "not a number": lambda size: np.full(size, np.nan),
    "infinite": lambda size: np.full(size, np.inf),
    "huge": lambda size: np.random.default_rng(0).normal(size=size) * 1e38,
    "large": lambda size: np.random.default_rng(0).normal(size=size) * 1e12,
    "zero": np.zeros,
    "tiny": lambda size: np.full(size, 1e-42),
    "one of them": lambda size: np.where(np.arange(size) == 3, np.nan, np.random.default_rng(1).normal(size=size)),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("layer", ["early", "late"])
@pytest.mark.parametrize("kind", [Features, MomentFeatures])
def test_a_hostile_network_changes_nothing_but_the_result(name, layer, kind):
    weights = HOSTILE[name](count_parameters(Classifier(PIXELS, 3, 6))).astype("<f4").tobytes()
    law = Law(PIXELS, (kind(LearntLayer(3, 6, layer, weights)),), classes=2, counts=0.01)
    sketcher = law.drawn()
    bound = sketch_sensitivity(law).value
    assert bound == sketch_sensitivity(Law(PIXELS, (kind(LearntLayer(3, 6, layer)),), classes=2, counts=0.01)).value
    rows = torch.cat([normal(6, PIXELS).float(), torch.full((1, PIXELS), math.nan), torch.full((1, PIXELS), 3e38)])
    for first in range(len(rows)):
        alone = sketcher.sums(rows[first : first + 1], torch.zeros(1, dtype=torch.int64))
        assert bool(torch.isfinite(alone).all()) and float(alone[:, :-1].norm()) <= SLACK
        for second in range(first):
            for cell in (0, 1):
                assert moved(sketcher, rows[first], 0, rows[second], cell) <= bound


class Given:
    """A map that returns rows given beforehand."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def width(self, features: int) -> int:
        return self.rows.shape[1]

    def built(self, features: int, stream) -> nn.Module:
        return SameRows(self.rows)


class SameRows(nn.Module):
    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, features: Tensor) -> Tensor:
        return self.rows


@pytest.mark.parametrize("kind", [Features, MomentFeatures])
def test_a_code_that_is_not_finite_is_nothing_and_one_that_is_too_long_to_square_is_shortened(kind):
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1e308, 1e308], [0.0, 0.0], [-1e308, 3.0]]).double()
    rows[2] = 1e308
    sketcher = Law(1, (kind(Given(rows)),)).drawn(torch.float64)
    vectors = sketcher(torch.zeros(5, 1, dtype=torch.float64))
    assert bool(torch.isfinite(vectors).all()) and float(vectors.norm(dim=1).max()) <= 1 + 1e-9
    torch.testing.assert_close(vectors[0], vectors[3])
    torch.testing.assert_close(vectors[1], vectors[3])
    assert float(vectors[2].norm()) == pytest.approx(1.0)


def test_a_learnt_map_is_the_layer_of_its_network_and_has_its_announced_width():
    network = Classifier(PIXELS, 3, 6, seed=4)
    image = normal(2, PIXELS).float()
    for layer in ("early", "late"):
        chosen = LearntLayer(3, 6, layer, TRAINED)
        built = chosen.built(PIXELS, None)  # type: ignore[arg-type]
        torch.testing.assert_close(built(image), network.seen(image, layer))
        assert built(image).shape[1] == chosen.width(PIXELS)
    assert LearntLayer(3, 5, "early").width(7) == 5, "other features go through two hidden layers"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Features(radius=0.0), "radius = 0"),
        (lambda: MomentFeatures(radius=math.inf), "radius = inf"),
        (lambda: Law(3, (MomentFeatures(projected=4),)).drawn(), "projected = 4 of 3"),
        (lambda: Convolutions(shifts=-1), "shifts = -1"),
        (lambda: Law(PIXELS, (Features(LearntLayer(3, 6, "late", b"\0" * 8)),)).drawn(), "2 weights"),
    ],
)
def test_a_part_that_does_not_fit_is_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


@pytest.mark.parametrize("name", sorted(SKETCHERS))
def test_sums_for_a_distance_and_their_gradients_are_those_of_the_vectors(name):
    sketcher = Law(PIXELS, EVERYTHING.parts if name == "everything" else (PARTS[name],), classes=2, counts=0.01).drawn(
        torch.float64
    )
    rows, cells = normal(30, PIXELS, seed=3).requires_grad_(), torch.arange(30) % 2
    found, wanted = sketcher.by_cell(rows, cells), sums_of_vectors(sketcher(rows), cells, 2)
    for mine, naive in ((found.sums, wanted.sums), (found.squares, wanted.squares), (found.counts, wanted.counts)):
        torch.testing.assert_close(mine, naive)
    slopes = [
        torch.autograd.grad(batch.sums.sin().sum() + batch.squares.square().sum(), rows)[0] for batch in (found, wanted)
    ]
    torch.testing.assert_close(*slopes)


def test_parts_that_look_through_one_network_pass_it_once(monkeypatch):
    parts = tuple(part for name, part in PARTS.items() if "learnt" in name)
    sketcher, passed = Law(PIXELS, parts, classes=2, counts=0.01).drawn(), []
    original = Classifier.seen
    monkeypatch.setattr(Classifier, "seen", lambda self, *given: passed.append(1) or original(self, *given))
    sketcher.by_cell(normal(6, PIXELS).float(), torch.arange(6) % 2)
    assert len(parts) == 4 and len(passed) == 1
    sketcher.by_cell(normal(6, PIXELS, seed=1).float(), torch.arange(6) % 2)
    assert len(passed) == 2
