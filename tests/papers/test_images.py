"""Laws of what RR and SPF learn from images: classes beside them, transported ones, halves, codes, distances."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from fedsw.data import Dataset, digits
from fedsw.data.image_sets import private_half, public_half, with_classes
from fedsw.experiment import Experiment, ExperimentError, load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.learning.encoded import encoded, public_autoencoder
from fedsw.learning.models import (
    BlockedImages,
    DecodedImages,
    LabelledImages,
    PublishedAdaptor,
    TransportedAdaptor,
    UnitAutoencoder,
)
from fedsw.learning.objectives import Clip
from fedsw.learning.objectives.distances import Matching
from fedsw.learning.tasks.public_side import Domain, ForPublic
from fedsw.mathematics import clipping
from fedsw.mathematics.transport import sliced
from tests.adversary import Attack, movement
from tests.federations import digits_for_images


def images(n: int, side: int = 28, seed: int = 0) -> torch.Tensor:
    return torch.rand((n, side**2), generator=torch.Generator().manual_seed(seed))


def shipped(name: str, *settings: str) -> Experiment:
    return load_experiment(find_experiment(name), settings)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("FEDSW_CACHE", str(tmp_path))
    whole = digits(seed=0)
    return dataclasses.replace(whole, train=whole.train.take(range(200)), test=whole.test.take(range(60)))


def test_halves_part_the_training_records_and_leave_the_held_out_ones(data: Dataset) -> None:
    public, private = public_half(data).ids.tolist(), private_half(data).train.ids.tolist()
    assert sorted(public + private) == sorted(data.train.ids.tolist())
    assert not set(public) & set(private)
    assert torch.equal(private_half(data).test.ids, data.test.ids)


def test_a_class_beside_an_image_has_the_length_asked_and_moves_a_record_of_another_class_by_root_two_of_it(
    data: Dataset,
) -> None:
    beside = with_classes(data, 3.0)
    pixels = data.train.features.shape[1]
    assert torch.equal(beside.train.features[:, :pixels], data.train.features)
    codes = beside.train.features[:, pixels:]
    assert torch.equal(codes.argmax(dim=1), data.train.target)
    assert float((codes[data.train.target == 0][0] - codes[data.train.target == 1][0]).norm()) == pytest.approx(
        3 * math.sqrt(2)
    )


def test_codes_are_unit_vectors_of_the_private_half_and_its_encoder_never_met_it(data: Dataset) -> None:
    found = encoded(data, 3, 1)
    assert found.train.ids.tolist() == private_half(data).train.ids.tolist()
    torch.testing.assert_close(found.train.features.norm(dim=1), torch.ones(len(found.train)))
    model = public_autoencoder(data, 3, 1)
    half = len(data.train) // 2
    features = data.train.features.clone()
    features[half:] = 0
    other = dataclasses.replace(data, train=dataclasses.replace(data.train, features=features))
    for name, value in public_autoencoder(other, 3, 1).state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_a_kept_autoencoder_is_the_one_that_was_trained(data: Dataset, tmp_path: Path) -> None:
    first = public_autoencoder(data, 2, 1)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    again = public_autoencoder(data, 2, 1)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())


def test_generated_classes_are_uniform_and_their_codes_are_as_long_as_the_records() -> None:
    model = LabelledImages(8, 10, weight=3.0, latent=12)
    inputs = torch.randn((4_000, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = model(inputs)
    codes = made[:, 64:]
    assert torch.equal(codes.max(dim=1).values, torch.full((4_000,), 3.0)) and float(codes.sum()) == 12_000
    counts = torch.bincount(codes.argmax(dim=1), minlength=10).double()
    assert float(((counts - 400) ** 2 / 400).sum()) < 33.7  # chi-squared with 9 degrees, a thousandth of 1e-1
    assert bool((made[:, :64] > 0).all() and (made[:, :64] < 1).all())


@pytest.mark.parametrize(
    "model", [LabelledImages(8, 3, latent=5), DecodedImages(8, 4), PublishedAdaptor(28, 10), UnitAutoencoder(8, 3)]
)
def test_every_model_can_be_clipped(model: torch.nn.Module) -> None:
    assert clipping.check(model)


def test_a_transport_begins_as_the_identity_and_public_images_then_look_like_private_ones() -> None:
    model, given = TransportedAdaptor(28, 10, 196), images(3)
    private, public = model(given), model.public(given)
    for mine, its in zip(private, public, strict=True):
        torch.testing.assert_close(mine, its, atol=1e-5, rtol=1e-5)


def test_what_is_compared_is_never_longer_than_the_image() -> None:
    given = images(20)
    for compared in (16, 196, 784):
        seen = TransportedAdaptor(28, 10, compared).seen(given)
        assert seen.shape == (20, compared)
        assert bool((seen.norm(dim=1) <= given.norm(dim=1) * (1 + 1e-6)).all())


def test_the_classifier_does_not_move_the_transport_and_private_images_reach_no_parameter() -> None:
    model, given = TransportedAdaptor(28, 10, 16), images(3)
    seen, logits = ForPublic(model)(given)
    torch.autograd.backward(logits.sum())
    assert model.plane.bias.grad is None and model.filter.weight.grad is None
    assert seen.requires_grad and not model(given)[0].requires_grad


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("m", [5, 16])
def test_no_replaced_record_moves_the_gradient_of_moved_public_images_further_than_its_bound(d: int, m: int) -> None:
    """Private points are fixed, and the public side alone has parameters, of any size m."""
    matching, clip, n = Matching("domain", alpha=0.5, radius=1.5, fixed=True), Clip(1.5, 2.0, 1.0), 8
    generator = torch.Generator().manual_seed(d)
    normals = torch.randn(sliced.direction_shape(d, 2 * d), generator=generator, dtype=torch.float64)
    theta = sliced.directions(d, 2 * d if d > 1 else 1, normals=normals) if d > 1 else sliced.directions(1, 1)
    (bound,) = matching.sensitivities((n,), clip, d=d, spread=sliced.spread(theta))
    worst = 0.0
    for seed in range(100):
        generator.manual_seed(seed)
        own = sliced.project(2 * torch.randn((n, d), generator=generator, dtype=torch.float64), 1.5)
        other = sliced.project(2 * torch.randn((m, d), generator=generator, dtype=torch.float64), 1.5)
        if seed % 2:
            own = 1.5 * torch.nn.functional.normalize(own, dim=1)
        attack = Attack(own, other, seed % n, -own[seed % n], theta)
        worst = max(worst, 0.5 * movement(attack, 0.0, clip.jacobian))
    assert 0.2 * bound.value < worst <= bound.value * (1 + 1e-9)
    (moved,) = Matching("domain", alpha=0.5, radius=1.5).sensitivities((n,), clip, d=d, spread=sliced.spread(theta))
    assert bound.value < moved.value or d == 1


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (("data.code=2.0",), "same length"),
        (("model.kind=decoded-images", "data.code=5.0"), "labelled-images"),
        (("data.encoded=4",), "half"),
        (("data.half=true", "data.encoded=4"), "without codes of classes"),
        (("data.encoder_epochs=3",), "data.encoded"),
        (("local.per_step=3",), "flow-one-release"),
        (("model.kind=decoded-images", "model.code=2.0"), "code"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: tuple[str, ...], word: str) -> None:
    with pytest.raises(ExperimentError, match=word):
        shipped("dp-swd", *settings)


def test_particles_may_have_the_classes_of_their_records_beside_them() -> None:
    flow = ("local.algorithm=flow", "model.kind=particles", "training.optimizer=sgd", "training.averaging=0")
    assert shipped("dp-swd", *flow, "data.code=3.0").data.code == 3.0


def test_a_domains_side_of_a_shipped_experiment_is_the_transported_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsw.learning.tasks.problem import Problem
    from fedsw.learning.tasks.public_side import public_side_of

    digits_for_images(monkeypatch)
    problem = Problem.from_experiment(shipped("adaptation-transported", "privacy.trust=central", "model.latent=16"))
    assert not problem.private_parameters
    assert isinstance(public_side_of(problem), Domain)


def test_images_in_blocks_are_as_far_apart_as_images_of_one_class_and_come_back() -> None:
    model, given = BlockedImages(8, 3, weight=2.0, latent=5), images(6, side=8)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    records = torch.cat([given, 2.0 * torch.nn.functional.one_hot(labels, 3).float()], dim=1)
    blocks = model.seen(records)
    assert blocks.shape == (6, 192)
    torch.testing.assert_close(model.beside(blocks), records)
    gaps, expected = torch.cdist(blocks, blocks), torch.cdist(given, given)
    same = labels.unsqueeze(1) == labels
    torch.testing.assert_close(gaps[same], expected[same], atol=1e-5, rtol=1e-5)
    lengths = given.norm(dim=1)
    bound = lengths.unsqueeze(1) + lengths
    assert bool((gaps <= bound).all())


def test_a_generator_in_blocks_makes_what_its_labelled_samples_say() -> None:
    model = BlockedImages(8, 3, weight=2.0, latent=5)
    inputs = torch.randn((7, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made, labels = model.labelled(inputs)
        beside = model.beside(model(inputs))
    torch.testing.assert_close(beside[:, :64], made)
    assert torch.equal(beside[:, 64:].argmax(dim=1), labels)
