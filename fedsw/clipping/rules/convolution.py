"""Convolutions and transposed convolutions, of one to three spatial dimensions, grouped or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsw.clipping.rules.products import (
    TILE,
    inner_products,
    outer_cost,
    outer_gram,
    stacked_gram,
    tiled,
    total_squares,
)
from fedsw.clipping.rules.rule import Rule, reach_of_sites, times, trains

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

# Both kinds have the weight gradient  W[l, c, k] = sum_t sites[l, t] source[c, stride t + dilation k],
# with (sites, source) = (backprop, padded input), and (input, padded backprop) if transposed.


def _gram(layer: Convolution, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    n, d = a.shape[0], len(deltas)
    gram = torch.zeros((n, d, d), dtype=torch.float64, device=a.device)
    if trains(layer, "weight") and n:
        gram = gram + _weight_gram(layer, a, deltas)
    if trains(layer, "bias"):
        gram = gram + inner_products([each.flatten(2).sum(2, dtype=torch.float64) for each in deltas])
    return gram


def _weight_gram(layer: Convolution, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    places = a if layer.transposed else deltas[0]
    sites = math.prod(places.shape[2:])
    narrow = places.shape[1] // layer.groups
    wide = layer.weight[:1].numel()
    shared, varying = (narrow, wide) if layer.transposed else (wide, narrow)
    kernel, floats = outer_cost(sites, shared, varying, len(deltas))

    def plane_gram(part: slice) -> Tensor:
        return stacked_gram([each[part].flatten(2) for each in deltas], _plane_windows(layer, a[part], deltas[0]))

    def part_gram(part: slice) -> Tensor:
        if layer.transposed:
            fixed = _site_rows(layer, a[part])
            moving = [_window_rows(layer, _source(layer, a, each[part]), a) for each in deltas]
        else:
            fixed = _window_rows(layer, _source(layer, a[part], deltas[0]), deltas[0])
            moving = [_site_rows(layer, each[part]) for each in deltas]
        return outer_gram(fixed, moving, kernel=kernel)

    plane = _is_plane(layer) and not kernel
    return tiled(a.shape[0], floats * layer.groups, plane_gram if plane else part_gram)


def _is_plane(layer: Convolution) -> bool:
    """Whether torch's own unfolding gives the windows."""
    return isinstance(layer, nn.Conv2d) and layer.groups == 1


def _plane_windows(layer: Any, a: Tensor, delta: Tensor) -> Tensor:
    """(n, C, H, W) to (n, C * kernel, T), float64."""
    return F.unfold(_source(layer, a, delta).to(torch.float64), layer.kernel_size, layer.dilation, 0, layer.stride)


def _gradient(layer: Convolution, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    sums = {}
    if trains(layer, "weight"):
        sums["weight"] = _weight_sum(layer, a, delta, factors)
    if trains(layer, "bias"):
        sums["bias"] = factors @ delta.flatten(2).sum(2)
    return sums


def _weight_sum(layer: Convolution, a: Tensor, delta: Tensor, factors: Tensor) -> Tensor:
    """Sum over records of W, each times its factor, some records at a time."""
    places = a if layer.transposed else delta
    floats = math.prod(places.shape[2:]) * (places.shape[1] + layer.weight[:1].numel() * layer.groups)
    rows, wide = max(1, TILE // max(1, floats)), places.shape[1] // layer.groups
    shape = (layer.groups, wide, layer.weight.numel() // places.shape[1])
    total = torch.zeros(shape, dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[0], rows):
        part = slice(start, start + rows)
        left = _site_rows(layer, times(factors[part], places[part])).mT
        if _is_plane(layer):
            right = _plane_windows(layer, a[part], delta).mT.unsqueeze(1)
        else:
            right = _window_rows(layer, _source(layer, a[part], delta[part]), places)
        for group, sums in enumerate(total):
            sums.addbmm_(left[:, group], right[:, group])
    return total


def _reach(layer: Convolution, a: Tensor, delta: Tensor) -> Tensor:
    # Every entry meets each tap once, or, where the padding repeats it, at most twice along an axis.
    times = math.prod(layer.kernel_size) * 4 ** len(layer.stride)
    return reach_of_sites(layer, total_squares(a).mul_(times), delta, sites=math.prod(delta.shape[2:]))


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


def _window_rows(layer: Convolution, source: Tensor, places: Tensor) -> Tensor:
    """(n, C, ...) to (n, groups, T, C/groups * kernel), one row for every place the kernel stops at."""
    axes = len(layer.stride)
    windows = source
    for axis in range(axes):
        length = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        windows = windows.unfold(2 + axis, length, layer.stride[axis])[..., :: layer.dilation[axis]]
        windows = windows.narrow(2 + axis, 0, places.shape[2 + axis])
    n, width = source.shape[0], source.shape[1] // layer.groups
    sites, taps = math.prod(places.shape[2:]), math.prod(layer.kernel_size)
    grouped = windows.reshape(n, layer.groups, width, *windows.shape[2:]).movedim(2, 2 + axes)
    return grouped.reshape(n, layer.groups, sites, width * taps)


def _site_rows(layer: Convolution, values: Tensor) -> Tensor:
    """(n, C, ...) to (n, groups, T, C/groups)."""
    n, width, sites = values.shape[0], values.shape[1] // layer.groups, math.prod(values.shape[2:])
    return values.reshape(n, layer.groups, width, sites).transpose(2, 3)


def _least_dims(layer: Any) -> int:
    return 2 + len(layer.stride)


CONVOLUTION = Rule(gram=_gram, gradient=_gradient, least_dims=_least_dims, reach=_reach)
