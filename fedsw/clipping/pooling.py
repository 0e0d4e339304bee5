"""Means over windows that do not overlap, for which torch's own kernels take several times as long in every pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_MOST = 16  # numbers in a window, each of which takes one pass over the output


def applies(layer: nn.Module) -> bool:
    """Whether the layer is a mean over small windows that do not overlap, as torch computes it."""
    return (
        type(layer) is nn.AvgPool2d
        and "forward" not in vars(layer)
        and _pair(layer.kernel_size) == _pair(layer.stride)
        and _pair(layer.padding) == (0, 0)
        and math.prod(_pair(layer.kernel_size)) <= _MOST
        and not layer.ceil_mode
        and layer.divisor_override is None
    )


def means(layer: nn.AvgPool2d, images: Tensor) -> Tensor:
    """What the layer returns for images (n, C, H, W), up to the order of its sums; torch's own for anything else."""
    kernel = _pair(layer.kernel_size)
    if images.dim() != 4 or images.shape[2] < kernel[0] or images.shape[3] < kernel[1]:
        return nn.AvgPool2d.forward(layer, images)
    result: Tensor = _Means.apply(images, kernel)  # type: ignore[no-untyped-call]
    return result


class _Means(torch.autograd.Function):
    """Keeps its input as torch's own does, though nothing reads it: a checkpointed layer runs torch's own again."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(images)
        ctx.kernel, ctx.shape = kernel, images.shape
        first, *others = _taps(images, kernel)
        total = first.clone(memory_format=torch.contiguous_format)
        for tap in others:
            total.add_(tap)
        return total.div_(math.prod(kernel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors  # which lets a checkpoint run
        (gradient,) = gradients
        whole = all(size % k == 0 for size, k in zip(ctx.shape[2:], ctx.kernel, strict=True))
        pulled = (gradient.new_empty if whole else gradient.new_zeros)(ctx.shape)
        own = gradient / math.prod(ctx.kernel)
        for tap in _taps(pulled, ctx.kernel):
            tap.copy_(own)
        return pulled, None


def _taps(images: Tensor, kernel: tuple[int, int]) -> Iterator[Tensor]:
    """The numbers at each place of the windows, as views (n, C, H // kernel, W // kernel)."""
    high, wide = kernel
    rows, columns = images.shape[2] // high * high, images.shape[3] // wide * wide
    for i, j in itertools.product(range(high), range(wide)):
        yield images[:, :, i:rows:high, j:columns:wide]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
