"""Linear layers, on vectors and on sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsw.clipping.rules.costs import forming_is_cheaper, outer_cost
from fedsw.clipping.rules.products import inner_products, outer_gram, squared_norms, tiled, total_squares
from fedsw.clipping.rules.rule import Factored, Formed, Rule, reach_of_sites, times, trains


def _gram(layer: nn.Linear, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    if a.dim() == 2:
        squares = squared_norms(a) if trains(layer, "weight") else a.new_zeros(a.shape[0], dtype=torch.float64)
        scale = squares.add_(1.0) if trains(layer, "bias") else squares
        return inner_products(deltas).mul_(scale.reshape(-1, 1, 1))
    n = a.shape[0]
    gram = torch.zeros((n, len(deltas), len(deltas)), dtype=torch.float64, device=a.device)
    if trains(layer, "weight"):
        gram = gram + _sequence_gram(_sites(a), [_sites(delta) for delta in deltas])
    if trains(layer, "bias"):
        gram = gram + inner_products([_sites(delta).sum(2, dtype=torch.float64) for delta in deltas])
    return gram


def _gradient(layer: nn.Linear, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    sums = {}
    if a.dim() == 2 and layer.in_features < layer.out_features:
        # The narrower factor is scaled, and leads: the product of transposes takes a multiple of the time.
        scaled = [times(factors, a)] if trains(layer, "weight") else []
        total = (torch.cat([*scaled, factors.unsqueeze(1)], dim=1).T @ delta).T
        if trains(layer, "bias"):
            sums["bias"] = total[:, -1]
        if scaled:
            sums["weight"] = total[:, :-1]
        return sums
    delta = times(factors, delta).reshape(-1, layer.out_features)
    if trains(layer, "weight"):
        sums["weight"] = delta.T @ a.reshape(-1, layer.in_features)
    if trains(layer, "bias"):
        sums["bias"] = delta.sum(0)
    return sums


def _reach(layer: nn.Linear, a: Tensor, delta: Tensor) -> Tensor | None:
    if a.dim() == 2:
        return None
    return reach_of_sites(layer, total_squares(a), delta, sites=delta.shape[1:].numel() // layer.out_features)


def _sequence_gram(a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    kernel, floats = outer_cost(a.shape[2], a.shape[3], deltas[0].shape[3], len(deltas))
    return tiled(a.shape[0], floats, lambda part: outer_gram(a[part], [each[part] for each in deltas], kernel=kernel))


def _rows(layer: nn.Linear, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """The weight's part of every record of a sequence, by its own product."""
    rows, inputs = {}, _sites(a)[:, 0]
    varying = [_sites(each)[:, 0] for each in deltas]
    if trains(layer, "weight"):
        rows["weight"] = [torch.bmm(each.mT, inputs).flatten(1) for each in varying]
    if trains(layer, "bias"):
        rows["bias"] = [each.sum(1) for each in varying]
    return rows


def _cheaper(layer: nn.Linear, a: Tensor, delta: Tensor, d: int) -> bool:
    sites = delta[:1].numel() // layer.out_features
    return a.dim() > 2 and forming_is_cheaper(sites, layer.in_features, layer.out_features, d, copied=False)


def _sites(values: Tensor) -> Tensor:
    """(n, ..., width) to (n, 1, T, width)."""
    n, width = values.shape[0], values.shape[-1]
    return values.reshape(n, 1, values[:1].numel() // width if n else 0, width)


LINEAR = Rule(
    least_dims=lambda layer: 2,
    factored=Factored(gram=_gram, gradient=_gradient, reach=_reach),
    formed=Formed(rows=_rows, floats=lambda layer, a, delta, d: d * layer.weight.numel(), cheaper=_cheaper),
)
