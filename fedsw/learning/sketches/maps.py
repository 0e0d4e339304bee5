"""Public maps that features go through before they are sketched: cosines, convolutions, scattering."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.learning.models.initial import require_positive
from fedsw.mathematics.clipping import magnitudes, unchanged
from fedsw.mathematics.transport.denoise import cosine_matrix, image_side


@runtime_checkable
class FeatureMap(Protocol):
    """Settings of a map from features (n, p) to features (n, q) that depends on public numbers only.

    A sketch is bounded whatever the map is, so a public encoder may be one: `built` returns any module that maps every
    row by itself.
    """

    def width(self, features: int) -> int:
        """q, of p features."""

    def built(self, features: int, stream: Stream) -> nn.Module:
        """A differentiable module (n, p) -> (n, q), its fixed numbers as float64 buffers."""


Seen = dict[Hashable, Tensor]
"""Outputs of shared maps for one batch of rows, by the maps' keys."""


class SharedMap(nn.Module, ABC):
    """A drawn map that several parts may look through: of one batch it is computed once.

    Maps of equal keys make the same of the same rows.
    """

    key: Hashable

    @abstractmethod
    def of(self, rows: Tensor, seen: Seen) -> Tensor:
        """Its features (n, q) of rows (n, p); what other maps made of these rows is read from `seen`, or left there."""

    def forward(self, rows: Tensor) -> Tensor:
        """Its features (n, q) of rows (n, p)."""
        return self.of(rows, {})


def looked(drawn: nn.Module, rows: Tensor, seen: Seen | None) -> Tensor:
    """Features (n, q) that a drawn map makes of rows (n, p); computed anew where `seen` is None or lacks them."""
    if seen is None or not isinstance(drawn, SharedMap):
        features: Tensor = drawn(rows)
        return features
    if drawn.key not in seen:
        seen[drawn.key] = drawn.of(rows, seen)
    return seen[drawn.key]


@dataclass(frozen=True)
class Raw:
    """Features as they are."""

    def width(self, features: int) -> int:
        """An unchanged number."""
        return features

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The identity, of features (n, p)."""
        return nn.Identity()


@dataclass(frozen=True)
class Cosine:
    """Orthonormal two-dimensional cosine coefficients (DCT-II) of square images, low frequencies weighted higher.

    Coefficient (r, s) is divided by (1 + r + s)^decay; 0 keeps distances, so that a Gaussian kernel is the same as on
    pixels. ValueError if the decay is negative or not finite.
    """

    decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"decay = {self.decay}; it must be finite and at least 0")

    def width(self, features: int) -> int:
        """As many coefficients as pixels; ValueError if they are not square images."""
        return image_side(features) ** 2

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The transform of images (n, side^2)."""
        return _Cosines(image_side(features), self.decay)


