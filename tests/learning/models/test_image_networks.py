"""The generator of DCGAN: its sizes, its noise, its statistics."""

from __future__ import annotations

import pytest
import torch

from fedsw.learning.models import DCGAN, AdversarialDCGAN, count_parameters, flatten, load_flat


@pytest.mark.parametrize(("side", "filters"), [(8, (6, 4)), (28, (5, 3)), (16, (4, 3, 2)), (28, ())])
def test_images_have_their_side_and_lie_between_black_and_white(side, filters) -> None:
    images = DCGAN(side, 7, filters, seed=1)(torch.randn(9, 7)).detach()
    assert images.shape == (9, side**2)
    assert float(images.min()) > 0 and float(images.max()) < 1


@pytest.mark.parametrize("build", [DCGAN, AdversarialDCGAN])
def test_the_seed_alone_decides_the_parameters_and_they_are_the_whole_model(build) -> None:
    state = torch.get_rng_state()
    one, other = build(8, 3, (4, 2), seed=5), build(8, 3, (4, 2), seed=6)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(flatten(one), flatten(other))
    assert not list(one.buffers())
    noise = torch.randn(11, 3)
    expected = one.eval()(noise)
    load_flat(other.train(), flatten(one))
    torch.testing.assert_close(other(noise), expected)
    assert count_parameters(one) == flatten(one).numel()


def test_noise_is_seen_through_its_normal_law() -> None:
    model = DCGAN(8, 2, (4, 2), seed=0)
    linear = model.layers[0]
    seen = []
    linear.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    model(torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)))
    uniform = torch.sort(seen[0][:, 0]).values
    assert float((uniform - torch.linspace(0, 1, 4000)).abs().max()) < 0.03


def test_samples_come_in_the_order_of_their_noise() -> None:
    model, noise, order = DCGAN(8, 3, (4, 2), seed=0), torch.randn(12, 3), torch.randperm(12)
    torch.testing.assert_close(model(noise)[order], model(noise[order]))


@pytest.mark.parametrize(
    ("side", "latent", "filters"), [(7, 2, (4, 2)), (2, 2, (4, 2)), (8, 0, (4, 2)), (8, 2, (4, 0))]
)
def test_sizes_that_cannot_be_are_refused(side, latent, filters) -> None:
    with pytest.raises(ValueError, match=r"side|latent|filters"):
        DCGAN(side, latent, filters)
