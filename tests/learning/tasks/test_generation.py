"""Judging generated samples: closed forms and reference libraries; the law of points in a ball."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedsw._tools.randomness import Stream
from fedsw.learning.tasks.generated_samples import classifier_accuracy, sliced_w2_to, uniform_ball
from simulations.papers.measures.classifiers import knn_labels


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("d", [1, 2, 6])
def test_points_are_uniform_in_the_ball(d: int) -> None:
    n, radius = 20_000, 1.5
    points = uniform_ball(n, d, radius, Stream.seeded(1, "ball"))
    assert points.shape == (n, d) and points.dtype == torch.float64
    length = points.norm(dim=1)
    assert float(length.max()) <= radius * (1 + 1e-12)
    # The part of the volume within a length is uniform, and so is the direction.
    assert stats.kstest(((length / radius) ** d).numpy(), "uniform").pvalue > 1e-3
    variance = radius**2 / (d + 2)
    covariance = points.T @ points / n
    torch.testing.assert_close(covariance, variance * torch.eye(d).double(), atol=6 * variance / math.sqrt(n), rtol=0)
    # One coordinate, shifted and scaled to [0, 1], is Beta((d + 1) / 2, (d + 1) / 2).
    marginal = stats.beta((d + 1) / 2, (d + 1) / 2)
    assert stats.kstest(((points[:, 0] / radius + 1) / 2).numpy(), marginal.cdf).pvalue > 1e-3


def test_points_in_a_ball_come_from_the_stream_alone() -> None:
    one, again = (uniform_ball(5, 3, 1.0, Stream.seeded(1)) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, uniform_ball(5, 3, 1.0, Stream.seeded(2)))
    assert uniform_ball(0, 3, 1.0, Stream.seeded(1)).shape == (0, 3)


@pytest.mark.parametrize("d", [2, 3, 7])
def test_a_shifted_sample_is_at_the_length_of_the_shift_over_root_d(d: int) -> None:
    x, shift = normals(50, d), normals(d, seed=1)
    # Whole orthogonal blocks: the mean of <theta, v>^2 is exactly ||v||^2 / d.
    assert sliced_w2_to(x, x + shift, directions=10) == pytest.approx(float(shift.norm()) / math.sqrt(d), rel=1e-6)
    assert sliced_w2_to(x, x) == pytest.approx(0, abs=1e-6)


def test_the_distance_agrees_with_pot_over_many_directions() -> None:
    import ot

    x, y = normals(200, 3), 0.5 * normals(150, 3, seed=1) + 1
    theirs = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), n_projections=2_000, seed=0)
    assert sliced_w2_to(x, y, directions=1_500) == pytest.approx(theirs, rel=0.03)
    assert sliced_w2_to(x, y) == sliced_w2_to(x, y)


def test_labels_are_the_majority_of_the_nearest_codes() -> None:
    reference, codes = normals(60, 3), normals(25, 3, seed=1)
    labels = torch.arange(60) % 4
    found = knn_labels(codes, reference, labels, neighbours=7)
    for code, label in zip(codes, found, strict=True):
        nearest = (reference - code).norm(dim=1).argsort()[:7]
        assert int(label) == int(np.bincount(labels[nearest].numpy(), minlength=4).argmax())
    assert torch.equal(knn_labels(reference, reference, labels, neighbours=1), labels)


def blobs(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.arange(n) % 3
    return (torch.eye(3)[target] * 3 + normals(n, 3, seed=seed)).float(), target


def test_the_classifier_learns_what_can_be_learned_and_only_from_the_training_set() -> None:
    train_x, train_y = blobs(6_000, 0)
    test_x, test_y = blobs(900, 1)
    found = classifier_accuracy(train_x, train_y, test_x, test_y, width=100, epochs=10)
    bayes = float(((test_x - 3 * torch.eye(3)[:, None]).norm(dim=2).argmin(dim=0) == test_y).double().mean())
    assert bayes - 0.03 < found <= bayes + 0.03 and bayes < 0.99
    # Trained on cyclically wrong labels, it is wrong on almost every image.
    assert classifier_accuracy(train_x, (train_y + 1) % 3, test_x, test_y, width=100, epochs=10) < 0.1


def test_the_classifier_depends_on_its_seed_alone() -> None:
    train_x, train_y = blobs(300, 0)
    test_x, test_y = blobs(2_000, 1)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    accuracies = [
        classifier_accuracy(train_x, train_y, test_x, test_y, width=4, epochs=2, seed=seed) for seed in (0, 0, 1, 2)
    ]
    assert torch.equal(state, torch.get_rng_state())
    assert accuracies[0] == accuracies[1]
    assert len(set(accuracies)) > 1


X, Y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: uniform_ball(3, 0, 1.0, Stream.seeded(0)), "d = 0"),
        (lambda: uniform_ball(3, 2, 0.0, Stream.seeded(0)), "radius = 0.0; it must be finite and above 0"),
        (lambda: sliced_w2_to(X, X, directions=0), "directions = 0"),
        (lambda: knn_labels(X, X, Y, neighbours=5), "neighbours = 5; with 4 reference codes it is 1 .. 4"),
        (lambda: knn_labels(X, X, Y[:3], neighbours=1), r"labels of shape \(3,\) for 4 reference codes"),
        (lambda: classifier_accuracy(X, Y, X[:, :2], Y), r"test: images \(4, 2\).*\(n, 3\) and \(n,\)"),
        (lambda: classifier_accuracy(X, Y[:2], X, Y), "train: images"),
        (lambda: classifier_accuracy(X, Y, X[:0], Y[:0]), "test: images"),
    ],
)
def test_what_cannot_be_judged_is_refused_by_name(call: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()
