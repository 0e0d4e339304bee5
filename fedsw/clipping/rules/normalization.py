"""LayerNorm, RMSNorm and GroupNorm: the per-sample Jacobian of scale and shift is no larger than an activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fedsw.clipping.rules.rule import Formed, Rule, trains


def _rule(standardise: Callable[[Any, Tensor], Tensor], reduce: Callable[[Any, Tensor], Tensor]) -> Rule:
    """Rule of y = w * standardise(x) + b, where `reduce` sums (n, ...) over what shares an entry of w."""

    def rows(layer: Any, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
        formed = {}
        if trains(layer, "weight"):
            normal = standardise(layer, a)
            formed["weight"] = [reduce(layer, normal * delta).flatten(1) for delta in deltas]
        if trains(layer, "bias"):
            formed["bias"] = [reduce(layer, delta).flatten(1) for delta in deltas]
        return formed

    return Rule(
        least_dims=lambda layer: 1 + len(layer.normalized_shape) if isinstance(layer, nn.LayerNorm | nn.RMSNorm) else 2,
        formed=Formed(
            rows=rows, floats=lambda layer, a, delta, d: 3 * a[:1].numel(), cheaper=lambda layer, a, delta, d: True
        ),
    )


def _layer_standardise(layer: nn.LayerNorm, a: Tensor) -> Tensor:
    return F.layer_norm(a, layer.normalized_shape, eps=layer.eps)


def _layer_reduce(layer: nn.LayerNorm | nn.RMSNorm, values: Tensor) -> Tensor:
    shared = values.dim() - len(layer.normalized_shape)
    return values.sum(tuple(range(1, shared))) if shared > 1 else values


def _rms_standardise(layer: nn.RMSNorm, a: Tensor) -> Tensor:
    return F.rms_norm(a, list(layer.normalized_shape), eps=layer.eps)


def _group_standardise(layer: nn.GroupNorm, a: Tensor) -> Tensor:
    return F.group_norm(a, layer.num_groups, eps=layer.eps)


def _group_reduce(layer: nn.GroupNorm, values: Tensor) -> Tensor:
    return values.flatten(2).sum(2) if values.dim() > 2 else values


LAYER_NORM = _rule(_layer_standardise, _layer_reduce)
RMS_NORM = _rule(_rms_standardise, _layer_reduce)
GROUP_NORM = _rule(_group_standardise, _group_reduce)
