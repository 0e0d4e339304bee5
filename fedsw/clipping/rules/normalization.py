"""LayerNorm, RMSNorm and GroupNorm: the per-sample Jacobian of scale and shift is no larger than an activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsw.clipping.rules.products import inner_products
from fedsw.clipping.rules.rule import Rule, reach_of_sites, trains


def _rule(standardise: Callable[[Any, Tensor], Tensor], reduce: Callable[[Any, Tensor], Tensor]) -> Rule:
    """Rule of y = w * standardise(x) + b, where `reduce` sums (n, ...) over what shares an entry of w."""

    def rows(layer: Any, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
        parts = {}
        if trains(layer, "weight"):
            normal = standardise(layer, a).to(torch.float64)
            parts["weight"] = [reduce(layer, normal * delta) for delta in deltas]
        if trains(layer, "bias"):
            parts["bias"] = [reduce(layer, delta.to(torch.float64)) for delta in deltas]
        return parts

    def gram(layer: Any, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
        return sum(
            (inner_products(part) for part in rows(layer, a, deltas).values()),
            torch.zeros((a.shape[0], len(deltas), len(deltas)), dtype=torch.float64, device=a.device),
        )

    def gradient(layer: Any, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
        return {
            name: (factors @ part[0].flatten(1)).reshape(getattr(layer, name).shape)
            for name, part in rows(layer, a, [delta]).items()
        }

    def reach(layer: Any, a: Tensor, delta: Tensor) -> Tensor:
        size = delta.shape[1:].numel()
        squares = torch.full((len(delta),), 2.0 * size, dtype=torch.float64, device=delta.device)
        return reach_of_sites(layer, squares, delta, sites=size)  # standardised: a mean square of 1, rounding aside

    return Rule(
        gram=gram,
        gradient=gradient,
        reach=reach,
        least_dims=lambda layer: 1 + len(layer.normalized_shape) if isinstance(layer, nn.LayerNorm | nn.RMSNorm) else 2,
    )


def _layer_standardise(layer: nn.LayerNorm, a: Tensor) -> Tensor:
    return F.layer_norm(a, layer.normalized_shape, eps=layer.eps)


def _layer_reduce(layer: nn.LayerNorm | nn.RMSNorm, values: Tensor) -> Tensor:
    shared = values.dim() - len(layer.normalized_shape)
    return values.sum(tuple(range(1, shared))) if shared > 1 else values


def _rms_standardise(layer: nn.RMSNorm, a: Tensor) -> Tensor:
    # Without a number of its own the layer takes that of its type, which the rule's float64 copy of the input is not.
    eps = torch.finfo(layer.weight.dtype).eps if layer.eps is None else layer.eps
    return F.rms_norm(a, list(layer.normalized_shape), eps=eps)


def _group_standardise(layer: nn.GroupNorm, a: Tensor) -> Tensor:
    return F.group_norm(a, layer.num_groups, eps=layer.eps)


def _group_reduce(layer: nn.GroupNorm, values: Tensor) -> Tensor:
    return values.flatten(2).sum(2) if values.dim() > 2 else values


LAYER_NORM = _rule(_layer_standardise, _layer_reduce)
RMS_NORM = _rule(_rms_standardise, _layer_reduce)
GROUP_NORM = _rule(_group_standardise, _group_reduce)