@dataclass(frozen=True)
class Convolutions:
    """One layer of fixed random convolutions of square images, then the absolute value and a mean over 2x2 pixels.

    Filters, with a ``kernel`` of odd side, are drawn from a standard normal, without their mean, and scaled to norm 1.
    With ``shifts`` the image is moved up to that many pixels each way, over zeros, and the mean over all moves is
    taken. ValueError if a size is below 1, the kernel even or 1, or the shifts negative.
    """

    filters: int = 16
    kernel: int = 5
    stride: int = 1
    shifts: int = 0

    def __post_init__(self) -> None:
        require_positive(filters=self.filters, stride=self.stride)
        if self.kernel < 3 or self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel}; filters without their mean have an odd side of at least 3")
        if self.shifts < 0:
            raise ValueError(f"shifts = {self.shifts}; it must be at least 0")

    def width(self, features: int) -> int:
        """Numbers that are left of an image; ValueError if the features are not square images."""
        return self.filters * math.ceil(math.ceil(image_side(features) / self.stride) / 2) ** 2

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The layer, of images (n, side^2); the filters come from the stream."""
        shape = (self.filters, 1, self.kernel, self.kernel)
        normals = torch.from_numpy(stream.normals(math.prod(shape))).reshape(shape)
        return _Convolved(normals, image_side(features), self.stride, self.shifts)


_TRIED_ROWS = 3
_MIXED = 1e-4  # relative to numbers of a row's size; a map may compute in float32


@dataclass(frozen=True)
class OwnMap:
    """A map of a user's own, by the name and arguments, as JSON, that it was made with; two maps of the same are one.

    What it gives is bounded by the waves that look at it, whatever it is; that it maps every row by itself is tried on
    made-up rows.
    """

    name: str
    arguments: str
    made: FeatureMap = field(compare=False)

    def width(self, features: int) -> int:
        """Return the width that the user's map states."""
        return int(self.made.width(features))

    def built(self, features: int, stream: Stream) -> nn.Module:
        """Its module, in evaluation mode, with fixed parameters.

        ValueError if it gives another shape than it says, or mixes rows.
        """
        module = self.made.built(features, stream).double().eval().requires_grad_(False)
        rows = torch.from_numpy(Stream.seeded(0, "made-up rows").uniforms(_TRIED_ROWS * features))
        rows = rows.reshape(_TRIED_ROWS, features)
        together = module(rows)
        expected = (_TRIED_ROWS, self.width(features))
        if tuple(together.shape) != expected:
            raise ValueError(f"map {self.name!r} gives {tuple(together.shape)} of {_TRIED_ROWS} rows, not {expected}")
        for tried in ([rows], *magnitudes([rows])):
            if not _treats_rows_apart(module, tried[0]):
                raise ValueError(f"map {self.name!r} mixes rows: what it gives of one depends on the others")
        return module


def _treats_rows_apart(module: nn.Module, rows: Tensor) -> bool:
    """True if a map gives of rows together what it gives of each by itself, or refuses such rows."""
    try:
        with unchanged(module):
            together = module(rows)
    except Exception:  # the user's own code, on values that it may not be made for
        return True
    for row, value in zip(torch.split(rows, 1), together, strict=True):
        with unchanged(module):
            alone = module(row)[0]
        rounding = _MIXED * (1 + 1e-3 * float(row.abs().amax()))
        if not torch.allclose(value, alone, rtol=_MIXED, atol=rounding, equal_nan=True):
            return False
    return True


class _Cosines(nn.Module):
    def __init__(self, side: int, decay: float) -> None:
        super().__init__()
        order = torch.arange(side, dtype=torch.float64)
        self.side = side
        self.basis: Tensor
        self.scale: Tensor
        self.register_buffer("basis", cosine_matrix(side))
        self.register_buffer("scale", (1 + order + order.unsqueeze(1)) ** -decay)

    def forward(self, images: Tensor) -> Tensor:
        squares = images.reshape(-1, self.side, self.side)
        return (self.basis @ squares @ self.basis.T * self.scale).reshape(images.shape)


class _Convolved(nn.Module):
    def __init__(self, normals: Tensor, side: int, stride: int, shifts: int) -> None:
        super().__init__()
        self.side, self.stride, self.shifts = side, stride, shifts
        filters = normals - normals.mean(dim=(2, 3), keepdim=True)
        self.filters: Tensor
        self.register_buffer("filters", filters / torch.linalg.vector_norm(filters, dim=(2, 3), keepdim=True))

    def forward(self, images: Tensor) -> Tensor:
        squares = images.reshape(-1, 1, self.side, self.side)
        if not self.shifts:
            return self._pooled(squares)
        moved = _moved(squares, self.shifts)
        total = self._pooled(moved[0])
        for images_moved in moved[1:]:
            total = total + self._pooled(images_moved)
        return total / len(moved)

    def _pooled(self, squares: Tensor) -> Tensor:
        padding = self.filters.shape[-1] // 2
        pooled = F.conv2d(squares, self.filters, stride=self.stride, padding=padding).abs()
        return F.avg_pool2d(pooled, 2, ceil_mode=True).flatten(1)


