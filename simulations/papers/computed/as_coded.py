"""RR's domain adaptation as their code has it: a rooted distance on both sides' noised slices, after a warm-up."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.data.image_sets import digits, mnist, resized, usps
from fedsw.data.records import Records
from simulations.papers.computed.parallel import device, side_by_side
from simulations.papers.store import Measured

_SIDE = 28


class Dropping(nn.Module):
    """Features (n, 320) of images (n, 784) and logits (n, 10), with the authors' two dropouts; weights are PyTorch's.

    Source: github.com/arakotom/dp_swd, commit 97164ee, da_models.py, where the initial weights are missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Unflatten(1, (1, _SIDE, _SIDE)), nn.Conv2d(1, 32, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(32, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.Sigmoid(), nn.Flatten(1)),
        )
        self.classifier = nn.Sequential(nn.Linear(320, 100), nn.ReLU(), nn.Dropout(), nn.Linear(100, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, 10)."""
        logits: Tensor = self.classifier(self.encoder(images))
        return logits


def adaptations(*, pairs: Sequence[Mapping[str, Any]], cases: Sequence[str], seeds: int = 1) -> Measured:
    """Accuracy on the target's training images, whose labels are not read: `<pair>_<case>`, means over `seeds`.

    A pair has `name`, `source`, `target` ("mnist", "mnist-test", "usps", "digits"), `epochs`, `warm_up` without the
    distance, `batch`, `directions`, `rate` of Adam (.5, .999), `weight` of the distance and `sigma` of the slices'
    noise, for features whose norms are at most 1/2. Cases: "source" (no distance), "plain" (without noise), "noised"
    (rooted SW2, as coded) and "first" (W1, as printed).

    Guarantee: none. The gradient goes through private features, whose largest norm scales the distance; the noise is
    that of the authors' code, seeded.

    Source: RR, Section 6.2; the authors' code (da_settings.py, ClassSWD.py).
    """
    trainings = [(pair, case, seed) for pair in pairs for case in cases for seed in range(seeds)]
    values: dict[str, Any] = {}
    for (pair, case, _), accuracy in zip(trainings, side_by_side(_adapted, trainings), strict=True):
        values.setdefault(f"{pair['name']}_{case}_by_seed", []).append(accuracy)
    means = {name.removesuffix("_by_seed"): statistics.fmean(each) for name, each in values.items()}
    return Measured(values | means)


def _adapted(training: tuple[Mapping[str, Any], str, int]) -> float:
    pair, case, seed = training
    target = _records(pair["target"])
    return _accuracy(trained(_records(pair["source"]), target, pair, case, seed), target)


def trained(source: Records, target: Records, pair: Mapping[str, Any], case: str, seed: int) -> Dropping:
    """The network after all epochs of the source's images."""
    torch.manual_seed(seed)
    network, batch, on = Dropping().to(device()), pair["batch"], device()
    source, target = (
        dataclasses.replace(each, features=each.features.to(on), target=each.target.to(on)) for each in (source, target)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=pair["rate"], betas=(0.5, 0.999))
    for epoch in range(pair["epochs"]):
        order = torch.randperm(len(source))
        for rows in torch.split(order, batch):
            features = network.encoder(source.features[rows])
            loss = F.cross_entropy(network.classifier(features), source.target[rows])
            if case != "source" and epoch > pair["warm_up"]:
                others = network.encoder(target.features[torch.randint(len(target), (len(rows),))])
                loss = loss + pair["weight"] * distance(features, others, pair["directions"], pair["sigma"], case)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return network.cpu()


def distance(public: Tensor, private: Tensor, directions: int, sigma: float, case: str) -> Tensor:
    """The distance of the slices, both sides noised: "plain" has no noise, "first" is of order 1, others rooted SW2.

    Noised features are divided by twice the largest norm of the private ones, and the distance is multiplied by it.
    """
    theta = F.normalize(torch.randn(public.shape[1], directions, device=public.device), dim=0)
    largest = 2 * private.detach().norm(dim=1).max()
    sides = [features @ theta / largest for features in (public, private)]
    if case != "plain":
        sides = [side + sigma * torch.randn_like(side) for side in sides]
    gap = sides[0].sort(dim=0).values - sides[1].sort(dim=0).values
    found: Tensor = largest * (gap.abs().mean() if case == "first" else gap.square().mean().sqrt())
    return found


def _records(name: str) -> Records:
    """The images of a domain, in [-1, 1]."""
    sources = {"usps": lambda: usps(side=_SIDE), "digits": lambda: resized(digits(), _SIDE)}
    data = sources.get(name, mnist)()
    records = data.test if name == "mnist-test" else data.train
    return dataclasses.replace(records, features=2 * records.features - 1)


def _accuracy(network: Dropping, records: Records) -> float:
    network.eval()
    with torch.no_grad():
        right = [
            (network(images).argmax(dim=1) == labels).float().sum()
            for images, labels in zip(
                torch.split(records.features, 2_000), torch.split(records.target, 2_000), strict=True
            )
        ]
    return float(sum(right) / len(records))
