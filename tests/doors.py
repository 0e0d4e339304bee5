"""Releases through the one door that nobody accounts for, for tests of what leaves."""

from __future__ import annotations

import math

from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.mathematics.transport.flow import Slices
from fedsw.privacy.accountants import ACCOUNTANTS, GAUSSIAN
from fedsw.privacy.accounting import Charge
from fedsw.privacy.local_release import RecordRelease
from fedsw.privacy.mechanisms import MECHANISMS
from fedsw.privacy.relations import REPLACE_ONE
from fedsw.privacy.release import Bounded, Part, pay, release_paid
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.privacy.slices import BoundedSlices, DirectionStream, fresh_slices, slices_on


class Unaccounted:
    """A ledger that takes every charge for one noise and one relation, and keeps none."""

    nominal = True

    def __init__(self, mechanism=GAUSSIAN, relation=REPLACE_ONE, accountant=None):
        self.mechanism, self.relation = mechanism, relation
        self.accountant = accountant or next(name for name, of in ACCOUNTANTS.items() if mechanism in of.takes)

    def spend(self, round, attempt, charges, sigma):
        return math.inf


def through(bounded: Bounded, part: Part, stream: Stream):
    charge = Charge("records", 1.0, part.sensitivity)
    paid = pay(Unaccounted(part.mechanism, part.relation), 1, 0, [charge], part.scale, [part])
    return release_paid(bounded, paid, part.name, stream)


def privatised(mechanism: str, rows: Tensor, scale: float, stream: Stream) -> Tensor:
    moved = Sensitivity(1.0, "any", norm=MECHANISMS.get(mechanism).norm)
    return through(Bounded(rows, moved), Part("rows", 1.0, scale, mechanism), stream).value


def privatise(features: Tensor, release: RecordRelease, stream: Stream) -> Tensor:
    return through(release.bounded(features), release.part, stream).value


def release_slices(
    features: Tensor, *, radius, k, scheme, sigma, directions_stream: DirectionStream, noise_stream: Stream
) -> Slices:
    bounded = fresh_slices(features, radius=radius, k=k, scheme=scheme, directions_stream=directions_stream)
    return _noised(bounded, sigma, noise_stream)


def release_on(features: Tensor, directions: Tensor, *, radius, sigma, noise_stream: Stream) -> Slices:
    return _noised(slices_on(features, directions, radius=radius), sigma, noise_stream)


def _noised(slices: BoundedSlices, sigma: float, stream: Stream) -> Slices:
    part = Part("slices", slices.bounded.sensitivity.value, sigma)
    return slices.released(through(slices.bounded, part, stream))
