"""Convolutions and transposed convolutions, of one to three spatial dimensions, grouped or not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsw.mathematics.clipping.rules.rule import (
    Factored,
    Formed,
    Rule,
    Worst,
    all_but_cancelling,
    forming_is_cheaper,
    inner_products,
    met,
    outer_cost,
    outer_gram,
    reach_of_sites,
    tiled,
    tiles,
    times,
    total_squares,
    trains,
)

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

# Both kinds have the weight gradient  W[l, c, k] = sum_t sites[l, t] source[c, stride t + dilation k],
# with (sites, source) = (backprop, padded input), and (input, padded backprop) if transposed.


def _gram(layer: Convolution, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    n, d = a.shape[0], len(deltas)
    gram = torch.zeros((n, d, d), dtype=torch.float64, device=a.device)
    if trains(layer, "weight") and n:
        kernel, floats = outer_cost(*_sizes(layer, a, deltas[0]), d)

        def part_gram(part: slice) -> Tensor:
            if layer.transposed:
                fixed = _sites(layer, a[part])
                moving = [_windows(layer, _source(layer, a, delta[part]), a) for delta in deltas]
            else:
                fixed = _windows(layer, _source(layer, a[part], deltas[0]), deltas[0])
                moving = [_sites(layer, delta[part]) for delta in deltas]
            return outer_gram(fixed.mT, [delta.mT for delta in moving], kernel=kernel)

        gram = gram + tiled(n, floats * layer.groups, a.device, part_gram)
    if trains(layer, "bias"):
        gram = gram + inner_products([delta.flatten(2).sum(2, dtype=torch.float64) for delta in deltas])
    return gram


def _gradient(layer: Convolution, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    sums = {}
    if trains(layer, "weight"):
        places = a if layer.transposed else delta
        shape = (layer.groups, places.shape[1] // layer.groups, layer.weight.numel() // places.shape[1])
        total = sums["weight"] = torch.zeros(shape, dtype=torch.float64, device=a.device)
        for part in tiles(a.shape[0], _floats(layer, a, delta, 1), a.device):
            left = _sites(layer, times(factors[part], places[part]))
            right = _windows(layer, _source(layer, a[part], delta[part]), places).mT
            for group in range(layer.groups):
                # The products (n, o, T) by (n, T, p) of all records, added as one product.
                if a.device.type == "cpu":
                    total[group].addbmm_(left[:, group], right[:, group])
                else:
                    total[group].addmm_(left[:, group].transpose(0, 1).flatten(1), right[:, group].flatten(0, 1))
    if trains(layer, "bias"):
        sums["bias"] = factors @ delta.flatten(2).sum(2)
    return sums


def _rows(layer: Convolution, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """W of every record by its own product; the windows of the input are taken once for all backprops."""
    rows = {}
    if trains(layer, "weight"):
        if layer.transposed:
            sites = _sites(layer, a)
            pairs = [(sites, _windows(layer, _source(layer, a, delta), a)) for delta in deltas]
        else:
            windows = _windows(layer, _source(layer, a, deltas[0]), deltas[0])
            pairs = [(_sites(layer, delta), windows) for delta in deltas]
        rows["weight"] = [torch.matmul(sites, windows.mT).flatten(1) for sites, windows in pairs]
    if trains(layer, "bias"):
        rows["bias"] = [delta.flatten(2).sum(2) for delta in deltas]
    return rows


def _floats(layer: Convolution, a: Tensor, delta: Tensor, d: int) -> int:
    """Numbers of the windows and of d products of one record."""
    sites, shared, varying = _sizes(layer, a, delta)
    windows = sites * layer.groups * (varying if layer.transposed else shared)
    return windows + sites * layer.groups * min(shared, varying) + d * layer.weight.numel()


def _cheaper(layer: Convolution, a: Tensor, delta: Tensor, d: int) -> bool:
    return forming_is_cheaper(*_sizes(layer, a, delta), d, copied=math.prod(layer.kernel_size) > 1)


def _sizes(layer: Convolution, a: Tensor, delta: Tensor) -> tuple[int, int, int]:
    """Sites, and per group the width of what all backprops share and of what each brings along."""
    places = a if layer.transposed else delta
    narrow, wide = places.shape[1] // layer.groups, layer.weight[:1].numel()
    return math.prod(places.shape[2:]), *((narrow, wide) if layer.transposed else (wide, narrow))


def _reach(layer: Convolution, a: Tensor, delta: Tensor) -> Tensor:
    # Every entry meets each tap once, or, where the padding repeats it, at most twice along an axis.
    times = math.prod(layer.kernel_size) * 4 ** len(layer.stride)
    return reach_of_sites(layer, total_squares(a).mul_(times), delta, sites=met(delta.movedim(1, -1)).sum(1))


def _source(layer: Convolution, a: Tensor, delta: Tensor) -> Tensor:
    """The tensor that the kernel slides over, padded (or cropped) to what its windows cover."""
    pads: list[int] = []
    for axis in reversed(range(len(layer.stride))):
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        if layer.transposed:
            left = int(layer.padding[axis])
            covered = (a.shape[2 + axis] - 1) * layer.stride[axis] + reach + 1
            pads += [left, covered - left - delta.shape[2 + axis]]
        elif isinstance(layer.padding, str):
            total = reach if layer.padding == "same" else 0
            pads += [total // 2, total - total // 2]
        else:
            pads += [int(layer.padding[axis])] * 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(delta if layer.transposed else a, pads, mode=mode)


def _windows(layer: Convolution, source: Tensor, places: Tensor) -> Tensor:
    """(n, C, ...) to (n, groups, C/groups * kernel, T), one column for every place the kernel stops at."""
    axes = len(layer.stride)
    windows = source
    for axis in range(axes):
        length = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        windows = windows.unfold(2 + axis, length, layer.stride[axis])[..., :: layer.dilation[axis]]
        windows = windows.narrow(2 + axis, 0, places.shape[2 + axis])
    n, width = source.shape[0], source.shape[1] // layer.groups
    sites, taps = math.prod(places.shape[2:]), math.prod(layer.kernel_size)
    ordered = windows.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    return ordered.reshape(n, layer.groups, width * taps, sites)


def _sites(layer: Convolution, values: Tensor) -> Tensor:
    """(n, C, ...) to (n, groups, C/groups, T)."""
    n, width, sites = values.shape[0], values.shape[1] // layer.groups, math.prod(values.shape[2:])
    return values.reshape(n, layer.groups, width, sites)


def _worst(layer: Convolution) -> list[Worst]:
    """An image so large that the kernel stops at several places, also where padding crops what is made of it."""
    sides = []
    for axis, stride in enumerate(layer.stride):
        padding = 0 if isinstance(layer.padding, str) else int(layer.padding[axis])
        sides.append(layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1 + stride + 2 * padding)
    shape = (layer.in_channels, *sides)
    cancelling = Worst(layer, all_but_cancelling(*shape), "sites that nearly cancel")
    return [Worst(layer, torch.ones(1, *shape), "an image of one shade"), cancelling]


CONVOLUTION = Rule(
    least_dims=lambda layer: 2 + len(layer.stride),
    factored=Factored(
        gram=_gram,
        gradient=_gradient,
        reach=_reach,
        # numbers that are 0 hide nothing, as those do that fill sequences up to the longest one
        sizes=lambda layer, a, delta: sum((part != 0).flatten(1).sum(1, dtype=torch.float64) for part in (a, delta)),
    ),
    formed=Formed(rows=_rows, floats=_floats, cheaper=_cheaper),
    worst=_worst,
)
