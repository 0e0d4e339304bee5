"""What one setting takes of memory and time, and what the settings of a sketch take before and while it is made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedsw.experiment import SketchPart
from fedsw.sketches.law import chunk_of
from fedsw.sketches.maps import circle_of
from fedsw.tasks.sketched import feature_map
from fedsw.transport.denoise import image_side

FLOPS = 5e10
"""Operations that a core does in a second, at most."""
NORMAL_SECONDS = 2e-8
"""A number of a frequency or direction, at least: drawn, made orthogonal, and put in place."""
_PLACED_SECONDS = 1e-8
"""A number of a wave, at least: multiplied, put in place, and in the records' precision."""
_BANDWIDTH_SECONDS = 5e-5
"""A bandwidth, at least: its own block of frequencies."""
_WAVELET_SECONDS, _EXPONENTIAL_SECONDS = 2e-4, 4e-9
_EXPONENTIALS = 98
"""Of one frequency of a wavelet: seven turns in either direction, of two Gaussians."""
_WAVELETS_HELD = 40.0
"""Bytes for one frequency of one wavelet while the bank is scaled: the bank, mirrored, two squares and their sum."""
_DECOMPOSED_FLOPS = 2e10
_MAPPED = 24.0
"""Bytes for one number inside a map: as it is, transformed, and without its sign; complex where the map is."""


@dataclass(frozen=True)
class Part:
    """What one setting takes.

    Attributes:
        setting: its name.
        value: as it is written.
        bytes: of memory, at once.
        seconds: of all rounds.
    """

    setting: str
    value: object
    bytes: float = 0.0
    seconds: float = 0.0


def of_waves(part: SketchPart, features: int, cells: int, rows: int) -> Iterator[Part]:
    """What a part of a sketch takes that measures waves: its frequencies, its map, and the sum over records.

    Args:
        features: numbers of a record.
        cells: blocks of the sketch.
        rows: records that are summed.

    Raises:
        ValueError: if the map does not fit the features.
    """
    width = float(feature_map(part).width(features))
    gaussian = part.kind == "gaussian"
    name = "pairs" if gaussian else "directions"
    waves = float(part.pairs if gaussian else part.directions * part.harmonics)
    held = min(rows, chunk_of(int(2 * waves)))
    normals = getattr(part, name) * width
    drawn = normals * NORMAL_SECONDS + waves * width * _PLACED_SECONDS
    drawn += len(part.bandwidths) * _BANDWIDTH_SECONDS if gaussian else 0.0
    decomposed = 4 * normals * min(width, getattr(part, name)) / FLOPS if part.scheme == "orthogonal" else 0.0
    setting, value = (name, getattr(part, name))
    if not gaussian and part.harmonics > part.directions:
        setting, value = "harmonics", part.harmonics
    yield Part(
        f"sketch.{setting}",
        value,
        24.0 * waves * width + 32.0 * (cells + held) * waves,
        drawn + decomposed + 2 * rows * waves * width / FLOPS,
    )
    yield from _of_map(part, features, rows, held)


def of_codes(part: SketchPart, features: int, cells: int, rows: int) -> Iterator[Part]:
    """What a part of a sketch takes that measures features of a map, or their moments; arguments as of `of_waves`.

    Raises:
        ValueError: if the map does not fit the features.
    """
    width = float(feature_map(part).width(features))
    if part.kind == "moments":
        directions = 16.0 * part.projected * width
        mapped = float(part.projected or width) + 1
        coordinates = mapped * (mapped + 1) / 2
    else:
        directions, coordinates = 0.0, 2 * width
    held = min(rows, chunk_of(int(coordinates)))
    setting, value = ("projected", part.projected) if part.kind == "moments" else ("kind", part.kind)
    numbers = 32.0 * (cells + held) * coordinates
    yield Part(f"sketch.{setting}", value, directions + numbers, 2 * rows * (coordinates + directions) / FLOPS)
    yield from _of_map(part, features, rows, held)


def _of_map(part: SketchPart, features: int, rows: int, held: int) -> Iterator[Part]:
    """What the map of a part takes, of `rows` records, `held` at a time."""
    if part.map == "convolutions":
        width = float(feature_map(part).width(features))
        moves = (2 * part.shifts + 1) ** 2
        places = float(part.filters) * math.ceil(image_side(features) / part.stride) ** 2
        bank = float(part.filters) * part.kernel**2
        spent = bank * NORMAL_SECONDS + 2 * moves * rows * places * part.kernel**2 / FLOPS
        yield Part("sketch.filters", part.filters, 16.0 * bank + 8.0 * width + _MAPPED * held * places, spent)
    if part.map == "scattering":
        yield _of_scattering(part, features, rows, held)


def _of_scattering(part: SketchPart, features: int, rows: int, held: int) -> Part:
    """The bank of wavelets, the norms of the frequencies that sampling folds, and records that go through it.

    Of a scale, all coefficients of the records of a chunk are there at once; of order 2, those of all pairs.
    """
    frequencies = float(circle_of(image_side(features), part.scales)) ** 2
    wavelets = float(part.scales * part.orientations)
    sets = 4.0**part.scales
    folded = frequencies * sets
    at_once = float(part.orientations) ** part.order * frequencies
    once = wavelets * (_WAVELET_SECONDS + _EXPONENTIALS * frequencies * _EXPONENTIAL_SECONDS)
    passes = wavelets * (wavelets if part.order == 2 else 1.0) * frequencies * rows
    return Part(
        "sketch.orientations",
        part.orientations,
        _WAVELETS_HELD * wavelets * frequencies + 24.0 * folded + _MAPPED * held * at_once,
        once + 4 / 3 * folded * sets / _DECOMPOSED_FLOPS + 10 * passes / FLOPS,
    )
