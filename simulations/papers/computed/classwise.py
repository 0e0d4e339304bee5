"""RR's generator of labelled images: DP-MERF's network, and a distance for each class on slices that are noised afresh.

Neighbours replace a record, its class included. Ten noised counts leave once; then every round draws the same number
of records of each class. A record that moves from one class to another changes one row of a batch in both, so that a
round is charged as two releases, each sampled at the rate of the smallest class, which the noised counts bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.data.image_sets import digits, fashion_mnist, mnist, resized
from fedsw.learning.tasks.generated_samples import classifier_accuracy
from fedsw.mathematics.transport.sliced import project
from fedsw.privacy.accounting import Slicing, Step, noise_multiplier
from simulations.papers.computed.parallel import device, side_by_side
from simulations.papers.measures.labelled import as_bytes, logistic_accuracy
from simulations.papers.store import Measured

SOURCES = {"mnist": mnist, "fashion-mnist": fashion_mnist, "digits": lambda: resized(digits(), 28)}
_ACCOUNTANTS = {"published": "bernstein-published", "exact": "pld"}
_COUNTS_SIGMA = 50.0
_MARGIN = 6 * _COUNTS_SIGMA  # a normal variable is below minus six deviations with probability 1e-9
_FOR_LOGISTIC, _SHOWN = 20_000, 8


class ClassConditional(nn.Module):
    """Images (m, 784) of noise (m, code) and one-hot classes (m, 10), with 166 161 parameters at these sizes.

    Linear layers of 200 and 784 units with BatchNorm, then two 5x5 convolutions of 8 and 1 filters, the image doubled
    bilinearly before each. BatchNorm sees generated samples alone.

    Source: DP-MERF's code (github.com/ParkLabML/DP-MERF, models_gen.py) at its defaults, which RR take over; they write
        "approximately 180K" parameters.
    """

    def __init__(self, code: int = 5, classes: int = 10, hidden: int = 200) -> None:
        super().__init__()
        self.code, self.classes = code, classes
        self.layers = nn.Sequential(
            *(nn.Linear(code + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, 16 * 49), nn.BatchNorm1d(16 * 49), nn.Unflatten(1, (16, 7, 7))),
            *(nn.UpsamplingBilinear2d(scale_factor=2), nn.Conv2d(16, 8, 5, padding=2), nn.ReLU()),
            *(nn.UpsamplingBilinear2d(scale_factor=2), nn.Conv2d(8, 1, 5, padding=2), nn.Flatten(1), nn.Sigmoid()),
        )

    def forward(self, labels: Tensor) -> Tensor:
        """Images (m, 784) of classes (m,) int64."""
        codes = F.one_hot(labels, self.classes).float()
        noise = torch.randn(len(labels), self.code, device=labels.device)
        images: Tensor = self.layers(torch.cat([noise, codes], dim=1))
        return images


def generators(
    *,
    source: str,
    cases: Sequence[Mapping[str, Any]],
    epsilon: float,
    delta: float,
    radius: float,
    centre: float,
    count: int = 60_000,
    seed: int = 0,
) -> Measured:
    """What classifiers learn from `count` images of generators that were trained at `epsilon`, case by case.

    A case has `name`, `accountant` ("published": Bernstein's bound, its failure counted once, no guarantee; "exact";
    "none": no noise, or that of `sigma`, without a guarantee), `rounds`, `batch` records of each class, `directions`,
    `order` of the distance, `rate` of Adam and `decay`, its factor from beginning to end. Values: `_perceptron`,
    `_logistic`, `_multiplier` (sigma over the diameter). Arrays: `<case>_images` (classes, 8, 784), bytes.

    Guarantee: nominal, since sampling and noise are seeded; otherwise (epsilon, delta) for "exact", see above.
    """
    settings = (source, epsilon, delta, radius, centre, count, seed)
    made = side_by_side(functools.partial(_generator, *settings), cases)
    return Measured(
        {name: value for each in made for name, value in each.values.items()},
        {name: images for each in made for name, images in each.arrays.items()},
    )


def _generator(
    source: str,
    epsilon: float,
    delta: float,
    radius: float,
    centre: float,
    count: int,
    seed: int,
    case: Mapping[str, Any],
) -> Measured:
    """One case of `generators`."""
    data = SOURCES[source]()
    counts = torch.bincount(data.train.target)
    noise = torch.from_numpy(Stream.seeded(seed, "class counts").normals(len(counts)))
    least = math.floor(float((counts + _COUNTS_SIGMA * noise).min()) - _MARGIN)
    rows = project(data.train.features.double() - centre, radius).float()
    by_class = [rows[data.train.target == each] for each in range(len(counts))]
    torch.manual_seed(seed)
    multiplier = _multiplier(case, least, rows.shape[1], epsilon, delta, 2 * radius)
    network = trained(by_class, case, sigma=2 * radius * multiplier, centre=centre)
    made, labels = _samples(network, count)
    test, name, few = data.test, case["name"], slice(_FOR_LOGISTIC)
    values = {
        f"{name}_perceptron": classifier_accuracy(made, labels, test.features, test.target, epochs=10),
        f"{name}_logistic": logistic_accuracy(made[few], labels[few], test.features, test.target),
        f"{name}_multiplier": multiplier,
    }
    images = np.stack([as_bytes(made[labels == each][:_SHOWN]) for each in range(network.classes)])
    return Measured(values, {f"{name}_images": images})


def _multiplier(
    case: Mapping[str, Any], least: int, dimension: int, epsilon: float, delta: float, diameter: float
) -> float:
    """Sigma over the diameter that `epsilon` needs, or the case's own; the counts are charged beside the rounds."""
    if case["accountant"] == "none":
        return float(case.get("sigma", 0.0) / diameter)
    return noise_multiplier(
        epsilon,
        delta,
        sampling_rate=case["batch"] / least,
        steps=2 * case["rounds"],
        slicing=Slicing(dimension, case["directions"]),
        accountant=_ACCOUNTANTS[case["accountant"]],
        beside={Step(1.0, math.sqrt(2) / _COUNTS_SIGMA): 1},
    )