def _moved(squares: Tensor, shifts: int) -> list[Tensor]:
    """Images (n, 1, side, side), moved over zeros by every number of pixels up to `shifts` each way."""
    side = squares.shape[-1]
    wide = F.pad(squares, (shifts,) * 4)
    places = range(2 * shifts + 1)
    return [wide[:, :, row : row + side, column : column + side] for row in places for column in places]


_TURN = 2 * math.pi
_FOLDS = 3
"""Whole turns on either side, to add up their Gaussians: the next ones are below the last digit."""


@dataclass(frozen=True)
class Scattering:
    """Local means of an image and of the moduli of its wavelet coefficients, on a grid of places 2^scales apart.

    Order 0 is the low-passed image, order 1 the low-passed modulus |x * psi| for every scale and orientation, order 2
    that of ||x * psi| * psi'| for every psi' of a larger scale. They hardly change if the image moves by a pixel.

    The map is non-expansive, ||S x - S y|| <= ||x - y||, on real images: see `filter_bank`, and for the proof
    docs/guarantees/sketches.md. Images stand among zeros, at least 2^scales of them between opposite edges.

    Wavelets are of 1, 2, .. 2^(scales - 1) pixels, their orientations evenly spaced over half a turn; coefficients are
    kept up to the order. ValueError if a number is below 1, the order neither 1 nor 2, or 2 with one scale only.

    Sources: Mallat 2012; Bruna and Mallat 2013 (images, non-expansiveness).
    """

    scales: int = 2
    orientations: int = 4
    order: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        require_positive(scales=self.scales, orientations=self.orientations)
        if self.order not in (1, 2):
            raise ValueError(f"order = {self.order}; it is 1 or 2, and holds the orders below it")
        if self.order == 2 and self.scales < 2:
            raise ValueError("order = 2 with one scale: it looks at larger scales than that of order 1; take 2 scales")

    def width(self, features: int) -> int:
        """Numbers of an image; ValueError if the features are not square images, or its side is below 2^scales."""
        single = self.scales * self.orientations
        pairs = self.orientations**2 * self.scales * (self.scales - 1) // 2 if self.order == 2 else 0
        return self._places(features) ** 2 * (1 + single + pairs)

    def built(self, features: int, stream: Stream) -> nn.Module:
        """The map of images (n, side^2): order 0, then 1, then 2; nothing comes from the stream."""
        return _Scattered(self, image_side(features), self._places(features))

    def _places(self, features: int) -> int:
        side, step = image_side(features), 1 << self.scales
        if step > side:
            raise ValueError(f"scales = {self.scales} for images of side {side}: 2^scales is at most the side")
        return math.ceil(side / step)


def circle_of(side: int, scales: int) -> int:
    """Pixels of the circle that an image of a side stands on among zeros, a multiple of 2^scales."""
    step = 1 << scales
    return step * (math.ceil(side / step) + 1)


def filter_bank(side: int, scales: int, orientations: int) -> tuple[Tensor, Tensor]:
    """Fourier transforms of a Gaussian low-pass along one axis, and of Morlet wavelets; all of them real.

    Wavelets are Gaussians of deviation 0.8 2^j with a wave of frequency 3 pi / 2^(j + 2), longer across it than along
    it for more than four orientations, less a Gaussian that makes their mean 0.

    Guarantee: the low-pass sampled every 2^scales pixels, times 2^scales, and all wavelets together have the norm 1 as
    a linear map of real images. Sampling folds 4^scales frequencies onto one; with v the low-pass there and b the means
    of psi(w)^2 and psi(-w)^2, summed over wavelets, the squared norm is the largest eigenvalue of v v' + diag(b) over
    all such sets of frequencies. All filters are divided by its root: the Littlewood-Paley sum, with the folding in it.

    Images stand on a circle of M pixels, the ``side``, a multiple of 2^scales; the filters, (M,) and (scales,
    orientations, M, M), float64, are at the frequencies 2 pi k / M.

    Source: the constants are those of Kymatio (Andreux et al. 2020).
    """
    axis = torch.arange(side, dtype=torch.float64) * (_TURN / side)
    turns = torch.arange(-_FOLDS, _FOLDS + 1, dtype=torch.float64) * _TURN
    line = axis.unsqueeze(1) + turns
    low = torch.exp(-0.5 * (0.8 * 2 ** (scales - 1) * line).square()).sum(dim=1)
    waves = torch.stack(
        [
            torch.stack([_morlet(line, j, math.pi * turn / orientations, orientations) for turn in range(orientations)])
            for j in range(scales)
        ]
    )
    mirrored = waves.flip(2, 3).roll((1, 1), (2, 3))
    passed = _folded(low.unsqueeze(1) * low, scales)
    energy = _folded((waves.square() + mirrored.square()).sum(dim=(0, 1)) / 2, scales)
    grams = passed.unsqueeze(2) * passed.unsqueeze(1) + torch.diag_embed(energy)
    most = float(torch.linalg.eigvalsh(grams).max())
    return low / most**0.25, waves / math.sqrt(most)


