"""The type of a layer's rule, and the products and costs that rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Floats in one temporary; larger batches are cut into tiles, so that nothing of size n x d x r ever exists. A tile of a
# processor stays in its cache; elsewhere few large kernels are quicker.
TILE, ACCELERATOR_TILE = 2**20, 2**26


def tiled(n: int, floats_per_record: int, device: torch.device, part_gram: Callable[[slice], Tensor]) -> Tensor:
    """Concatenate `part_gram` over slices of the n records, with temporaries near the size of a tile: (n, ...)."""
    grams = [part_gram(part) for part in tiles(n, floats_per_record, device)]
    return grams[0] if len(grams) == 1 else torch.cat(grams)


def tiles(n: int, floats_per_record: int, device: torch.device) -> list[slice]:
    """The n records in slices, with temporaries near the size of a device's tile: at least one."""
    tile = TILE if device.type == "cpu" else ACCELERATOR_TILE
    rows = max(1, tile // max(1, floats_per_record))
    return [slice(start, min(start + rows, n)) for start in range(0, max(n, 1), rows)]


def inner_products(rows: Sequence[Tensor]) -> Tensor:
    """Gram matrices (n, d, d) of d tensors, records first."""
    n, d = rows[0].shape[0], len(rows)
    flat = [row.reshape(n, -1 if n else 0) for row in rows]
    if d == 1:
        return squared_norms(flat[0]).reshape(n, 1, 1)

    if d == 2:
        return _pair(*flat)

    def part_gram(part: slice) -> Tensor:
        first = flat[0][part]
        stacked = torch.empty((first.shape[0], d, first.shape[1]), dtype=torch.float64, device=first.device)
        for r, row in enumerate(flat):
            stacked[:, r] = row[part]
        return torch.bmm(stacked, stacked.mT)

    return tiled(n, d * flat[0].shape[1], flat[0].device, part_gram)


def _pair(first: Tensor, second: Tensor) -> Tensor:
    """Gram matrices (n, 2, 2) of two columns, converted once: bmm would take longer to stack them than all of this."""
    one, other = first.to(torch.float64), second.to(torch.float64)
    squares = squared_norms(one), squared_norms(other)
    across = torch.mul(one, other, out=None if one is first else one).sum(1)
    return torch.stack([squares[0], across, across, squares[1]], 1).reshape(-1, 2, 2)


def squared_norms(rows: Tensor) -> Tensor:
    """Squared norms (n,) of rows (n, width), each summed in float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms.square_()


def total_squares(values: Tensor) -> Tensor:
    """Squared norms (n,) of everything that belongs to a record, summed in float64."""
    return squared_norms(values.reshape(values.shape[0], values.shape[1:].numel()))


def outer_gram(shared: Tensor, varying: Sequence[Tensor], *, kernel: bool) -> Tensor:
    """Gram matrices of J_r = sum_t v_r(t) s(t)^T, by the kernel s(t).s(t') or by forming the small J_r.

    Sums over sites can cancel, so both are in float64: their error stays far below eta times the Gram matrix.
    ``shared`` is s (n, blocks, T, p), ``varying`` d tensors v_r (n, blocks, T, o).
    """
    d, (n, blocks, sites, wide) = len(varying), varying[0].shape
    s = shared.to(torch.float64)
    v = torch.stack([column.to(torch.float64) for column in varying], dim=3)
    if kernel:
        flat = v.reshape(n, blocks, sites, d * wide)
        weighted = ((s @ s.mT) @ flat).reshape(v.shape)
        left, right = _by_row(v), _by_row(weighted)
        gram = torch.bmm(left, right.mT)
        return (gram + gram.mT) / 2
    jacobian = v.reshape(n, blocks, sites, d * wide).mT @ s
    rows = _by_row(jacobian.reshape(n, blocks, 1, d, wide * s.shape[-1]))
    return torch.bmm(rows, rows.mT)


def _by_row(values: Tensor) -> Tensor:
    """(n, blocks, T, d, o) to (n, d, blocks T o)."""
    n, d = values.shape[0], values.shape[3]
    return values.permute(0, 3, 1, 2, 4).reshape(n, d, values.shape[1] * values.shape[2] * values.shape[4])


# Time of one operation relative to a multiplication of a float32 matrix product (0.03 ns of a core with AVX-512), as
# measured for convolutions of 1 to 64 channels on images of side 7 to 32.
_DOUBLE = 2.5  # a multiplication of a float64 matrix product
_COPIED = 12.0  # a number copied, into windows or to another precision
_DOUBLE_COPIED = 25.0  # the same, for float64 windows


def outer_cost(sites: int, shared: int, varying: int, d: int) -> tuple[bool, int]:
    """Say whether the site-by-site kernel is cheaper than the small Jacobian, and how many floats a record takes.

    For J_r = sum over T sites of v_r(t) s(t)^T, with s in R^shared and v_r in R^varying, the kernel costs
    T^2 (shared + d varying) multiplications and the Jacobian T d varying shared.
    """
    kernel, jacobian = _kernel(sites, shared, varying, d), _jacobian(sites, shared, varying, d)
    factors = sites * (shared + 3 * d * varying)
    return kernel < jacobian, factors + (sites * sites if kernel < jacobian else 2 * d * varying * shared)


def forming_is_cheaper(sites: int, shared: int, varying: int, d: int, *, copied: bool) -> bool:
    """Say whether forming J_1 ... J_d once, to measure and add them, takes less time than working with their factors.

    Factors are multiplied three times in float64, for the Gram matrix of d columns, for that of what leaves and for the
    sum; formed rows once, in the model's precision, and what leaves is copied to float64.
    ``copied`` factors are windows, which are copied out of an image each time; the others as in `outer_cost`.
    """
    entries = shared * varying
    formed = d * sites * entries + _COPIED * ((d + 2) * entries + copied * sites * shared) + _DOUBLE * d * d * entries
    factored = _DOUBLE * (
        min(_kernel(sites, shared, varying, d), _jacobian(sites, shared, varying, d))
        + min(_kernel(sites, shared, varying, 1), _jacobian(sites, shared, varying, 1))
        + sites * entries
    )
    return formed < factored + 3 * _DOUBLE_COPIED * (copied * sites * shared + sites * d * varying)


def _kernel(sites: int, shared: int, varying: int, d: int) -> int:
    return sites * sites * (shared + d * varying) + d * d * sites * varying


def _jacobian(sites: int, shared: int, varying: int, d: int) -> int:
    return d * varying * shared * (sites + d)


@dataclass(frozen=True)
class Factored:
    """The products of a layer's per-sample Jacobian J_i that are taken from its factors, without forming it.

    All see exactly the same factors, the input of the layer and the backprops at its output, so what is
    released is built from what was measured. Frozen parameters are left out of all.

    Attributes:
        gram: (layer, input, d backprops) to the Gram matrices (n, d, d) of the layer's parameters, float64.
        gradient: (layer, input, backprop, factors) to the sum over records, each times its factor (n,), by parameter
            name; all of it finite and in float64. It may overwrite input and backprop.
        reach: (layer, input, backprop) to squared bounds (n,), float64, on the norms of all products that a record's
            part is a sum of, which may cancel; None if there is nothing to cancel.
        sizes: of (layer, input, backprop) how many numbers of a record have a part in them: (n,), or one for all.
        shared: (layer, input) to squares (n,), float64, such that the Gram matrices are those times inner products of
            backprops; None if they are no such products.
        apart: (layer, input, backprop, factors, owner (n,) of every record, S) to sums (S, ...) as `gradient`, of each
            owner's records apart; None if that takes no less time than one after the other.
    """

    gram: Callable[[Any, Tensor, Sequence[Tensor]], Tensor]
    gradient: Callable[[Any, Tensor, Tensor, Tensor], dict[str, Tensor]]
    reach: Callable[[Any, Tensor, Tensor], Tensor | None]
    shared: Callable[[Any, Tensor], Tensor | None] = lambda layer, a: None
    apart: Callable[[Any, Tensor, Tensor, Tensor, Tensor, int], dict[str, Tensor]] | None = None
    sizes: Callable[[Any, Tensor, Tensor], Tensor | int] = lambda layer, a, delta: a[:1].numel() + delta[:1].numel()

    def measured(self, layer: Any, a: Tensor, deltas: Sequence[Tensor], shared: Tensor | None) -> Tensor:
        """As `gram`, (n, d, d), given what `shared` says of the input (n, ...): measured once, for columns and sums."""
        if shared is None:
            return self.gram(layer, a, deltas)
        return inner_products(deltas).mul_(shared.reshape(-1, 1, 1))


@dataclass(frozen=True)
class Formed:
    """The rows of a layer's per-sample Jacobians, formed for some records at a time.

    Of (layer, input, d backprops), ``rows`` are d (n, numbers of the parameter) by name, in the factors' precision,
    without frozen parameters; ``floats`` the numbers that forming d rows of one record takes, and ``cheaper`` whether
    that takes less time than the factors.
    """

    rows: Callable[[Any, Tensor, Sequence[Tensor]], dict[str, list[Tensor]]]
    floats: Callable[[Any, Tensor, Tensor, int], int]
    cheaper: Callable[[Any, Tensor, Tensor, int], bool]


@dataclass(frozen=True)
class Worst:
    """A module around one layer, and a record's input (1, ...) of it, where the layer's rule may most easily be wrong.

    Either neighbour has this input, with backprops of opposite signs; ``why`` says in words what is worst about it.
    """

    module: nn.Module
    input: Tensor
    why: str


@dataclass(frozen=True)
class Rule:
    """Rule to measure and add the per-sample Jacobians of a kind of layer: by their factors, formed, or either.

    Below ``least_dims`` input dimensions the layer would read across records; ``refusal`` says why an instance is not
    supported; no parameters but these may be trained, or those that ``held`` names of a layer. ``worst`` makes the
    worst neighbours of such a layer, which may be changed; a rule without them is not attacked.

    A layer that applies its parameters where no hook sees them, or several times, has ``calls``: of (layer, take) they
    make a forward pass of the same values, which takes note of each map with parameters by the rule of that map. It
    ``contains`` its modules if they are not called in that pass, and hold no other parameters than the layer.

    Inputs are ``ragged`` if the longest record of a batch decides how many sites all have: a pass with such a call is
    measured by factors, as which way is cheaper would follow from that record.
    """

    least_dims: Callable[[Any], int]
    factored: Factored | None = None
    formed: Formed | None = None
    refusal: Callable[[Any], str | None] = lambda layer: None
    parameters: tuple[str, ...] = ("weight", "bias")
    worst: Callable[[Any], Sequence[Worst]] | None = None
    calls: Callable[[Any, Take], Callable[..., Any]] | None = None
    held: Callable[[Any], tuple[str, ...]] | None = None
    contains: bool = False
    ragged: bool = False

    def owned(self, layer: nn.Module) -> tuple[str, ...]:
        """Names of the layer's own parameters that the rule measures."""
        return self.parameters if self.held is None else self.held(layer)


Take = Callable[[Any, Rule, Tensor, Tensor], None]
"""Takes note of (part of a layer, its rule, input (n, ...), output (n, ...)) in a forward pass."""


@dataclass(frozen=True, eq=False)
class Bare:
    """A parameter of any shape that is added to something of every record: its gradient is the backprop there."""

    bias: Tensor
    places: Mapping[str, tuple[Tensor, int]]

    @staticmethod
    def of(parameter: Tensor) -> Bare:
        """The whole of a parameter of any shape."""
        return Bare(parameter, {"bias": (parameter, 0)})


def _bare_rows(part: Bare, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """Sums of each backprop over the axes along which the parameter was repeated."""
    dims = deltas[0].dim()
    shape = part.bias.shape if part.bias.dim() < dims else part.bias.shape[1:]
    shape_kept = (len(a), *[1] * (dims - 1 - len(shape)), *shape)
    return {"bias": [delta.sum_to_size(shape_kept).reshape(len(a), part.bias.numel()) for delta in deltas]}


BARE = Rule(
    least_dims=lambda part: 1,
    formed=Formed(
        rows=_bare_rows,
        floats=lambda part, a, delta, d: (d + 1) * delta[:1].numel(),
        cheaper=lambda part, a, delta, d: True,
    ),
    parameters=("bias",),
)
"""The rule of `Bare` parameters."""


def trains(layer: Any, name: str) -> bool:
    """Say whether the layer has a parameter of this name that receives gradient."""
    parameter = getattr(layer, name, None)
    return parameter is not None and bool(parameter.requires_grad)


def all_but_cancelling(*shape: int) -> Tensor:
    """One record's input (1, *shape): its entries along the last axis nearly cancel each other, pair by pair."""
    places = torch.arange(torch.Size(shape).numel())
    signs = 1.0 - 2.0 * (places % 2)
    return (signs * (1.0 + _NEARLY * places)).reshape(1, *shape)


_NEARLY = 2.0**-10  # the part of a pair that is left where its sites cancel; float32 still has it


def reach_of_sites(layer: Any, inputs: Tensor, delta: Tensor, *, sites: Tensor | int) -> Tensor:
    """A `Factored.reach` by Cauchy and Schwarz over sites, of squared norms (n,) of inputs, which are overwritten."""
    reach = inputs if trains(layer, "weight") else torch.zeros_like(inputs)
    return reach.add_(sites if trains(layer, "bias") else 0).mul_(total_squares(delta))


def met(delta: Tensor) -> Tensor:
    """The sites (n, T) of backprops (n, ..., width) that are not all 0: a record's own, however long a batch makes all.

    What is measured of a record may not follow from other records' lengths, not even what rounding may hide.
    """
    return (delta != 0).any(-1).flatten(1)


def times(factors: Tensor, values: Tensor) -> Tensor:
    """Values (n, ...) of every record times its factor (n,)."""
    return values * factors.reshape(-1, *[1] * (values.dim() - 1))