def trained(by_class: Sequence[Tensor], case: Mapping[str, Any], *, sigma: float, centre: float) -> ClassConditional:
    """The generator after all rounds on centred rows of each class (n_c, d), both sides noised by `sigma`.

    Directions are independent from class to class where accounting is exact: the law of two moves is then that of two
    releases. Bernstein's bound holds for each move, so that classes may share them.
    """
    on, classes, batch = device(), len(by_class), case["batch"]
    network = ClassConditional(classes=classes).to(on)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # half the time of a core
    by_class = [own.to(on) for own in by_class]
    optimiser = torch.optim.Adam(network.parameters(), lr=case["rate"])
    falling = torch.optim.lr_scheduler.ExponentialLR(optimiser, case["decay"] ** (1 / case["rounds"]))
    labels = torch.arange(classes, device=on).repeat_interleave(batch)
    for _ in range(case["rounds"]):
        private = torch.stack([own[torch.randperm(len(own), device=on)[:batch]] for own in by_class])
        shape = (private.shape[2], case["directions"])
        own_each = (classes, *shape) if case["accountant"] == "exact" else shape
        theta = F.normalize(torch.randn(own_each, device=on), dim=-2)
        made = (network(labels) - centre).reshape(classes, batch, -1) @ theta
        target = private @ theta
        if sigma > 0:
            made, target = made + sigma * torch.randn_like(made), target + sigma * torch.randn_like(target)
        gap = made.sort(dim=1).values - target.sort(dim=1).values
        optimiser.zero_grad()
        torch.autograd.backward(gap.abs().pow(case["order"]).mean())
        optimiser.step()
        falling.step()
    return network


def _samples(network: ClassConditional, count: int) -> tuple[Tensor, Tensor]:
    """Images (count, 784) and their classes, equally many of each."""
    network = network.cpu().eval()
    labels = torch.arange(network.classes).repeat(count // network.classes)
    with torch.no_grad():
        return torch.cat([network(part) for part in torch.split(labels, 2_000)]), labels
