"""Laws of matching objectives: their bounds, their gradients, and what one private record can change."""

from __future__ import annotations

import math

import ot
import pytest
import torch
from torch import Tensor

from fedsw.learning.objectives import Clip, WeightedSum
from fedsw.learning.objectives.distances import Matching
from fedsw.learning.objectives.penalties import ToModel, ToSample
from fedsw.mathematics.transport import sliced
from tests.adversary import Attack, movement

CLIP = Clip(output=1.5, jacobian=2.0, loss=1.0)
PRIOR = Matching("prior", alpha=0.1, radius=1.0)
GENERATOR = Matching("generator", alpha=1.0, radius=1.5)
BOTH = Matching("generator", alpha=1.0, radius=1.5, both=True)
DOMAIN = Matching("domain", alpha=0.5, radius=1.5)
SMALL_DOMAIN = Matching("domain", alpha=0.5, radius=0.3)


def draw(d: int, k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normals = torch.randn(sliced.direction_shape(d, k), generator=generator, dtype=torch.float64)
    return sliced.directions(d, k, normals=normals)


def points(n: int, d: int, radius: float, generator: torch.Generator) -> Tensor:
    spread = 2 * torch.randn((n, d), generator=generator, dtype=torch.float64)
    return sliced.project(spread, radius)


def test_the_autoencoders_bound_is_that_of_the_closed_form() -> None:
    """theory: 5.915 L/n for d = 6, M = 1.5, A = 1 and whole orthogonal blocks, plus 2C/n of the loss."""
    (found,) = PRIOR.sensitivities((600,), CLIP, d=6, spread=1 / 6)
    assert found.value == pytest.approx(0.1 * 5.915 * 2.0 / 600 + 0.9 * 2 / 600, rel=1e-4)
    (paper,) = PRIOR.sensitivities((600,), CLIP, d=6, spread=1 / 6, bound="paper")
    assert paper.value == pytest.approx(0.1 * 18 * 2.0 / 600 + 0.9 * 2 / 600, rel=1e-12)


@pytest.mark.parametrize(("d", "factor"), [(1, 8.0), (2, 8.0), (3, 7.333), (6, 6.599)])
def test_a_public_domain_has_the_bound_of_two_sides_with_parameters(d: int, factor: float) -> None:
    """theory; with the domain's Jacobians forgotten, it is 7.464 for d = 2, 6.667 for d = 3 and 5.764 for d = 6."""
    (found,) = DOMAIN.sensitivities((100,), CLIP, d=d, spread=1 / d)
    assert found.value == pytest.approx(0.5 * factor * 1.5 * 2.0 / 100, rel=1e-4)


@pytest.mark.parametrize("d", [1, 2, 6])
def test_a_generator_of_fixed_records_has_the_bound_of_their_radius_alone(d: int) -> None:
    (found,) = GENERATOR.sensitivities((100,), CLIP, d=d, spread=1 / d)
    assert found.value == pytest.approx(4 * 1.5 * math.sqrt(1 / d) * 2.0 / 100, rel=1e-12)
    far = Matching("generator", alpha=1.0, radius=1e6)
    assert far.sensitivities((100,), CLIP, d=d, spread=1 / d)[0].value == found.value


def test_the_noise_for_both_sides_is_that_of_the_larger_bound() -> None:
    (both,) = BOTH.sensitivities((100,), CLIP, d=2, spread=0.5)
    (paper,) = BOTH.sensitivities((100,), CLIP, d=2, spread=0.5, bound="paper")
    assert both.value == pytest.approx(7.464 * 1.5 * 2.0 / 100, rel=1e-3)
    assert paper.value == pytest.approx(12 * 1.5 * 2.0 / 100, rel=1e-12)


def test_only_a_prior_comes_with_a_private_task_loss() -> None:
    assert WeightedSum((ToSample(0.1),)).task_weight(300) == pytest.approx(0.9 / 300)
    for other_side in ("generator", "domain"):
        assert WeightedSum((ToModel(0.5, other_side=other_side),)).task_weight(300) == 0.0


@pytest.mark.parametrize("matching", [PRIOR, GENERATOR, BOTH, DOMAIN])
def test_the_other_side_is_public_whatever_the_noise(matching: Matching) -> None:
    """A generator's inputs too: they follow from a public seed, and are used at rate 1."""
    assert "the other sample" in matching.sensitivities((10,), CLIP, d=2, spread=0.5)[0].public


@pytest.mark.parametrize("m", [24, 40])
def test_cotangents_are_the_gradient_of_pots_sliced_distance(m: int) -> None:
    generator = torch.Generator().manual_seed(3)
    own = torch.randn((24, 3), generator=generator, dtype=torch.float64, requires_grad=True)
    other = torch.randn((m, 3), generator=generator, dtype=torch.float64, requires_grad=True)
    theta = draw(3, 6)
    distance = ot.sliced_wasserstein_distance(own, other, projections=theta, p=2) ** 2
    expected = torch.autograd.grad(distance, (own, other))
    found = DOMAIN.cotangents(own.detach(), other.detach(), theta)
    for q, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(q, 0.5 * gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "matching",
    [PRIOR, GENERATOR, BOTH, DOMAIN, SMALL_DOMAIN],
    ids=["prior", "generator", "both", "domain", "domain in a small ball"],
)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_replacing_one_private_record_never_exceeds_the_bound(matching: Matching, d: int) -> None:
    """The distance's part of the gradient, under the worst Jacobians; a generator's samples may lie anywhere."""
    n, k = 6, 2 * d
    theta = draw(d, k)
    clip = Clip(output=1.5, jacobian=2.0, loss=1e-12)
    (bound,) = matching.sensitivities((n,), clip, d=d, spread=sliced.spread(theta))
    own_l = clip.jacobian if matching.private_parameters else 0.0
    other_l = 0.0 if matching.other_side == "prior" else clip.jacobian
    far = matching.other_side == "generator" and not matching.both
    worst = 0.0
    for seed in range(150):
        generator = torch.Generator().manual_seed(seed)
        own = points(n, d, clip.output, generator)
        radius = 100.0 if far else matching.radius
        other = points(n, d, radius, generator)
        if seed % 3 == 0:
            other = radius * torch.nn.functional.normalize(other, dim=1)
            own = clip.output * torch.nn.functional.normalize(own, dim=1)
        if seed % 5 == 0:
            own[1:] = own[1].clone()
        attack = Attack(own, other, seed % n, -own[seed % n], theta)
        worst = max(worst, matching.alpha * movement(attack, own_l, other_l))
        if matching.both:
            mirrored = Attack(other, own, seed % n, -other[seed % n], theta)
            worst = max(worst, matching.alpha * movement(mirrored, other_l, own_l))
    assert 0.2 * bound.value < worst <= bound.value * (1 + 1e-9)
