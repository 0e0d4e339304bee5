"""Models: their shapes, their initialisation, and the flat vector they travel as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedsw.learning.models import (
    Adaptor,
    EncoderDecoder,
    ImageAutoencoder,
    Particles,
    count_parameters,
    flatten,
    load_flat,
    logistic,
    mlp,
)
from fedsw.mathematics.clipping import Term, UnsupportedModule, check, clipped_sum, record

MODELS: dict[str, Any] = {
    "logistic": lambda seed: logistic(5, seed=seed),
    "mlp": lambda seed: mlp(5, (7, 3), 2, activation="tanh", seed=seed),
    "deep": lambda seed: mlp(5, (4,) * 4, 1, activation="elu", seed=seed),
    "encoder-decoder": lambda seed: EncoderDecoder(5, (7,), 2, seed=seed),
}
IMAGE_MODELS: dict[str, Any] = {
    "image-autoencoder": lambda seed: ImageAutoencoder(8, 3, seed=seed),
    "adaptor": lambda seed: Adaptor(8, 3, 4, seed=seed),
}


@pytest.mark.parametrize("name", [*MODELS, *IMAGE_MODELS])
def test_the_seed_alone_decides_the_parameters(name: str) -> None:
    build = (MODELS | IMAGE_MODELS)[name]
    torch.manual_seed(1)
    one = flatten(build(3))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, other = flatten(build(3)), flatten(build(4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one, flatten(build(torch.Generator().manual_seed(3))))


def test_no_two_layers_are_initialised_alike() -> None:
    model = EncoderDecoder(4, (4,), 4, seed=0)
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert len({tuple(weight.flatten().tolist()) for weight in weights}) == 4


def test_weights_have_the_law_of_torch_defaults() -> None:
    ours, theirs = mlp(50, (400,), seed=0)[0], nn.Linear(50, 400)
    bound = 50**-0.5
    for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        assert mine.dtype == other.dtype == torch.float32
        assert float(mine.detach().abs().max()) <= bound
        assert float(mine.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert float(mine.detach().abs().max()) == pytest.approx(float(other.detach().abs().max()), rel=0.02)


def test_shapes_and_layers() -> None:
    x = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    assert logistic(5)(x).shape == (11, 1)
    assert logistic(5, 3)(x).shape == (11, 3)
    assert [type(layer) for layer in mlp(5, (7, 3), 2, activation="elu")] == [
        nn.Linear,
        nn.ELU,
        nn.Linear,
        nn.ELU,
        nn.Linear,
    ]
    latent, back = EncoderDecoder(5, (7, 6), 2)(x)
    assert latent.shape == (11, 2) and back.shape == (11, 5)
    model = EncoderDecoder(5, (7, 6), 2)
    widths = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert widths == [7, 6, 2, 6, 7, 5]
    torch.testing.assert_close(model(x)[1], model.decoder(model.encoder(x)))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_passes_the_check_of_the_clipping_engine(name: str) -> None:
    check(MODELS[name](0))


def jacobian(model: nn.Module, x: torch.Tensor, which: int) -> torch.Tensor:
    """(d, r), float64, of one record run alone."""
    value = model(x.unsqueeze(0))[which][0]
    rows = []
    for entry in value.reshape(-1):
        found = torch.autograd.grad(entry, list(model.parameters()), retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros(p.numel(), dtype=x.dtype) if g is None else g.reshape(-1)
                    for g, p in zip(found, model.parameters(), strict=True)
                ]
            )
        )
    return torch.stack(rows)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_contributions_of_image_models_are_those_of_materialised_jacobians(name: str, which: int) -> None:
    drawn = torch.Generator().manual_seed(which)
    model = IMAGE_MODELS[name](0).double()
    x = torch.rand(3, 64, dtype=torch.float64, generator=drawn)
    check(model)
    tape = record(model, x)
    q = torch.randn(tape.raw[which].shape, dtype=torch.float64, generator=drawn)
    jacobians = [jacobian(model, row, which) for row in x]
    bound = float(torch.stack([torch.linalg.matrix_norm(j, 2) for j in jacobians]).median())
    expected = torch.zeros(count_parameters(model), dtype=torch.float64)
    for j, cotangent in zip(jacobians, q, strict=True):
        u, values, v = torch.linalg.svd(j, full_matrices=False)
        expected += v.T @ (values.clamp(max=bound) * (u.T @ cotangent))
    found = clipped_sum(tape, [Term(tape.raw[which], q, bound)])
    # The engine's margin shortens a clipped Jacobian by a few parts in a million, and never lengthens it.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_a_record_passes_image_models_alone() -> None:
    x = torch.rand(4, 64, generator=torch.Generator().manual_seed(0))
    for build in IMAGE_MODELS.values():
        model = build(0)
        for whole, alone in zip(model(x), model(x[2:3]), strict=True):
            torch.testing.assert_close(whole[2:3], alone)


def test_the_image_autoencoder_is_the_papers_network() -> None:
    model = ImageAutoencoder(28, 6, seed=0)
    assert count_parameters(model) == 226_086
    shapes = [tuple(layer.weight.shape) for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert shapes == [
        *[(8, 1, 3, 3), (16, 8, 3, 3), (16, 16, 3, 3), (128, 784), (64, 128), (6, 64)],
        *[(64, 6), (128, 64), (784, 128), (16, 16, 3, 3), (8, 16, 3, 3), (1, 8, 3, 3)],
    ]
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            largest = float(layer.weight.detach().abs().max())
            bound = (6 / (layer.weight.shape[0] + layer.weight.shape[1])) ** 0.5
            assert 0.9 * bound < largest <= bound
            assert layer.bias is None or not layer.bias.detach().any()


def test_the_image_autoencoder_pools_by_means_and_doubles_by_repetition() -> None:
    x = torch.rand(2, 64, generator=torch.Generator().manual_seed(1))
    model = ImageAutoencoder(8, 3, seed=2)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]

    def leaky(image: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        image = layer(image)
        return torch.maximum(image, 0.2 * image)

    image = leaky(x.reshape(2, 1, 8, 8), layers[0])
    image = leaky(image.reshape(2, 8, 4, 2, 4, 2).mean(dim=(3, 5)), layers[1])
    image = leaky(image.reshape(2, 16, 2, 2, 2, 2).mean(dim=(3, 5)), layers[2])
    codes = layers[5](layers[4](layers[3](image.reshape(2, 64)).clamp(min=0)).clamp(min=0))
    wide = layers[8](layers[7](layers[6](codes).clamp(min=0)).clamp(min=0)).clamp(min=0)
    image = leaky(wide.reshape(2, 16, 2, 2), layers[9])
    image = leaky(image.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3), layers[10])
    logits = layers[11](image.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)).reshape(2, 64)
    torch.testing.assert_close(model(x), (codes, logits))


@pytest.mark.parametrize("side", [4, 8, 16, 28])
def test_image_models_fit_every_side(side: int) -> None:
    x = torch.rand(3, side * side, generator=torch.Generator().manual_seed(0))
    model = ImageAutoencoder(side, 5, seed=0)
    codes, logits = model(x)
    assert codes.shape == (3, 5) and logits.shape == x.shape
    torch.testing.assert_close(model.decode(codes), logits)
    features, scores = Adaptor(side, 7, 10, seed=0)(x)
    assert features.shape == (3, 7) and scores.shape == (3, 10)


def test_an_adaptor_fits_sides_that_are_no_multiple_of_four() -> None:
    for side in (1, 5, 14, 27):
        assert Adaptor(side, 2, 3)(torch.zeros(2, side * side))[1].shape == (2, 3)


def test_the_classifier_of_an_adaptor_sees_the_features_only() -> None:
    model = Adaptor(8, 3, 4, seed=1)
    features, scores = model(torch.rand(5, 64, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(scores, model.classifier(features))
    through = torch.autograd.grad(scores.sum(), features)[0]
    torch.testing.assert_close(through, model.classifier.weight.sum(dim=0).expand(5, 3))


def test_particles_are_gaussian_seeded_and_out_of_reach_of_the_clip() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    model = Particles(20_000, 2, scale=0.5, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    points = model().detach().double()
    assert points.shape == (20_000, 2) and model().requires_grad
    assert float(points.mean(dim=0).abs().max()) < 5 * 0.5 / 20_000**0.5
    torch.testing.assert_close(points.T.cov(), 0.25 * torch.eye(2).double(), atol=0.02, rtol=0)
    assert torch.equal(flatten(model), flatten(Particles(20_000, 2, scale=0.5, seed=1)))
    assert not torch.equal(flatten(model), flatten(Particles(20_000, 2, scale=0.5, seed=2)))
    with pytest.raises(UnsupportedModule, match="'points'"):
        check(model)


@pytest.mark.parametrize("name", MODELS)
def test_loading_what_was_flattened_gives_the_same_model(name: str) -> None:
    source, target = MODELS[name](0), MODELS[name](1)
    vector = flatten(source)
    assert vector.shape == (count_parameters(source),) and not vector.requires_grad
    load_flat(target, vector.double())
    assert torch.equal(flatten(target), vector)
    x = torch.ones(2, 5)
    torch.testing.assert_close(source(x), target(x), rtol=0, atol=0)


def test_the_vector_is_in_the_order_of_parameters_and_a_copy() -> None:
    model = MODELS["mlp"](0)
    vector = flatten(model)
    torch.testing.assert_close(vector, torch.cat([p.detach().reshape(-1) for p in model.parameters()]), rtol=0, atol=0)
    vector.zero_()
    assert float(flatten(model).abs().max()) > 0


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    model = mlp(5, (7,), 1, seed=0)
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    assert count_parameters(model) == 7 + 7 + 1
    load_flat(model, torch.zeros(15))
    assert torch.equal(model[0].weight, frozen)
    assert float(model[2].weight.detach().abs().max()) == 0


@pytest.mark.parametrize("shape", [(7,), (5,), (6, 1), (0,)])
def test_a_vector_of_another_shape_is_refused_and_changes_nothing(shape: tuple[int, ...]) -> None:
    model = logistic(5, seed=0)
    before = flatten(model)
    with pytest.raises(ValueError, match=r"does not fit Sequential with 6 trainable numbers \(0.weight \(1, 5\)"):
        load_flat(model, torch.zeros(shape))
    assert torch.equal(flatten(model), before)


def test_a_module_without_trainable_parameters_has_no_vector() -> None:
    with pytest.raises(ValueError, match="ReLU has no trainable parameter"):
        flatten(nn.ReLU())


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: logistic(0), "features = 0; it must be at least 1"),
        (lambda: logistic(3, 0), "outputs = 0"),
        (lambda: mlp(3, (4, 0)), r"hidden\[1\] = 0"),
        (lambda: mlp(3, (4,), activation="relus"), "activation 'relus' is unknown: did you mean 'relu'?"),
        (lambda: EncoderDecoder(3, (4,), -1), "outputs = -1"),
        (lambda: ImageAutoencoder(14), "side = 14; the image autoencoder halves it twice: use a multiple of 4"),
        (lambda: ImageAutoencoder(0), "side = 0"),
        (lambda: ImageAutoencoder(8, 0), "latent = 0; it must be at least 1"),
        (lambda: Adaptor(8, 0, 3), "features = 0"),
        (lambda: Adaptor(0, 2, 3), "side = 0"),
        (lambda: Particles(0, 2), "count = 0"),
        (lambda: Particles(3, 2, scale=-1.0), "scale = -1.0; it must be finite and above 0"),
    ],
)
def test_models_that_cannot_be_built_say_why(build: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build()
