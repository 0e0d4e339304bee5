"""The linear layer behind hats of columns, which reads a place in every column: by gather and scatter.

`HatLinear` is the layer; `HATS` its rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.mathematics.clipping.rules.rule import Factored, Rule, Worst, inner_products, total_squares, trains

_MOST_BITS, _WHOLE = 24, 30
"""Binary digits of a part, which float32 has too; and of a slot with its part, which int32 has."""
_TILE, _FEW = 4096, 512
"""Records that are scattered and written together: few enough to stay in the cache."""


class HatLinear(nn.Module):
    """A linear layer of h, or of (h - centre) matrix, where two numbers of h a column are not 0 and are never written.

    A place u = k + f in a column of B units stands for the hats ``scale`` (1 - f) at unit k and ``scale`` f at unit
    k + 1; the place B for none. ``weight`` (d, w) and ``bias`` (d,) are those of a linear layer of all w units, column
    after column, with or without the map.

    A record's inputs are q + 1 whole numbers of 32 bits, as `inputs` makes them: for every column a slot, and the part
    of the way to the next; and the bits of the float32 that is minus the squared length of h, or of (h - centre)
    matrix, or of a little more. No number leads beyond the slots; slot 0 is unused, and the last number, as one below
    0, leads there. THE LENGTH IS BELIEVED: measuring it behind a map takes more time than all else, so `write` and
    `measure` do it once for a record.

    Source: docs/guarantees/clipping.md.
    """

    first: Tensor
    last: Tensor
    none: Tensor
    units: Tensor
    centre: Tensor | None
    matrix: Tensor | None

    def __init__(
        self,
        by_column: Sequence[int],
        scale: float,
        outputs: int,
        *,
        centre: Tensor | None = None,
        matrix: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.columns, self.scale = len(by_column), scale
        sizes = torch.tensor(by_column)
        starts = (sizes + 1).cumsum(0) - sizes  # a slot a unit, and one a column that stands for none
        self.slots = int(sizes.sum()) + self.columns + 2
        self.bits = min(_MOST_BITS, _WHOLE - self.slots.bit_length())
        slots = [start + unit for start, size in zip(starts.tolist(), by_column, strict=True) for unit in range(size)]
        self.register_buffer("first", starts.to(torch.int32) << self.bits, persistent=False)
        self.register_buffer("none", (starts + sizes).to(torch.int32), persistent=False)
        self.register_buffer("last", sizes, persistent=False)
        self.register_buffer("units", torch.tensor(slots), persistent=False)
        self.register_buffer("centre", None if centre is None else centre.double(), persistent=False)
        self.register_buffer("matrix", None if matrix is None else matrix.double(), persistent=False)
        self.weight = nn.Parameter(torch.zeros((outputs, len(slots)), dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))
        longest, spread = scale * math.sqrt(self.columns), 1.0
        if self.centre is not None and self.matrix is not None:
            longest += float(torch.linalg.vector_norm(self.centre))
            spread = float(torch.linalg.matrix_norm(self.matrix))
        self.reach = 1.0 + (longest * spread) ** 2
        """At least the squared norm of all that a record's numbers and the 1 of the bias are sums of."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HatLinear:
        """Leave the map in the precision in which lengths were measured behind it, whatever parameters become."""
        centre, matrix = self.centre, self.matrix
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.centre, self.matrix = centre, matrix
        return self

    def write(self, places: Tensor, inputs: Tensor) -> None:
        """Put what the layer takes for finite places (n, q), each cut to its column, into `inputs` (n, q + 1)."""
        within = torch.minimum(places.clamp(min=0.0), self.last.to(places.dtype)).mul_(2.0**self.bits)
        inputs[:, :-1].copy_(within).add_(self.first)
        self.measure(inputs)

    def inputs(self, places: Tensor) -> Tensor:
        """The layer's inputs (n, q + 1), int32, of places (n, q)."""
        inputs = torch.empty((len(places), self.columns + 1), dtype=torch.int32)
        self.write(places, inputs)
        return inputs

    def measure(self, inputs: Tensor) -> None:
        """Put the squared lengths behind this layer's map, never rounded down, into inputs (n, q + 1)."""
        squares = self._lengths(inputs) if self.matrix is None else self._lengths_behind(inputs)
        rounded = squares.float()
        larger = rounded.nextafter(torch.full_like(rounded, math.inf))
        inputs[:, -1] = torch.where(rounded < squares, larger, rounded).neg_().view(torch.int32)

    def _lengths(self, inputs: Tensor) -> Tensor:
        slot, part = self._parts(inputs, torch.float64)
        part.div_(2**self.bits)
        columns = (slot[:, :-1] != self.none).sum(1)
        return columns.sub(part.mul_(1 - part)[:, :-1].sum(1), alpha=2.0).mul_(self.scale**2)

    def _lengths_behind(self, inputs: Tensor) -> Tensor:
        assert self.centre is not None and self.matrix is not None
        by_slot = self.matrix.new_zeros((self.slots, self.matrix.shape[1])).index_copy(0, self.units, self.matrix)
        offset = self.centre @ self.matrix
        pieces = [self._written(rows, torch.float64) @ by_slot for rows in torch.split(inputs, _FEW)]
        return torch.cat([piece.sub_(offset).square_().sum(1) for piece in pieces])

    def hats(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """All w numbers h (n, w) of inputs (n, q + 1)."""
        return self._written(inputs, dtype).index_select(1, self.units)

    def _written(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        slot, part = self._parts(inputs, dtype)
        slot, part = slot[:, :-1].long(), part[:, :-1].mul_(self.scale / 2**self.bits)
        written = part.new_zeros((len(inputs), self.slots)).scatter_(1, slot, self.scale - part)
        return written.scatter_add_(1, slot.add_(1), part)

    def _parts(self, inputs: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        read = _HatSlots(self, len(inputs), dtype)
        read(inputs)
        return read.slot, read.part

    def squares(self, inputs: Tensor) -> Tensor:
        """Squared lengths (n,), float64, that inputs (n, q + 1) carry; what is none counts as infinite."""
        lengths = inputs[:, -1].contiguous().view(torch.float32).double().neg_()
        return torch.where(lengths >= 0, lengths, math.inf)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (n, d) of inputs (n, q + 1)."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.centre is not None and self.matrix is not None:
            mapped = weight.double() @ self.matrix.T
            weight, bias = mapped.to(weight.dtype), (bias.double() - mapped @ self.centre).to(weight.dtype)
        heights = weight.new_zeros((len(weight), self.slots)).index_copy(1, self.units, self.scale * weight)
        rises = (heights.roll(-1, 1) - heights) / 2**self.bits
        outputs: Tensor = _Gathered.apply(heights, rises, inputs, self)  # type: ignore[no-untyped-call]
        return outputs + bias


class _HatSlots:
    """Slots and parts of a block of records at a time, in memory that is allocated once.

    After a call ``slot`` (n, q + 1), int32, is the lower unit of every place, and ``part`` (n, q + 1) how far to the
    next it is, times 2^bits; the last ones are 0.
    """

    def __init__(self, layer: HatLinear, records: int, dtype: torch.dtype) -> None:
        self._most, self._bits, self._mask = (layer.slots - 2) << layer.bits, layer.bits, (1 << layer.bits) - 1
        self._slots = torch.empty((records, layer.columns + 1), dtype=torch.int32)
        self._places = torch.empty_like(self._slots)
        self._parts = torch.empty_like(self._slots, dtype=dtype)

    def __call__(self, inputs: Tensor) -> None:
        """Read inputs (n, q + 1)."""
        count = len(inputs)
        places, self.slot, self.part = self._places[:count], self._slots[:count], self._parts[:count]
        torch.clamp(inputs, 0, self._most, out=places)
        torch.bitwise_right_shift(places, self._bits, out=self.slot)
        self.part.copy_(places.bitwise_and_(self._mask))


class _Gathered(torch.autograd.Function):
    """Outputs (n, d) of tables (d, slots): heights at the lower units, and rises times parts, summed over columns.

    Nothing but the inputs is kept for a backward pass.
    """

    @staticmethod
    def forward(ctx: Any, heights: Tensor, rises: Tensor, inputs: Tensor, layer: HatLinear) -> Tensor:
        ctx.layer, ctx.inputs = layer, inputs
        read = _HatSlots(layer, min(len(inputs), _TILE), heights.dtype)
        outputs = heights.new_empty((len(inputs), len(heights)))
        at, rise = (torch.empty_like(read._parts) for _ in range(2))
        ones = heights.new_ones(at.shape[1])
        for rows, made in zip(torch.split(inputs, _TILE), torch.split(outputs, _TILE), strict=True):
            read(rows)
            at, rise = at[: len(rows)], rise[: len(rows)]
            for height, by, column in zip(heights, rises, made.T, strict=True):
                # torch gathers single numbers several times as fast as rows of them
                torch.index_select(height, 0, read.slot.reshape(-1), out=at.reshape(-1))
                torch.index_select(by, 0, read.slot.reshape(-1), out=rise.reshape(-1))
                column.copy_(at.addcmul_(rise, read.part) @ ones)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,) = gradients
        whole, moved = _scattered(ctx.layer, ctx.inputs, gradient.double(), None, 1)
        return whole[:, 0].to(gradient.dtype), moved[:, 0].to(gradient.dtype), None, None


def _shared(layer: HatLinear, a: Tensor) -> Tensor:
    squares = layer.squares(a) if trains(layer, "weight") else torch.zeros(len(a), dtype=torch.float64, device=a.device)
    return squares.add_(1.0) if trains(layer, "bias") else squares


def _gram(layer: HatLinear, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    return inner_products(deltas).mul_(_shared(layer, a).reshape(-1, 1, 1))


def _gradient(layer: HatLinear, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    return {name: sums[0] for name, sums in _apart(layer, a, delta, factors, None, 1).items()}


def _apart(
    layer: HatLinear, a: Tensor, delta: Tensor, factors: Tensor, owners: Tensor | None, count: int
) -> dict[str, Tensor]:
    weighed, sums = delta.mul_(factors.unsqueeze(1)), {}
    biases = weighed.sum(0, keepdim=True)
    if owners is not None:
        biases = weighed.new_zeros((count, weighed.shape[1])).index_add_(0, owners, weighed)
    if trains(layer, "bias"):
        sums["bias"] = biases
    if trains(layer, "weight"):
        whole, moved = _scattered(layer, a, weighed, owners, count)
        moved /= 2**layer.bits
        total = (whole - moved + moved.roll(1, 2)).index_select(2, layer.units).mul_(layer.scale).transpose(0, 1)
        if layer.centre is not None and layer.matrix is not None:
            total = (total - biases.unsqueeze(2) * layer.centre) @ layer.matrix
        sums["weight"] = total
    return sums


def _scattered(
    layer: HatLinear, inputs: Tensor, weights: Tensor, owners: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """Sums (d, S, slots) of weights (n, d) by owner and the slots of all columns, and of weights times parts.

    In the order of records, in float64.
    """
    shape = (weights.shape[1], count * layer.slots)
    whole, moved = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    read = _HatSlots(layer, min(len(inputs), _TILE), torch.float64)
    slots, terms = torch.empty_like(read._parts, dtype=torch.int64), torch.empty_like(read._parts)
    starts = None if owners is None else torch.split((owners * layer.slots).unsqueeze(1), _TILE)
    for tile, (rows, weighed) in enumerate(zip(torch.split(inputs, _TILE), torch.split(weights, _TILE), strict=True)):
        read(rows)
        slots, terms = slots[: len(rows)], terms[: len(rows)]
        slots.copy_(read.slot)
        slot = (slots if starts is None else slots.add_(starts[tile])).reshape(-1)
        for column, weight in enumerate(weighed.T.unsqueeze(2)):
            whole[column].scatter_add_(0, slot, terms.copy_(weight).reshape(-1))
            moved[column].scatter_add_(0, slot, torch.mul(read.part, weight, out=terms).reshape(-1))
    return whole.reshape(shape[0], count, -1), moved.reshape(shape[0], count, -1)


def _reach(layer: HatLinear, a: Tensor, delta: Tensor) -> Tensor:
    return total_squares(delta).mul_(layer.reach)


_HIDDEN, _WIDENED = 2.0**-12, 2.0**14  # what is left of the record is 4 times as long as it was


def _worst(layer: HatLinear) -> list[Worst]:
    """A record on two knots of every column, where hats are shortest: as they are, and where a map changes lengths.

    A map about nearly this record hides it, and is so wide that what is left is longer than it was.
    """
    places = (layer.last - 1).clamp(max=1).unsqueeze(0) / 2.0
    plain = HatLinear(layer.last.tolist(), layer.scale, len(layer.bias), dtype=layer.weight.dtype)
    hats = plain.hats(plain.inputs(places), torch.float64)[0]
    about, wide = (1 - _HIDDEN) * hats, _WIDENED * torch.eye(len(hats), dtype=torch.float64)
    behind = HatLinear(
        layer.last.tolist(), layer.scale, len(layer.bias), centre=about, matrix=wide, dtype=layer.weight.dtype
    )
    words = "on two knots of every column"
    return [
        Worst(plain, plain.inputs(places), words),
        Worst(behind, behind.inputs(places), f"{words}, nearly hidden by a wide map"),
    ]


HATS = Rule(
    least_dims=lambda layer: 2,
    factored=Factored(gram=_gram, gradient=_gradient, reach=_reach, shared=_shared, apart=_apart),
    worst=_worst,
)
