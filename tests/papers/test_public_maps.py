"""The map that public digits teach: of public numbers alone, and the same for every part that looks through it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.learning.sketches.learnt import Classifier, Lessons
from fedsw.learning.sketches.parts import Features, MomentFeatures
from fedsw.learning.sketches.sketch_law import Law
from simulations.papers import public_maps
from simulations.papers.public_maps import LayerOfUsps, framed


@pytest.fixture
def asked(monkeypatch):
    """Sides that digits were asked for; ten flat pictures stand in for them."""
    sides = []

    def usps(*, side):
        sides.append(side)
        pictures = torch.linspace(0, 1, 10).unsqueeze(1).expand(10, side**2).contiguous()
        return SimpleNamespace(train=SimpleNamespace(features=pictures, target=torch.arange(10)))

    monkeypatch.setattr(public_maps, "usps", usps)
    monkeypatch.setattr(public_maps, "Lessons", lambda steps: Lessons(steps=2, batch=20))
    public_maps._weights.cache_clear()
    yield sides
    public_maps._weights.cache_clear()


def test_digits_stand_in_the_middle_with_a_margin_of_zeros():
    assert torch.equal(
        framed(torch.ones(1, 4), 1).reshape(4, 4).nonzero(), torch.tensor([[1, 1], [1, 2], [2, 1], [2, 2]])
    )


def test_parts_of_a_law_look_through_one_network_that_public_digits_taught_once(asked, monkeypatch):
    early, late = LayerOfUsps("early", 6), LayerOfUsps("late", 6)
    law = Law(28**2, (Features(early), Features(late), MomentFeatures(late, projected=2)), classes=2)
    sketcher, passed, original = law.drawn(), [], Classifier.seen
    assert asked == [20]
    monkeypatch.setattr(Classifier, "seen", lambda self, *given: passed.append(1) or original(self, *given))
    sketcher.by_cell(torch.rand(4, 28**2), torch.arange(4) % 2)
    assert len(passed) == 1
    assert late.width(28**2) == 6 and early.width(28**2) == 16 * 49


def test_the_map_does_not_depend_on_the_stream(asked):
    rows = torch.rand(3, 28**2)
    one, other = (LayerOfUsps("late", 6).built(28**2, Stream.seeded(seed, "map"))(rows) for seed in (0, 1))
    assert torch.equal(one, other)
