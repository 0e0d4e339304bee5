"""What a classifier learns from an autoencoder's images, tested on real held-out ones."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from fedsw.learning.tasks.generated_samples import accuracy_of, image_classifier
from simulations.papers.finished import Finished
from simulations.papers.measures.autoencoders import decoded, encoded, inside, prior
from simulations.papers.store import Measured

GENERATED = 60_000
SEEDS = 2
_EPOCHS = 10


def accuracies(run: Finished) -> Measured:
    """Accuracies of perceptrons of width 100 on held-out images; the first two are means of two trainings.

    `accuracy_generated`: trained on 60 000 images decoded from the prior, or as many as there are private ones.
    `accuracy_reconstructed`: the same classifiers on what the autoencoder makes of the held-out images (the paper's
    brackets: "the composition of our autoencoder and the trained classifier"). `accuracy_of_reconstructions`: trained
    on reconstructed private images with their true labels, tested on real ones.

    Guarantee: none. Labels of generated images are those of the nearest private codes, and the last number takes
    private labels as they are: they judge a generator, and are no part of what the run releases.

    Source: RLL, Table 1.
    """
    began = time.perf_counter()
    train, test = run.dataset.train, run.dataset.test
    codes = encoded(run, train.features)
    points = prior(run, min(GENERATED, len(train)), "classifiers")
    labels = knn_labels(points, inside(run, codes), train.target)
    remade = decoded(run, encoded(run, test.features))
    images, classes = decoded(run, points), run.problem.classes
    generated, reconstructed = [], []
    for seed in range(SEEDS):
        model = image_classifier(images, labels, classes=classes, epochs=_EPOCHS, seed=seed)
        generated.append(accuracy_of(model, test.features, test.target))
        reconstructed.append(accuracy_of(model, remade, test.target))
    model = image_classifier(decoded(run, codes), train.target, classes=classes, epochs=_EPOCHS)
    return Measured(
        {
            "accuracy_generated": statistics.fmean(generated),
            "accuracy_reconstructed": statistics.fmean(reconstructed),
            "accuracy_of_reconstructions": accuracy_of(model, test.features, test.target),
            "generated_by_seed": generated,
            "reconstructed_by_seed": reconstructed,
            "labels_of_generated": torch.bincount(labels, minlength=classes).tolist(),
            "classifier_seconds": time.perf_counter() - began,
        }
    )


def knn_labels(codes: Tensor, reference: Tensor, labels: Tensor, *, neighbours: int = 5) -> Tensor:
    """Labels (m,) int64 of generated codes (m, d): the majority among their nearest reference codes (n, d).

    A tie goes to the smallest label. Labels found with private records are outside the guarantee and serve to judge a
    generator. ValueError if there are fewer reference codes than neighbours, or not one label for each.
    """
    if not 1 <= neighbours <= len(reference):
        raise ValueError(
            f"neighbours = {neighbours}; with {len(reference)} reference codes it is 1 .. {len(reference)}"
        )
    if labels.shape != (len(reference),):
        raise ValueError(f"labels of shape {tuple(labels.shape)} for {len(reference)} reference codes; each has one")
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(n_neighbors=neighbours)
    model.fit(reference.detach().double().cpu().numpy(), labels.cpu().numpy())
    return torch.from_numpy(model.predict(codes.detach().double().cpu().numpy())).to(torch.int64)
