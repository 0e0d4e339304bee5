"""Judging generated samples on held-out ones, and the prior that an autoencoder generates from."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.learning.models import mlp
from fedsw.learning.tasks import metrics
from fedsw.mathematics.transport.sliced import direction_shape, sliced_w2
from fedsw.mathematics.transport.sliced import directions as unit_directions

_BATCH = 200
_LEARNING_RATE = 1e-3
_CHUNK = 8192


def uniform_ball(n: int, d: int, radius: float, stream: Stream) -> Tensor:
    """n points (n, d), float64, that are uniform in the ball of that radius about the origin of R^d.

    A standard normal vector divided by its length is uniform on the sphere; times radius * U^(1/d), with U uniform on
    (0, 1) and independent, it is uniform in the ball. ValueError if d is below 1, n below 0, or the radius is not a
    positive number.
    """
    if d < 1 or n < 0:
        raise ValueError(f"n = {n}, d = {d}; a ball needs d of at least 1, and a sample n of at least 0")
    if not 0 < radius < math.inf:
        raise ValueError(f"radius = {radius}; it must be finite and above 0")
    normals = torch.from_numpy(stream.normals(n * d)).reshape(n, d)
    length = radius * torch.from_numpy(stream.uniforms(n)).pow(1 / d)
    points: Tensor = normals * (length / torch.linalg.vector_norm(normals, dim=1)).unsqueeze(1)
    return points


def sliced_w2_to(generated: Tensor, fresh: Tensor, *, directions: int = 200) -> float:
    """SW2, not squared, between generated samples (m, d) and fresh ones of the data's law (n, d).

    At least `directions` orthogonal directions are used, in whole blocks of d; where `directions` is below d, as many
    of one block. They are the same at every call, public, and apart from those of any training. Points are projected in
    float32. It is nan if a generated number is not finite.

    Guarantee: none is needed if `fresh` is public or held out; it is a plain statistic of it.
    """
    if directions < 1:
        raise ValueError(f"directions = {directions}; it must be at least 1")
    d = generated.shape[1]
    k = directions if directions < d else d * math.ceil(directions / d)
    if not bool(generated.isfinite().all()):
        return math.nan
    theta = _public_directions(d, k).to(generated.device)
    return math.sqrt(float(sliced_w2(generated, fresh, theta, dtype=torch.float32)))


@functools.lru_cache(maxsize=4)
def _public_directions(d: int, k: int) -> Tensor:
    """The same for every evaluation of a run: k columns (d, k)."""
    shape = direction_shape(d, k)
    normals = Stream.seeded(0, "generation", "directions").normals(math.prod(shape))
    return unit_directions(d, k, normals=torch.from_numpy(normals).reshape(shape))


def image_classifier(
    images: Tensor, labels: Tensor, *, classes: int, width: int = 100, epochs: int = 20, seed: int = 0
) -> nn.Module:
    """A perceptron trained on images (n, p) with labels (n,) int64: logits (n, classes) of images (n, p).

    One hidden layer of `width` ReLU units, cross-entropy, Adam at 1e-3 and batches of 200, which are the settings of
    scikit-learn's `MLPClassifier` that RLL used. The seed alone decides initialisation and order of the batches;
    torch's global generator is neither read nor moved.

    Source: RLL, Section 6.
    """
    order = torch.Generator().manual_seed(seed)
    model = mlp(images.shape[1], (width,), classes, seed=order).to(images.device)
    features = images.detach().to(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(features), generator=order), _BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(features[batch]), labels[batch]))
            optimizer.step()
    return model.eval()


def accuracy_of(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images (n, p) with the largest logit at their label (n,) int64; nan if one is not finite."""
    with torch.no_grad():
        parts = [metrics.most_probable(model(x)) for x in torch.split(images.to(torch.float32), _CHUNK)]
        return metrics.accuracy(torch.cat(parts), labels)


def classifier_accuracy(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    width: int = 100,
    epochs: int = 20,
    seed: int = 0,
) -> float:
    """Accuracy on real test images of the perceptron of `image_classifier`, trained on generated ones.

    Images are (n, p) and (m, p), labels (n,) and (m,) int64; ValueError if a set is empty, or they do not fit.
    Source: RLL, Section 6 (train on generated, test on real).
    """
    for name, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 2 or not len(x) or x.shape[1] != train_x.shape[1] or y.shape != (len(x),):
            raise ValueError(
                f"{name}: images {tuple(x.shape)} and labels {tuple(y.shape)}; (n, {train_x.shape[-1]}) and (n,) are "
                "expected, n > 0"
            )
    classes = int(max(train_y.max(), test_y.max())) + 1
    model = image_classifier(train_x, train_y, classes=classes, width=width, epochs=epochs, seed=seed)
    return accuracy_of(model, test_x, test_y)