def _folded(plane: Tensor, scales: int) -> Tensor:
    """Numbers at all frequencies (M, M), by the sets (sets, 4^scales) that sampling folds onto one."""
    step, left = 2**scales, len(plane) // 2**scales
    return plane.reshape(step, left, step, left).permute(1, 3, 0, 2).reshape(left**2, step**2)


def _morlet(line: Tensor, scale: int, angle: float, orientations: int) -> Tensor:
    """One wavelet (M, M), from the frequencies (M, folds) of an axis."""
    deviation, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    across = deviation / min(1.0, 4 / orientations)
    cosine, sine = math.cos(angle), math.sin(angle)
    rows, columns = line.reshape(len(line), 1, -1, 1), line.reshape(1, len(line), 1, -1)
    along, beside = cosine * rows + sine * columns, cosine * columns - sine * rows

    def folded(centre: float) -> Tensor:
        squares = (deviation * (along - centre)).square() + (across * beside).square()
        return torch.exp(-0.5 * squares).sum(dim=(2, 3))

    wave, plain = folded(frequency), folded(0.0)
    return wave - wave[0, 0] / plain[0, 0] * plain


class _Scattered(nn.Module):
    def __init__(self, chosen: Scattering, side: int, places: int) -> None:
        super().__init__()
        step, around = 2**chosen.scales, circle_of(side, chosen.scales)
        low, waves = filter_bank(around, chosen.scales, chosen.orientations)
        kernel = torch.fft.ifft(low).real * math.sqrt(step)
        # A place is the middle of a square of 2^scales pixels: the image begins half a square after the first place.
        centres = torch.arange(1, places + 1).unsqueeze(1) * step
        self.order, self.side, self.around, self.first = chosen.order, side, around, step // 2
        self.low: Tensor
        self.waves: Tensor
        self.register_buffer("low", kernel[(centres - torch.arange(around)) % around])
        self.register_buffer("waves", waves)

    def forward(self, images: Tensor) -> Tensor:
        squares = images.reshape(-1, self.side, self.side)
        after = self.around - self.side - self.first
        squares = nn.functional.pad(squares, (self.first, after, self.first, after))
        first, second = [self._means(squares)], []
        spectrum = torch.fft.fft2(squares).unsqueeze(1)
        for scale, waves in enumerate(self.waves):
            moduli = torch.fft.ifft2(spectrum * waves).abs()
            first.append(self._means(moduli))
            if self.order == 2 and scale + 1 < len(self.waves):
                again = torch.fft.fft2(moduli).unsqueeze(2)
                second += [self._means(torch.fft.ifft2(again * later).abs()) for later in self.waves[scale + 1 :]]
        return torch.cat(first + second, dim=1)

    def _means(self, planes: Tensor) -> Tensor:
        """The low-passed planes (n, ..., M, M) at the places, (n, numbers)."""
        return (self.low @ planes @ self.low.T).flatten(1)
