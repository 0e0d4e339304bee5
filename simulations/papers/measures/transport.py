"""How far generated points are from clean records: exact Wasserstein distances, as RCO's Figures 7 and 8 have them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw.data import Records
from fedsw.mathematics.transport.entropic import entropic_loss, plain_loss
from simulations.papers.finished import Finished
from simulations.papers.measures.released import generated, seen_through
from simulations.papers.store import Measured

_POINTS = 2000
_SMALL = 200
_BATCHES = 10


def distances(run: Finished) -> Measured:
    """W_2 between generated points and clean records, exactly, on 2000 of each.

    `w2_test` is for held-out records. `w2_train` is for the private records that were released, without noise: it is
    outside the run's guarantee, and a comparison for one who owns them. `w2_between` is the distance between held-out
    and private records: what 2000 real ones have. It is no least value: blurred points can be nearer to all of them.
    """
    points = generated(run, _POINTS)
    held_out, private = _some(run.dataset.test), _some(run.dataset.train)
    return Measured(
        {
            "w2_test": w2(points, held_out),
            "w2_train": w2(points, private),
            "w2_between": w2(held_out, private),
        }
    )


def fits(run: Finished) -> Measured:
    """W_{p, p s^p} between generated points and privatised held-out records as `fit_test`, private ones as `fit_train`.

    Means over ten minibatches of 200, as RCO has it; s is the scale of the run's noise, which is seeded here.
    `fit_train` is outside the guarantee.
    """
    found = {}
    for name, records in (("fit_test", run.dataset.test), ("fit_train", run.dataset.train)):
        released, release = seen_through(run, _some(records))
        points = release.encode(generated(run, len(released)) - run.experiment.clip.centre)
        batches = list(zip(torch.split(points, _SMALL), torch.split(released, _SMALL), strict=True))[:_BATCHES]
        losses = [entropic_loss(x, y, order=release.order, scale=release.scale).loss for x, y in batches]
        found[name] = float(sum(losses)) / len(losses)
    return Measured(found)


def w2(x: Tensor, y: Tensor) -> float:
    """W_2, not squared, between two sets of points (n, p) and (m, p), by the network simplex."""
    return math.sqrt(max(0.0, float(plain_loss(x, y, order=2).loss)))


def _some(records: Records) -> Tensor:
    """The features (n, p) of 2000 records, or of all where there are fewer, the same at every call."""
    chosen = smallest_keys(Stream.seeded(0, "distances").words(len(records)), min(_POINTS, len(records)))
    return records.features[torch.from_numpy(chosen)].to(torch.float64)
